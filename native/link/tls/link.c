/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <openssl/err.h>

#include "../bytes.h"
#include "session.h"
#include "wire.h"

/* What one call decrypts or encrypts at most, at 1 GB/s and more. */
#define PIECE_BYTES ((uint64_t)256 * 1024)

/* The same of records, at 1 us and more for each. */
#define PIECE_RECORDS 128

typedef struct {
    bw_socket_link_t base; /* first: a bw_link_t pointer is a tls_link_t pointer */
    bw_tls_wire_t wire;
    bw_tls_session_t session;
    bw_report_t report;
    uint64_t key_limit;  /* records of one sending key */
    uint64_t key_so_far; /* records of this one */
    uint8_t staged[BW_TLS_RECORD_BYTES];
} tls_link_t;

static tls_link_t *tls_of(bw_link_t *link)
{
    return (tls_link_t *)link;
}

/* ---- writing ---- */

static void push_wire(tls_link_t *tls)
{
    bw_socket_push(&tls->base.socket, &tls->wire.out);
    bw_socket_link_check(&tls->base.link);
}

/* A record, and before it, when that is due, the word that the next key is used from now on. False:
 * cut. */
static bool encrypt_record(tls_link_t *tls, const uint8_t *bytes, size_t len)
{
    SSL *ssl = tls->session.ssl;
    bool is_due = ++tls->key_so_far > tls->key_limit;
    size_t done = 0;

    ERR_clear_error();
    if (is_due)
        tls->key_so_far = 1;
    if ((!is_due || SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED)) &&
        SSL_write_ex(ssl, bytes, len, &done) && done == len)
        return true;
    bw_socket_link_cut(&tls->base.link, "beamway_tls_failed");
    return false;
}

/* Encrypts what stands in the ring, until the wire is full or, `wholly`, to the end. */
static void encrypt_ring(tls_link_t *tls, bool wholly)
{
    bw_buffer_t *out = &tls->base.out;

    while (bw_buffer_fill(out) > 0 && (wholly || bw_tls_wire_has_room(&tls->wire))) {
        size_t n = bw_least(bw_buffer_fill(out), BW_TLS_RECORD_BYTES);

        if (!encrypt_record(tls, bw_buffer_place(out, out->tail), n))
            return;
        out->tail += n;
    }
}

static void tls_push(bw_link_t *link)
{
    tls_link_t *tls = tls_of(link);

    push_wire(tls);
    while (tls->base.socket.out == BW_SOCKET_FREE && bw_buffer_fill(&tls->base.out) > 0) {
        encrypt_ring(tls, false);
        push_wire(tls);
    }
}

/* The next record's bytes: from where they stand, or, if they stand in pieces, staged together. */
static size_t next_record(tls_link_t *tls, const struct iovec *iov, int count, size_t *offset_p,
                          int *used_p, const uint8_t **bytes_p)
{
    size_t len = 0;
    int i = *used_p;

    if (i < count && iov[i].iov_len - *offset_p >= BW_TLS_RECORD_BYTES) {
        *bytes_p = (const uint8_t *)iov[i].iov_base + *offset_p;
        *offset_p += BW_TLS_RECORD_BYTES;
        return BW_TLS_RECORD_BYTES;
    }
    *bytes_p = tls->staged;
    while (i < count && len < BW_TLS_RECORD_BYTES) {
        size_t n = bw_least(iov[i].iov_len - *offset_p, BW_TLS_RECORD_BYTES - len);

        memcpy(tls->staged + len, (const uint8_t *)iov[i].iov_base + *offset_p, n);
        len += n;
        *offset_p += n;
        if (*offset_p == iov[i].iov_len) {
            *offset_p = 0;
            i++;
        }
    }
    *used_p = i;
    return len;
}

static size_t tls_write(bw_link_t *link, const struct iovec *iov, int count)
{
    tls_link_t *tls = tls_of(link);
    const bw_socket_t *sock = &tls->base.socket;
    size_t offset = 0, taken = 0, len;
    const uint8_t *bytes;
    int used = 0;

    while (taken < PIECE_BYTES && sock->out == BW_SOCKET_FREE) {
        while (bw_tls_wire_has_room(&tls->wire) && taken < PIECE_BYTES &&
               (len = next_record(tls, iov, count, &offset, &used, &bytes)) > 0 &&
               encrypt_record(tls, bytes, len))
            taken += len;
        if (bw_buffer_fill(&tls->wire.out) == 0)
            break;
        push_wire(tls);
    }
    return taken;
}

