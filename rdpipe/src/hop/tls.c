/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <poll.h>

#include "socket.h"
#include "socket_link.h"
#include "tls/session.h"

#define IDENTITY "rdpipe 2"
/* How many bytes are written to the socket at once: 256 KB of content and its overhead. */
#define BATCH_BYTES ((uint64_t)320 * 1024)
#define BUFFER_BYTES ((uint64_t)512 * 1024)

struct rd_tls {
    bw_tls_session_t session; /* used until the handshake is complete */
    const char *suite;
    bw_socket_t socket;
    bw_buffer_t in, out; /* encrypted */
    bw_record_reader_t reader;
    bw_record_writer_t writer;
    bool reads_ahead;
};

/* ---- the handshake ---- */

/* The same key works with both cipher suites, because they use the same digest. AES is chosen only
 * if both sides prefer it. */
static bw_tls_terms_t terms_of(const rd_key_t *key, bool is_server, bool prefers_aes)
{
    bw_tls_terms_t terms = {
        .is_server = is_server,
        .insists = !prefers_aes,
        .psk_count = 1,
        .psks[0] = {.identity = IDENTITY, .suite = BW_SUITE_AES_128_GCM_SHA256},
        .suites = prefers_aes ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                              : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256",
    };

    memcpy(terms.psks[0].key, key->bytes, sizeof key->bytes);
    return terms;
}

rd_tls_t *rd_tls_new(int socket, const rd_key_t *key, bool is_server, bool prefers_aes)
{
    rd_tls_t *tls = calloc(1, sizeof *tls);
    bw_tls_terms_t terms;
    const char *step;
    bool is_made;
    BIO *bio;

    if (!tls)
        return NULL;
    tls->socket.fd = socket;
    tls->reader.in = &tls->in;
    tls->writer.out = &tls->out;
    terms = terms_of(key, is_server, prefers_aes);
    bio = BIO_new_socket(socket, BIO_NOCLOSE);
    is_made = bw_tls_session_make(&tls->session, &terms, bio, bio, &step);
    rd_wipe(&terms, sizeof terms);
    if (is_made)
        return tls;
    rd_tls_free(tls);
    return NULL;
}

void rd_tls_free(rd_tls_t *tls)
{
    if (!tls)
        return;
    bw_tls_session_free(&tls->session);
    bw_record_key_close(&tls->reader.key);
    bw_record_key_close(&tls->writer.key);
    bw_buffer_free(&tls->in);
    bw_buffer_free(&tls->out);
    free(tls);
}

const char *rd_tls_suite(const rd_tls_t *tls)
{
    return tls->suite;
}

const char *rd_tls_reason(const rd_tls_t *tls)
{
    return tls->reader.reason;
}

const char *rd_tls_error(const rd_tls_t *tls)
{
    const char *text = tls && tls->reader.reason ? tls->reader.reason : bw_tls_session_reason();

    return text ? text : "the connection was closed";
}

static bool begin_records(rd_tls_t *tls)
{
    bw_error_t ignored;

    tls->suite = SSL_get_cipher_name(tls->session.ssl);
    return bw_buffer_make(&tls->in, "rdpipe-tls", BUFFER_BYTES, &ignored) == BW_OK &&
           bw_buffer_make(&tls->out, "rdpipe-tls", BUFFER_BYTES, &ignored) == BW_OK;
}

rd_tls_result_t rd_tls_shake(rd_tls_t *tls)
{
    switch (bw_tls_session_shake(&tls->session, &tls->reader, &tls->writer)) {
    case BW_TLS_SHAKING:
        return SSL_want_write(tls->session.ssl) ? RD_TLS_WANTS_WRITE : RD_TLS_WANTS_READ;
    case BW_TLS_SHAKEN:
        if (!begin_records(tls))
            return RD_TLS_FAILED;
        bw_tls_session_free(&tls->session);
        return RD_TLS_DONE;
    case BW_TLS_CLOSED:
        return RD_TLS_CLOSED;
    case BW_TLS_REFUSED:
        return RD_TLS_REFUSED;
    case BW_TLS_FAILED:
        break;
    }
    return RD_TLS_FAILED;
}

