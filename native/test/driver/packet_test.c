/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the driver's pump with packets, each of which begins with its length in four bytes, as any
 * Erlang node expects. They are sent over a socket, and the test itself reads and writes the other
 * end.
 */
#define _GNU_SOURCE
#include "pump_ends.h"

#include "../../driver/lone_caller.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define PACKET_RING ((uint64_t)256 * 1024)

static int other; /* the peer's end */

/* How long the pump of the running case polls before it sleeps; 0 if it never polls. */
static uint32_t poll_us;

static void start_packets(int buffer, const void *read, size_t len)
{
    bw_error_t error = {0};
    bw_link_t *mine = NULL;
    int mine_fd;

    memset(&here, 0, sizeof here);
    memset(&got, 0, sizeof got);
    memset(&shim, 0, sizeof shim);
    CHECK(connect_sockets(buffer, &mine_fd, &other));
    CHECK_EQ(bw_tcp_adopt(mine_fd, PACKET_RING, &mine, &error), BW_OK);
    close(mine_fd);
    CHECK_EQ(mine->ops->put_back(mine, read, len, &error), BW_OK);
    pump_start(&here.pump, mine);
    pump_be_packets(&here.pump);
    bw_spin_init(&here.pump.spin, poll_us);
}

/* The poller calls the pump if there is a reason to: the pump is polling, or there is an event. */
static wake_result_t poll_pump(void)
{
    wake_result_t result = WAKE_ASLEEP;

    if (here.pump.spinning)
        result = pump_look(&here.pump);
    else if (!pump_is_quiet())
        result = wake_pump();
    return result == WAKE_LOOKING ? WAKE_ASLEEP : result;
}

/* Polls until this many frames have been delivered or the pump returns anything but WAKE_ASLEEP and
 * WAKE_LOOKING. */
static wake_result_t poll_for(uint64_t frames)
{
    wake_result_t result = wake_pump();

    for (int64_t end_ms = now_ms() + ARRIVES_MS;
         (result == WAKE_ASLEEP || result == WAKE_LOOKING) && got.frames < frames &&
         now_ms() < end_ms;) {
        if (!here.pump.spinning && pump_is_quiet())
            (void)poll(NULL, 0, 1);
        result = poll_pump();
    }
    return result == WAKE_LOOKING ? WAKE_ASLEEP : result;
}

static wake_result_t poll_to_the_end(void)
{
    return poll_for(UINT64_MAX);
}

static void stop_packets(void)
{
    CHECK_IN(stop());
    close(other);
}

/* Writes a packet of pattern() to `at` and returns its end. */
static uint8_t *put_packet(uint8_t *at, uint32_t len)
{
    at = bw_put(at, len, BW_PACKET_HEADER_BYTES);
    for (uint32_t i = 0; i < len; i++)
        *at++ = pattern(len, i);
    return at;
}

/* The peer reads a packet of that length in any number of parts; the pump is woken whenever there
 * is a reason to. */
static void peer_gets(uint32_t len)
{
    uint64_t size = BW_PACKET_HEADER_BYTES + (uint64_t)len;
    uint8_t *wanted = malloc(size), *read = malloc(size);
    uint64_t have = 0;

    CHECK(wanted && read);
    put_packet(wanted, len);
    for (int idle_ms = 0; have < size && idle_ms < ARRIVES_MS;) {
        ssize_t n = recv(other, read + have, size - have, MSG_DONTWAIT);

        CHECK(n != 0);
        if (n > 0)
            have += (uint64_t)n;
        else
            idle_ms += poll(NULL, 0, 1) == 0;
        CHECK_EQ(poll_pump(), WAKE_ASLEEP);
    }
    CHECK_EQ(have, size);
    CHECK(memcmp(wanted, read, size) == 0);
    free(wanted);
    free(read);
}

static uint64_t sends(void)
{
    bw_link_stats_t stats;

    here.pump.link->ops->stats(here.pump.link, &stats);
    return stats.doorbells_out;
}

static void what_gathers_goes_out_by_one_call(void)
{
    CHECK_IN(start_packets(0, NULL, 0));
    for (uint32_t len = 1; len < 100; len++)
        CHECK_IN(send_message(len));
    CHECK_EQ(sends(), 0);
    CHECK(here.pump.is_unflushed);
    CHECK(pump_flush(&here.pump));
    CHECK_EQ(sends(), 1);
    CHECK(pump_flush(&here.pump));
    CHECK_EQ(sends(), 1);
    for (uint32_t len = 1; len < 100; len++)
        CHECK_IN(peer_gets(len));
    CHECK_IN(stop_packets());
}

