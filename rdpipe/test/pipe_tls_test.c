/* SPDX-License-Identifier: Apache-2.0 */
/* Tests TLS with a key: a peer with the key is accepted, and nobody can read or change bytes in
 * transit. */
#include "pipe_ends.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "hop/bundle.h"
#include "tls/libssl_end.h"
#include "hop/tls.h"

#define BYTES ((size_t)3 << 20)
#define MARK "what nobody on the way may read"

/* A proxy between the two sides, which inspects the bytes and may change one of them. */
typedef struct {
    int client, server; /* our ends */
    pthread_t thread;
    _Atomic uint64_t passed;
    uint64_t flip_at; /* which byte from client to server is changed, or 0 if none */
    bool has_seen;
} wire_t;

static bool carry(wire_t *wire, int from, int to)
{
    uint8_t data[16384];
    ssize_t n = recv(from, data, sizeof data, MSG_DONTWAIT);

    if (n <= 0)
        return n < 0;
    wire->has_seen |= memmem(data, (size_t)n, MARK, sizeof MARK - 1) != NULL;
    if (from == wire->client) {
        uint64_t at = atomic_load(&wire->passed);

        if (wire->flip_at >= at && wire->flip_at < at + (uint64_t)n && wire->flip_at > 0)
            data[wire->flip_at - at] ^= 1;
        atomic_store(&wire->passed, at + (uint64_t)n);
    }
    for (ssize_t done = 0, m; done < n; done += m) {
        m = send(to, data + done, (size_t)(n - done), MSG_NOSIGNAL);
        if (m < 0)
            return false;
    }
    return true;
}

static void *run_wire(void *argument)
{
    wire_t *wire = argument;
    bool is_up = true, is_down = true;

    while (is_up || is_down) {
        struct pollfd polled[2] = {{.fd = is_up ? wire->client : -1, .events = POLLIN},
                                   {.fd = is_down ? wire->server : -1, .events = POLLIN}};

        (void)poll(polled, 2, 10);
        if (polled[0].revents && !carry(wire, wire->client, wire->server)) {
            is_up = false;
            (void)shutdown(wire->server, SHUT_WR);
        }
        if (polled[1].revents && !carry(wire, wire->server, wire->client)) {
            is_down = false;
            (void)shutdown(wire->client, SHUT_WR);
        }
    }
    return NULL;
}

#define GOOD "the key of both sides"

/* One side of the connection, with a thread for its handshake. */
typedef struct {
    int socket;
    bool done;
    rd_tls_t *tls;
    rd_tls_result_t result;
    rd_why_t why;
    pthread_t thread;
} tls_side_t;

static void *shake(void *argument)
{
    tls_side_t *side = argument;

    side->done = side->tls &&
                 rd_tls_connect(side->tls, -1, rd_now_ms() + LONG_MS, &side->result, &side->why);
    if (!side->done)
        (void)shutdown(side->socket, SHUT_RDWR);
    return NULL;
}

typedef struct {
    wire_t wire;
    tls_side_t client, server;
} both_t;

static bool prefers_aes[2] = {true, true};

static bool open_both(both_t *both, const char *client_key, const char *server_key,
                      uint64_t flip_at)
{
    int one[2], other[2];
    rd_key_t keys[2] = {key_of(client_key), key_of(server_key)};

    *both = (both_t){.wire = {.flip_at = flip_at}};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, one) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, other) < 0)
        return false;
    for (int i = 0; i < 2; i++)
        (void)fcntl(i ? one[1] : other[1], F_SETFL, 0); /* the proxy's reads block */
    both->wire.client = one[1];
    both->wire.server = other[1];
    both->client.socket = one[0];
    both->server.socket = other[0];
    both->client.tls = rd_tls_new(one[0], &keys[0], false, prefers_aes[0]);
    both->server.tls = rd_tls_new(other[0], &keys[1], true, prefers_aes[1]);
    if (pthread_create(&both->client.thread, NULL, shake, &both->client) != 0 ||
        pthread_create(&both->server.thread, NULL, shake, &both->server) != 0 ||
        pthread_create(&both->wire.thread, NULL, run_wire, &both->wire) != 0)
        return false;
    (void)pthread_join(both->client.thread, NULL);
    (void)pthread_join(both->server.thread, NULL);
    return both->client.done && both->server.done;
}

