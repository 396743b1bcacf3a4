/* SPDX-License-Identifier: Apache-2.0
 *
 * What a lane makes of a stream of bytes from its peer over the tcp carrier, whatever credit its
 * owner gives and when: never more than was granted and one frame, in the end the same frames as a
 * parser that has the whole stream, and the same end. The stream is a local socket's, so that an
 * input does the same each time.
 *
 * Input: steps, a byte that says what, then what it needs: frames, headers with any field, plain
 * bytes; credit; pieces in which the peer writes.
 */
#define _GNU_SOURCE
#include "../test/driver_shim.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../driver/pump.h"
#include "../link/frame.h"
#include "../link/tcp_link.h"

#define RING BW_RING_MIN_BYTES
#define LARGEST 100000u
#define STREAM_MAX (256 * 1024)

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

typedef struct {
    uint64_t frames, bytes, sum;
} delivered_t;

static delivered_t delivered;

static struct {
    uint8_t bytes[STREAM_MAX];
    size_t len;
} stream;

typedef enum { GOES_ON, LAST_WORD, CORRUPT } end_t;

static void count(delivered_t *to, const uint8_t *at, uint64_t len)
{
    to->frames++;
    to->bytes += len;
    to->sum = to->sum * 31 + len;
    for (uint64_t i = 0; i < len; i++)
        to->sum = to->sum * 31 + at[i];
}

static void shim_deliver(const uint8_t *at, uint64_t len)
{
    count(&delivered, at, len);
}

/* ---- input ---- */

typedef struct {
    const uint8_t *at;
    size_t left;
} reader_t;

/* The next n bytes as a number, with zeros past the end. */
static uint64_t number(reader_t *reader, size_t n)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        value = value << 8 | (reader->left > 0 ? *reader->at : 0);
        reader->at += reader->left > 0;
        reader->left -= reader->left > 0;
    }
    return value;
}

static void append(const void *bytes, size_t len)
{
    if (len > STREAM_MAX - stream.len)
        len = STREAM_MAX - stream.len;
    memcpy(stream.bytes + stream.len, bytes, len);
    stream.len += len;
}

static void append_header(uint32_t len, uint16_t magic, uint16_t kind)
{
    append(&len, 4);
    append(&magic, 2);
    append(&kind, 2);
}

static void append_frame(uint32_t len)
{
    append_header(len, BW_FRAME_MAGIC, len > 0 ? BW_FRAME_DATA : BW_FRAME_TICK);
    for (uint64_t i = 8; i < bw_frame_size(len); i += 8)
        append(&(uint64_t){(len + i) * 0x9E3779B97F4A7C15ull}, 8);
}

/* What must come of the whole stream, however much credit there is. */
static end_t parse_all(delivered_t *expected)
{
    size_t at = 0;

    while (stream.len - at >= BW_FRAME_HEADER_BYTES) {
        uint32_t len;
        uint16_t magic, kind;

        memcpy(&len, stream.bytes + at, 4);
        memcpy(&magic, stream.bytes + at + 4, 2);
        memcpy(&kind, stream.bytes + at + 6, 2);
        if (magic != BW_FRAME_MAGIC || kind == 0 || kind > 3 || (kind == 1) != (len > 0) ||
            len > INT32_MAX)
            return CORRUPT;
        if (kind == 3)
            return LAST_WORD;
        /* what is small waits for its end before it is judged */
        if (len > LARGEST)
            return CORRUPT;
        if ((len + 15ull) / 8 * 8 > stream.len - at)
            return GOES_ON;
        count(expected, stream.bytes + at + 8, len);
        at += (len + 15ull) / 8 * 8;
    }
    return GOES_ON;
}

/* ---- the lane ---- */

static struct {
    bw_pump_t pump;
    int peer;
    size_t written;
    uint64_t frames, bytes; /* granted */
    wake_result_t result;
} lane;

static void look_at_credit(void)
{
    if (delivered.frames > lane.frames || delivered.bytes >= lane.bytes + LARGEST + 1)
        abort();
}

static void wake(void)
{
    if (lane.result == WAKE_ASLEEP)
        lane.result = pump_wake(&lane.pump);
    look_at_credit();
}

static void write_piece(size_t want)
{
    ssize_t n;

    want = want < stream.len - lane.written ? want : stream.len - lane.written;
    n = send(lane.peer, stream.bytes + lane.written, want, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0)
        lane.written += (size_t)n;
}

static void grant(uint64_t frames, uint64_t bytes)
{
    lane.frames += frames;
    lane.bytes += bytes;
    if (lane.result == WAKE_ASLEEP)
        lane.result = pump_credit(&lane.pump, (int64_t)frames, (int64_t)bytes);
    look_at_credit();
}

static void step(reader_t *reader)
{
    uint64_t what = number(reader, 1);

    switch (what % 10) {
    case 0:
        append_frame((uint32_t)(what / 10));
        break;
    case 1:
        append_frame((uint32_t)number(reader, 2));
        break;
    case 2:
        append_frame((uint32_t)number(reader, 3) % (LARGEST + 10));
        break;
    case 3:
        append_header((uint32_t)number(reader, 4), BW_FRAME_MAGIC, (uint16_t)(what / 10 % 5));
        break;
    case 4:
        append_header(0, BW_FRAME_MAGIC, what / 10 % 8 == 0 ? BW_FRAME_END : BW_FRAME_TICK);
        break;
    case 5:
        append(&(uint8_t){(uint8_t)number(reader, 1)}, 1);
        break;
    case 6:
        grant(what / 10, number(reader, 2));
        break;
    case 7:
        grant(1, 1);
        break;
    case 8:
        write_piece((size_t)number(reader, 1));
        wake();
        break;
    default:
        write_piece((size_t)number(reader, 2));
        wake();
    }
}

/* Everything is written, and there is credit for all: until nothing moves any more. */
static void run_to_the_end(void)
{
    grant(1u << 20, 1u << 30);
    for (int still = 0; still < 4 && lane.result == WAKE_ASLEEP; still++) {
        size_t written = lane.written;
        uint64_t read = lane.pump.bytes_read;

        write_piece(STREAM_MAX);
        wake();
        if (lane.written != written || lane.pump.bytes_read != read)
            still = -1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    reader_t reader = {.at = input, .left = size};
    delivered_t expected = {0};
    bw_error_t error = {0};
    bw_link_t *link = NULL;
    int sockets[2];
    end_t end;

    stream.len = 0;
    delivered = (delivered_t){0};
    memset(&lane, 0, sizeof lane);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0 ||
        bw_tcp_adopt(sockets[0], RING, &link, &error) != BW_OK)
        abort();
    close(sockets[0]);
    lane.peer = sockets[1];
    pump_start(&lane.pump, link);
    pump_be_lane(&lane.pump, LARGEST);
    while (reader.left > 0)
        step(&reader);
    run_to_the_end();
    end = parse_all(&expected);
    if (delivered.frames != expected.frames || delivered.sum != expected.sum)
        abort();
    if ((lane.result == WAKE_FAILED) != (end == CORRUPT) ||
        (lane.result == WAKE_FINISHED) != (end == LAST_WORD))
        abort();
    pump_reset(&lane.pump);
    if (shim.binaries != 0)
        abort();
    link->ops->close(link, NULL);
    close(lane.peer);
    return 0;
}
