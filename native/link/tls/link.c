/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <openssl/crypto.h>

#include "../bytes.h"
#include "../socket_link.h"
#include "keys.h"

/* The maximum that one call encrypts or decrypts. This takes 0.26 ms or less (1 GB/s or more). */
#define PIECE_BYTES ((uint64_t)256 * 1024)

/* The same limit in records, each of which takes 0.4 us or more. */
#define PIECE_RECORDS 128

/* How much is encrypted before it is sent, and how much is read at a time: 7 records. */
#define WIRE_BYTES ((uint64_t)128 * 1024)

/* Below this size, copying is cheaper than adding another piece to a record. */
#define COPY_BYTES 1024
#define RECORD_PIECES 8

typedef struct {
    bw_socket_link_t base; /* must be first, so that a bw_link_t pointer is a tls_link_t pointer */
    bw_buffer_t wire_out, wire_in;
    bw_record_writer_t writer;
    bw_record_reader_t reader;
    bw_tls_session_t session; /* used until the handshake is done */
    BIO *from_peer, *to_peer; /* the session's memory BIOs */
    bool is_expecting;        /* nothing has arrived yet, except perhaps BW_TLS_READY */
    bw_report_t report;
} tls_link_t;

static tls_link_t *tls_of(bw_link_t *link)
{
    return (tls_link_t *)link;
}

/* ---- writing ---- */

static void push_wire(tls_link_t *tls)
{
    bw_socket_push(&tls->base.socket, &tls->wire_out);
    bw_socket_link_check(&tls->base.link);
}

static bool can_send(const tls_link_t *tls)
{
    return tls->report.state == BW_LINKED && tls->base.socket.out == BW_SOCKET_FREE;
}

/* Returns whether another record fits before the buffer must be sent to the socket. */
static bool has_room(const tls_link_t *tls)
{
    return bw_buffer_fill(&tls->wire_out) + BW_RECORD_ROOM <= WIRE_BYTES;
}

/* Cuts the link, because records can no longer be sealed. */
static void cut(tls_link_t *tls)
{
    bw_socket_link_cut(&tls->base.link, "beamway_tls_failed");
}

/* Encrypts until the wire buffer is full or, if `wholly`, until the ring is empty. */
static void encrypt_ring(tls_link_t *tls, bool wholly)
{
    bw_buffer_t *out = &tls->base.out;

    while (bw_buffer_fill(out) > 0 && (wholly || has_room(tls))) {
        struct iovec content = {.iov_base = bw_buffer_place(out, out->tail),
                                .iov_len = bw_least(bw_buffer_fill(out), BW_RECORD_BYTES)};

        if (!bw_record_place(&tls->writer) ||
            !bw_record_seal(&tls->writer, BW_RECORD_DATA, &content, 1)) {
            cut(tls);
            return;
        }
        out->tail += content.iov_len;
    }
}

static void tls_push(bw_link_t *link)
{
    tls_link_t *tls = tls_of(link);

    push_wire(tls);
    while (can_send(tls) && bw_buffer_fill(&tls->base.out) > 0) {
        encrypt_ring(tls, false);
        push_wire(tls);
    }
}

/* The position up to which a vector has been read. */
typedef struct {
    const struct iovec *iov;
    int count;
    size_t offset; /* in the first */
} source_t;

/* Returns the content of the next record: *len_p bytes in at most RECORD_PIECES pieces. Small
 * pieces are copied to `room`, where they will be encrypted in place; large ones are not copied. */
static int next_content(source_t *from, uint8_t *room, struct iovec *pieces, size_t *len_p)
{
    int n = 0;

    *len_p = 0;
    while (from->count > 0 && *len_p < BW_RECORD_BYTES) {
        uint8_t *at = (uint8_t *)from->iov->iov_base + from->offset, *place = room + *len_p;
        size_t len = bw_least(from->iov->iov_len - from->offset, BW_RECORD_BYTES - *len_p);

        if (len < COPY_BYTES) {
            if (len > 0)
                memcpy(place, at, len);
            at = place;
        }
        if (n > 0 && (uint8_t *)pieces[n - 1].iov_base + pieces[n - 1].iov_len == at)
            pieces[n - 1].iov_len += len;
        else if (n < RECORD_PIECES)
            pieces[n++] = (struct iovec){.iov_base = at, .iov_len = len};
        else
            break;
        *len_p += len;
        from->offset += len;
        if (from->offset == from->iov->iov_len) {
            from->offset = 0;
            from->iov++;
            from->count--;
        }
    }
    return n;
}

