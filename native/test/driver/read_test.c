/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the complete driver without a VM (test/vm), over a socket, as in a link to an
 * ordinary Erlang node: how many reads a packet takes, and peers that send something wrong or never
 * finish a packet. Each case must leave nothing behind.
 */
#include "../../driver/join.h"
#include "line.h"

#define MANY 500

static int descriptors;

static void start_line(void)
{
    int sockets[2];

    run_over(bw_carrier_named("tcp"));
    descriptors = open_descriptors();
    CHECK(connect_sockets(0, &sockets[0], &sockets[1]));
    CHECK(open_line(sockets, NULL));
}

static void stop_line(void)
{
    vm_allocations_left = -1;
    CHECK(line_is_clean());
    CHECK_EQ(open_descriptors(), descriptors);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

/* Returns the number of system calls made to read. */
static uint64_t calls_in(void)
{
    return stat_of(line.port, STAT_doorbells_in);
}

static void peer_sends(const void *bytes, size_t len)
{
    for (size_t done = 0; done < len && !vm_reason(line.port);) {
        ssize_t n =
            send(line.peer, (const char *)bytes + done, len - done, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n > 0)
            done += (size_t)n;
        else if (errno != EAGAIN)
            return; /* the port has closed */
        (void)line_runs(0);
    }
}

static void run_until_frames(uint64_t frames)
{
    for (int round = 0; round < PORT_ROUNDS && vm_frames(line.port) < frames; round++)
        (void)line_runs(1);
    CHECK_EQ(vm_frames(line.port), frames);
}

static void run_to_the_end(const char *reason)
{
    for (int round = 0; round < PORT_ROUNDS && !vm_reason(line.port); round++)
        (void)line_runs(1);
    CHECK(vm_reason(line.port) && strcmp(vm_reason(line.port), reason) == 0);
}

static void a_packet_costs_one_read(void)
{
    static const uint8_t packet[] = {0, 0, 0, 2, 7, 8};
    uint64_t before;

    CHECK_IN(start_line());
    before = calls_in();
    for (uint64_t i = 1; i <= 20; i++) {
        CHECK_EQ(send(line.peer, packet, sizeof packet, 0), sizeof packet);
        CHECK_IN(run_until_frames(i));
        /* If the port polls, the number varies, because a look that finds nothing also costs a
         * read. */
        if (line_poll_us == 0)
            CHECK_EQ(calls_in(), before + i);
    }
    CHECK(line_poll_us > 0 || !line_runs(0));
    CHECK_IN(stop_line());
}

static void a_read_brings_many_packets(void)
{
    static uint8_t packets[MANY * 10];
    uint8_t *at = packets;
    uint64_t before;

    for (int i = 0; i < MANY; i++)
        at = bw_put(bw_put(at, 6, BW_PACKET_HEADER_BYTES), (uint64_t)i, 6);
    CHECK_IN(start_line());
    before = calls_in();
    CHECK_EQ(send(line.peer, packets, sizeof packets, 0), sizeof packets);
    CHECK_IN(run_until_frames(MANY));
    /* one read, plus a few because a single call on a scheduler may not read everything */
    if (line_poll_us == 0)
        CHECK(calls_in() <= before + 4);
    CHECK_IN(stop_line());
}

static void a_peer_may_send_byte_by_byte(void)
{
    uint8_t packets[2][204];

    (void)bw_put(packets[0], 200, BW_PACKET_HEADER_BYTES);
    memcpy(packets[1], packets[0], sizeof packets[0]);
    CHECK_IN(start_line());
    for (size_t i = 0; i < sizeof packets; i++)
        CHECK_IN(peer_sends((uint8_t *)packets + i, 1));
    CHECK_IN(run_until_frames(2));
    CHECK_EQ(vm_bytes(line.port), 400);
    CHECK_IN(stop_line());
}

/* Over a network, a packet arrives in several segments. The VM does not poll the socket while the
 * poller looks, so only a look can find the second segment. */
static void who_looks_finds_the_rest_of_a_packet(void)
{
    static const uint32_t lens[] = {1, 100, 600, 2000, 4000, 4096};
    uint64_t frames = 0, found = 0;

    if (line_poll_us == 0)
        return;
    line_poll_us = 10000000;
    CHECK_IN(start_line());
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++)
        for (int cuts = 0; cuts < 20; cuts++) {
            static uint8_t packet[4 + 4096];
            uint32_t cut = 1 + (uint32_t)rand() % (3 + lens[i]);
            int64_t began_ms;

            (void)bw_put(packet, lens[i], BW_PACKET_HEADER_BYTES);
            CHECK(line_begins_to_look());
            CHECK_EQ(send(line.peer, packet, cut, 0), cut);
            for (int looks = 0; looks < 20 && line.is_looking; looks++)
                (void)line_runs(0);
            CHECK_EQ(send(line.peer, packet + cut, 4 + lens[i] - cut, 0), 4 + lens[i] - cut);
            frames++;
            began_ms = now_ms();
            while (line.is_looking && vm_frames(line.port) < frames) {
                CHECK(now_ms() < began_ms + LINE_KERNEL_MS);
                (void)line_runs(0);
            }
            found += line.is_looking;
            CHECK_IN(run_until_frames(frames));
        }
    CHECK(found > frames / 2); /* on a busy machine, a port occasionally stops polling */
    CHECK_IN(stop_line());
    line_poll_us = LINE_POLL_US;
}

