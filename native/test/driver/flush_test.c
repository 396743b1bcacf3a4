/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the complete driver without a VM (test/vm), over a socket, as in a link to an
 * ordinary Erlang node. Gathered packets must be sent in time even if the keeper does not run, and
 * however many of their bytes the system accepts at each call. What was sent must arrive once and
 * in order, even if the port closes. Each case must leave nothing behind.
 */
#include "line.h"

#include "../../driver/lone_caller.h"

static int descriptors;

static void start_line(int buffer, int (*answer)(void))
{
    int sockets[2];

    run_over(bw_carrier_named("tcp"));
    descriptors = open_descriptors();
    CHECK(connect_sockets(buffer, &sockets[0], &sockets[1]));
    CHECK(open_line(sockets, answer));
}

static void stop_line(void)
{
    vm_stop_clock(false);
    vm_loses_events = false;
    CHECK(!line.is_wrong);
    CHECK(line_is_clean());
    CHECK_EQ(open_descriptors(), descriptors);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

static void all_arrives_and_the_end(void)
{
    CHECK(line_ends());
    CHECK(line_is_settled());
    CHECK_IN(stop_line());
}

/* ---- packets are sent in time ---- */

/* From here on the port gathers its output until time advances. */
static void many_send(void)
{
    vm_stop_clock(true);
    for (uint32_t i = 0; i < 3 * BW_ROUND_LONE_FRAMES; i++)
        line_sends(1);
    do
        (void)line_runs(0);
    while (line_is_flushed());
    CHECK(line_arrives());
}

static void the_keeper_sends_what_has_gathered(void)
{
    CHECK_IN(start_line(0, NULL));
    CHECK_IN(many_send());
    for (uint32_t len = 1; len < 50; len++)
        line_sends(len);
    (void)vm_run(0);
    CHECK(!line_is_read(SIZE_MAX));
    CHECK(line.is_looking ? line_runs(0) : line_is_flushed()); /* a look flushes as well */
    (void)vm_run(0);
    CHECK(line_arrives());
    CHECK(!line_is_flushed()); /* the keeper had been asked only once */
    CHECK_IN(all_arrives_and_the_end());
}

/* If busy processes keep the keeper from running, each round waits for a millisecond and then
 * sends. */
static void nothing_waits_for_a_keeper_that_does_not_come(void)
{
    CHECK_IN(start_line(0, NULL));
    CHECK_IN(many_send());
    for (uint32_t i = 1; i < 20; i++) {
        for (uint32_t many = 0; many <= BW_ROUND_LONE_FRAMES; many++)
            line_sends(i);
        CHECK(!line_is_read(SIZE_MAX));
        vm_skip(1);
        (void)line_runs(0);
        CHECK(line_arrives());
    }
    CHECK(line_poll_us > 0 || line_is_flushed());
    CHECK_IN(all_arrives_and_the_end());
}

/* A sender of occasional packets has nothing to gather, so the port neither calls the keeper nor
 * sets a timer. This applies from the first packet on, and again after many packets have been sent
 * at once. */
static void single_packets_go_out_at_once(void)
{
    CHECK_IN(start_line(0, NULL));
    for (uint32_t i = 1; i < 20; i++) {
        if (i == 10)
            CHECK_IN(many_send());
        vm_skip(1000);
        while (line_runs(0))
            ;
        vm_stop_clock(false);
        line_sends(i);
        CHECK(line_arrives());
        CHECK(!line_is_flushed());
        vm_skip(1);
        CHECK(!line_runs(0));
    }
    CHECK_IN(all_arrives_and_the_end());
}

/* The keeper has run in time, so the timer that guards against its absence is no longer needed. */
static void no_timer_outlives_the_keeper(void)
{
    if (line_poll_us > 0)
        return; /* a look flushes as well, and leaves the timer set */
    CHECK_IN(start_line(0, NULL));
    CHECK_IN(many_send());
    for (int i = 0; i < 10; i++) {
        vm_skip(1);
        while (line_runs(0))
            ;
        for (uint32_t many = 0; many <= BW_ROUND_LONE_FRAMES; many++)
            line_sends(5);
        CHECK(!line_is_read(SIZE_MAX));
        CHECK(line_is_flushed());
        CHECK(line_arrives());
        vm_skip(1);
        CHECK(!line_runs(0));
    }
    CHECK_IN(all_arrives_and_the_end());
}

/* ---- a system that accepts any part of the output ---- */

static uint64_t special_call; /* the call that gets special_answer; the rest accept all bytes */
static int special_answer;

static int answer_one_call(void)
{
    return kernel.calls == special_call ? special_answer : KERNEL_TAKES_ALL;
}

static int answer_any_call(void)
{
    return kernel.calls % 3 == 0 ? -EAGAIN : (int)(kernel.calls * 7919 % 5000);
}

/* Sends small packets that are gathered, large ones that bypass the ring, more data than the socket
 * can buffer, ticks, and small packets behind a queue. */
static void talk(void)
{
    static const uint32_t lens[] = {1,      100, 32 * 1024 - 5, 32 * 1024 - 4, 400000, 5, 64 * 1024,
                                    200000, 7};

    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        line_sends(lens[i]);
        line_sends(20);
        if (i % 2 == 0)
            (void)line_is_flushed();
        (void)line_runs(0);
        if (i % 3 == 0)
            line_ticks();
        (void)line_is_read(30000);
    }
}