/* Seals until the buffer is full or `most` bytes are. Returns false if nothing has to be sent. */
static bool seal_records(tls_link_t *tls, source_t *from, size_t most, size_t *taken_p)
{
    struct iovec pieces[RECORD_PIECES];

    while (from->count > 0 && *taken_p < most && has_room(tls)) {
        uint8_t *place = bw_record_place(&tls->writer);
        size_t len = 0;
        int n = place ? next_content(from, place, pieces, &len) : 0;

        if (!place || !bw_record_seal(&tls->writer, BW_RECORD_DATA, pieces, n)) {
            cut(tls);
            return false;
        }
        *taken_p += len;
    }
    return bw_buffer_fill(&tls->wire_out) > 0;
}

static size_t tls_write(bw_link_t *link, const struct iovec *iov, int count)
{
    source_t from = {.iov = iov, .count = count};
    tls_link_t *tls = tls_of(link);
    size_t taken = 0;

    while (taken < PIECE_BYTES && can_send(tls) && seal_records(tls, &from, PIECE_BYTES, &taken))
        push_wire(tls);
    return taken;
}

/* ---- reading ---- */

static void skip_ready(tls_link_t *tls)
{
    bw_buffer_t *in = &tls->wire_in;

    while (tls->is_expecting && bw_buffer_fill(in) > 0) {
        tls->is_expecting = *bw_buffer_place(in, in->tail) == BW_TLS_READY;
        in->tail += tls->is_expecting;
    }
}

/* Reads encrypted bytes from the socket. Returns false if it has none now. */
static bool pull_wire(tls_link_t *tls)
{
    bw_span_t gap = bw_buffer_gap(&tls->wire_in);
    struct iovec iov = {.iov_base = gap.base, .iov_len = gap.len};
    size_t n;

    if (tls->base.socket.in != BW_SOCKET_MAYBE || gap.len == 0)
        return false;
    n = bw_socket_receive(&tls->base.socket, &iov, 1);
    tls->wire_in.head += n;
    skip_ready(tls);
    return n > 0;
}

/* Ends the incoming stream. If the connection ended without a TLS alert, it was cut. */
static void note_end(tls_link_t *tls, bw_record_state_t state)
{
    bw_link_t *link = &tls->base.link;
    const char *reason = state == BW_RECORD_FLOODED ? "beamway_tls_flooded" : "beamway_tls_corrupt";

    if (state == BW_RECORD_ENDED) {
        bw_socket_link_end(link, NULL);
    } else if (state == BW_RECORD_SHORT) {
        if (tls->base.socket.in == BW_SOCKET_ENDED)
            bw_socket_link_end(link, bw_socket_link_reason_of(link, tls->base.socket.read_error));
    } else {
        bw_socket_link_end(link, reason);
        if (!bw_socket_link_is_cut(link) &&
            bw_record_seal_alert(&tls->writer, BW_ALERT_BAD_RECORD_MAC))
            push_wire(tls);
        bw_socket_link_cut(link, reason);
    }
}

