/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a link that outlives its connections, under random network faults. Two ports of the
 * complete driver, in the VM of vm.h, are connected through a relay that forwards random amounts
 * and may be cut at any moment, even within a frame. What each port sends must arrive at the other
 * exactly once, completely and in order, and a port must not retain more than its limit.
 *
 * SESSION_SEEDS in the environment is the number of fault schedules; the default is 300.
 */
#define _GNU_SOURCE
#include "session_pair.h"

static unsigned seeds = 300;

/* Some of several connections are cut, join, or stop accepting data for a while; at times all are
 * cut. */
static void several_connections_are_one_link(void)
{
    uint64_t losses = 0;

    for (unsigned seed = 1; seed <= seeds / 3; seed++) {
        chance = seed;
        spread = 2 + any(RELAYS - 1);
        poll_us = seed % 2 == 0 ? 0 : 1000;
        run_schedule(300 + any(200), seed % 4 < 2 ? KEPT_BYTES : SMALL_LIMIT);
        if (check_failed)
            printf("    seed %u\n", seed);
        losses += stat_of(one, STAT_losses);
        CHECK_IN(end_schedule());
    }
    CHECK(losses > seeds / 3);
}

static bool has_heard(ErlDrvPort port, const char *word)
{
    const char *term;
    bool is_heard = false;

    while ((term = vm_heard(port)))
        is_heard |= strcmp(term, word) == 0;
    return is_heard;
}

static void one_of_several_is_lost(void)
{
    CHECK_IN(start_spread(RELAYS));
    (void)has_heard(one, "");
    (void)has_heard(other, "");
    for (uint64_t left = RELAYS - 1; left > 0; left--) {
        uint64_t losses[2] = {stat_of(one, STAT_losses), stat_of(other, STAT_losses)};

        for (int frames = 0; frames < 40; frames++)
            CHECK_IN(send_next(0));
        CHECK_IN(cut_one(&relays[left]));
        for (int round = 0; round < 20; round++)
            (void)vm_run(1);
        CHECK(has_heard(one, "thin"));
        CHECK(has_heard(other, "thin"));
        CHECK_IN(arrive());
        CHECK_EQ(connections_of(one), left);
        CHECK_EQ(connections_of(other), left);
        CHECK_EQ(stat_of(one, STAT_losses), losses[0]);
        CHECK_EQ(stat_of(other, STAT_losses), losses[1]);
    }
    CHECK_IN(end_schedule());
}

/* A closing port drops its connections once they have accepted everything. So few bytes are sent
 * that the peer acknowledges none of them in the meantime, because an acknowledgement would reset
 * the connections. */
static void what_was_sent_goes_out_at_the_end(void)
{
    uint64_t bytes = 0;

    has_small_buffers = true;
    CHECK_IN(start_spread(2));
    clog_all(true);
    while (bytes + length_of(ways[0].sent) < BW_SESSION_ACK_BYTES - 65536) {
        bytes += length_of(ways[0].sent);
        CHECK_IN(send_next(0));
    }
    CHECK(port_does(one, COMMAND_FLUSH, NULL, NULL));
    vm_close(one);
    for (int round = 0; round < PORT_ROUNDS && ways[0].come < ways[0].sent; round++) {
        pass_some();
        clog_all(false);
        (void)vm_run(round > 1000); /* gives the kernel's own timers time */
    }
    CHECK(vm_reason(one));
    CHECK_EQ(ways[0].come, ways[0].sent);
    CHECK(!ways[0].is_wrong);
    has_small_buffers = false;
    CHECK_IN(end_schedule());
}

static void nothing_is_lost_doubled_or_reordered(void)
{
    unsigned loads = 0;

    for (unsigned seed = 1; seed <= seeds; seed++) {
        chance = seed;
        poll_us = seed % 2 == 0 ? 0 : 1000;
        run_schedule(200 + any(200), seed % 4 < 2 ? KEPT_BYTES : SMALL_LIMIT);
        if (check_failed)
            printf("    seed %u\n", seed);
        loads += port_peer_load(other) == LOAD(7, 8);
        CHECK_IN(end_schedule());
    }
    CHECK(loads > seeds / 2);
}

/* The receiver has some fragments of a signal, and receives the others over another connection.
 * Sets *inside_p to the number of cuts that fell within a signal. */