/* Does not close descriptors that a link has taken over, because they are no longer ours. */
static void close_both(both_t *both)
{
    tls_side_t *sides[2] = {&both->client, &both->server};

    for (int i = 0; i < 2; i++) {
        if (sides[i]->socket >= 0)
            close(sides[i]->socket);
        rd_tls_free(sides[i]->tls);
    }
    (void)pthread_join(both->wire.thread, NULL);
    close(both->wire.client);
    close(both->wire.server);
}

static bool open_link(tls_side_t *side, bw_link_t **link_p)
{
    rd_bundle_terms_t terms = {.out_bytes = 1 << 20, .in_bytes = 1 << 20, .most = 1};
    rd_why_t why;
    bool done =
        rd_bundle_open(&terms, link_p, &why) && rd_bundle_add(*link_p, side->socket, side->tls);

    side->socket = -1;
    side->tls = NULL;
    return done;
}

static uint8_t byte_at(size_t i)
{
    return i % 4096 < sizeof MARK - 1 ? (uint8_t)MARK[i % 4096] : (uint8_t)(i * 7 + i / 4096);
}

static void pause_for(bw_link_t *link)
{
    struct pollfd polled = {.fd = link->ops->fd(link), .events = POLLIN};

    (void)poll(&polled, 1, 1000);
    link->ops->clear_event(link);
}

/* Writes BYTES bytes and closes. */
static void *write_all(void *argument)
{
    bw_link_t *link = argument;
    int64_t deadline = rd_now_ms() + LONG_MS;

    for (size_t at = 0; at < BYTES && rd_left_ms(deadline) > 0;) {
        size_t len = BYTES - at < 5000 ? BYTES - at : 5000;
        bw_span_t span = {0};

        if (link->ops->reserve(link, len, &span) == BW_OK && span.len >= len) {
            for (size_t i = 0; i < len; i++)
                span.base[i] = byte_at(at + i);
            link->ops->commit(link, len);
            at += len;
        } else if (!link->ops->reason(link) && link->ops->arm_write(link, len) == BW_OK) {
            pause_for(link);
        } else if (link->ops->reason(link)) {
            break;
        }
    }
    link->ops->close(link, NULL);
    return NULL;
}

/* Returns how many bytes arrived until the end. *right_p is set to whether all of them were
 * correct. */
static size_t read_all(bw_link_t *link, bool *right_p)
{
    int64_t deadline = rd_now_ms() + LONG_MS;
    size_t at = 0;

    *right_p = true;
    while (rd_left_ms(deadline) > 0 && !link->ops->is_finished(link)) {
        bw_span_t span = {0};
        bw_status_t status = link->ops->peek(link, &span);

        if (status == BW_OK) {
            for (size_t i = 0; i < span.len; i++)
                *right_p = *right_p && span.base[i] == byte_at(at + i);
            at += span.len;
            link->ops->release(link, span.len);
        } else if (status != BW_AGAIN) {
            break;
        } else if (link->ops->arm_read(link) == BW_OK) {
            pause_for(link);
        }
    }
    return at;
}

static const char *reason_of_last; /* error of the receiver's link; a string literal */

/* Carries bytes over a link on both sides, and returns how many arrived. */
static size_t carry_all(both_t *both, bool *right_p, bool *finished_p)
{
    bw_link_t *from = NULL, *to = NULL;
    pthread_t writer;
    size_t got;

    if (!open_link(&both->client, &from) || !open_link(&both->server, &to) ||
        pthread_create(&writer, NULL, write_all, from) != 0)
        return 0;
    got = read_all(to, right_p);
    *finished_p = to->ops->is_finished(to);
    reason_of_last = to->ops->reason(to);
    to->ops->close(to, NULL);
    (void)pthread_join(writer, NULL);
    return got;
}

static void what_is_written_arrives(void)
{
    both_t both;
    bool right = false, finished = false;

    CHECK(open_both(&both, GOOD, GOOD, 0));
    CHECK_EQ(carry_all(&both, &right, &finished), BYTES);
    CHECK(right && finished);
    close_both(&both);
    CHECK(!both.wire.has_seen && both.wire.passed > BYTES);
}

static void sending_keys_are_replaced(void)
{
    both_t both;
    bool right = false, finished = false;

    CHECK(open_both(&both, GOOD, GOOD, 0));
    rd_tls_limit_key(both.client.tls, 3);
    CHECK_EQ(carry_all(&both, &right, &finished), BYTES);
    CHECK(right && finished);
    close_both(&both);
}

