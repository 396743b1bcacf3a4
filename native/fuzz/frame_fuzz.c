/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares how the pump parses a stream of bytes with a parser that has the whole stream at once:
 * both must find the same frames with the same contents, and corruption at the same place, however
 * the peer divides the stream into pieces when it publishes it. Everything runs in one thread, so
 * that all runs of an input are the same.
 *
 * Input: steps, each of which is a byte that selects it, followed by its arguments. They make the
 * stream (frames of any length, ticks, headers with any field, plain bytes) and the pieces in which
 * it is published.
 */
#include "../test/rings.h"
#include "stream.h"

#define RING BW_RING_MIN_BYTES

/* ---- the stream ---- */

static void append_odd(reader_t *reader, uint64_t step)
{
    if (step % 8 == 3)
        append_header((uint32_t)number(reader, 4), BW_FRAME_MAGIC, (uint16_t)(step / 8));
    else
        append_header((uint32_t)number(reader, 1), (uint16_t)number(reader, 2), BW_FRAME_DATA);
}

/* Computes the expected result. Returns true if the stream ends in something that a correct peer
 * never writes. */
static bool parse_all(delivered_t *expected)
{
    size_t at = 0;

    while (stream.len - at >= BW_FRAME_HEADER_BYTES) {
        header_t header = header_at(at);
        uint64_t size = (header.len + 15ull) / 8 * 8;

        if (header.magic != BW_FRAME_MAGIC || header.kind == 0 || header.kind > 2 ||
            (header.kind == 1) != (header.len > 0) || header.len > INT32_MAX)
            return true;
        if (size > stream.len - at)
            return false;
        if (header.kind == 1)
            count(expected, stream.bytes + at + 8, header.len);
        at += size;
    }
    return false;
}

/* ---- the pump ---- */

/* Publishes up to `want` bytes of the stream and returns how many fitted. */
static size_t publish(bw_link_t *peer, size_t from, size_t want)
{
    bw_span_t span = {0};
    bw_status_t status;

    if (want > stream.len - from)
        want = stream.len - from;
    status = peer->ops->reserve(peer, want, &span);
    if (status == BW_CORRUPT)
        abort(); /* our own positions are always valid */
    if (status == BW_AGAIN)
        return 0;
    want = want < span.len ? want : span.len;
    memcpy(span.base, stream.bytes + from, want);
    peer->ops->commit(peer, want);
    return want;
}

/* Returns false if the pump reports that the link is corrupt. */
static bool pump_all(bw_pump_t *pump, bw_link_t *peer)
{
    uint64_t before;
    size_t from = 0;

    for (size_t piece = 0; from < stream.len; piece++) {
        from += publish(peer, from, piece_bytes(piece));
        before = pump->bytes_read;
        if (pump_wake(pump) == WAKE_FAILED)
            return false;
        if (pump->bytes_read - before > 2 * 1024 * 1024)
            abort(); /* one call has read more than it is allowed to */
    }
    do {
        before = pump->bytes_read;
        if (pump_wake(pump) == WAKE_FAILED)
            return false;
    } while (pump->bytes_read != before);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    reader_t reader = {.at = input, .left = size};
    delivered_t expected = {0};
    bw_error_t error = {0};
    bw_pump_t pump = {0};
    bool is_corrupt;

    make_stream(&reader, append_frame, append_odd);
    is_corrupt = parse_all(&expected);
    delivered = (delivered_t){0};
    if (!open_link(RING, &joined, &accepted, &error))
        abort();
    pump_start(&pump, accepted);
    if (pump_all(&pump, joined) == is_corrupt)
        abort();
    if (delivered.frames != expected.frames || delivered.sum != expected.sum)
        abort();
    close_pump(&pump);
    joined->ops->close(joined, NULL);
    return 0;
}