static void send_fragments_across_cuts(unsigned *inside_p)
{
    CHECK_IN(start_linked(KEPT_BYTES));
    for (int steps = 0; steps < 200; steps++) {
        int side = (int)any(2);

        if (!vm_is_busy(side == 0 ? one : other))
            CHECK_IN(any(4) == 0 ? send_next(side) : send_fragment(side));
        if (any(40) == 0) {
            *inside_p += ways[0].fragment > 0;
            CHECK_IN(break_it());
        }
        CHECK_IN(step());
    }
    for (int side = 0; side < 2; side++)
        while (ways[side].fragment > 0)
            CHECK_IN(send_fragment(side));
    CHECK_IN(arrive());
    CHECK(ways[0].signals_come > 0 && ways[1].signals_come > 0);
}

static void fragments_are_joined_across_a_cut(void)
{
    unsigned inside = 0;

    for (unsigned seed = 1; seed <= seeds / 30 + 1; seed++) {
        chance = seed;
        compresses = seed % 2 == 0;
        send_fragments_across_cuts(&inside);
        if (check_failed)
            printf("    seed %u\n", seed);
        CHECK_IN(end_schedule());
    }
    CHECK(inside > seeds / 30);
}

/* ---- a session that is full ---- */

/* Returns whether the port retains as many bytes as it may and more are queued. */
static bool is_full(ErlDrvPort port)
{
    return stat_of(port, STAT_kept_bytes) >= SMALL_LIMIT && port_queued(port) > 0;
}

/* Fills one side while no bytes pass. */
static void fill(int side)
{
    ErlDrvPort port = side == 0 ? one : other;

    for (int frames = 0; frames < 10000 && !is_full(port); frames++) {
        CHECK_IN(send_next(side));
        do_as_keepers();
        (void)vm_run(0);
    }
    CHECK(is_full(port));
}

/* Each side waits for the other's acknowledgement, so it must be possible to send an
 * acknowledgement although the session is full. */
