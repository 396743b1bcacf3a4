/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "socket.h"
#include "tls/psk.h"

#define PIECE_BYTES ((size_t)256 * 1024)
#define SOCKET_BYTES (1024 * 1024)
#define READ_AHEAD_BYTES ((size_t)128 * 1024)
#define PARTING_MS 5000 /* what was written last has gone by then */
#define IDENTITY "rdpipe"

static const unsigned char cipher_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

/* Bytes on their way from one socket to the other. */
typedef struct {
    uint8_t *data;
    size_t at, len;
    bool has_ended; /* nothing comes behind them */
    bool is_told;   /* and the other side knows */
} piece_t;

struct rd_tls {
    SSL_CTX *context;
    SSL *ssl;
    uint8_t key[RD_MAC_BYTES]; /* until the hands are shaken */
    int socket, plain;
    int stop; /* an eventfd: the user has closed */
    piece_t out, in;
    bool wants_out; /* TLS waits for room in the socket */
    pthread_t thread;
    _Atomic(const char *) reason;
};

/* ---- shaking hands ---- */

static SSL_SESSION *session_of(SSL *ssl)
{
    const rd_tls_t *tls = SSL_get_app_data(ssl);

    return bw_tls_psk_session(ssl, cipher_id, tls->key, sizeof tls->key);
}

