/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "record.h"
#include "socket.h"
#include "tls/psk.h"

#define IDENTITY "rdpipe 2"
#define BATCH_BYTES ((size_t)320 * 1024) /* for the socket at once: 256 KB of content, and more */
#define READ_AHEAD_BYTES (BATCH_BYTES + RD_RECORD_MAX)

/* A sending key is replaced after so many records; the limit of AES-GCM is 2^24.5. */
#define KEY_RECORDS (1u << 23)

static const unsigned char suite_id[2] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */

struct rd_tls {
    SSL_CTX *context; /* libssl's, until the hands are shaken */
    SSL *ssl;
    rd_key_t key, secrets[2]; /* secrets: of the client, of the server */
    bool has_secret[2];
    const char *suite;
    int socket;
    rd_reader_t in;
    bool reads_ahead;
    rd_record_key_t out_key;
    uint32_t key_records;
    uint8_t *out; /* encrypted */
    size_t out_at, out_len;
};

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

/* libssl tells the secrets of both directions: the records are ours. */
static void take_secret(const SSL *ssl, const char *line)
{
    static const char *const names[] = {"CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 "};
    rd_tls_t *tls = SSL_get_app_data(ssl);

    for (int i = 0; i < 2; i++)
        if (strncmp(line, names[i], strlen(names[i])) == 0)
            tls->has_secret[i] = rd_key_of_hex(strrchr(line, ' ') + 1, &tls->secrets[i]);
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
    SSL_CTX_set_keylog_callback(tls->context, take_secret);
    SSL_CTX_set_session_cache_mode(tls->context, SSL_SESS_CACHE_OFF);
    if (is_server) {
        SSL_CTX_set_psk_find_session_callback(tls->context, find_session);
    } else {
        SSL_CTX_set_psk_use_session_callback(tls->context, use_session);
        SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER, bw_tls_trust_nobody);
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

/* What only the handshake needs. */
static void end_handshake(rd_tls_t *tls)
{
    rd_key_wipe(&tls->key);
    rd_wipe(tls->secrets, sizeof tls->secrets);
    SSL_free(tls->ssl);
    SSL_CTX_free(tls->context);
    tls->ssl = NULL;
    tls->context = NULL;
}

void rd_tls_free(rd_tls_t *tls)
{
    if (!tls)
        return;
    end_handshake(tls);
    rd_record_key_close(&tls->in.key);
    rd_record_key_close(&tls->out_key);
    free(tls->in.data);
    free(tls->out); /* nothing in it is secret */
    free(tls);
}

const char *rd_tls_suite(const rd_tls_t *tls)
{
    return tls->suite;
}

const char *rd_tls_reason(const rd_tls_t *tls)
{
    return tls->in.reason;
}

const char *rd_tls_error(const rd_tls_t *tls)
{
    unsigned long error = ERR_peek_last_error();
    const char *text = tls && tls->in.reason ? tls->in.reason
                       : error               ? ERR_reason_error_string(error)
                                             : NULL;

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

/* From the secrets on the records are ours. False: libssl told none, or no memory. */
static bool begin_records(rd_tls_t *tls, bool is_server)
{
    const SSL_CIPHER *cipher = SSL_get_current_cipher(tls->ssl);
    bool is_aes = SSL_CIPHER_get_protocol_id(cipher) == (suite_id[0] << 8 | suite_id[1]);

    tls->suite = SSL_CIPHER_get_name(cipher);
    tls->in.size = READ_AHEAD_BYTES;
    tls->in.data = malloc(tls->in.size);
    tls->out = malloc(BATCH_BYTES);
    return tls->has_secret[0] && tls->has_secret[1] && tls->in.data && tls->out &&
           rd_record_key_open(&tls->in.key, is_aes, false, tls->secrets[!is_server].bytes) &&
           rd_record_key_open(&tls->out_key, is_aes, true, tls->secrets[is_server].bytes);
}

rd_tls_result_t rd_tls_shake(rd_tls_t *tls)
{
    bool is_known;
    int done;

    ERR_clear_error();
    done = SSL_do_handshake(tls->ssl);
    if (done != 1)
        return result_of(tls, done);
    /* It was the key that let us in, and nothing else. */
    is_known = SSL_session_reused(tls->ssl) == 1 && begin_records(tls, SSL_is_server(tls->ssl));
    end_handshake(tls);
    return is_known ? RD_TLS_DONE : RD_TLS_FAILED;
}

/* Waits for what a result asks for. False: *why. */
static bool wait_for(const rd_tls_t *tls, rd_tls_result_t result, int stop, int64_t deadline,
                     rd_why_t *why)
{
    short events = result == RD_TLS_WANTS_READ ? POLLIN : POLLOUT;

    if (result == RD_TLS_CLOSED || result == RD_TLS_ENDED)
        return rd_because_of(why, RD_CAUSE_LOST, "the peer closed the connection");
    if (result == RD_TLS_REFUSED || result == RD_TLS_FAILED)
        return rd_because(why, "TLS: %s", rd_tls_error(tls));
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

/* ---- records ---- */

void rd_tls_stream(rd_tls_t *tls)
{
    tls->reads_ahead = true;
}

void rd_tls_limit_key(rd_tls_t *tls, uint32_t records)
{
    tls->key_records = records;
}

/* Puts another record into the batch. */
static bool seal(rd_tls_t *tls, uint8_t type, const void *content, size_t len)
{
    size_t bytes;

    if (tls->out_key.number >= tls->key_records || tls->in.is_asked) {
        bytes = rd_record_seal_update(&tls->out_key, tls->out + tls->out_at + tls->out_len);
        tls->in.is_asked = false;
        tls->out_len += bytes;
        if (bytes == 0)
            return false;
    }
    bytes =
        rd_record_seal(&tls->out_key, type, content, len, tls->out + tls->out_at + tls->out_len);
    tls->out_len += bytes;
    return bytes > 0;
}

/* For a record, and one before it that replaces the key. */
static bool has_room(const rd_tls_t *tls)
{
    return tls->out_at + tls->out_len + 2 * RD_RECORD_ROOM <= BATCH_BYTES;
}

size_t rd_tls_write(rd_tls_t *tls, const void *data, size_t len)
{
    size_t at = 0;

    while (at < len && tls->out_at == 0 && has_room(tls)) {
        size_t piece = len - at < RD_RECORD_BYTES ? len - at : RD_RECORD_BYTES;

        if (!seal(tls, RD_RECORD_DATA, (const uint8_t *)data + at, piece))
            break;
        at += piece;
    }
    return at;
}

rd_tls_result_t rd_tls_flush(rd_tls_t *tls)
{
    while (tls->out_len > 0) {
        ssize_t n =
            send(tls->socket, tls->out + tls->out_at, tls->out_len, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? RD_TLS_WANTS_WRITE : RD_TLS_CLOSED;
        tls->out_at += (size_t)n;
        tls->out_len -= (size_t)n;
    }
    tls->out_at = 0;
    return RD_TLS_DONE;
}

size_t rd_tls_unsent(const rd_tls_t *tls)
{
    return tls->out_len;
}

void rd_tls_end(rd_tls_t *tls)
{
    static const uint8_t close_notify[2] = {1, 0};

    if (has_room(tls))
        (void)seal(tls, RD_RECORD_ALERT, close_notify, sizeof close_notify);
}

/* Receives what there is, or no more than the next record. */
static rd_tls_result_t receive(rd_tls_t *tls)
{
    size_t room, missing = rd_reader_missing(&tls->in);
    uint8_t *to = rd_reader_room(&tls->in, &room);
    ssize_t n;

    do
        n = recv(tls->socket, to, tls->reads_ahead ? room : missing, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return RD_TLS_WANTS_READ;
    if (n <= 0)
        return RD_TLS_CLOSED;
    tls->in.len += (size_t)n;
    return RD_TLS_DONE;
}

rd_tls_result_t rd_tls_read(rd_tls_t *tls, void *data, size_t len, size_t *got_p)
{
    rd_tls_result_t result;

    do {
        switch (rd_reader_take(&tls->in, data, len, got_p)) {
        case RD_RECORD_READ:
            return RD_TLS_DONE;
        case RD_RECORD_ENDED:
            return RD_TLS_ENDED;
        case RD_RECORD_REFUSED:
            return RD_TLS_REFUSED;
        case RD_RECORD_WRONG:
            return RD_TLS_FAILED;
        case RD_RECORD_SHORT:
            break;
        }
        result = receive(tls);
    } while (result == RD_TLS_DONE);
    return result;
}

bool rd_tls_read_all(rd_tls_t *tls, void *data, size_t len, int stop, int64_t deadline,
                     rd_why_t *why)
{
    size_t at = 0, n;

    while (at < len) {
        rd_tls_result_t result = rd_tls_read(tls, (uint8_t *)data + at, len - at, &n);

        if (result == RD_TLS_DONE)
            at += n;
        else if (!wait_for(tls, result, stop, deadline, why))
            return false;
    }
    return true;
}

bool rd_tls_write_all(rd_tls_t *tls, const void *data, size_t len, int stop, int64_t deadline,
                      rd_why_t *why)
{
    for (size_t at = 0; at < len || tls->out_len > 0;) {
        rd_tls_result_t result;

        at += rd_tls_write(tls, (const uint8_t *)data + at, len - at);
        if (tls->out_len == 0)
            return rd_because(why, "TLS: libcrypto does not encrypt");
        result = rd_tls_flush(tls);
        if (result != RD_TLS_DONE && !wait_for(tls, result, stop, deadline, why))
            return false;
    }
    return true;
}