/* ---- reading ---- */

/* Nothing more can be decrypted now. A stream of TLS that ends without a word of TLS was cut. */
static void note_end(tls_link_t *tls, int error)
{
    bw_link_t *link = &tls->base.link;

    tls->base.has_more = false;
    if (error == SSL_ERROR_ZERO_RETURN)
        bw_socket_link_end(link, NULL);
    else if (bw_tls_wire_has_ended(&tls->wire))
        bw_socket_link_end(link, bw_socket_link_reason_of(link, tls->base.socket.read_error));
    else if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
        const char *reason =
            tls->wire.messages_left < 0 ? "beamway_tls_flooded" : "beamway_tls_corrupt";

        bw_socket_link_end(link, reason);
        push_wire(tls); /* the alert */
        bw_socket_link_cut(link, reason);
    }
}

static size_t tls_read(bw_link_t *link, struct iovec *iov, int count)
{
    tls_link_t *tls = tls_of(link);
    size_t most = bw_least(iov->iov_len, PIECE_BYTES), got = 0, n;

    (void)count;
    ERR_clear_error();
    tls->base.has_more = true;
    for (int records = 0; got < most && records < PIECE_RECORDS; records++) {
        int done = SSL_read_ex(tls->session.ssl, (uint8_t *)iov->iov_base + got, most - got, &n);

        if (done != 1) {
            note_end(tls, SSL_get_error(tls->session.ssl, done));
            break;
        }
        got += n;
        tls->wire.messages_left = BW_TLS_LATER_MESSAGES;
    }
    return got;
}

static const bw_passage_t passage = {.name = "beamway-tls",
                                     .failed = "beamway_tls_failed",
                                     .push = tls_push,
                                     .write = tls_write,
                                     .read = tls_read};

/* ---- the table ---- */

static bool tls_trim(bw_link_t *link)
{
    bw_tls_wire_t *wire = &tls_of(link)->wire;

    return bw_socket_link_trim(link) || bw_buffer_trim(&wire->out) || bw_buffer_trim(&wire->in);
}

static bool tls_has_spare(const bw_link_t *link)
{
    const bw_tls_wire_t *wire = &((const tls_link_t *)link)->wire;

    return bw_socket_link_has_spare(link) || bw_buffer_has_spare(&wire->out) ||
           bw_buffer_has_spare(&wire->in);
}

/* Encrypted they are more. */
static void tls_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    bw_socket_link_stats(link, stats_p);
    stats_p->unreleased =
        bw_least(stats_p->unreleased + bw_buffer_fill(&((const tls_link_t *)link)->wire.out),
                 stats_p->bytes_out);
}

static void free_link(tls_link_t *tls)
{
    bw_tls_session_free(&tls->session);
    bw_tls_wire_free(&tls->wire);
    OPENSSL_cleanse(tls->staged, sizeof tls->staged);
}

/* Everything that was committed is encrypted now, and behind it the word that nothing follows. */
static void say_last(tls_link_t *tls)
{
    if (tls->base.is_left || bw_socket_link_is_cut(&tls->base.link))
        return;
    tls_push(&tls->base.link);
    if (tls->report.state != BW_LINKED || bw_socket_link_is_cut(&tls->base.link))
        return;
    if (tls->base.is_deferred)
        encrypt_ring(tls, true);
    ERR_clear_error();
    (void)SSL_shutdown(tls->session.ssl);
    push_wire(tls);
}

static void tls_close(bw_link_t *link, bw_leftover_t *left_p)
{
    tls_link_t *tls = tls_of(link);
    bw_span_t rest;
    struct iovec map;

    say_last(tls);
    rest = bw_buffer_span(&tls->wire.out);
    map = bw_buffer_take(&tls->wire.out);
    free_link(tls);
    if (bw_socket_link_is_cut(link))
        rest.len = 0;
    bw_socket_link_close(link, (struct iovec){.iov_base = rest.base, .iov_len = rest.len}, map,
                         left_p);
}

/* ---- making one ---- */