static void over_each_call(int answer, bool breaks)
{
    special_answer = answer;
    /* a port that polls makes just as many calls, but each run takes longer */
    for (special_call = 1;; special_call += line_poll_us > 0 ? 5 : 1) {
        CHECK_IN(start_line(8192, answer_one_call));
        talk();
        line_settles(5);
        if (breaks && kernel.calls >= special_call) {
            CHECK(vm_reason(line.port) != NULL);
            CHECK(strcmp(vm_reason(line.port), "connection_closed") == 0);
            CHECK_IN(stop_line());
        } else {
            CHECK(line_is_settled());
            CHECK(!vm_is_busy(line.port));
            CHECK_EQ(port_queued(line.port), 0);
            CHECK_IN(all_arrives_and_the_end());
        }
        if (kernel.calls < special_call)
            break;
    }
    CHECK(special_call > 10);
}

static void room_may_be_missing_at_each_call(void)
{
    CHECK_IN(over_each_call(-EAGAIN, false));
}

static void each_call_may_take_a_part(void)
{
    CHECK_IN(over_each_call(1, false));
    CHECK_IN(over_each_call(1000, false));
}

static void each_call_may_be_interrupted(void)
{
    CHECK_IN(over_each_call(-EINTR, false));
}

static void each_call_may_fail(void)
{
    CHECK_IN(over_each_call(-EPIPE, true));
    CHECK_IN(over_each_call(-ECONNRESET, true));
    CHECK_IN(over_each_call(-ETIMEDOUT, true));
    CHECK_IN(over_each_call(-EHOSTUNREACH, true));
    CHECK_IN(over_each_call(-ENOBUFS, true));
}

static void all_calls_may_be_short(void)
{
    CHECK_IN(start_line(8192, answer_any_call));
    talk();
    talk();
    line_settles(5);
    CHECK(line_is_settled());
    CHECK(!vm_is_busy(line.port));
    CHECK_IN(all_arrives_and_the_end());
}

static void a_peer_may_read_byte_by_byte(void)
{
    CHECK_IN(start_line(8192, NULL));
    for (int i = 0; i < 40; i++)
        line_sends(3000);
    for (int bytes = 0; bytes < 20000; bytes++) {
        (void)line_is_read(1);
        if (bytes % 16 == 0)
            (void)line_runs(0);
    }
    line_settles(5);
    CHECK(line_is_settled());
    CHECK_IN(all_arrives_and_the_end());
}

/* ---- closing the port ---- */

/* Covers gathered packets, queued packets, and nothing to send at all. */
static void what_was_sent_arrives_though_the_port_closes(void)
{
    static const uint32_t lens[] = {10, 20000, 400000};

    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++)
        for (int flushed = 0; flushed < 2; flushed++) {
            CHECK_IN(start_line(8192, NULL));
            line_sends(lens[i]);
            line_sends(10);
            if (flushed)
                (void)line_is_flushed();
            CHECK_IN(all_arrives_and_the_end());
        }
}

/* The first call accepts a few bytes, later calls accept none. */
static int answer_once(void)
{
    int now = special_answer;

    special_answer = -EAGAIN;
    return now;
}

/* A peer that keeps reading receives everything, however long it takes, because the time limit
 * applies only to a peer that has stopped reading. */
static void a_slow_peer_gets_the_last_words(void)
{
    special_answer = -EAGAIN;
    CHECK_IN(start_line(0, answer_once));
    line_sends(400000);
    CHECK(port_queued(line.port) > 400000);
    vm_close(line.port);
    while (!vm_reason(line.port)) {
        special_answer = 5000;
        for (int round = 0; round < PORT_ROUNDS && special_answer > 0; round++)
            (void)line_runs(1);
        CHECK(special_answer < 0);
        (void)line_is_read(SIZE_MAX);
        vm_skip(900);
        (void)line_runs(0);
    }
    CHECK_IN(all_arrives_and_the_end());
}