static void both_are_full(void)
{
    chance = 1;
    CHECK_IN(start_linked(SMALL_LIMIT));
    clog_all(true);
    CHECK_IN(fill(0));
    CHECK_IN(fill(1));
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

/* All the data has arrived, but its acknowledgement has not. The next connection delivers it. */
static void what_has_arrived_makes_room(void)
{
    chance = 1;
    CHECK_IN(start_linked(SMALL_LIMIT));
    clog_all(true);
    CHECK_IN(fill(0));
    clog_all(false);
    relays[0].is_clogged[1] = true;
    for (int round = 0; round < 1000; round++) {
        if (relays[0].ends[0] >= 0)
            pass(relays[0].ends[0], relays[0].ends[1]);
        (void)vm_run(0);
    }
    CHECK_IN(cut());
    CHECK_IN(connect_again());
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

static void pass_all(void)
{
    for (int round = 0; round < 1000; round++) {
        for (int way = 0; way < 2; way++)
            CHECK_IN(pass(relays[0].ends[way], relays[0].ends[1 - way]));
        (void)vm_run(0);
    }
}

/* A look finds the acknowledgement that makes room, and no event follows it. */
static void room_comes_during_a_look(void)
{
    const char *term = NULL;

    chance = 1;
    poll_us = 1000;
    CHECK_IN(start_linked(SMALL_LIMIT));
    for (int round = 0; round < 1000 && !(term && strcmp(term, "look") == 0); round++) {
        if (round % 4 == 0)
            CHECK_IN(send_next(1));
        CHECK(port_does(other, COMMAND_FLUSH, NULL, NULL));
        CHECK_IN(pass(relays[0].ends[1], relays[0].ends[0]));
        (void)vm_run(0);
        term = vm_heard(one);
    }
    CHECK(term && strcmp(term, "look") == 0);
    for (int frames = 0; frames < 10000 && !is_full(one); frames++) {
        CHECK_IN(send_next(0));
        CHECK(port_does(one, COMMAND_FLUSH, NULL, NULL));
    }
    CHECK(is_full(one));
    CHECK_IN(pass_all());
    vm_skip(2 * 256 + 256); /* all links of a node probe their paths at the same time */
    CHECK_IN(pass_all());
    CHECK_IN(look_until_it_sleeps(one));
    CHECK_EQ(port_queued(one), 0);
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

/* Returns whether the side has written bytes that the relay has not read. */
static bool has_written(int side)
{
    uint8_t byte;

    return recv(relays[0].ends[side], &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

/* Only a side that sends can notice that its path is down, so an idle side must send a probe. */
static void an_idle_link_tries_its_path(void)
{
    chance = 1;
    CHECK_IN(start_linked(KEPT_BYTES));
    CHECK_IN(send_next(0));
    for (int round = 0; round < 20; round++) {
        CHECK_IN(pass_all());
        vm_skip(200);
    }
    for (int half = 0; half < 3; half++) {
        CHECK(!has_written(0) && !has_written(1));
        vm_skip(RESUME_MS / 2 + 256); /* all links of a node probe their paths at the same time */
        (void)vm_run(0);
        CHECK(has_written(0) && has_written(1));
        for (int round = 0; round < 4; round++) {
            CHECK_IN(pass_all());
            vm_skip(200);
        }
        (void)vm_run(0);
    }
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

static bool nothing_is_written(void)
{
    (void)vm_run(0);
    return !has_written(0) && !has_written(1);
}

/* On a link with little traffic, acknowledgements are sent along with frames. Sent on its own, each
 * would cost both nodes a wake-up. */
/* One side sends a frame and the other one answers it. */
static void call_and_answer(void)
{
    for (int side = 0; side < 2; side++) {
        CHECK_IN(send_next(side));
        for (int tries = 0; tries < 1000 && !has_all(); tries++) {
            do_as_keepers();
            CHECK_IN(pass_all());
        }
    }
}

static void acknowledgements_go_with_frames(void)
{
    chance = 1;
    all_are_small = true;
    CHECK_IN(start_linked(KEPT_BYTES));
    for (int round = 0; round < 40; round++) {
        CHECK_IN(call_and_answer());
        vm_skip(100);
        CHECK(nothing_is_written());
        CHECK(stat_of(one, STAT_kept_bytes) < 5000 && stat_of(other, STAT_kept_bytes) < 5000);
    }
    CHECK_IN(end_schedule());
}

/* One side calls the other ten times per second. */
static void answers_take_the_place_of_checks(void)
{
    int due = 0;

    chance = 1;
    all_are_small = true;
    CHECK_IN(start_linked(KEPT_BYTES));
    for (int call = 0; call < 40; call++) {
        CHECK_IN(call_and_answer());
        vm_skip(100);
        due += vm_run(0);
    }
    CHECK(due <= 4); /* each side searches once for idle memory */
    CHECK_IN(end_schedule());
}

static size_t chunk_after(bw_session_t *session, size_t frames)
{
    for (size_t i = 0; i < frames && bw_session_gap(session, 1000); i++) {
        session->end += 1000;
        (void)bw_session_sent(session, 1000);
    }
    return session->chunk ? (size_t)session->chunk->orig_size : 0;
}

/* A node may have thousands of links that are rarely used. */
static void the_chunk_is_as_large_as_is_needed(void)
{
    bw_session_t session = {.is_on = true, .limit = KEPT_BYTES};

    CHECK_EQ(chunk_after(&session, 1), 1024);
    CHECK_EQ(chunk_after(&session, 1), 2048);
    CHECK_EQ(chunk_after(&session, 1000), BW_SESSION_CHUNK_BYTES);
    bw_session_rests(&session); /* the peer has not received it yet */
    CHECK(session.chunk);
    CHECK(bw_session_acknowledged(&session, session.out.next));
    CHECK_EQ(chunk_after(&session, 1), BW_SESSION_CHUNK_BYTES);
    CHECK(bw_session_acknowledged(&session, session.out.next));
    bw_session_rests(&session);
    CHECK(!session.chunk);
    for (int i = 0; i < 100; i++) { /* frames sent one at a time stay in the small chunk */
        CHECK_EQ(chunk_after(&session, 1), 1024);
        CHECK(bw_session_acknowledged(&session, session.out.next));
    }
    CHECK(bw_session_gap(&session, 100000));
    bw_session_free(&session);
    CHECK(vm_is_clean());
}

/* The largest frames are longer than the limit. */
static void frames_are_larger_than_the_limit(void)
{
    /* with small kernel buffers, and with normal ones */
    for (uint64_t seed = 1; seed < 9; seed++) {
        chance = seed;
        CHECK_IN(start_linked(FRAME_MAX_BYTES / 8));
        for (int frames = 0; frames < 60; frames++) {
            for (int round = 0; round < PORT_ROUNDS && vm_is_busy(one); round++)
                CHECK_IN(step());
            CHECK_IN(send_next(0));
        }
        CHECK_IN(arrive());
        CHECK_IN(end_schedule());
    }
}

#ifdef BW_TEST_ZSTD

/* Runs links like those of the cases above with compressed packets, over one connection and over
 * several. */
static void compressed_packets_outlive_connections(void)
{
    uint64_t losses = 0, before = 0, after = 0;

    for (unsigned seed = 1; seed <= seeds / 3; seed++) {
        chance = seed;
        compresses = true;
        spread = seed % 3 == 0 ? 2 + any(RELAYS - 1) : 0;
        poll_us = seed % 2 == 0 ? 0 : 1000;
        run_schedule(200 + any(200), seed % 4 < 2 ? KEPT_BYTES : SMALL_LIMIT);
        if (check_failed)
            printf("    seed %u\n", seed);
        losses += stat_of(one, STAT_losses);
        before += stat_of(one, STAT_uncompressed_out);
        after += stat_of(one, STAT_compressed_out);
        CHECK_EQ(stat_of(one, STAT_compressed_out), stat_of(other, STAT_compressed_in));
        CHECK_EQ(stat_of(one, STAT_uncompressed_out), stat_of(other, STAT_uncompressed_in));
        CHECK_IN(end_schedule());
    }
    CHECK(losses > seeds / 3);
    CHECK(before > (uint64_t)seeds * 10000);
    CHECK(after < before / 2);
}

/* The first packet after an idle period is compressed without reference to earlier ones. */
static void a_link_that_rests_forgets(void)
{
    uint64_t before = 0;

    chance = 1;
    compresses = true;
    CHECK_IN(start_linked(KEPT_BYTES));
    for (int rests = 0; rests < 3; rests++) {
        for (int frames = 0; frames < 30; frames++)
            CHECK_IN(send_next(frames % 2));
        CHECK_IN(arrive());
        CHECK(stat_of(one, STAT_uncompressed_out) > before);
        before = stat_of(one, STAT_uncompressed_out);
        for (int seconds = 0; seconds < 2 * RESUME_MS / 1000; seconds++) {
            vm_skip(1000);
            CHECK_IN(pass_all());
        }
    }
    CHECK_IN(end_schedule());
}

#endif

/* ---- memory ---- */

static bool both_live(void)
{
    return !vm_reason(one) && !vm_reason(other);
}

/* Occasionally makes the next allocation fail. */
static void step_with_little(void)
{
    int side = (int)any(2);

    vm_allocations_left = any(20) == 0 ? (int)any(6) : -1;
    if (any(3) == 0 && !vm_is_busy(side == 0 ? one : other))
        CHECK_IN(send_next(side));
    if (both_live())
        CHECK_IN(step());
    vm_allocations_left = -1;
}

/* The link may fail, but bytes that arrive are correct, and nothing is leaked. */
static void memory_is_short(void)
{
    for (unsigned seed = 1; seed <= seeds; seed++) {
        chance = seed;
        compresses = seed % 3 == 0;
        CHECK_IN(start_linked(seed % 2 == 0 ? KEPT_BYTES : SMALL_LIMIT));
        for (int steps = 0; steps < 200 && both_live(); steps++) {
            CHECK_IN(step_with_little());
            if (both_live() && any(40) == 0)
                CHECK_IN(break_it());
            CHECK(!ways[0].is_wrong && !ways[1].is_wrong);
        }
        CHECK_IN(end_schedule());
        if (check_failed)
            printf("    seed %u\n", seed);
    }
}

static const check_case_t cases[] = {
    {"both_are_full", both_are_full},
    {"what_has_arrived_makes_room", what_has_arrived_makes_room},
    {"room_comes_during_a_look", room_comes_during_a_look},
    {"frames_are_larger_than_the_limit", frames_are_larger_than_the_limit},
    {"an_idle_link_tries_its_path", an_idle_link_tries_its_path},
    {"acknowledgements_go_with_frames", acknowledgements_go_with_frames},
    {"answers_take_the_place_of_checks", answers_take_the_place_of_checks},
    {"the_chunk_is_as_large_as_is_needed", the_chunk_is_as_large_as_is_needed},
    {"fragments_are_joined_across_a_cut", fragments_are_joined_across_a_cut},
    {"memory_is_short", memory_is_short},
#ifdef BW_TEST_ZSTD
    {"compressed_packets_outlive_connections", compressed_packets_outlive_connections},
    {"a_link_that_rests_forgets", a_link_that_rests_forgets},
#endif
    {"one_of_several_is_lost", one_of_several_is_lost},
    {"what_was_sent_goes_out_at_the_end", what_was_sent_goes_out_at_the_end},
    {"several_connections_are_one_link", several_connections_are_one_link},
    {"nothing_is_lost_doubled_or_reordered", nothing_is_lost_doubled_or_reordered},
};

int main(int argc, char **argv)
{
    const char *count = getenv("SESSION_SEEDS");

    if (count)
        seeds = (unsigned)strtoul(count, NULL, 10);
    forget_relays();
    run_over(bw_carrier_named("tcp"));
    return check_run(cases, sizeof cases / sizeof *cases, argc, argv);
}
