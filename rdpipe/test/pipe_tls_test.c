/* SPDX-License-Identifier: Apache-2.0 */
/* TLS below a link: what is written arrives, nothing of it can be seen on its way or changed there.
 */
#include "pipe_ends.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <linux/sockios.h>

#include <openssl/ssl.h>

#define BYTES ((size_t)3 << 20)
#define MARK "what nobody on the way may read"

/* Between the two sides: looks at what passes, and may change one byte of it. */
typedef struct {
    int client, server; /* our ends */
    pthread_t thread;
    _Atomic uint64_t passed;
    uint64_t flip_at; /* the byte from client to server that is changed; 0: none */
    bool has_seen;
    _Atomic bool holds; /* takes nothing at the moment */
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

        if (atomic_load(&wire->holds)) {
            (void)poll(NULL, 0, 1);
            continue;
        }
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

/* One side of the connection, with a thread for its hands. */
typedef struct {
    int socket, plain;
    bool is_server, done;
    uint8_t key[RD_MAC_BYTES];
    rd_tls_t *tls;
    rd_why_t why;
    pthread_t thread;
} tls_side_t;

static void *shake(void *argument)
{
    tls_side_t *side = argument;

    side->done = rd_tls_start(side->socket, side->key, side->is_server, -1, rd_now_ms() + LONG_MS,
                              &side->tls, &side->plain, &side->why);
    close(side->socket);
    return NULL;
}

typedef struct {
    wire_t wire;
    tls_side_t client, server;
} both_t;

/* Of the client's socket; 0: as it comes. */
static int room_bytes;

static bool open_both(both_t *both, const char *client_key, const char *server_key,
                      uint64_t flip_at)
{
    int one[2], other[2];
    rd_key_t keys[2] = {key_of(client_key), key_of(server_key)};

    *both = (both_t){.wire = {.flip_at = flip_at}};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, one) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, other) < 0)
        return false;
    if (room_bytes > 0)
        (void)setsockopt(one[0], SOL_SOCKET, SO_SNDBUF, &room_bytes, sizeof room_bytes);
    both->wire.client = one[1];
    both->wire.server = other[1];
    both->client = (tls_side_t){.socket = one[0], .plain = -1};
    both->server = (tls_side_t){.socket = other[0], .plain = -1, .is_server = true};
    memcpy(both->client.key, keys[0].bytes, RD_MAC_BYTES);
    memcpy(both->server.key, keys[1].bytes, RD_MAC_BYTES);
    for (int i = 0; i < 2; i++) {
        tls_side_t *side = i ? &both->server : &both->client;

        (void)fcntl(side->socket, F_SETFL, O_NONBLOCK);
        if (pthread_create(&side->thread, NULL, shake, side) != 0)
            return false;
    }
    if (pthread_create(&both->wire.thread, NULL, run_wire, &both->wire) != 0)
        return false;
    (void)pthread_join(both->client.thread, NULL);
    (void)pthread_join(both->server.thread, NULL);
    return both->client.done && both->server.done;
}

static void close_side(tls_side_t *side)
{
    if (side->plain >= 0)
        close(side->plain);
    side->plain = -1;
    if (side->tls)
        rd_tls_end(side->tls);
    side->tls = NULL;
}

static void close_both(both_t *both)
{
    close_side(&both->client);
    close_side(&both->server);
    (void)pthread_join(both->wire.thread, NULL);
    close(both->wire.client);
    close(both->wire.server);
}

static uint8_t byte_at(size_t i)
{
    return i % 4096 < sizeof MARK - 1 ? (uint8_t)MARK[i % 4096] : (uint8_t)(i * 7 + i / 4096);
}

/* Writes BYTES bytes and ends its direction. */
static void *write_all(void *argument)
{
    const tls_side_t *side = argument;
    uint8_t piece[5000];
    struct pollfd room = {.fd = side->plain, .events = POLLOUT};

    for (size_t at = 0; at < BYTES;) {
        size_t len = BYTES - at < sizeof piece ? BYTES - at : sizeof piece;
        ssize_t n;

        for (size_t i = 0; i < len; i++)
            piece[i] = byte_at(at + i);
        n = send(side->plain, piece, len, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            break;
        if (n < 0)
            (void)poll(&room, 1, LONG_MS);
        at += n > 0 ? (size_t)n : 0;
    }
    (void)shutdown(side->plain, SHUT_WR);
    return NULL;
}

/* How many bytes came until the end, all of them right. */
static size_t read_all(const tls_side_t *side, bool *right_p)
{
    uint8_t piece[65536];
    struct pollfd more = {.fd = side->plain, .events = POLLIN};
    size_t at = 0;

    *right_p = true;
    for (;;) {
        ssize_t n = recv(side->plain, piece, sizeof piece, 0);

        if (n < 0 && errno == EAGAIN) {
            if (poll(&more, 1, LONG_MS) <= 0)
                return 0;
            continue;
        }
        if (n <= 0)
            return at;
        for (ssize_t i = 0; i < n; i++)
            *right_p = *right_p && piece[i] == byte_at(at + (size_t)i);
        at += (size_t)n;
    }
}

static void what_is_written_arrives(void)
{
    both_t both;
    pthread_t up, down;
    bool right;

    CHECK(open_both(&both, "the key of both sides", "the key of both sides", 0));
    CHECK(pthread_create(&up, NULL, write_all, &both.client) == 0);
    CHECK_EQ(read_all(&both.server, &right), BYTES);
    CHECK(right);
    (void)pthread_join(up, NULL);
    /* The other direction is still open. */
    CHECK(pthread_create(&down, NULL, write_all, &both.server) == 0);
    CHECK_EQ(read_all(&both.client, &right), BYTES);
    CHECK(right);
    (void)pthread_join(down, NULL);
    CHECK(!rd_tls_reason(both.client.tls) && !rd_tls_reason(both.server.tls));
    CHECK(!both.wire.has_seen && atomic_load(&both.wire.passed) > BYTES);
    close_both(&both);
}

/* So that the wire would have been seen through. */
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

    CHECK(!open_both(&both, "the key of both sides", "the key of one side only", 0));
    CHECK(!both.client.done && !both.server.done);
    CHECK(strncmp(both.server.why.text, "TLS: ", 5) == 0);
    CHECK(strncmp(both.client.why.text, "TLS: ", 5) == 0);
    close_both(&both);
}