/* The next read begins with the content of a record that did not fit into the first piece. */
static size_t tls_read(bw_link_t *link, struct iovec *iov, int count)
{
    tls_link_t *tls = tls_of(link);
    uint64_t last = tls->reader.records + PIECE_RECORDS;
    size_t most = bw_least(iov->iov_len, PIECE_BYTES), got = 0, n;
    bw_record_state_t state = BW_RECORD_READ;

    if (tls->report.state != BW_LINKED)
        return 0;
    while (state == BW_RECORD_READ && got < most && tls->reader.records < last) {
        struct iovec rest[2] = {{(uint8_t *)iov->iov_base + got, iov->iov_len - got},
                                count > 1 ? iov[1] : (struct iovec){0}};

        state = bw_record_take(&tls->reader, rest, count > 1 ? 2 : 1, &n);
        got += n;
        if (state == BW_RECORD_SHORT && pull_wire(tls))
            state = BW_RECORD_READ;
    }
    tls->writer.is_asked |= tls->reader.is_asked;
    tls->reader.is_asked = false;
    tls->base.has_more = state == BW_RECORD_READ; /* our buffer may have more */
    if (state != BW_RECORD_READ)
        note_end(tls, state);
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
    tls_link_t *tls = tls_of(link);

    return bw_socket_link_trim(link) || bw_buffer_trim(&tls->wire_out) ||
           bw_buffer_trim(&tls->wire_in);
}

static bool tls_has_spare(const bw_link_t *link)
{
    const tls_link_t *tls = (const tls_link_t *)link;

    return bw_socket_link_has_spare(link) || bw_buffer_has_spare(&tls->wire_out) ||
           bw_buffer_has_spare(&tls->wire_in);
}

/* Encrypted bytes that wait also count, but with overhead, so bytes_out limits the sum. */
static void tls_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    bw_socket_link_stats(link, stats_p);
    stats_p->unreleased =
        bw_least(stats_p->unreleased + bw_buffer_fill(&((const tls_link_t *)link)->wire_out),
                 stats_p->bytes_out);
}

static void free_link(tls_link_t *tls)
{
    bw_tls_session_free(&tls->session);
    bw_record_key_close(&tls->reader.key);
    bw_record_key_close(&tls->writer.key);
    bw_buffer_free(&tls->wire_out);
    bw_buffer_free(&tls->wire_in);
}

/* Encrypts everything that was committed, followed by a close_notify. */
static void say_last(tls_link_t *tls)
{
    bw_link_t *link = &tls->base.link;

    if (tls->report.state != BW_LINKED || tls->base.is_left || bw_socket_link_is_cut(link))
        return;
    tls_push(link);
    if (tls->base.is_deferred && !bw_socket_link_is_cut(link))
        encrypt_ring(tls, true);
    if (!bw_socket_link_is_cut(link) && bw_record_seal_alert(&tls->writer, BW_ALERT_CLOSE_NOTIFY))
        push_wire(tls);
}

static void tls_close(bw_link_t *link, bw_leftover_t *left_p)
{
    tls_link_t *tls = tls_of(link);
    bw_span_t rest;
    struct iovec map;

    say_last(tls);
    rest = bw_buffer_span(&tls->wire_out);
    map = bw_buffer_take(&tls->wire_out);
    free_link(tls);
    if (bw_socket_link_is_cut(link))
        rest.len = 0;
    bw_socket_link_close(link, (struct iovec){.iov_base = rest.base, .iov_len = rest.len}, map,
                         left_p);
}

/* ---- link setup ---- */

/* Returns the length of an order without bytes that were already read, or 0 if it is invalid. */
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
    bw_tls_terms_t terms;
    const char *step;
    bool is_made;

    memcpy(keys, order->at + BW_TLS_SOCKET_BYTES + 1, (size_t)count * sizeof *keys);
    terms = bw_tls_terms_of(is_server, keys, count);
    tls->from_peer = BIO_new(BIO_s_mem());
    tls->to_peer = BIO_new(BIO_s_mem());
    is_made = bw_tls_session_make(&tls->session, &terms, tls->from_peer, tls->to_peer, &step);
    OPENSSL_cleanse(keys, sizeof keys);
    OPENSSL_cleanse(&terms, sizeof terms);
    return is_made ? BW_OK : bw_fail(error_p, BW_SYSTEM, step, 0);
}

