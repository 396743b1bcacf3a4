/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares how the pump parses packets that a peer sends over a socket with a parser that has the
 * whole stream at once: both must find the same packets with the same contents, however the stream
 * is divided into pieces, and the link must fail at the first impossible length, or if the stream
 * ends within a packet.
 *
 * Input: two bytes with the number of bytes of the stream that were read beforehand; then steps,
 * each of which is a byte that selects it, followed by its arguments: packets of any length, ticks,
 * any header, plain bytes; pieces; at which piece the VM sends something itself.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../link/tcp/tcp.h"
#include "stream.h"

#define RING BW_RING_MIN_BYTES

/* ---- the stream ---- */

static void append_number(uint32_t value)
{
    uint8_t bytes[BW_PACKET_HEADER_BYTES];

    bw_put(bytes, value, sizeof bytes);
    append(bytes, sizeof bytes);
}

static void append_packet(uint32_t len)
{
    static uint8_t payload[STREAM_MAX];

    append_number(len);
    for (uint32_t i = 0; i < len; i++)
        payload[i] = (uint8_t)(len * 7 + i * 31 + (i >> 8));
    append(payload, len);
}

static void append_odd(reader_t *reader, uint64_t step)
{
    if (step % 8 == 3)
        append_number((uint32_t)number(reader, 4));
    else
        for (uint64_t count = step / 8 * 8; count > 0; count--)
            append_packet((uint32_t)(count % 64));
}

/* Computes the expected result. ASLEEP means that the stream ends within a packet; in that case it
 * does not matter with which result the port ends. */
static wake_result_t parse_all(delivered_t *expected)
{
    size_t at = 0;

    while (stream.len - at >= BW_PACKET_HEADER_BYTES) {
        const uint8_t *head = stream.bytes + at;
        uint64_t len =
            (uint64_t)head[0] << 24 | (uint64_t)head[1] << 16 | (uint64_t)head[2] << 8 | head[3];

        if (len > BW_FRAME_MAX_BYTES)
            return WAKE_FAILED;
        if (len > stream.len - at - BW_PACKET_HEADER_BYTES)
            return WAKE_ASLEEP;
        if (len > 0)
            count(expected, head + BW_PACKET_HEADER_BYTES, len);
        at += BW_PACKET_HEADER_BYTES + len;
    }
    return at == stream.len ? WAKE_FINISHED : WAKE_ASLEEP;
}

/* ---- the pump ---- */

/* The VM sends as well. The peer does not read, so the kernel eventually runs out of buffer
 * space. */
static void send_one(bw_pump_t *pump)
{
    char bytes[5000] = {0};
    SysIOVec iov[2] = {{.iov_base = NULL}, {.iov_base = bytes, .iov_len = sizeof bytes}};
    ErlIOVec ev = {.vsize = 2, .size = sizeof bytes, .iov = iov};

    must(shim.busy || (pump_send(pump, &ev) && pump_flush(pump)));
}

static wake_result_t give_all(bw_pump_t *pump, int peer, size_t from)
{
    wake_result_t result = WAKE_ASLEEP;
    uint64_t before;
    int idle = 0;

    for (size_t piece = 0; from < stream.len && result == WAKE_ASLEEP; piece++) {
        size_t want = bw_least(piece_bytes(piece), stream.len - from);
        ssize_t n = send(peer, stream.bytes + from, want, MSG_DONTWAIT | MSG_NOSIGNAL);

        from += n > 0 ? (size_t)n : 0;
        if (want % 5 == 0)
            send_one(pump);
        before = pump->bytes_read;
        result = pump_wake(pump);
        must(pump->bytes_read - before <= 2 * 1024 * 1024); /* limit per call */
    }
    must(shutdown(peer, SHUT_WR) == 0);
    while (result == WAKE_ASLEEP && idle < 10) {
        before = pump->bytes_read;
        result = pump_wake(pump);
        idle = pump->bytes_read == before ? idle + 1 : 0;
    }
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    reader_t reader = {.at = input, .left = size};
    int buffer = 8192, sockets[2];
    delivered_t expected = {0};
    size_t before = (size_t)number(&reader, 2);
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    bw_pump_t pump = {0};
    wake_result_t end, wanted;

    make_stream(&reader, append_packet, append_odd);
    wanted = parse_all(&expected);
    before = before < stream.len ? before : stream.len;
    delivered = (delivered_t){0};
    shim.busy = false;
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    for (int i = 0; i < 2; i++)
        (void)setsockopt(sockets[i], SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    must(bw_tcp_adopt(sockets[0], RING, &link, &error) == BW_OK);
    close(sockets[0]);
    must(link->ops->put_back(link, stream.bytes, before, &error) == BW_OK);
    pump_start(&pump, link);
    pump_be_packets(&pump);
    end = give_all(&pump, sockets[1], before);
    must(wanted == WAKE_ASLEEP ? end == WAKE_FINISHED || end == WAKE_FAILED : end == wanted);
    must(delivered.frames == expected.frames && delivered.sum == expected.sum);
    close_pump(&pump);
    close(sockets[1]);
    return 0;
}
