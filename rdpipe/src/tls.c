/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "socket.h"
#include "tls/psk.h"

#define IDENTITY "rdpipe 2"
#define RECORD_BYTES ((size_t)16384)
#define RECORD_ROOM (RECORD_BYTES + 256) /* with its header and its tag */
#define BATCH_BYTES ((size_t)256 * 1024) /* for the socket at once */
#define BATCH_ROOM (BATCH_BYTES + 4 * RECORD_ROOM)
#define READ_AHEAD_BYTES ((size_t)256 * 1024)

/* A sending key is replaced after so many records; the limit of AES-GCM is 2^24.5. */
#define KEY_RECORDS (1u << 23)

static const unsigned char suite_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

/* Bytes between libssl and the socket. */
typedef struct {
    uint8_t *data;
    size_t at, len;
} batch_t;

struct rd_tls {
    SSL_CTX *context;
    SSL *ssl;
    rd_key_t key; /* until the hands are shaken */
    int socket;
    batch_t out;                   /* once rd_tls_stream was called */
    uint32_t records, key_records; /* of this sending key, and of any */
};

bool rd_has_aes(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes");
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & (1 << 3);
#else
    return false;
#endif
}

/* ---- the handshake ---- */

/* The key serves both suites, as they have the same digest. */
static SSL_SESSION *session_of(SSL *ssl)
{
    const rd_tls_t *tls = SSL_get_app_data(ssl);

    return bw_tls_psk_session(ssl, suite_id, tls->key.bytes, sizeof tls->key.bytes);
}

static int use_session(SSL *ssl, const EVP_MD *digest, const unsigned char **id_p, size_t *len_p,
                       SSL_SESSION **session_p)
{
    *session_p = digest && !EVP_MD_is_a(digest, "SHA256") ? NULL : session_of(ssl);
    *id_p = (const unsigned char *)IDENTITY;
    *len_p = sizeof IDENTITY - 1;
    return 1;
}

static int find_session(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **session_p)
{
    bool is_ours = len == sizeof IDENTITY - 1 && memcmp(id, IDENTITY, len) == 0;

    *session_p = is_ours ? session_of(ssl) : NULL;
    return 1;
}

/* A server that shows a certificate instead of knowing the key. */
static int trust_nobody(int is_good, X509_STORE_CTX *chain)
{
    (void)is_good, (void)chain;
    return 0;
}