static bw_status_t make_wire(tls_link_t *tls, uint64_t ring, bw_error_t *error_p)
{
    /* A full batch must fit, and behind it the whole ring, which is encrypted on closing. */
    bw_status_t status = bw_buffer_make(&tls->wire_out, passage.name,
                                        2 * (ring < WIRE_BYTES ? WIRE_BYTES : ring), error_p);

    tls->writer.out = &tls->wire_out;
    tls->reader.in = &tls->wire_in;
    return status == BW_OK ? bw_buffer_make(&tls->wire_in, passage.name, WIRE_BYTES, error_p)
                           : status;
}

static bw_status_t make_link(bool is_server, const bw_order_t *order, bw_link_t **link_p,
                             bw_error_t *error_p)
{
    size_t fixed = fixed_part(order);
    uint64_t ring = order->ring_bytes;
    bw_status_t status;
    tls_link_t *tls;

    if (fixed == 0 || order->at_len - fixed > WIRE_BYTES)
        return bw_fail(error_p, BW_INVALID, "no descriptor of a socket with a key", 0);
    if (ring > BW_RING_MAX_BYTES / 2)
        return bw_fail(error_p, BW_INVALID, "no valid size of a ring", 0);
    tls = (tls_link_t *)bw_socket_link_make(&bw_tls_carrier, &passage, sizeof *tls,
                                            (int)bw_number(order->at, BW_TLS_SOCKET_BYTES), ring,
                                            &status, error_p);
    if (!tls)
        return status;
    tls->report.state = is_server ? BW_LISTENING : BW_WORKING;
    status = make_wire(tls, ring, error_p);
    if (status == BW_OK)
        status = make_session(tls, is_server, order, error_p);
    if (status != BW_OK) {
        free_link(tls);
        bw_socket_link_free(&tls->base);
        return status;
    }
    tls->is_expecting = !is_server;
    (void)bw_buffer_put(&tls->wire_in, order->at + fixed, order->at_len - fixed);
    skip_ready(tls);
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

/* Passes the received bytes to libssl. If out of memory, the handshake makes no progress. */
static void feed(tls_link_t *tls)
{
    bw_buffer_t *in = &tls->wire_in;

    (void)pull_wire(tls);
    if (bw_buffer_fill(in) > 0 &&
        BIO_write(tls->from_peer, bw_buffer_place(in, in->tail), (int)bw_buffer_fill(in)) > 0)
        in->tail = in->head;
    if (tls->base.socket.in == BW_SOCKET_ENDED)
        (void)BIO_set_mem_eof_return(tls->from_peer, 0);
}

static void drain(BIO *bio, bw_buffer_t *to)
{
    bw_span_t gap = bw_buffer_gap(to);
    int n = BIO_read(bio, gap.base, (int)bw_least(gap.len, WIRE_BYTES));

    to->head += n > 0 ? (size_t)n : 0;
}

static void shake(tls_link_t *tls)
{
    bw_report_t *report = &tls->report;
    bw_tls_hands_t hands;

    feed(tls);
    hands = bw_tls_session_shake(&tls->session, &tls->reader, &tls->writer);
    drain(tls->to_peer, &tls->wire_out);
    bw_socket_push(&tls->base.socket, &tls->wire_out);
    if (hands == BW_TLS_SHAKING)
        return;
    if (hands == BW_TLS_SHAKEN) {
        const char *label = tls->session.known->label;

        drain(tls->from_peer, &tls->wire_in);
        tls->base.has_more = true; /* data may have arrived together with the handshake */
        report->state = BW_LINKED;
        snprintf(report->device, sizeof report->device, *label ? "%s %s" : "%s%s",
                 SSL_get_cipher_name(tls->session.ssl), label);
    } else {
        report->state = BW_FAILED;
        report->status = BW_REFUSED;
        bw_tls_explain(&tls->session, hands, report->text);
    }
    bw_tls_session_free(&tls->session);
}

static void tls_step(bw_link_t *link, bw_report_t *report_p)
{
    tls_link_t *tls = tls_of(link);

    bw_socket_link_clear_event(link);
    if (tls->report.state == BW_WORKING || tls->report.state == BW_LISTENING)
        shake(tls);
    *report_p = tls->report;
}

void bw_tls_limit_key(bw_link_t *link, uint64_t records)
{
    tls_of(link)->writer.limit = records;
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