/* This proves that the proxy would have seen the text without TLS. */
static void the_wire_sees_what_is_plain(void)
{
    wire_t wire = {0};
    int one[2], other[2];
    char got[sizeof MARK];

    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, one) == 0 &&
          socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0);
    wire.client = one[1];
    wire.server = other[1];
    CHECK(pthread_create(&wire.thread, NULL, run_wire, &wire) == 0);
    CHECK(send(one[0], MARK, sizeof MARK, 0) == sizeof MARK);
    CHECK(recv(other[0], got, sizeof got, MSG_WAITALL) == sizeof got);
    close(one[0]);
    close(other[0]);
    (void)pthread_join(wire.thread, NULL);
    close(one[1]);
    close(other[1]);
    CHECK(wire.has_seen);
}

static void another_key_is_refused(void)
{
    both_t both;

    CHECK(!open_both(&both, GOOD, "the key of one side only", 0));
    CHECK(!both.client.done && !both.server.done);
    CHECK_EQ(both.server.result, RD_TLS_FAILED);
    CHECK_EQ(both.client.result, RD_TLS_REFUSED);
    close_both(&both);
}

static void what_is_changed_on_the_way_is_not_taken(void)
{
    both_t both;
    bool right = false, finished = true;

    CHECK(open_both(&both, GOOD, GOOD, 1000000));
    CHECK(carry_all(&both, &right, &finished) < 1000000);
    CHECK(right && !finished);
    CHECK(reason_of_last && strstr(reason_of_last, "changed, lost or repeated"));
    close_both(&both);
}

static void without_aes_it_is_chacha20(void)
{
    for (int i = 0; i < 4; i++) {
        both_t both;

        prefers_aes[0] = i & 1;
        prefers_aes[1] = i & 2;
        CHECK(open_both(&both, GOOD, GOOD, 0));
        CHECK(strcmp(rd_tls_suite(both.client.tls),
                     i == 3 ? "TLS_AES_128_GCM_SHA256" : "TLS_CHACHA20_POLY1305_SHA256") == 0);
        close_both(&both);
    }
}

/* A chunk of a bundle and its header are written to the socket with one call. */
static void a_chunk_is_one_batch(void)
{
    static uint8_t chunk[256 * 1024];
    both_t both;

    CHECK(open_both(&both, GOOD, GOOD, 0));
    CHECK(rd_tls_write(both.client.tls, MARK, sizeof MARK) == sizeof MARK);
    CHECK(rd_tls_write(both.client.tls, chunk, sizeof chunk) == sizeof chunk);
    close_both(&both);
}

/* Reading a message takes no bytes after it, because those may be unencrypted. */
static void nothing_is_read_ahead(void)
{
    both_t both;
    char got[sizeof MARK] = "";
    rd_why_t why;

    CHECK(open_both(&both, GOOD, GOOD, 0));
    CHECK(rd_tls_write_all(both.client.tls, "hello", 5, -1, rd_now_ms() + LONG_MS, &why));
    CHECK(send(both.client.socket, MARK, sizeof MARK, 0) == sizeof MARK);
    CHECK(rd_tls_read_all(both.server.tls, got, 5, -1, rd_now_ms() + LONG_MS, &why));
    CHECK(memcmp(got, "hello", 5) == 0);
    CHECK(rd_wait(both.server.socket, POLLIN, -1, rd_now_ms() + LONG_MS) == RD_READY);
    CHECK(recv(both.server.socket, got, sizeof MARK, 0) == sizeof MARK);
    CHECK(memcmp(got, MARK, sizeof MARK) == 0);
    close_both(&both);
}

/* Returns the context of a peer that has its own certificate, but not the key. */
static SSL_CTX *stranger(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = X509_new();
    X509_NAME *name = X509_get_subject_name(certificate);

    (void)X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"host", -1,
                                     -1, 0);
    (void)X509_set_issuer_name(certificate, name);
    (void)X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    (void)X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    (void)X509_set_pubkey(certificate, key);
    (void)X509_sign(certificate, key, EVP_sha256());
    if (SSL_CTX_use_certificate(context, certificate) != 1 ||
        SSL_CTX_use_PrivateKey(context, key) != 1) {
        SSL_CTX_free(context);
        context = NULL;
    }
    X509_free(certificate);
    EVP_PKEY_free(key);
    return context;
}