/* During the first seconds the system may still accept some bytes. */
static void a_peer_that_does_not_read_ends_the_patience(void)
{
    CHECK_IN(start_line(8192, NULL));
    line_sends(400000);
    vm_close(line.port);
    for (int round = 0; round < 20; round++)
        (void)line_runs(1);
    CHECK(vm_reason(line.port) == NULL);
    for (int second = 0; second < 10 && !vm_reason(line.port); second++) {
        vm_skip(1000);
        (void)line_runs(0);
    }
    CHECK(vm_reason(line.port) != NULL);
    CHECK_IN(stop_line());
}

/* ---- a peer that disconnects ---- */

static void a_peer_goes_while_both_queues_are_full(void)
{
    struct linger at_once = {.l_onoff = 1};

    for (int is_reset = 0; is_reset < 2; is_reset++) {
        CHECK_IN(start_line(8192, NULL));
        for (int i = 0; i < 4; i++)
            line_sends(200000);
        CHECK(vm_is_busy(line.port));
        for (ssize_t n = 1; n > 0;)
            n = send(line.peer, line.sent, 200004, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (is_reset)
            CHECK_EQ(setsockopt(line.peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
        close(line.peer);
        line.peer = -1;
        for (int round = 0; round < PORT_ROUNDS && !vm_reason(line.port); round++)
            (void)line_runs(1);
        CHECK(vm_reason(line.port) && strcmp(vm_reason(line.port), "connection_closed") == 0);
        CHECK_IN(stop_line());
    }
}

/* Every kind of write detects the reset: a large packet, a small packet, a tick, and a flush by the
 * keeper. Data that had already arrived is read, and then the port closes, although the VM reports
 * no event. */
static void a_reset_that_the_vm_misses_ends_the_port(void)
{
    struct linger at_once = {.l_onoff = 1};
    const uint8_t packet[] = {0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 9, 5};

    for (int by = 0; by < 4; by++) {
        CHECK_IN(start_line(0, NULL));
        if (by == 1)
            CHECK_IN(many_send());
        CHECK_EQ(send(line.peer, packet, sizeof packet, 0), sizeof packet);
        CHECK_EQ(setsockopt(line.peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
        close(line.peer);
        line.peer = -1;
        vm_loses_events = true;
        if (by != 2)
            line_sends(by == 0 ? 200000 : 10);
        if (by == 1)
            CHECK(line.is_looking ? line_runs(0) : line_is_flushed());
        if (by == 2)
            line_ticks();
        CHECK(vm_reason(line.port) == NULL);
        vm_stop_clock(false);
        do
            (void)line_runs(0);
        while (line.is_looking);
        CHECK(vm_reason(line.port) && strcmp(vm_reason(line.port), "connection_closed") == 0);
        CHECK_EQ(vm_frames(line.port), 1);
        vm_loses_events = false;
        CHECK_IN(stop_line());
    }
}

static const check_case_t cases[] = {
    {"the_keeper_sends_what_has_gathered", the_keeper_sends_what_has_gathered},
    {"single_packets_go_out_at_once", single_packets_go_out_at_once},
    {"no_timer_outlives_the_keeper", no_timer_outlives_the_keeper},
    {"nothing_waits_for_a_keeper_that_does_not_come",
     nothing_waits_for_a_keeper_that_does_not_come},
    {"room_may_be_missing_at_each_call", room_may_be_missing_at_each_call},
    {"each_call_may_take_a_part", each_call_may_take_a_part},
    {"each_call_may_be_interrupted", each_call_may_be_interrupted},
    {"each_call_may_fail", each_call_may_fail},
    {"all_calls_may_be_short", all_calls_may_be_short},
    {"a_peer_may_read_byte_by_byte", a_peer_may_read_byte_by_byte},
    {"what_was_sent_arrives_though_the_port_closes", what_was_sent_arrives_though_the_port_closes},
    {"a_slow_peer_gets_the_last_words", a_slow_peer_gets_the_last_words},
    {"a_peer_that_does_not_read_ends_the_patience", a_peer_that_does_not_read_ends_the_patience},
    {"a_peer_goes_while_both_queues_are_full", a_peer_goes_while_both_queues_are_full},
    {"a_reset_that_the_vm_misses_ends_the_port", a_reset_that_the_vm_misses_ends_the_port},
};

LINE_MAIN(cases)