static bool set_up(rd_tls_t *tls, bool is_server, bool prefers_aes)
{
    tls->context = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    if (!tls->context || !SSL_CTX_set_min_proto_version(tls->context, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(
            tls->context, prefers_aes ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                      : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256") ||
        !SSL_CTX_set_num_tickets(tls->context, 0))
        return false;
    SSL_CTX_set_options(tls->context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    /* Whichever side is without AES has its way. */
    if (!prefers_aes)
        SSL_CTX_set_options(tls->context, SSL_OP_CIPHER_SERVER_PREFERENCE);
    /* RELEASE_BUFFERS: so that rd_tls_stream can have a larger one to read ahead into. */
    SSL_CTX_set_mode(tls->context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                       SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(tls->context, SSL_SESS_CACHE_OFF);
    if (is_server) {
        SSL_CTX_set_psk_find_session_callback(tls->context, find_session);
    } else {
        SSL_CTX_set_psk_use_session_callback(tls->context, use_session);
        SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER, trust_nobody);
    }
    tls->ssl = SSL_new(tls->context);
    if (!tls->ssl || !SSL_set_app_data(tls->ssl, tls) || !SSL_set_fd(tls->ssl, tls->socket))
        return false;
    if (is_server)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    return true;
}

rd_tls_t *rd_tls_new(int socket, const rd_key_t *key, bool is_server, bool prefers_aes)
{
    rd_tls_t *tls = calloc(1, sizeof *tls);

    if (!tls)
        return NULL;
    tls->socket = socket;
    tls->key_records = KEY_RECORDS;
    tls->key = *key;
    ERR_clear_error();
    if (set_up(tls, is_server, prefers_aes))
        return tls;
    rd_tls_free(tls);
    return NULL;
}

void rd_tls_free(rd_tls_t *tls)
{
    if (!tls)
        return;
    rd_key_wipe(&tls->key);
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->context);
    free(tls->out.data); /* nothing in it is secret */
    free(tls);
}

const char *rd_tls_suite(const rd_tls_t *tls)
{
    return SSL_get_cipher_name(tls->ssl);
}

const char *rd_tls_error(void)
{
    unsigned long error = ERR_peek_last_error();
    const char *text = error ? ERR_reason_error_string(error) : NULL;

    return text ? text : "the connection was closed";
}

static rd_tls_result_t result_of(rd_tls_t *tls, int done)
{
    unsigned long error = ERR_peek_error();

    switch (SSL_get_error(tls->ssl, done)) {
    case SSL_ERROR_WANT_READ:
        return RD_TLS_WANTS_READ;
    case SSL_ERROR_WANT_WRITE:
        return RD_TLS_WANTS_WRITE;
    case SSL_ERROR_ZERO_RETURN:
        return RD_TLS_ENDED;
    case SSL_ERROR_SYSCALL:
        return RD_TLS_CLOSED;
    default:
        if (ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
            return RD_TLS_CLOSED;
        return ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) > SSL_AD_REASON_OFFSET
                   ? RD_TLS_REFUSED
                   : RD_TLS_FAILED;
    }
}

rd_tls_result_t rd_tls_shake(rd_tls_t *tls)
{
    int done;

    ERR_clear_error();
    done = SSL_do_handshake(tls->ssl);
    if (done != 1)
        return result_of(tls, done);
    rd_key_wipe(&tls->key);
    /* It was the key that let us in, and nothing else. */
    return SSL_session_reused(tls->ssl) == 1 ? RD_TLS_DONE : RD_TLS_FAILED;
}

/* Waits for what a result asks for. False: *why. */
static bool wait_for(const rd_tls_t *tls, rd_tls_result_t result, int stop, int64_t deadline,
                     rd_why_t *why)
{
    short events = result == RD_TLS_WANTS_READ ? POLLIN : POLLOUT;

    if (result == RD_TLS_CLOSED || result == RD_TLS_ENDED)
        return rd_because_of(why, RD_CAUSE_LOST, "the peer closed the connection");
    if (result == RD_TLS_REFUSED || result == RD_TLS_FAILED)
        return rd_because(why, "TLS: %s", rd_tls_error());
    switch (rd_wait(tls->socket, events, stop, deadline)) {
    case RD_READY:
        return true;
    case RD_STOPPED:
        return rd_because_of(why, RD_CAUSE_STOPPED, "stopped");
    default:
        return rd_because(why, "no answer in time");
    }
}

bool rd_tls_connect(rd_tls_t *tls, int stop, int64_t deadline, rd_tls_result_t *result_p,
                    rd_why_t *why)
{
    rd_tls_result_t result;

    do
        result = rd_tls_shake(tls);
    while (result != RD_TLS_DONE && wait_for(tls, result, stop, deadline, why));
    if (result_p)
        *result_p = result;
    return result == RD_TLS_DONE;
}

bool rd_tls_read_all(rd_tls_t *tls, void *data, size_t len, int stop, int64_t deadline,
                     rd_why_t *why)
{
    size_t at = 0, n;

    while (at < len) {
        int done;

        ERR_clear_error();
        done = SSL_read_ex(tls->ssl, (uint8_t *)data + at, len - at, &n);
        if (done == 1)
            at += n;
        else if (!wait_for(tls, result_of(tls, done), stop, deadline, why))
            return false;
    }
    return true;
}

bool rd_tls_write_all(rd_tls_t *tls, const void *data, size_t len, int stop, int64_t deadline,
                      rd_why_t *why)
{
    size_t at = 0, n;

    while (at < len) {
        int done;

        ERR_clear_error();
        done = SSL_write_ex(tls->ssl, (const uint8_t *)data + at, len - at, &n);
        if (done == 1)
            at += n;
        else if (!wait_for(tls, result_of(tls, done), stop, deadline, why))
            return false;
    }
    return true;
}

/* ---- what libssl calls once many bytes go ---- */

/* Room is looked for before libssl is asked to write. */
static int bio_write(BIO *bio, const char *from, int len)
{
    rd_tls_t *tls = BIO_get_data(bio);
    batch_t *out = &tls->out;

    BIO_clear_retry_flags(bio);
    if (out->at + out->len + (size_t)len > BATCH_ROOM) {
        BIO_set_retry_write(bio);
        return -1;
    }
    memcpy(out->data + out->at + out->len, from, (size_t)len);
    out->len += (size_t)len;
    return len;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *method;

static void make_method(void)
{
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "rdpipe");
    if (method && BIO_meth_set_write(method, bio_write) && BIO_meth_set_ctrl(method, bio_control))
        return;
    BIO_meth_free(method);
    method = NULL;
}

bool rd_tls_stream(rd_tls_t *tls)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    BIO *bio;

    (void)pthread_once(&once, make_method);
    tls->out.data = malloc(BATCH_ROOM);
    bio = tls->out.data && method ? BIO_new(method) : NULL;
    if (!bio)
        return false;
    BIO_set_data(bio, tls);
    BIO_set_init(bio, 1);
    SSL_set0_wbio(tls->ssl, bio);
    SSL_set_default_read_buffer_len(tls->ssl, READ_AHEAD_BYTES);
    SSL_set_read_ahead(tls->ssl, 1);
    (void)SSL_clear_mode(tls->ssl, SSL_MODE_RELEASE_BUFFERS);
    return true;
}

void rd_tls_limit_key(rd_tls_t *tls, uint32_t records)
{
    tls->key_records = records;
}

size_t rd_tls_write(rd_tls_t *tls, const void *data, size_t len)
{
    size_t at = 0, n;

    ERR_clear_error();
    while (at < len && tls->out.at == 0 && tls->out.len + RECORD_ROOM <= BATCH_BYTES) {
        size_t piece = len - at < RECORD_BYTES ? len - at : RECORD_BYTES;

        if (++tls->records > tls->key_records) {
            tls->records = 1;
            if (!SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED))
                break;
        }
        if (SSL_write_ex(tls->ssl, (const uint8_t *)data + at, piece, &n) != 1)
            break;
        at += n;
    }
    return at;
}

rd_tls_result_t rd_tls_flush(rd_tls_t *tls)
{
    batch_t *out = &tls->out;

    while (out->len > 0) {
        ssize_t n = send(tls->socket, out->data + out->at, out->len, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            return RD_TLS_CLOSED;
        if (n < 0)
            break;
        out->at += (size_t)n;
        out->len -= (size_t)n;
    }
    if (out->len == 0)
        out->at = 0;
    return out->len > 0 ? RD_TLS_WANTS_WRITE : RD_TLS_DONE;
}

size_t rd_tls_unsent(const rd_tls_t *tls)
{
    return tls->out.len;
}

void rd_tls_end(rd_tls_t *tls)
{
    ERR_clear_error();
    (void)SSL_shutdown(tls->ssl);
}

rd_tls_result_t rd_tls_read(rd_tls_t *tls, void *data, size_t len, size_t *got_p)
{
    int done;

    ERR_clear_error();
    done = SSL_read_ex(tls->ssl, data, len, got_p);
    return done == 1 ? RD_TLS_DONE : result_of(tls, done);
}