static void what_is_changed_on_the_way_is_not_taken(void)
{
    both_t both;
    pthread_t up;
    bool right;

    CHECK(open_both(&both, "the key of both sides", "the key of both sides", 1000000));
    CHECK(pthread_create(&up, NULL, write_all, &both.client) == 0);
    CHECK(read_all(&both.server, &right) < 1000000);
    CHECK(right);
    CHECK(rd_tls_reason(both.server.tls) != NULL);
    close_side(&both.server);
    (void)pthread_join(up, NULL);
    close_both(&both);
}

/* What was written before a close has gone, as with a socket. */
static void a_close_sends_what_was_written(void)
{
    both_t both;
    bool right;

    CHECK(open_both(&both, "the key of both sides", "the key of both sides", 0));
    CHECK(send(both.client.plain, MARK, sizeof MARK - 1, MSG_NOSIGNAL) == sizeof MARK - 1);
    close_side(&both.client);
    CHECK_EQ(read_all(&both.server, &right), sizeof MARK - 1);
    CHECK(right && !rd_tls_reason(both.server.tls));
    close_both(&both);
}

/* Taken by the thread that encrypts, which stops to when its socket is full. */
static bool is_taken(const tls_side_t *side)
{
    int64_t deadline = rd_now_ms() + 50;
    int left = 1;

    while (ioctl(side->plain, SIOCOUTQ, &left) == 0 && left > 0 && rd_left_ms(deadline) > 0)
        (void)poll(NULL, 0, 1);
    return left == 0;
}

/* What libssl is asked for passes here first: how often it had no room, or said the end. */
static _Atomic unsigned ends_said, ends_blocked, writes_blocked;

static bool is_blocked(const SSL *ssl, int done)
{
    return done < 0 && SSL_get_error(ssl, done) == SSL_ERROR_WANT_WRITE;
}

int SSL_shutdown(SSL *ssl)
{
    int (*shut)(SSL *) = (int (*)(SSL *))dlsym(RTLD_NEXT, "SSL_shutdown");
    int done = shut(ssl);

    atomic_fetch_add(is_blocked(ssl, done) ? &ends_blocked : &ends_said, 1);
    return done;
}

int SSL_write_ex(SSL *ssl, const void *data, size_t len, size_t *written_p)
{
    int (*write)(SSL *, const void *, size_t, size_t *) =
        (int (*)(SSL *, const void *, size_t, size_t *))dlsym(RTLD_NEXT, "SSL_write_ex");
    int done = write(ssl, data, len, written_p);

    if (done != 1 && SSL_get_error(ssl, done) == SSL_ERROR_WANT_WRITE)
        atomic_fetch_add(&writes_blocked, 1);
    return done;
}

/* The end was tried, or cannot be yet. */
static bool has_come_to_the_end(void)
{
    int64_t deadline = rd_now_ms() + LONG_MS;

    while (ends_said + ends_blocked + writes_blocked == 0 && rd_left_ms(deadline) > 0)
        (void)poll(NULL, 0, 1);
    return ends_said + ends_blocked + writes_blocked > 0;
}

/* A wire that takes nothing for a while, and so many records before the end that one of these
 * numbers leaves no room for the word of the end. */
static void the_word_of_the_end_waits_for_room(void)
{
    unsigned all_blocked = 0;

    room_bytes = 4096;
    for (size_t records = 1; records <= 16; records++) {
        both_t both;
        bool right;

        CHECK(open_both(&both, "the key of both sides", "the key of both sides", 0));
        ends_said = ends_blocked = writes_blocked = 0;
        atomic_store(&both.wire.holds, true);
        for (size_t i = 0; i < records; i++) {
            CHECK(send(both.client.plain, MARK, sizeof MARK - 1, MSG_NOSIGNAL) == sizeof MARK - 1);
            if (!is_taken(&both.client))
                records = 16; /* full: the last number, and what follows waits */
        }
        (void)shutdown(both.client.plain, SHUT_WR);
        CHECK(has_come_to_the_end());
        all_blocked += ends_blocked;
        atomic_store(&both.wire.holds, false);
        CHECK_EQ(read_all(&both.server, &right), records * (sizeof MARK - 1));
        CHECK(!rd_tls_reason(both.server.tls));
        close_both(&both);
    }
    room_bytes = 0;
    CHECK(all_blocked > 0); /* by one of the numbers at least */
}

static const check_case_t cases[] = {
    {"what is written arrives", what_is_written_arrives},
    {"the wire sees what is plain", the_wire_sees_what_is_plain},
    {"another key is refused", another_key_is_refused},
    {"what is changed on the way is not taken", what_is_changed_on_the_way_is_not_taken},
    {"a close sends what was written", a_close_sends_what_was_written},
    {"the word of the end waits for room", the_word_of_the_end_waits_for_room},
};

CHECK_MAIN(cases)
