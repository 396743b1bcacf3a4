/* SPDX-License-Identifier: Apache-2.0
 *
 * What the pump makes of a stream of bytes, against a parser that has the whole stream at once: the
 * same frames with the same contents, and corrupt at the same place, wherever the pieces end in
 * which the peer publishes them. One thread, so that an input does the same each time.
 *
 * Input: steps, a byte that says what, then what it needs. They make the stream: frames of any
 * length, ticks, headers with any field, plain bytes; and the pieces in which it is published.
 */
#include "../test/rings.h"
#include "stream.h"

#define RING BW_RING_MIN_BYTES
#define PIECES_MAX 64
#define SHORT_PIECES 500 /* after so many the rest comes in long ones, for the sake of speed */

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static struct {
    uint16_t sizes[PIECES_MAX];
    size_t count;
} pieces;

/* ---- the stream ---- */

static void make_stream(reader_t *reader)
{
    stream.len = pieces.count = 0;
    while (reader->left > 0) {
        uint64_t step = number(reader, 1);

        switch (step % 8) {
        case 0:
            append_frame((uint32_t)(step / 8));
            break;
        case 1:
            append_frame((uint32_t)number(reader, 2));
            break;
        case 2:
            append_frame((uint32_t)number(reader, 3) % STREAM_MAX);
            break;
        case 3:
            append_header((uint32_t)number(reader, 4), BW_FRAME_MAGIC, (uint16_t)(step / 8));
            break;
        case 4:
            append_header((uint32_t)number(reader, 1), (uint16_t)number(reader, 2), BW_FRAME_DATA);
            break;
        case 5:
            append(&(uint8_t){(uint8_t)number(reader, 1)}, 1);
            break;
        default:
            if (pieces.count < PIECES_MAX)
                pieces.sizes[pieces.count++] = (uint16_t)number(reader, step % 2 + 1);
        }
    }
}

/* What must come of it. True: the stream ends in something that no correct peer writes. */
static bool parse_all(delivered_t *expected)
{
    size_t at = 0;

    while (stream.len - at >= BW_FRAME_HEADER_BYTES) {
        uint32_t len;
        uint16_t magic, kind;

        memcpy(&len, stream.bytes + at, 4);
        memcpy(&magic, stream.bytes + at + 4, 2);
        memcpy(&kind, stream.bytes + at + 6, 2);
        if (magic != BW_FRAME_MAGIC || (kind == 2 && len != 0) || (kind == 1 && len == 0) ||
            kind == 0 || kind > 2 || len > INT32_MAX)
            return true;
        if ((len + 15ull) / 8 * 8 > stream.len - at)
            return false;
        if (kind == 1)
            count(expected, stream.bytes + at + 8, len);
        at += (len + 15ull) / 8 * 8;
    }
    return false;
}

/* ---- the pump ---- */

/* Publishes up to `want` bytes of the stream; gives how many there was room for. */
static size_t publish(bw_link_t *peer, size_t from, size_t want)
{
    bw_span_t span = {0};
    bw_status_t status;

    if (want > stream.len - from)
        want = stream.len - from;
    status = peer->ops->reserve(peer, want, &span);
    if (status == BW_CORRUPT)
        abort(); /* our own positions are always right */
    if (status == BW_AGAIN)
        return 0;
    want = want < span.len ? want : span.len;
    memcpy(span.base, stream.bytes + from, want);
    peer->ops->commit(peer, want);
    return want;
}

/* False: the pump says that the link is corrupt. */
static bool pump_all(bw_pump_t *pump, bw_link_t *peer)
{
    uint64_t before;
    size_t from = 0;

    for (size_t piece = 0; from < stream.len; piece++) {
        size_t want =
            pieces.count > 0 && piece < SHORT_PIECES ? pieces.sizes[piece % pieces.count] : RING;

        from += publish(peer, from, 1 + want);
        before = pump->bytes_read;
        if (pump_wake(pump) == WAKE_FAILED)
            return false;
        if (pump->bytes_read - before > 2 * 1024 * 1024)
            abort(); /* one call read more than it may */
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

    make_stream(&reader);
    is_corrupt = parse_all(&expected);
    delivered = (delivered_t){0};
    if (!open_link(RING, &joined, &accepted, &error))
        abort();
    pump_start(&pump, accepted);
    if (pump_all(&pump, joined) == is_corrupt)
        abort();
    if (delivered.frames != expected.frames || delivered.sum != expected.sum)
        abort();
    pump_reset(&pump);
    if (shim.binaries != 0)
        abort();
    accepted->ops->close(accepted, NULL);
    joined->ops->close(joined, NULL);
    return 0;
}