static void a_tick_is_sent_at_once(void)
{
    CHECK_IN(start_packets(0, NULL, 0));
    CHECK_IN(send_message(7));
    CHECK(pump_tick(&here.pump));
    CHECK_EQ(sends(), 1);
    CHECK_EQ(here.pump.frames_out, 2);
    CHECK_IN(peer_gets(7));
    CHECK_IN(peer_gets(0));
    CHECK_IN(stop_packets());
}

static void large_and_small_keep_their_order(void)
{
    static const uint32_t sizes[] = {5,       100000, 1,     32 * 1024 - 4, 32 * 1024 - 5,
                                     3 << 20, 17,     300000};

    CHECK_IN(start_packets(0, NULL, 0));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_IN(send_message(sizes[i]));
    CHECK(pump_flush(&here.pump));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_IN(peer_gets(sizes[i]));
    CHECK_EQ(pump_queued(&here.pump), 0);
    CHECK(!shim.busy);
    CHECK_IN(stop_packets());
}

/* The kernel's buffer is full, so the pump queues what the kernel does not accept, and senders have
 * to wait. */
static void what_the_kernel_does_not_take_is_queued(void)
{
    uint32_t count = 0;
    bw_link_stats_t stats;

    CHECK_IN(start_packets(8192, NULL, 0));
    for (; !shim.busy && count < 10000; count++) {
        CHECK_IN(send_message(1000));
        CHECK(pump_flush(&here.pump));
    }
    CHECK(shim.busy);
    here.pump.link->ops->stats(here.pump.link, &stats);
    CHECK_EQ(stats.fill_out, 0);
    CHECK(pump_queued(&here.pump) > 0);
    for (int i = 0; i < 5; i++, count++) /* from senders that had already begun */
        CHECK_IN(send_message(1000));
    CHECK(pump_tick(&here.pump)); /* no tick is needed while bytes flow */
    CHECK_EQ(here.pump.frames_out, count);
    for (uint32_t i = 0; i < count; i++)
        CHECK_IN(peer_gets(1000));
    for (int ms = 0; shim.busy && ms < ARRIVES_MS; ms++) {
        CHECK_EQ(poll_pump(), WAKE_ASLEEP);
        (void)poll(NULL, 0, 1);
    }
    CHECK(!shim.busy);
    CHECK_EQ(pump_queued(&here.pump), 0);
    CHECK_IN(stop_packets());
}

static void *free_leftover(void *leftover)
{
    bw_leftover_free(leftover);
    return NULL;
}

/* The bytes were gathered and never flushed, and the kernel does not have room for all of them. */
static void last_words_are_sent_by_close(void)
{
    bw_leftover_t left;
    pthread_t thread;
    uint32_t count = 0;
    int epoll;

    CHECK_IN(start_packets(8192, NULL, 0));
    for (; count < 60; count++) /* fewer than would be sent without a flush */
        CHECK_IN(send_message(1000));
    CHECK(!shim.busy);
    pump_reset(&here.pump);
    pump_drop(&here.pump);
    here.pump.link->ops->close(here.pump.link, &left);
    epoll = left.fd;
    CHECK(left.unsent.iov_len > 0);
    CHECK_EQ(pthread_create(&thread, NULL, free_leftover, &left), 0);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t packet[1004], wanted[1004];

        put_packet(wanted, 1000);
        CHECK_EQ(recv(other, packet, sizeof packet, MSG_WAITALL), sizeof packet);
        CHECK(memcmp(packet, wanted, sizeof packet) == 0);
    }
    CHECK_EQ(recv(other, &count, 1, 0), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    close(epoll);
    close(other);
    free(shim.bytes);
}

/* The peer reads 70 KB/s. */
static void *read_slowly(void *unused)
{
    uint8_t bytes[1400];

    (void)unused;
    while (recv(other, bytes, sizeof bytes, 0) > 0)
        (void)poll(NULL, 0, 20);
    return NULL;
}

/* Measures how long a thread takes to send the last 1 MB of a link that was closed waited_ms ago.
 * The peer reads slowly or not at all. */