static int use_session(SSL *ssl, const EVP_MD *digest, const unsigned char **id_p, size_t *len_p,
                       SSL_SESSION **session_p)
{
    *session_p =
        digest && digest != EVP_sha256() && !EVP_MD_is_a(digest, "SHA256") ? NULL : session_of(ssl);
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

static bool make_ssl(rd_tls_t *tls, bool is_server)
{
    tls->context = SSL_CTX_new(is_server ? TLS_server_method() : TLS_client_method());
    if (!tls->context || !SSL_CTX_set_min_proto_version(tls->context, TLS1_3_VERSION) ||
        !SSL_CTX_set_ciphersuites(tls->context, "TLS_AES_128_GCM_SHA256") ||
        !SSL_CTX_set_num_tickets(tls->context, 0))
        return false;
    SSL_CTX_set_mode(tls->context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(tls->context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_read_ahead(tls->context, 1);
    SSL_CTX_set_default_read_buffer_len(tls->context, READ_AHEAD_BYTES);
    if (is_server)
        SSL_CTX_set_psk_find_session_callback(tls->context, find_session);
    else
        SSL_CTX_set_psk_use_session_callback(tls->context, use_session);
    tls->ssl = SSL_new(tls->context);
    if (!tls->ssl || !SSL_set_app_data(tls->ssl, tls) || !SSL_set_fd(tls->ssl, tls->socket))
        return false;
    if (is_server)
        SSL_set_accept_state(tls->ssl);
    else
        SSL_set_connect_state(tls->ssl);
    return true;
}

/* What libssl says of the last error of this thread. */
static const char *ssl_reason(void)
{
    unsigned long error = ERR_peek_last_error();
    const char *text = error ? ERR_reason_error_string(error) : NULL;

    return text ? text : "the connection was closed";
}

static bool shake_hands(rd_tls_t *tls, int stop, int64_t deadline, rd_why_t *why)
{
    for (;;) {
        int done, error;

        ERR_clear_error();
        done = SSL_do_handshake(tls->ssl);
        if (done == 1)
            return true;
        error = SSL_get_error(tls->ssl, done);
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
            return rd_because(why, "TLS: %s", ssl_reason());
        switch (
            rd_wait(tls->socket, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, stop, deadline)) {
        case RD_READY:
            break;
        case RD_STOPPED:
            return rd_because_of(why, RD_CAUSE_STOPPED, "stopped");
        case RD_TIMEOUT:
            return rd_because(why, "TLS: no answer in time");
        }
    }
}

/* ---- moving ---- */

static void fail(rd_tls_t *tls, const char *reason)
{
    const char *none = NULL;

    (void)atomic_compare_exchange_strong(&tls->reason, &none, reason);
    tls->in.has_ended = tls->out.has_ended = true;
    tls->in.len = tls->out.len = 0;
    tls->out.is_told = true; /* whom should we tell */
}

/* What TLS says of a call that gave no bytes. */
static void take_error(rd_tls_t *tls, int done)
{
    switch (SSL_get_error(tls->ssl, done)) {
    case SSL_ERROR_WANT_READ:
        break;
    case SSL_ERROR_WANT_WRITE:
        tls->wants_out = true;
        break;
    case SSL_ERROR_ZERO_RETURN:
        tls->in.has_ended = true;
        break;
    case SSL_ERROR_SYSCALL:
        fail(tls, "connection_closed");
        break;
    default:
        fail(tls, ssl_reason());
    }
}

/* The word of the end needs room in the socket as all else does: without it, the other side would
 * take the end for a cut. False: there is none yet. */
static bool say_end(rd_tls_t *tls)
{
    int done = SSL_shutdown(tls->ssl);

    tls->wants_out = done < 0 && SSL_get_error(tls->ssl, done) == SSL_ERROR_WANT_WRITE;
    if (tls->wants_out)
        return false;
    tls->out.is_told = true;
    (void)shutdown(tls->socket, SHUT_WR);
    return true;
}

/* Each of the following: true if something was done. */

static bool read_plain(rd_tls_t *tls)
{
    ssize_t n;

    if (tls->out.len > 0 || tls->out.has_ended)
        return false;
    n = recv(tls->plain, tls->out.data, PIECE_BYTES, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    tls->out.at = 0;
    tls->out.len = n > 0 ? (size_t)n : 0;
    tls->out.has_ended = n <= 0;
    return true;
}

static bool write_tls(rd_tls_t *tls)
{
    size_t n = 0;
    int done;

    if (tls->wants_out)
        return false;
    ERR_clear_error();
    if (tls->out.len == 0)
        return tls->out.has_ended && !tls->out.is_told && say_end(tls);
    done = SSL_write_ex(tls->ssl, tls->out.data + tls->out.at, tls->out.len, &n);
    if (done != 1)
        take_error(tls, done);
    tls->out.at += n;
    tls->out.len -= n < tls->out.len ? n : tls->out.len;
    return n > 0;
}

static bool read_tls(rd_tls_t *tls)
{
    size_t n = 0;
    int done;

    if (tls->in.len > 0 || tls->in.has_ended)
        return false;
    ERR_clear_error();
    done = SSL_read_ex(tls->ssl, tls->in.data, PIECE_BYTES, &n);
    if (done != 1)
        take_error(tls, done);
    tls->in.at = 0;
    tls->in.len = n;
    return n > 0;
}

static bool write_plain(rd_tls_t *tls)
{
    ssize_t n;

    if (tls->in.len == 0) {
        if (!tls->in.has_ended || tls->in.is_told)
            return false;
        tls->in.is_told = true;
        (void)shutdown(tls->plain, SHUT_WR);
        return true;
    }
    n = send(tls->plain, tls->in.data + tls->in.at, tls->in.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n < 0) { /* the user has closed: nobody wants it */
        tls->in.has_ended = tls->in.is_told = true;
        tls->in.len = 0;
        return true;
    }
    tls->in.at += (size_t)n;
    tls->in.len -= (size_t)n;
    return true;
}

static void wait_for_work(rd_tls_t *tls, int ms)
{
    bool reads = tls->in.len == 0 && !tls->in.has_ended;
    bool takes = tls->out.len == 0 && !tls->out.has_ended;
    struct pollfd polled[3] = {
        {.fd = tls->socket,
         .events = (short)((reads ? POLLIN : 0) | (tls->wants_out ? POLLOUT : 0))},
        {.fd = tls->plain,
         .events = (short)((takes ? POLLIN : 0) | (tls->in.len > 0 ? POLLOUT : 0))},
        {.fd = ms < 0 ? tls->stop : -1, .events = POLLIN}};

    /* One that nothing is asked of would tell of its end again and again. */
    for (int i = 0; i < 2; i++)
        if (!polled[i].events)
            polled[i].fd = -1;
    (void)poll(polled, 3, ms);
    if (polled[0].revents & (POLLOUT | POLLERR | POLLHUP))
        tls->wants_out = false;
}

/* Until both directions have ended, or, once the user has closed, what he wrote has gone. */
static void *run(void *argument)
{
    rd_tls_t *tls = argument;
    int64_t give_up = 0;
    eventfd_t ignored;

    while (!(tls->out.is_told && tls->in.is_told)) {
        bool done = read_plain(tls);

        done |= write_tls(tls);
        done |= read_tls(tls);
        done |= write_plain(tls);
        if (give_up == 0 && eventfd_read(tls->stop, &ignored) == 0)
            give_up = rd_now_ms() + PARTING_MS;
        if (give_up && (tls->out.is_told || rd_left_ms(give_up) == 0))
            break;
        if (!done)
            wait_for_work(tls, give_up ? rd_left_ms(give_up) : -1);
    }
    (void)shutdown(tls->plain, SHUT_RDWR);
    return NULL;
}

/* ---- the whole ---- */

static void free_tls(rd_tls_t *tls)
{
    rd_wipe(tls->key, sizeof tls->key);
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->context);
    if (tls->plain >= 0)
        close(tls->plain);
    if (tls->socket >= 0)
        close(tls->socket);
    if (tls->stop >= 0)
        close(tls->stop);
    if (tls->out.data)
        rd_wipe(tls->out.data, PIECE_BYTES);
    if (tls->in.data)
        rd_wipe(tls->in.data, PIECE_BYTES);
    free(tls->out.data);
    free(tls->in.data);
    free(tls);
}

static bool open_plain(rd_tls_t *tls, int *plain_p, rd_why_t *why)
{
    int pair[2], bytes = SOCKET_BYTES;

    tls->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (tls->stop < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return rd_because(why, "TLS: %s", strerror(errno));
    for (int i = 0; i < 2; i++)
        (void)setsockopt(pair[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    tls->plain = pair[0];
    *plain_p = pair[1];
    return true;
}

bool rd_tls_start(int socket, const uint8_t key[RD_MAC_BYTES], bool is_server, int stop,
                  int64_t deadline, rd_tls_t **tls_p, int *plain_p, rd_why_t *why)
{
    rd_tls_t *tls = calloc(1, sizeof *tls);
    int plain = -1;
    bool done;

    if (!tls)
        return rd_because(why, "out of memory");
    tls->socket = fcntl(socket, F_DUPFD_CLOEXEC, 3);
    tls->plain = tls->stop = -1;
    memcpy(tls->key, key, sizeof tls->key);
    tls->out.data = calloc(1, PIECE_BYTES);
    tls->in.data = calloc(1, PIECE_BYTES);
    done = tls->out.data && tls->in.data && tls->socket >= 0;
    if (!done)
        (void)rd_because(why, "TLS: %s", strerror(errno));
    else if (!make_ssl(tls, is_server))
        done = rd_because(why, "libssl has no TLS 1.3: %s", ssl_reason());
    done = done && shake_hands(tls, stop, deadline, why) && open_plain(tls, &plain, why);
    rd_wipe(tls->key, sizeof tls->key);
    if (done && pthread_create(&tls->thread, NULL, run, tls) != 0)
        done = rd_because(why, "cannot start a thread");
    if (!done) {
        if (plain >= 0)
            close(plain);
        free_tls(tls);
        return false;
    }
    *tls_p = tls;
    *plain_p = plain;
    return true;
}

const char *rd_tls_reason(const rd_tls_t *tls)
{
    return atomic_load(&tls->reason);
}

void rd_tls_end(rd_tls_t *tls)
{
    (void)eventfd_write(tls->stop, 1);
    (void)pthread_join(tls->thread, NULL);
    /* A socket that is closed with something unread resets the connection (as in socket_link.c). */
    for (int i = 0; i < 64; i++)
        if (recv(tls->socket, NULL, PIECE_BYTES, MSG_DONTWAIT | MSG_TRUNC) <= 0)
            break;
    free_tls(tls);
}