/* The bytes of an order up to what was read before; 0: it is none. */
static size_t fixed_part(const bw_order_t *order)
{
    size_t keys = order->at_len > BW_TLS_SOCKET_BYTES ? order->at[BW_TLS_SOCKET_BYTES] : 0;
    size_t fixed = BW_TLS_PLACE_BYTES(keys);

    return keys == 0 || keys > BW_TLS_KEYS_MAX || order->at_len < fixed ? 0 : fixed;
}

static bw_status_t make_session(tls_link_t *tls, bool is_server, const bw_order_t *order,
                                bw_error_t *error_p)
{
    bw_tls_key_t keys[BW_TLS_KEYS_MAX];
    int count = order->at[BW_TLS_SOCKET_BYTES];
    bw_status_t status;

    memcpy(keys, order->at + BW_TLS_SOCKET_BYTES + 1, (size_t)count * sizeof *keys);
    status = bw_tls_session_make(&tls->session, is_server, keys, count, &tls->wire, error_p);
    OPENSSL_cleanse(keys, sizeof keys);
    return status;
}

static bw_status_t make_link(bool is_server, const bw_order_t *order, bw_link_t **link_p,
                             bw_error_t *error_p)
{
    size_t fixed = fixed_part(order);
    uint64_t ring = order->ring_bytes;
    bw_status_t status;
    tls_link_t *tls;

    if (fixed == 0 || order->at_len - fixed > BW_TLS_WIRE_BYTES)
        return bw_fail(error_p, BW_INVALID, "no descriptor of a socket with a key", 0);
    if (ring > BW_RING_MAX_BYTES / 2)
        return bw_fail(error_p, BW_INVALID, "no valid size of a ring", 0);
    tls = (tls_link_t *)bw_socket_link_make(&bw_tls_carrier, &passage, sizeof *tls,
                                            (int)bw_number(order->at, BW_TLS_SOCKET_BYTES), ring,
                                            &status, error_p);
    if (!tls)
        return status;
    tls->key_limit = BW_TLS_KEY_RECORDS;
    tls->base.has_more = true;
    tls->report.state = is_server ? BW_LISTENING : BW_WORKING;
    /* at the end the whole ring is encrypted behind a full batch */
    status = bw_tls_wire_make(&tls->wire, &tls->base.socket,
                              ring < BW_TLS_WIRE_BYTES ? 2 * BW_TLS_WIRE_BYTES : 2 * ring, error_p);
    if (status == BW_OK)
        status = make_session(tls, is_server, order, error_p);
    if (status != BW_OK) {
        free_link(tls);
        bw_socket_link_free(&tls->base);
        return status;
    }
    tls->wire.is_expecting = !is_server;
    bw_tls_wire_put_back(&tls->wire, order->at + fixed, order->at_len - fixed);
    *link_p = &tls->base.link;
    return BW_OK;
}

static bw_status_t tls_listen(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    return make_link(true, order, link_p, error_p);
}

static bw_status_t tls_connect(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p)
{
    return make_link(false, order, link_p, error_p);
}

static void tls_step(bw_link_t *link, bw_report_t *report_p)
{
    tls_link_t *tls = tls_of(link);
    bw_report_t *report = &tls->report;

    bw_socket_link_clear_event(link);
    if (report->state == BW_WORKING || report->state == BW_LISTENING) {
        bw_tls_hands_t hands = bw_tls_session_shake(&tls->session, &tls->wire, report->text);

        bw_socket_push(&tls->base.socket, &tls->wire.out);
        if (hands == BW_TLS_SHAKEN) {
            report->state = BW_LINKED;
            snprintf(report->device, sizeof report->device, *tls->session.label ? "%s %s" : "%s%s",
                     SSL_get_cipher_name(tls->session.ssl), tls->session.label);
        } else if (hands == BW_TLS_REFUSED) {
            report->state = BW_FAILED;
            report->status = BW_REFUSED;
        }
    }
    *report_p = *report;
}

void bw_tls_limit_key(bw_link_t *link, uint64_t records)
{
    tls_of(link)->key_limit = records;
}

const bw_carrier_t bw_tls_carrier = {
    BW_SOCKET_LINK_OPS,
    .kind = "tls",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_KERNEL_BUFFERS,
    .listen = tls_listen,
    .connect = tls_connect,
    .step = tls_step,
    .trim = tls_trim,
    .has_spare = tls_has_spare,
    .stats = tls_stats,
    .close = tls_close,
    .derive = bw_tls_derive,
};