static void lengths_are_bounded(void)
{
    static const uint8_t lengths[][4] = {{0xFF, 0xFF, 0xFF, 0xFF}, {0x80, 0, 0, 0}};

    for (size_t i = 0; i < 2; i++) {
        CHECK_IN(start_line());
        CHECK_IN(peer_sends(lengths[i], 4));
        CHECK_IN(run_to_the_end("beamway_link_corrupt"));
        CHECK_IN(stop_line());
    }
}

/* The longest possible packet, for which this VM does not have enough memory. */
static const uint8_t endless[] = {0x7F, 0xFF, 0xFF, 0xFF};
static uint8_t some[1 << 20];

static void memory_comes_with_the_bytes(void)
{
    CHECK_IN(start_line());
    CHECK_IN(peer_sends(endless, sizeof endless));
    for (int i = 0; i < 10; i++)
        CHECK_IN(peer_sends(some, sizeof some));
    while (line_runs(1))
        ;
    CHECK(vm_reason(line.port) == NULL);
    CHECK_EQ(shutdown(line.peer, SHUT_WR), 0);
    CHECK_IN(run_to_the_end("connection_closed"));
    CHECK_IN(stop_line());
}

static void where_memory_ends_the_link_ends(void)
{
    CHECK_IN(start_line());
    CHECK_IN(peer_sends(endless, sizeof endless));
    for (int i = 0; i < 200; i++)
        CHECK_IN(peer_sends(some, sizeof some));
    CHECK_IN(run_to_the_end("enomem"));
    CHECK_IN(stop_line());

    CHECK_IN(start_line());
    while (line_runs(1))
        ;
    vm_allocations_left = 0;
    CHECK_IN(peer_sends(endless, sizeof endless));
    CHECK_IN(peer_sends(some, BW_FRAGMENT_HEAD_BYTES)); /* the head of a fragment, so that the port
                                                           knows the packet's kind */
    CHECK_IN(run_to_the_end("enomem"));
    CHECK_IN(stop_line());
}

/* The packets are larger than a frame's initial buffer, with sizes close to those at which it
 * grows. */
static void large_packets_are_whole(void)
{
    static const uint32_t lens[] = {4194303, 4194304, 4194305, 8388608, 8388609, 20000001};
    uint64_t bytes = 0;

    CHECK_IN(start_line());
    for (uint64_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        uint8_t header[4];

        (void)bw_put(header, lens[i], sizeof header);
        CHECK_IN(peer_sends(header, sizeof header));
        for (uint32_t left = lens[i]; left > 0;) {
            uint32_t n = (uint32_t)bw_least(left, sizeof some);

            memset(some, (int)(left % 251), n);
            CHECK_IN(peer_sends(some, n));
            left -= n;
        }
        CHECK_IN(run_until_frames(i + 1));
        bytes += lens[i];
        CHECK_EQ(vm_bytes(line.port), bytes);
    }
    CHECK(!line.is_wrong);
    CHECK_IN(stop_line());
}

/* Each piece in large_packets_are_whole repeats one byte, which identifies its position. */
static void check_pieces(ErlDrvPort port, const uint8_t *at, uint64_t len)
{
    (void)port;
    for (uint64_t left = len; left > 0 && len > sizeof some; left -= bw_least(left, sizeof some))
        for (uint64_t i = 0; i < bw_least(left, sizeof some); i++)
            line.is_wrong |= at[len - left + i] != left % 251;
}

static void large_packets_are_whole_and_right(void)
{
    vm_deliver = check_pieces;
    CHECK_IN(large_packets_are_whole());
    vm_deliver = NULL;
}

static const check_case_t cases[] = {
    {"a_packet_costs_one_read", a_packet_costs_one_read},
    {"a_read_brings_many_packets", a_read_brings_many_packets},
    {"a_peer_may_send_byte_by_byte", a_peer_may_send_byte_by_byte},
    {"who_looks_finds_the_rest_of_a_packet", who_looks_finds_the_rest_of_a_packet},
    {"lengths_are_bounded", lengths_are_bounded},
    {"memory_comes_with_the_bytes", memory_comes_with_the_bytes},
    {"where_memory_ends_the_link_ends", where_memory_ends_the_link_ends},
    {"large_packets_are_whole_and_right", large_packets_are_whole_and_right},
};

LINE_MAIN(cases)
