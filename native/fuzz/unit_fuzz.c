/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes compressed packets that a peer sends to the pump. Packets that a correct peer has packed
 * must be delivered unchanged, however the stream is divided into pieces. Anything else may end the
 * link, but must cost only bounded memory and time.
 *
 * Input: steps as in stream.h. Step 3 is a unit that contains some packets. Step 4 is the word of a
 * unit with arbitrary lengths; plain bytes may follow as the content of that unit.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "../link/tcp/tcp.h"
#include "../link/zstd/zstd.h"
#include "stream.h"

#define ROUNDS_MAX 100000

static bw_packer_t *packer;
static delivered_t expected;
static bool is_correct;
static size_t correct_bytes; /* stream bytes from a correct peer, not counting plain bytes */

static uint8_t packets[BW_UNIT_MAX_BYTES];

/* Writes text that differs between packets but still compresses well. */
static size_t put_packet(uint8_t *at, uint32_t len)
{
    (void)bw_put(at, len, BW_PACKET_HEADER_BYTES);
    for (uint32_t i = 0; i < len; i++)
        at[BW_PACKET_HEADER_BYTES + i] = (uint8_t)(i % 40 == 0 ? len + i : 'a' + i % 40);
    if (len > 0)
        count(&expected, at + BW_PACKET_HEADER_BYTES, len);
    return BW_PACKET_HEADER_BYTES + len;
}

static void append_whole(const void *bytes, size_t len)
{
    is_correct &= len <= STREAM_MAX - stream.len;
    correct_bytes += len;
    append(bytes, len);
}

static void append_packet(uint32_t len)
{
    static uint8_t packet[STREAM_MAX + BW_PACKET_HEADER_BYTES];

    append_whole(packet, put_packet(packet, len));
}

static void append_word(uint64_t number)
{
    uint8_t word[BW_WORD_BYTES];

    bw_word_put(word, BW_FRAME_UNIT, number);
    append_whole(word, sizeof word);
}

static void append_unit(reader_t *reader)
{
    static uint8_t unit[BW_UNIT_MAX_BYTES + 4096];
    size_t len = 0, made = 0;
    struct iovec iov = {.iov_base = packets};

    for (uint32_t left = 1 + next_byte(reader) % 16; left > 0; left--) {
        uint32_t size = (uint32_t)number(reader, 1 + left % 2);

        if (len + size + BW_PACKET_HEADER_BYTES <= sizeof packets)
            len += put_packet(packets + len, size);
    }
    iov.iov_len = len;
    must(bw_zstd_codec.pack(packer, &iov, 1, true, unit, sizeof unit, &made));
    append_word((uint64_t)len << 32 | made);
    append_whole(unit, made);
}

static void own_step(reader_t *reader, uint64_t step)
{
    if (step % 8 == 3) {
        append_unit(reader);
    } else if (step / 8 == 0) { /* the compressor's history is reset */
        append_word(0);
        bw_zstd_codec.close_packer(packer);
        packer = bw_zstd_codec.open_packer();
    } else {
        is_correct = false;
        append_word(number(reader, 4) % (2 * BW_UNIT_MAX_BYTES) << 32 | number(reader, 3));
    }
}

static wake_result_t give_all(bw_pump_t *pump, int peer)
{
    wake_result_t result = WAKE_ASLEEP;
    int idle = 0;

    for (size_t piece = 0, at = 0; at < stream.len && result == WAKE_ASLEEP; piece++) {
        size_t want = bw_least(piece_bytes(piece), stream.len - at);
        ssize_t n = send(peer, stream.bytes + at, want, MSG_DONTWAIT | MSG_NOSIGNAL);
        uint64_t before = delivered.bytes;

        at += n > 0 ? (size_t)n : 0;
        result = pump_wake(pump);
        must(delivered.bytes - before <= 4 * 1024 * 1024); /* limit per call */
    }
    must(shutdown(peer, SHUT_WR) == 0);
    for (int rounds = 0; result == WAKE_ASLEEP && idle < 10 && rounds < ROUNDS_MAX; rounds++) {
        uint64_t before = pump->bytes_read + delivered.bytes + pump->frames_in;

        result = pump_wake(pump);
        idle = pump->bytes_read + delivered.bytes + pump->frames_in == before ? idle + 1 : 0;
    }
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    reader_t reader = {.at = input, .left = size};
    int sockets[2];
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    bw_pump_t pump = {0};
    wake_result_t end;

    packer = bw_zstd_codec.open_packer();
    expected = delivered = (delivered_t){0};
    is_correct = true;
    correct_bytes = 0;
    shim.busy = false;
    make_stream(&reader, append_packet, own_step);
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    must(bw_tcp_adopt(sockets[0], BW_RING_MIN_BYTES, &link, &error) == BW_OK);
    close(sockets[0]);
    pump_start(&pump, link);
    pump_be_packets(&pump);
    pump_begin_session(&pump, (uint64_t)1 << 20);
    bw_packing_begin(&pump.packing, &bw_zstd_codec, true, 100);
    end = give_all(&pump, sockets[1]);
    if (is_correct && stream.len == correct_bytes) {
        must(end == WAKE_FINISHED);
        must(delivered.frames == expected.frames && delivered.sum == expected.sum);
    }
    close_pump(&pump);
    close(sockets[1]);
    bw_zstd_codec.close_packer(packer);
    return 0;
}