static void a_certificate_is_no_key(void)
{
    rd_key_t key = key_of(GOOD);
    SSL_CTX *context = stranger();
    SSL *server;
    rd_tls_t *client;
    rd_tls_result_t result = RD_TLS_WANTS_READ;
    int ends[2];

    CHECK(context && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    client = rd_tls_new(ends[0], &key, false, true);
    server = SSL_new(context);
    CHECK(client && server && SSL_set_fd(server, ends[1]) == 1);
    SSL_set_accept_state(server);
    for (int i = 0; i < 20 && result == RD_TLS_WANTS_READ; i++) {
        result = rd_tls_shake(client);
        if (result == RD_TLS_WANTS_READ)
            (void)SSL_do_handshake(server);
    }
    CHECK_EQ(result, RD_TLS_FAILED);
    CHECK(strstr(rd_tls_error(client), "certificate verify failed") != NULL);
    rd_tls_free(client);
    SSL_free(server);
    SSL_CTX_free(context);
    close(ends[0]);
    close(ends[1]);
}

/* ---- libssl for both the handshake and the records, at the other end ---- */

/* Echoes everything. Occasionally it updates its keys, and requests a key update from the peer. */
static void *echo(void *argument)
{
    SSL *ssl = argument;
    uint8_t data[20000];
    size_t n, m;

    for (int i = 1; SSL_read_ex(ssl, data, sizeof data, &n) == 1; i++)
        if ((i % 8 == 0 && !SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED)) ||
            SSL_write_ex(ssl, data, n, &m) != 1)
            break;
    if (SSL_get_error(ssl, 0) == SSL_ERROR_ZERO_RETURN)
        (void)SSL_shutdown(ssl);
    return NULL;
}

static void libssl_understands_us(const char *suites)
{
    bw_tls_psk_t psk = {.suite = BW_SUITE_AES_128_GCM_SHA256};
    rd_key_t key = key_of(GOOD);
    libssl_end_t peer;
    uint8_t out[20000], in[sizeof out];
    int ends[2];
    int64_t deadline = rd_now_ms() + LONG_MS;
    pthread_t thread;
    rd_tls_t *tls;
    rd_why_t why;
    size_t n;

    memcpy(psk.key, key.bytes, sizeof key.bytes);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    tls = rd_tls_new(ends[0], &key, false, true);
    CHECK(tls && libssl_open(&peer, ends[1], true, &psk, suites, 0));
    CHECK(pthread_create(&thread, NULL, echo, peer.ssl) == 0);
    CHECK(rd_tls_connect(tls, -1, deadline, NULL, &why));
    CHECK(strstr(suites, rd_tls_suite(tls)) == suites);
    rd_tls_stream(tls);
    rd_tls_limit_key(tls, 5);
    for (int i = 0; i < 50; i++) {
        for (size_t k = 0; k < sizeof out; k++)
            out[k] = byte_at(k + (size_t)i);
        CHECK(rd_tls_write_all(tls, out, sizeof out, -1, deadline, &why));
        CHECK(rd_tls_read_all(tls, in, sizeof in, -1, deadline, &why));
        CHECK(memcmp(in, out, sizeof out) == 0);
    }
    rd_tls_end(tls);
    CHECK_EQ(rd_tls_flush(tls), RD_TLS_DONE);
    (void)pthread_join(thread, NULL);
    CHECK_EQ(rd_tls_read(tls, in, sizeof in, &n), RD_TLS_ENDED);
    rd_tls_free(tls);
    libssl_close(&peer);
    close(ends[0]);
    close(ends[1]);
}

static void records_are_those_of_libssl(void)
{
    libssl_understands_us("TLS_AES_128_GCM_SHA256");
    libssl_understands_us("TLS_CHACHA20_POLY1305_SHA256");
}

static const check_case_t cases[] = {
    {"what is written arrives", what_is_written_arrives},
    {"sending keys are replaced", sending_keys_are_replaced},
    {"the wire sees what is plain", the_wire_sees_what_is_plain},
    {"another key is refused", another_key_is_refused},
    {"what is changed on the way is not taken", what_is_changed_on_the_way_is_not_taken},
    {"without AES it is ChaCha20", without_aes_it_is_chacha20},
    {"a chunk is one batch", a_chunk_is_one_batch},
    {"nothing is read ahead", nothing_is_read_ahead},
    {"a certificate is no key", a_certificate_is_no_key},
    {"records are those of libssl", records_are_those_of_libssl},
};

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN);
    check_each("", cases, sizeof cases / sizeof *cases, argc, argv);
    return check_end();
}
