/* SPDX-License-Identifier: Apache-2.0
 *
 * What a lane makes of a stream of bytes from its peer over the tcp carrier, whatever credit its
 * owner gives and when: never more than was granted and one frame, in the end the same frames as a
 * parser that has the whole stream, and the same end; binaries in parts are put together. The
 * stream is a local socket's, so that an input does the same each time.
 *
 * Input: steps, a byte that says what, then what it needs: frames, parts, headers with any field,
 * plain bytes; credit; pieces in which the peer writes.
 */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../link/tcp/tcp.h"
#include "stream.h"

#define RING BW_RING_MIN_BYTES
#define LARGEST 100000u
#define MARK 65
#define SMALL 4096u /* a frame of so many bytes is checked when it is whole */

typedef enum { GOES_ON, LAST_WORD, CORRUPT } end_t;

/* ---- the stream ---- */

static void append_part(uint32_t number, uint64_t size, uint32_t len)
{
    uint8_t head[BW_PART_HEAD_BYTES] = {MARK};

    for (int i = 0; i < 4; i++)
        head[1 + i] = (uint8_t)(number >> (24 - 8 * i));
    for (int i = 0; i < 8; i++)
        head[5 + i] = (uint8_t)(size >> (56 - 8 * i));
    append_header(len + BW_PART_HEAD_BYTES, BW_FRAME_MAGIC, BW_FRAME_DATA);
    append(head, sizeof head);
    for (uint64_t i = BW_PART_HEAD_BYTES; i < bw_frame_size(len + BW_PART_HEAD_BYTES) - 8; i++)
        append(&(uint8_t){(uint8_t)(len * 31 + i)}, 1);
}

/* ---- the model ---- */

static struct {
    uint8_t *bytes;
    uint64_t number, size, len;
} wholes[BW_PARTS_MAX];

static uint64_t big_endian(const uint8_t *at, int bytes)
{
    uint64_t value = 0;

    while (bytes-- > 0)
        value = value << 8 | *at++;
    return value;
}

static int find_whole(uint64_t number)
{
    for (int i = 0; i < BW_PARTS_MAX; i++)
        if (wholes[i].bytes && wholes[i].number == number)
            return i;
    return -1;
}

static int begin_whole(uint64_t number, uint64_t size)
{
    for (int i = 0; i < BW_PARTS_MAX && size <= LARGEST; i++)
        if (!wholes[i].bytes) {
            wholes[i].bytes = calloc(1, size + 1);
            wholes[i].number = number;
            wholes[i].size = size;
            wholes[i].len = 0;
            return i;
        }
    return -1;
}

/* Whether a part is right; if it `is_here` it counts. */
static bool take_part(const uint8_t *at, uint32_t len, bool is_here, delivered_t *expected)
{
    uint64_t number = big_endian(at + 1, 4), size = big_endian(at + 5, 8);
    uint64_t more = len - BW_PART_HEAD_BYTES;
    int i = find_whole(number);

    if (i < 0 && (more > size || (i = begin_whole(number, size)) < 0))
        return false;
    if (wholes[i].size != size || more > size - wholes[i].len)
        return false;
    if (!is_here)
        return true;
    memcpy(wholes[i].bytes + wholes[i].len, at + BW_PART_HEAD_BYTES, more);
    wholes[i].len += more;
    if (wholes[i].len == size) {
        count(expected, wholes[i].bytes, size);
        free(wholes[i].bytes);
        wholes[i].bytes = NULL;
    }
    return true;
}

static bool is_part(const uint8_t *at, uint32_t len)
{
    return len >= BW_PART_HEAD_BYTES && at[0] == MARK &&
           (big_endian(at + 5, 8) != len - BW_PART_HEAD_BYTES ||
            find_whole(big_endian(at + 1, 4)) >= 0);
}

/* What must come of the whole stream, however much credit there is. */
static end_t parse_all(delivered_t *expected)
{
    size_t at = 0;

    while (stream.len - at >= BW_FRAME_HEADER_BYTES) {
        const uint8_t *body = stream.bytes + at + 8;
        header_t header = header_at(at);
        uint32_t len = header.len;
        uint64_t size = (len + 15ull) / 8 * 8;
        bool is_here = size <= stream.len - at;

        if (header.magic != BW_FRAME_MAGIC || header.kind == 0 || header.kind > 3 ||
            (header.kind == 1) != (len > 0) || len > LARGEST)
            return CORRUPT;
        if (header.kind == 3)
            return LAST_WORD;
        if (!is_here && (len <= SMALL || stream.len - at < 8 + BW_PART_HEAD_BYTES))
            return GOES_ON;
        if (is_part(body, len)) {
            if (!take_part(body, len, is_here, expected))
                return CORRUPT;
        } else if (is_here) {
            count(expected, body, len);
        }
        if (!is_here)
            return GOES_ON;
        at += size;
    }
    return GOES_ON;
}

static void free_wholes(void)
{
    for (int i = 0; i < BW_PARTS_MAX; i++) {
        free(wholes[i].bytes);
        wholes[i].bytes = NULL;
    }
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

    switch (what % 12) {
    case 0:
        append_frame((uint32_t)(what / 12));
        break;
    case 1:
        append_frame((uint32_t)number(reader, 2));
        break;
    case 2:
        append_frame((uint32_t)number(reader, 3) % (LARGEST + 10));
        break;
    case 3:
        append_header((uint32_t)number(reader, 4), BW_FRAME_MAGIC, (uint16_t)(what / 12 % 5));
        break;
    case 4:
        append_header(0, BW_FRAME_MAGIC, what / 12 % 8 == 0 ? BW_FRAME_END : BW_FRAME_TICK);
        break;
    case 5:
        append(&(uint8_t){next_byte(reader)}, 1);
        break;
    case 6:
        grant(what / 12, number(reader, 2));
        break;
    case 7:
        grant(1, 1);
        break;
    case 8:
        append_part((uint32_t)(what / 12 % 4), number(reader, 2), (uint32_t)number(reader, 1));
        break;
    case 9:
        append_part((uint32_t)number(reader, 1), number(reader, 3), (uint32_t)number(reader, 2));
        break;
    case 10:
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
    pump_be_lane(&lane.pump, LARGEST, MARK, LARGEST);
    while (reader.left > 0)
        step(&reader);
    run_to_the_end();
    end = parse_all(&expected);
    if (delivered.frames != expected.frames || delivered.sum != expected.sum)
        abort();
    if ((lane.result == WAKE_FAILED) != (end == CORRUPT) ||
        (lane.result == WAKE_FINISHED) != (end == LAST_WORD))
        abort();
    free_wholes();
    pump_reset(&lane.pump);
    if (shim.binaries != 0)
        abort();
    link->ops->close(link, NULL);
    close(lane.peer);
    return 0;
}