static void free_rest(bool is_read, int64_t waited_ms, int64_t *took_ms_p)
{
    bw_leftover_t left = {.fd = -1, .unsent.iov_len = 1 << 20};
    pthread_t reader;
    int64_t begun_ms;

    CHECK(connect_sockets(8192, &left.socket, &other));
    left.unsent.iov_base =
        mmap(NULL, left.unsent.iov_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(left.unsent.iov_base != MAP_FAILED);
    left.map[0] = left.unsent;
    for (ssize_t n = 1; n > 0;) /* until the system does not accept any of it */
        n = send(left.socket, left.unsent.iov_base, left.unsent.iov_len, MSG_DONTWAIT);
    if (is_read)
        CHECK_EQ(pthread_create(&reader, NULL, read_slowly, NULL), 0);
    begun_ms = now_ms();
    bw_leftover_free_late(&left, waited_ms);
    *took_ms_p = now_ms() - begun_ms;
    (void)shutdown(other, SHUT_RDWR);
    if (is_read)
        CHECK_EQ(pthread_join(reader, NULL), 0);
    close(other);
}

static void a_silent_peer_is_not_waited_for_again(void)
{
    int64_t took_ms;

    CHECK_IN(free_rest(false, BW_LEFTOVER_QUIET_MS, &took_ms));
    CHECK(took_ms < BW_LEFTOVER_QUIET_MS);
}

/* The limit exists because other jobs of the VM wait for the thread that sends the rest. */
static void a_peer_that_reads_slowly_has_a_limit(void)
{
    int64_t took_ms;

    if (poll_us > 0)
        return; /* this case does not use the pump */
    CHECK_IN(free_rest(true, BW_LEFTOVER_QUIET_MS - 200, &took_ms));
    CHECK(took_ms > BW_LEFTOVER_QUIET_MS); /* the peer reads */
    CHECK(took_ms < BW_LEFTOVER_MS);
}

static void packets_come_in_any_pieces(void)
{
    static uint8_t stream[700000];
    uint8_t *end = stream;
    uint64_t frames = 0, ticks = 0;

    for (uint32_t len = 0; len < 300; len += 7, frames++) {
        end = put_packet(end, len);
        ticks += len == 0;
    }
    end = put_packet(end, 0);
    end = put_packet(end, 300000);
    end = put_packet(end, 5000);
    end = put_packet(end, 100000);
    end = put_packet(end, 4);
    ticks++;
    frames += 5;
    for (size_t piece = 1; piece < 200000; piece = piece * 3 + 1) {
        /* 3 bytes, half a header, were read beforehand */
        CHECK_IN(start_packets(0, stream, 3));
        for (uint8_t *at = stream + 3; at < end;) {
            size_t n = bw_least(piece, (uint64_t)(end - at));

            if (at - stream > 40000 && n < 1000) /* enough has been sent in small pieces */
                n = bw_least(1000, (uint64_t)(end - at));
            CHECK_EQ(send(other, at, n, 0), n);
            at += n;
            CHECK_EQ(poll_pump(), WAKE_ASLEEP);
        }
        CHECK_EQ(poll_for(frames - ticks), WAKE_ASLEEP);
        CHECK_EQ(got.frames, frames - ticks);
        CHECK(!got.wrong);
        CHECK_EQ(here.pump.frames_in, frames);
        CHECK_IN(stop_packets());
    }
}

static void the_peers_end_comes_behind_its_packets(void)
{
    uint8_t stream[200], *end = put_packet(put_packet(stream, 50), 60);

    CHECK_IN(start_packets(0, NULL, 0));
    CHECK_EQ(send(other, stream, (size_t)(end - stream), 0), end - stream);
    CHECK_EQ(shutdown(other, SHUT_WR), 0);
    CHECK_EQ(poll_to_the_end(), WAKE_FINISHED);
    CHECK_EQ(got.frames, 2);
    CHECK(!got.wrong);
    CHECK_IN(stop_packets());
}

/* A truncated packet is not delivered; the link has failed. */
static void half_a_packet_is_no_packet(void)
{
    uint8_t stream[100];

    put_packet(stream, 50);
    CHECK_IN(start_packets(0, NULL, 0));
    CHECK_EQ(send(other, stream, 20, 0), 20);
    CHECK_EQ(shutdown(other, SHUT_WR), 0);
    CHECK_EQ(poll_to_the_end(), WAKE_FAILED);
    CHECK_EQ(got.frames, 0);
    CHECK(strcmp(here.pump.link->ops->reason(here.pump.link), "connection_closed") == 0);
    CHECK_IN(stop_packets());
}

static void lengths_are_bounded(void)
{
    static const uint8_t lengths[][4] = {{0x80, 0, 0, 0}, {0xFF, 0xFF, 0xFF, 0xFF}};

    for (size_t i = 0; i < 2; i++) {
        CHECK_IN(start_packets(0, NULL, 0));
        CHECK_EQ(send(other, lengths[i], 4, 0), 4);
        CHECK_EQ(poll_to_the_end(), WAKE_FAILED);
        CHECK_IN(stop_packets());
    }
}

/* Nothing is delivered after such a signal, whether it arrived together with other packets or by
 * itself, and the reason identifies the signal. */
static void a_signal_that_cannot_be_read_is_the_last(void)
{
    static uint8_t stream[200000];
    const uint32_t lengths[] = {50, 60000};

    for (size_t i = 0; i < 2; i++) {
        const uint8_t *end = put_packet(put_packet(stream, lengths[i]), lengths[i]);

        CHECK_IN(start_packets(0, NULL, 0));
        shim.refuses = true;
        CHECK_EQ(send(other, stream, (size_t)(end - stream), 0), end - stream);
        CHECK_EQ(poll_to_the_end(), WAKE_FAILED);
        CHECK_EQ(here.pump.frames_in, 1);
        CHECK(here.pump.reason && strcmp(here.pump.reason, "beamway_signal_corrupt") == 0);
        CHECK_IN(stop_packets());
    }
}

/* Bytes written to a peer that no longer exists are lost, and the reader reports the end of the
 * stream. */
static void a_peer_that_resets_is_noticed_by_the_reader(void)
{
    struct linger at_once = {.l_onoff = 1};
    uint8_t packet[20];

    put_packet(packet, 16);
    CHECK_IN(start_packets(0, NULL, 0));
    CHECK_EQ(setsockopt(other, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
    close(other);
    other = -1;
    for (int i = 0; i < 3; i++) {
        CHECK_IN(send_message(10));
        CHECK(pump_flush(&here.pump));
        CHECK_IN(send_message(100000));
    }
    CHECK_EQ(poll_to_the_end(), WAKE_FAILED);
    CHECK_IN(stop());
}

/* Records `count` rounds with this many frames out and in, each `apart_us` after the previous
 * one. */
static void talk(bw_rounds_t *rounds, int count, uint64_t out, uint64_t in, uint64_t apart_us)
{
    for (int i = 0; i < count; i++)
        bw_round_ends(rounds, rounds->out + out, rounds->in + in, rounds->at_us + apart_us);
}

/* Many frames were sent at once. */
static const bw_rounds_t of_many = {.at_us = 1000000};

static void a_lone_caller_is_told_from_many(void)
{
    bw_rounds_t rounds = of_many;

    CHECK(!bw_rounds_are_lone(&rounds));
    talk(&rounds, BW_ROUNDS_LONE - 1, 3, 1, 30);
    CHECK(!bw_rounds_are_lone(&rounds));
    talk(&rounds, 1, 3, 1, 30);
    CHECK(bw_rounds_are_lone(&rounds));
    talk(&rounds, 1, 1, 0, 30); /* another process sends as well */
    CHECK(!bw_rounds_are_lone(&rounds));
    talk(&rounds, 100, 1, 0, 30); /* a process that casts */
    CHECK(!bw_rounds_are_lone(&rounds));
    talk(&rounds, BW_ROUNDS_LONE, 1, 2, 30); /* a server that answers a single caller */
    CHECK(bw_rounds_are_lone(&rounds));
    talk(&rounds, 1, 1, 20, 30);
    CHECK(!bw_rounds_are_lone(&rounds));
    talk(&rounds, 100, 20, 1, 30);
    CHECK(!bw_rounds_are_lone(&rounds));
    talk(&rounds, BW_ROUNDS_LONE, 1, 0, BW_ROUND_APART_US); /* a process that casts occasionally */
    CHECK(bw_rounds_are_lone(&rounds));
}

/* Two nodes in a mesh, each of which calls the other through rpc from time to time. */
static void single_frames_need_no_gathering(void)
{
    bw_rounds_t rounds = of_many;

    CHECK(!bw_rounds_are_single(&rounds));
    for (uint32_t i = 0; i < BW_ROUNDS_LONE; i += 3) {
        talk(&rounds, 1, 1, 0, 5000); /* calls */
        talk(&rounds, 1, 1, 3, 5000); /* has received the answer, is called, and answers */
        talk(&rounds, 1, 1, 0, 50);   /* with two frames, between which another process runs */
    }
    CHECK(bw_rounds_are_single(&rounds));
    talk(&rounds, 1, 2, 1, 5000); /* a monitor and a message, which are gathered into one send */
    CHECK(!bw_rounds_are_single(&rounds) && bw_rounds_are_lone(&rounds));
    talk(&rounds, BW_ROUNDS_LONE, 1, 1, 50);
    CHECK(bw_rounds_are_single(&rounds));
    talk(&rounds, 1, 1, 0, BW_ROUND_NEAR_US - 1); /* the same, but each was sent separately */
    CHECK(!bw_rounds_are_single(&rounds) && bw_rounds_are_lone(&rounds));
    talk(&rounds, BW_ROUNDS_LONE, 1, 1, 50);
    talk(&rounds, 3, 1, 0, 50); /* a process that casts */
    CHECK(!bw_rounds_are_single(&rounds) && !bw_rounds_are_lone(&rounds));
}

static void a_quiet_link_is_as_a_new_one(void)
{
    bw_rounds_t rounds = {0};

    bw_rounds_forget(&rounds, 1000000);
    CHECK(bw_rounds_are_lone(&rounds) && bw_rounds_are_single(&rounds));
    rounds.at_us = 1000000;
    talk(&rounds, 1, BW_ROUND_LONE_FRAMES + 1, 0, 50);
    CHECK(!bw_rounds_are_lone(&rounds) && !bw_rounds_are_single(&rounds));
    bw_rounds_forget(&rounds, rounds.at_us + BW_ROUND_QUIET_US - 1);
    CHECK(!bw_rounds_are_lone(&rounds));
    bw_rounds_forget(&rounds, rounds.at_us + BW_ROUND_QUIET_US);
    CHECK(bw_rounds_are_lone(&rounds) && bw_rounds_are_single(&rounds));
    talk(&rounds, 1, 1, 0, BW_ROUND_QUIET_US);
    /* a second frame may follow */
    CHECK(bw_rounds_are_lone(&rounds) && !bw_rounds_are_single(&rounds));
    talk(&rounds, 1, 1, 1, 50);
    CHECK(bw_rounds_are_single(&rounds));
    talk(&rounds, 1, BW_ROUND_LONE_FRAMES + 1, 0, BW_ROUND_QUIET_US);
    CHECK(!bw_rounds_are_lone(&rounds)); /* a single exception breaks the pattern immediately */
}

static const check_case_t cases[] = {
    {"a_quiet_link_is_as_a_new_one", a_quiet_link_is_as_a_new_one},
    {"a_lone_caller_is_told_from_many", a_lone_caller_is_told_from_many},
    {"single_frames_need_no_gathering", single_frames_need_no_gathering},
    {"what_gathers_goes_out_by_one_call", what_gathers_goes_out_by_one_call},
    {"a_tick_is_sent_at_once", a_tick_is_sent_at_once},
    {"large_and_small_keep_their_order", large_and_small_keep_their_order},
    {"what_the_kernel_does_not_take_is_queued", what_the_kernel_does_not_take_is_queued},
    {"last_words_are_sent_by_close", last_words_are_sent_by_close},
    {"a_silent_peer_is_not_waited_for_again", a_silent_peer_is_not_waited_for_again},
    {"a_peer_that_reads_slowly_has_a_limit", a_peer_that_reads_slowly_has_a_limit},
    {"packets_come_in_any_pieces", packets_come_in_any_pieces},
    {"the_peers_end_comes_behind_its_packets", the_peers_end_comes_behind_its_packets},
    {"half_a_packet_is_no_packet", half_a_packet_is_no_packet},
    {"lengths_are_bounded", lengths_are_bounded},
    {"a_signal_that_cannot_be_read_is_the_last", a_signal_that_cannot_be_read_is_the_last},
    {"a_peer_that_resets_is_noticed_by_the_reader", a_peer_that_resets_is_noticed_by_the_reader},
};

int main(int argc, char **argv)
{
    check_each("", cases, sizeof cases / sizeof *cases, argc, argv);
    poll_us = 20000;
    check_each("looks: ", cases, sizeof cases / sizeof *cases, argc, argv);
    return check_end();
}