static bool wait_for(const rd_tls_t *tls, rd_tls_result_t result, int stop, int64_t deadline,
                     rd_why_t *why)
{
    short events = result == RD_TLS_WANTS_READ ? POLLIN : POLLOUT;

    if (result == RD_TLS_CLOSED || result == RD_TLS_ENDED)
        return rd_because_of(why, RD_CAUSE_LOST, "the peer closed the connection");
    if (result == RD_TLS_REFUSED || result == RD_TLS_FAILED)
        return rd_because(why, "TLS: %s", rd_tls_error(tls));
    return rd_await(tls->socket.fd, events, stop, deadline, why);
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
    tls->writer.limit = records;
}

static bool has_room(const rd_tls_t *tls)
{
    return bw_buffer_fill(&tls->out) + BW_RECORD_ROOM <= BATCH_BYTES;
}

size_t rd_tls_write(rd_tls_t *tls, const void *data, size_t len)
{
    size_t at = 0;

    tls->writer.is_asked |= tls->reader.is_asked;
    tls->reader.is_asked = false;
    while (at < len && has_room(tls)) {
        struct iovec content = {.iov_base = (uint8_t *)(uintptr_t)data + at,
                                .iov_len = bw_least(len - at, BW_RECORD_BYTES)};

        if (!bw_record_place(&tls->writer) ||
            !bw_record_seal(&tls->writer, BW_RECORD_DATA, &content, 1))
            break;
        at += content.iov_len;
    }
    return at;
}

rd_tls_result_t rd_tls_flush(rd_tls_t *tls)
{
    tls->socket.out = BW_SOCKET_FREE;
    bw_socket_push(&tls->socket, &tls->out);
    if (bw_buffer_fill(&tls->out) == 0)
        return RD_TLS_DONE;
    return tls->socket.out == BW_SOCKET_BLOCKED ? RD_TLS_WANTS_WRITE : RD_TLS_CLOSED;
}

size_t rd_tls_unsent(const rd_tls_t *tls)
{
    return bw_buffer_fill(&tls->out);
}

void rd_tls_end(rd_tls_t *tls)
{
    if (has_room(tls))
        (void)bw_record_seal_alert(&tls->writer, BW_ALERT_CLOSE_NOTIFY);
}

static rd_tls_result_t receive(rd_tls_t *tls)
{
    bw_span_t gap = bw_buffer_gap(&tls->in);
    struct iovec iov = {.iov_base = gap.base,
                        .iov_len = tls->reads_ahead ? gap.len : bw_record_missing(&tls->reader)};
    size_t n = bw_socket_receive(&tls->socket, &iov, 1);

    tls->in.head += n;
    if (n > 0)
        return RD_TLS_DONE;
    return tls->socket.in == BW_SOCKET_ENDED ? RD_TLS_CLOSED : RD_TLS_WANTS_READ;
}

rd_tls_result_t rd_tls_read(rd_tls_t *tls, void *data, size_t len, size_t *got_p)
{
    struct iovec to = {.iov_base = data, .iov_len = len};
    rd_tls_result_t result;

    do {
        switch (bw_record_take(&tls->reader, &to, 1, got_p)) {
        case BW_RECORD_READ:
            return RD_TLS_DONE;
        case BW_RECORD_ENDED:
            return RD_TLS_ENDED;
        case BW_RECORD_REFUSED:
            return RD_TLS_REFUSED;
        case BW_RECORD_FLOODED:
        case BW_RECORD_WRONG:
            return RD_TLS_FAILED;
        case BW_RECORD_SHORT:
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
    for (size_t at = 0; at < len || rd_tls_unsent(tls) > 0;) {
        rd_tls_result_t result;

        at += rd_tls_write(tls, (const uint8_t *)data + at, len - at);
        if (rd_tls_unsent(tls) == 0)
            return rd_because(why, "TLS: libcrypto cannot encrypt");
        result = rd_tls_flush(tls);
        if (result != RD_TLS_DONE && !wait_for(tls, result, stop, deadline, why))
            return false;
    }
    return true;
}
