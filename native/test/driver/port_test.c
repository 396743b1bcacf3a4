/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the complete driver without a VM (test/vm): its commands, two ports connected over each
 * carrier that distribution can use, flushing, and ports that end in every state.
 */
#include <pthread.h>

#include "port_pair.h"

#include "../../link/frame.h"

/* ---- frames ---- */

static _Atomic uint64_t wrong;

static void check_frame(ErlDrvPort port, const uint8_t *at, uint64_t len)
{
    (void)port;
    for (uint64_t i = 0; i < len; i++)
        wrong += at[i] != (uint8_t)(len * 7 + i * 31 + (i >> 8));
}

static const size_t lens[] = {1, 8, 100, 1023, 1025, 9000, 60000, PORT_RING, 300000, 5};
#define LENS (sizeof lens / sizeof *lens)

static void frames_go_both_ways(void)
{
    CHECK_IN(start_active(0));
    vm_deliver = check_frame;
    wrong = 0;
    for (size_t i = 0; i < LENS; i++) {
        CHECK_IN(send_when_idle(one, lens[i]));
        CHECK_IN(send_when_idle(other, lens[LENS - 1 - i]));
    }
    wanted[0] = wanted[1] = LENS;
    CHECK_IN(run_until(all_has_come));
    CHECK_EQ(wrong, 0);
    CHECK_EQ(vm_bytes(one), vm_bytes(other));
    vm_deliver = NULL;
    CHECK(vm_heard(one) == NULL);
    CHECK_IN(stop());
}

/* Flushes both ports as their keepers would, and returns whether everything has arrived. */
static bool is_flushed_and_all_has_come(void)
{
    ErlDrvPort ports[] = {one, other};

    for (int i = 0; i < 2; i++) {
        const char *term = vm_heard(ports[i]);

        if (term && strcmp(term, "flush") == 0)
            (void)port_does(ports[i], COMMAND_FLUSH, NULL, NULL);
    }
    return all_has_come();
}

/* Gathered frames arrive. The rest of a frame that was waiting for room also arrives, although no
 * process sends anything more. */
static void frames_that_gather_come(void)
{
    CHECK_IN(start_active(0));
    CHECK(port_does(one, COMMAND_FLUSH, NULL, NULL) && port_does(other, COMMAND_FLUSH, NULL, NULL));
    wanted[0] = 0;
    wanted[1] = 0;
    for (size_t i = 0; i < LENS; i++) {
        CHECK_IN(send_frame(one, lens[i]));
        wanted[1]++;
        CHECK_IN(run_until(is_flushed_and_all_has_come));
    }
    CHECK_IN(stop());
}

/* Returns the number of system calls that a port has made to read. */
static uint64_t reads_of(ErlDrvPort port)
{
    return stat_of(port, STAT_doorbells_in);
}

/* The VM polls the connection itself. */
static void a_packet_costs_one_read(void)
{
    uint64_t before;

    CHECK_IN(start_joined());
    CHECK(port_does(one, COMMAND_PACKETS, NULL, NULL));
    CHECK(port_does(other, COMMAND_PACKETS, NULL, NULL));
    CHECK(port_does(one, COMMAND_FLUSH, NULL, NULL) && port_does(other, COMMAND_FLUSH, NULL, NULL));
    CHECK(port_activates(one, 0) && port_activates(other, 0));
    while (vm_run(0))
        ; /* their first looks */
    before = reads_of(other);
    wanted[0] = wanted[1] = 0;
    for (size_t i = 0; i < 20; i++) {
        CHECK_IN(send_frame(one, 100));
        wanted[1]++;
        CHECK_IN(run_until(is_flushed_and_all_has_come));
    }
    CHECK_EQ(reads_of(other), before + 20);
    for (size_t i = 0; i < LENS; i++) {
        CHECK_IN(send_frame(one, lens[i]));
        wanted[1]++;
        CHECK_IN(run_until(is_flushed_and_all_has_come));
    }
    CHECK_IN(stop());
}

/* The peer notices that a port has closed; the reason is that of a closed socket. */
static void a_closed_port_ends_its_peer(void)
{
    CHECK_IN(start_active(0));
    CHECK_IN(send_frame(one, 100));
    vm_close(one);
    CHECK_IN(run_until(both_have_ended));
    CHECK_EQ(strcmp(vm_reason(one), "normal"), 0);
    CHECK_EQ(strcmp(vm_reason(other), "connection_closed"), 0);
    CHECK_EQ(vm_frames(other), 1);
    CHECK_IN(stop());
}

/* If the port has time to poll, its owner is told to keep looking until the port lets it sleep. */
static void the_owner_looks(void)
{
    const char *term = NULL;

    CHECK_IN(start_active(10000));
    for (int round = 0; round < 2000 && !term; round++) {
        CHECK_IN(send_when_idle(one, 64));
        (void)vm_run(1);
        term = vm_heard(other);
    }
    CHECK(term && strcmp(term, "look") == 0);
    CHECK_IN(look_until_it_sleeps(other));
    CHECK_IN(stop());
}

static void a_tick_is_a_frame(void)
{
    vm_reply_t reply;

    CHECK_IN(start_active(0));
    CHECK(port_does(one, COMMAND_TICK, NULL, NULL));
    for (int round = 0; round < PORT_ROUNDS; round++) {
        (void)vm_run(1);
        if (stat_of(other, STAT_frames_in) == 1)
            break;
    }
    CHECK_EQ(stat_of(other, STAT_frames_in), 1);
    CHECK_EQ(vm_frames(other), 0);
    CHECK(port_does(other, COMMAND_RECEIVE, NULL, &reply));
    CHECK_EQ(reply.len, 1 + 8);
    CHECK_IN(stop());
}

static uint64_t wanted_load;

static bool load_has_come(void)
{
    const char *term = vm_heard(one);

    if (term && strcmp(term, "flush") == 0)
        (void)port_does(one, COMMAND_FLUSH, NULL, NULL);
    return port_peer_load(other) == wanted_load;
}

static void load_comes(uint64_t load)
{
    wanted_load = load;
    CHECK_IN(run_until(load_has_come));
}

static void start_telling(void)
{
    CHECK_IN(start_joined());
    CHECK(port_samples_load(one, 1, 1));
    CHECK(port_does(one, COMMAND_TELL_LOAD, NULL, NULL));
    CHECK(port_activates(one, 0) && port_activates(other, 0));
}

/* Each sample is sent once, with a tick or with a frame and never alone. A sample that is too large
 * is clamped. */
static void the_load_goes_along(void)
{
    uint64_t sent;

    CHECK_IN(start_telling());
    CHECK_EQ(port_peer_load(other), 0);
    CHECK(port_does(one, COMMAND_TICK, NULL, NULL));
    CHECK_IN(load_comes(LOAD(1, 1)));
    CHECK(port_samples_load(one, 255, UINT32_MAX));
    /* The VM counts everything except its own tick as traffic, and then omits the next tick. */
    CHECK_EQ(stat_of(one, STAT_frames_out), 1);
    sent = stat_of(one, STAT_bytes_out);
    for (int i = 0; i < 100; i++)
        (void)vm_run(1);
    CHECK_EQ(port_peer_load(other), LOAD(1, 1));
    CHECK_IN(send_frame(one, 100));
    CHECK_IN(load_comes(LOAD(100, UINT16_MAX)));
    CHECK_IN(send_frame(one, 100));
    CHECK(port_does(one, COMMAND_TICK, NULL, NULL));
    CHECK_EQ(stat_of(one, STAT_bytes_out) - sent,
             bw_frame_size(8) + 2 * bw_frame_size(100) + bw_frame_size(0));
    CHECK_EQ(port_peer_load(one), 0);
    CHECK_IN(stop());
}

/* Samples are sent even if there are always bytes waiting for room, and every frame still
 * arrives. */
static void a_full_link_tells_the_load(void)
{
    CHECK_IN(start_joined());
    CHECK(port_does(one, COMMAND_TELL_LOAD, NULL, NULL));
    CHECK(port_activates(one, 0));
    CHECK(port_samples_load(one, 2, 2));
    wanted[0] = 0;
    for (wanted[1] = 0; wanted[1] < 1000 && port_queued(one) == 0; wanted[1]++) {
        CHECK_IN(send_frame(one, 300000));
        (void)vm_run(1);
    }
    CHECK(port_samples_load(one, 3, 3));
    CHECK_IN(send_frame(one, 300000));
    wanted[1]++;
    CHECK(port_queued(one) > 0);
    CHECK(port_activates(other, 0));
    CHECK_IN(load_comes(LOAD(3, 3)));
    CHECK_IN(run_until(all_has_come));
    CHECK_IN(stop());
}

/* A peer that uses only packets might not understand load words; only a session ensures that it
 * does. */
static void any_other_peer_is_told_no_load(void)
{
    CHECK_IN(start_joined());
    CHECK(port_does(one, COMMAND_PACKETS, NULL, NULL));
    CHECK(!port_does(one, COMMAND_TELL_LOAD, NULL, NULL));
    CHECK_IN(stop());
}

/* ---- faults ---- */

/* Runs rounds of the VM in which no time passes, so that everything that can move has moved. */
static void run_a_while(void)
{
    for (int round = 0; round < 50; round++)
        (void)vm_run(1);
}

static void run_for(int ms)
{
    for (int passed = 0; passed < ms; passed += 5) {
        vm_skip(5);
        for (int round = 0; round < 5; round++)
            (void)vm_run(0);
    }
}

static void run_on_until_all_has_come(void)
{
    for (int round = 0; round < 2000 && !all_has_come(); round++) {
        CHECK_IN(run_for(5));
        (void)vm_run(1);
    }
    CHECK(all_has_come());
}

static void start_faulty(const bw_fault_t *fault)
{
    vm_stop_clock(true);
    CHECK_IN(start_active(0));
    CHECK_IN(run_a_while());
    vm_deliver = check_frame;
    wrong = 0;
    CHECK(port_gets_fault(one, fault));
}

static void stop_faulty(void)
{
    CHECK_EQ(wrong, 0);
    vm_deliver = NULL;
    vm_stop_clock(false);
    CHECK_IN(stop());
}

static void frames_are_delayed_both_ways(void)
{
    CHECK_IN(start_faulty(&(bw_fault_t){.delay_ms = 200}));
    for (size_t i = 0; i < 3; i++) {
        CHECK_IN(send_frame(one, lens[i]));
        CHECK_IN(send_frame(other, lens[i]));
    }
    CHECK_IN(run_a_while());
    CHECK_IN(run_for(190));
    CHECK_EQ(vm_frames(one) + vm_frames(other), 0);
    CHECK_IN(run_for(15));
    CHECK_IN(run_a_while());
    CHECK_EQ(vm_frames(one), 3);
    CHECK_EQ(vm_frames(other), 3);
    CHECK_IN(stop_faulty());
}

/* Even if there is more data than can be held at once, everything arrives in order. */
static void frames_of_any_length_pass_a_fault(void)
{
    CHECK_IN(start_faulty(&(bw_fault_t){.delay_ms = 5, .jitter_ms = 20}));
    for (size_t i = 0; i < LENS; i++) {
        for (int round = 0; round < 2000 && (vm_is_busy(one) || vm_is_busy(other)); round++)
            CHECK_IN(run_for(5));
        CHECK_IN(send_frame(one, lens[i]));
        CHECK_IN(send_frame(other, lens[LENS - 1 - i]));
    }
    wanted[0] = wanted[1] = LENS;
    CHECK_IN(run_on_until_all_has_come());
    CHECK_IN(stop_faulty());
}

/* At a rate of 100 KB per second, 60 KB take 0.6 s in either direction. */
static void a_rate_limits_both_ways(void)
{
    CHECK_IN(start_faulty(&(bw_fault_t){.rate = 100000}));
    CHECK_IN(send_frame(one, 60000));
    CHECK_IN(send_frame(other, 60000));
    CHECK_IN(run_for(550));
    CHECK_EQ(vm_frames(one) + vm_frames(other), 0);
    wanted[0] = wanted[1] = 1;
    CHECK_IN(run_on_until_all_has_come());
    CHECK_IN(stop_faulty());
}

/* Held bytes make the port busy, as if the peer had stopped reading, and arrive afterwards. */
static void what_is_held_comes_when_the_fault_ends(void)
{
    uint64_t sent = 0;

    CHECK_IN(start_faulty(&(bw_fault_t){.holds_in = true, .holds_out = true}));
    for (; sent < 10000 && !vm_is_busy(one); sent++)
        CHECK_IN(send_frame(one, 1000));
    CHECK(vm_is_busy(one));
    CHECK_IN(send_frame(other, 100));
    CHECK_IN(run_for(5000));
    CHECK_EQ(vm_frames(one) + vm_frames(other), 0);
    CHECK(port_gets_fault(one, &(bw_fault_t){0}));
    wanted[0] = 1;
    wanted[1] = sent;
    CHECK_IN(run_until(all_has_come));
    CHECK(!vm_is_busy(one));
    CHECK_IN(stop_faulty());
}

static void only_one_way_is_held(void)
{
    for (int is_out = 0; is_out < 2; is_out++) {
        CHECK_IN(start_faulty(&(bw_fault_t){.holds_in = !is_out, .holds_out = is_out}));
        CHECK_IN(send_frame(one, 100));
        CHECK_IN(send_frame(other, 100));
        CHECK_IN(run_for(1000));
        CHECK_IN(run_a_while());
        CHECK_EQ(vm_frames(one), is_out ? 1 : 0);
        CHECK_EQ(vm_frames(other), is_out ? 0 : 1);
        CHECK_IN(stop_faulty());
    }
}

/* The last bytes of a peer that has closed arrive, although late. */
static void what_is_delayed_comes_before_the_end(void)
{
    CHECK_IN(start_faulty(&(bw_fault_t){.delay_ms = 200}));
    CHECK_IN(send_frame(other, 100));
    CHECK_IN(run_a_while());
    vm_close(other);
    CHECK_IN(run_a_while());
    CHECK(!vm_reason(one));
    CHECK_EQ(vm_frames(one), 0);
    CHECK_IN(run_for(400));
    CHECK_IN(run_until(both_have_ended));
    CHECK_EQ(vm_frames(one), 1);
    CHECK_EQ(strcmp(vm_reason(one), "connection_closed"), 0);
    CHECK_IN(stop_faulty());
}

/* The same applies to the last bytes of the port that has the fault. */
static void a_faulty_port_says_its_last_words(void)
{
    CHECK_IN(start_faulty(&(bw_fault_t){.delay_ms = 10000}));
    CHECK_IN(send_frame(one, 100));
    vm_close(one);
    CHECK_IN(run_until(both_have_ended));
    CHECK_EQ(vm_frames(other), 1);
    CHECK_IN(stop_faulty());
}

static void held_in_every_way(void)
{
    CHECK_IN(start_active(0));
    CHECK(port_gets_fault(one, &(bw_fault_t){.delay_ms = 50, .rate = 1000}));
    CHECK(port_gets_fault(other, &(bw_fault_t){.holds_in = true, .holds_out = true}));
    CHECK_IN(send_frame(one, 300000));
    CHECK_IN(send_frame(other, 300000));
    (void)vm_run(1);
}

/* ---- flushing ---- */

/* A few bytes may wait without making the port busy, and how much of a frame is left over depends
 * on the system. */
static bool is_full(void)
{
    return port_queued(one) > 0 && vm_is_busy(one);
}

/* Fills the link until bytes wait for room; `other` does not read yet. */
static void start_full(void)
{
    CHECK_IN(start_joined());
    CHECK(port_activates(one, 0));
    for (int i = 0; i < 1000 && !is_full(); i++) {
        CHECK_IN(send_frame(one, 300000));
        (void)vm_run(1);
    }
    CHECK(is_full());
}

/* At least the frames that left this process arrive. On a shared ring, or if a thread does the
 * sending, the rest arrive as well. */
static uint64_t frames_that_left(void)
{
    uint64_t frames =
        (stat_of(one, STAT_bytes_out) - stat_of(one, STAT_fill_out)) / bw_frame_size(300000);

    return carrier->table->caps & BW_CAP_KERNEL_BUFFERS ? frames : frames + 1;
}

static void a_port_that_closes_flushes(void)
{
    uint64_t least;

    CHECK_IN(start_full());
    least = frames_that_left();
    vm_close(one);
    CHECK(vm_reason(one) == NULL);
    CHECK(port_activates(other, 0));
    CHECK_IN(run_until(both_have_ended));
    CHECK(vm_frames(other) >= least);
    CHECK_EQ(vm_bytes(other), vm_frames(other) * 300000);
    CHECK_IN(stop());
}

/* The peer does not read, so a flush ends after a second in which no bytes were sent. During the
 * first seconds the system may still accept some bytes. */
static void flushing_ends(void)
{
    CHECK_IN(start_full());
    vm_close(one);
    CHECK(vm_reason(one) == NULL);
    for (int round = 0; round < 20; round++)
        (void)vm_run(1);
    CHECK(vm_reason(one) == NULL);
    for (int second = 0; second < 10 && !vm_reason(one); second++) {
        vm_skip(1000);
        (void)vm_run(0);
    }
    CHECK(vm_reason(one) != NULL);
    CHECK_IN(stop());
}

/* ---- closing and failing ---- */

/* Closes neither port, the first, the second, or both in a given state; stop() then closes the
 * rest. If both are closed, stop_select is called late. */
static void end_in(void (*begin)(void))
{
    for (int who = 0; who < 8; who += who == 2 ? 5 : 1) { /* 0, 1, 2, 7 */
        CHECK_IN(begin());
        vm_deselects_later = who & 4;
        if (who & 1)
            vm_close(one);
        if (who & 2)
            vm_close(other);
        for (int round = 0; round < 3; round++)
            (void)vm_run(1);
        CHECK_IN(stop());
    }
}

static void used(void)
{
    CHECK_IN(start());
    CHECK(port_uses(one, carrier->kind));
}

static void listening(void)
{
    attempt_t attempt;

    CHECK_IN(start());
    CHECK(begin_attempt(&attempt, 0));
    CHECK(port_listens(one, &attempt));
    end_attempt(&attempt);
}

static void connecting(void)
{
    vm_reply_t told;

    CHECK_IN(start());
    CHECK(begin_to_join(one, other, &told));
}

static void waiting_for_a_thread(void)
{
    CHECK_IN(start());
    vm_hold_jobs(true);
    CHECK_EQ(use_a_file(one).bytes[0], REPLY_LATER);
}

static void active(void)
{
    CHECK_IN(start_active(0));
    CHECK_IN(send_frame(one, 100));
    CHECK_IN(send_frame(other, 300000));
}

static void in_a_gathered_frame(void)
{
    CHECK_IN(start_active(0));
    CHECK_IN(send_frame(one, 1 << 20));
    (void)vm_run(1);
}

static void a_port_may_end_in_any_state(void)
{
    void (*const states[])(void) = {start,
                                    used,
                                    listening,
                                    connecting,
                                    start_joined,
                                    waiting_for_a_thread,
                                    active,
                                    in_a_gathered_frame,
                                    held_in_every_way};

    for (size_t i = 0; i < sizeof states / sizeof *states; i++)
        CHECK_IN(end_in(states[i]));
}

/* ---- wrong commands ---- */

/* Issues every command with arbitrary bytes, in each state: the port must answer or return badarg,
 * and it must still be possible to close it. Commands that refer to a descriptor or a file of this
 * process are excluded. */
static void command_all(ErlDrvPort port, uint64_t *random)
{
    for (unsigned command = 0; command < 48; command++)
        for (size_t len = 0; len < 64; len += 1 + len / 8) {
            uint8_t bytes[64];

            for (size_t i = 0; i < len; i++)
                bytes[i] = (uint8_t)next_random(random);
            if (names_something(command, bytes, len))
                continue;
            (void)vm_control(port, command, bytes, len);
        }
}

static void wrong_commands_do_no_harm(void)
{
    void (*const states[])(void) = {start, used, listening, connecting, active, start_full};
    uint64_t random = 3;

    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        CHECK_IN(states[i]());
        command_all(one, &random);
        command_all(other, &random);
        for (int round = 0; round < 5; round++)
            (void)vm_run(1);
        CHECK_IN(stop());
    }
}

static void a_truncated_command_is_a_badarg(void)
{
    CHECK_IN(start_joined());
    for (size_t len = 0; len < 16; len++)
        CHECK_EQ(vm_control(one, COMMAND_ACTIVATE, (char[16]){0}, len).len, -1);
    for (size_t len = 0; len < 9; len++)
        CHECK_EQ(vm_control(one, COMMAND_ANSWER, (char[9]){0}, len).len, -1);
    for (size_t len = 0; len < 18; len++)
        CHECK_EQ(vm_control(one, COMMAND_CLASSES, (char[18]){2}, len).len, len % 9 == 0 ? 1 : -1);
    CHECK_EQ(vm_control(one, COMMAND_CLASSES, (char[18]){[9] = 3}, 18).len, -1); /* not a class */
    CHECK_EQ(vm_control(one, COMMAND_LOOK, NULL, 0).len, -1);
    CHECK_EQ(vm_control(one, 99, NULL, 0).len, -1);
    CHECK(port_activates(one, 0));
    CHECK_EQ(vm_control(one, COMMAND_ACTIVATE, (char[16]){0}, 16).len, -1);
    CHECK_EQ(vm_control(one, COMMAND_VERSION, NULL, 0).len, 5);
    CHECK_IN(stop());
}

static bool is_told;

static bool has_been_told(void)
{
    const char *term = vm_heard(other);

    is_told |= term && strncmp(term, "{link,", 6) == 0;
    return is_told;
}

/* The distribution handshake runs over a link that does not carry frames yet. The bytes that the
 * handshake reads are consumed, and the rest is left for the frames. */
static void bytes_go_over_an_idle_link(void)
{
    const words_t three = {{0, 0, 0, 3}, 4}, four = {{0, 0, 0, 4}, 4};
    vm_reply_t reply;

    is_told = false;
    CHECK_IN(start_joined());
    CHECK_EQ(vm_control(other, COMMAND_HEAR, (char[4]){0, 0, 1, 1}, 4).len, -1); /* too many */
    CHECK(port_does(other, COMMAND_HEAR, &three, &reply));
    CHECK_EQ(reply.len, 0);
    CHECK(port_does(one, COMMAND_SAY, &(words_t){"hel", 3}, NULL));
    CHECK_IN(run_until(has_been_told));
    CHECK(port_does(other, COMMAND_HEAR, &three, &reply));
    CHECK_EQ(reply.len, 3);
    CHECK_EQ(memcmp(reply.bytes, "hel", 3), 0);
    CHECK(port_does(other, COMMAND_HEAR, &four, &reply));
    CHECK_EQ(reply.len, 0);
    CHECK(port_activates(one, 0) && port_activates(other, 0));
    CHECK_EQ(vm_control(one, COMMAND_SAY, "x", 1).len, -1);
    CHECK_EQ(vm_control(other, COMMAND_HEAR, (char[4]){0, 0, 0, 1}, 4).len, -1);
    wanted[0] = 0;
    wanted[1] = 1;
    CHECK_IN(send_frame(one, 100));
    CHECK_IN(run_until(all_has_come));
    CHECK_IN(stop());
}

/* A process that is waiting for bytes is notified when the peer goes away. */
static void a_wait_for_bytes_ends_with_the_peer(void)
{
    const words_t three = {{0, 0, 0, 3}, 4};
    vm_reply_t reply;

    is_told = false;
    CHECK_IN(start_joined());
    CHECK(port_does(other, COMMAND_HEAR, &three, &reply));
    CHECK_EQ(reply.len, 0);
    vm_close(one);
    CHECK_IN(run_until(has_been_told));
    CHECK(!port_does(other, COMMAND_HEAR, &three, &reply));
    CHECK_IN(stop());
}

static bool all_has_come_or_the_link_is_over(void)
{
    return vm_reason(one) || vm_reason(other) || all_has_come();
}

static void without_memory_nothing_is_lost(void)
{
    for (int left = 0; left < 12; left++) {
        ErlDrvPort port;

        CHECK_IN(start_active(0));
        vm_allocations_left = left;
        port = vm_open();
        (void)port_uses(port, carrier->kind);
        CHECK_IN(send_frame(one, 300000));
        CHECK_IN(send_frame(one, 100));
        for (int round = 0; round < 20; round++)
            (void)vm_run(1);
        vm_allocations_left = -1;
        wanted[0] = 0;
        wanted[1] = 2;
        CHECK_IN(run_until(all_has_come_or_the_link_is_over));
        vm_close(port);
        for (int round = 0; round < PORT_ROUNDS && !vm_reason(port); round++)
            (void)vm_run(1);
        vm_forget(port);
        CHECK_IN(stop());
    }
}

/* ---- schedulers ---- */

#define SENT 3000

static void *send_many(void *port)
{
    for (int i = 0; i < SENT; i++) {
        while (vm_is_busy(port) && !vm_reason(port))
            (void)poll(NULL, 0, 1);
        send_frame(port, 64);
    }
    return NULL;
}

static _Atomic bool polls;

static void *poll_many(void *unused)
{
    while (polls)
        (void)vm_run(1);
    return unused;
}

/* Senders and pollers are separate threads; only one of them is inside a port at a time. */
static void any_thread_may_call(void)
{
    pthread_t threads[3];

    CHECK_IN(start_active(0));
    polls = true;
    CHECK_EQ(pthread_create(&threads[0], NULL, poll_many, NULL), 0);
    CHECK_EQ(pthread_create(&threads[1], NULL, poll_many, NULL), 0);
    CHECK_EQ(pthread_create(&threads[2], NULL, send_many, one), 0);
    (void)send_many(other);
    pthread_join(threads[2], NULL);
    wanted[0] = wanted[1] = SENT;
    for (int ms = 0; ms < ARRIVES_MS && !all_has_come(); ms++)
        (void)poll(NULL, 0, 1);
    CHECK(all_has_come());
    vm_close(one);
    for (int ms = 0; ms < ARRIVES_MS && !both_have_ended(); ms++)
        (void)poll(NULL, 0, 1);
    polls = false;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    CHECK_IN(stop());
}

#ifdef BW_TEST_RDMA
static bool is_loaded(void)
{
    return strcmp(carrier->kind, "rdma") == 0;
}

/* A connecting port does not wait for earlier jobs, such as freeing a link to a slow peer. */
static void a_loaded_carrier_needs_no_thread(void)
{
    words_t use = {.len = 0};
    vm_reply_t reply;

    put_bytes(&use, carrier->kind, strlen(carrier->kind) + 1);
    put_bytes(&use, RDMA_LIBRARY, strlen(RDMA_LIBRARY));
    CHECK_IN(start());
    CHECK(port_uses(one, carrier->kind));
    vm_hold_jobs(true);
    reply = vm_control(other, COMMAND_USE, use.bytes, use.len);
    CHECK_EQ(reply.len, 1);
    CHECK_EQ(reply.bytes[0], 0);
    CHECK(port_does(other, COMMAND_PROBE, &(words_t){{0, 0, 0, 0, 0, 1, 0, 0}, 8}, NULL));
    CHECK_IN(stop());
}

static const check_case_t of_loaded[] = {
    {"a_loaded_carrier_needs_no_thread", a_loaded_carrier_needs_no_thread},
};
#endif

static const check_case_t cases[] = {
    {"frames_go_both_ways", frames_go_both_ways},
    {"frames_that_gather_come", frames_that_gather_come},
    {"a_closed_port_ends_its_peer", a_closed_port_ends_its_peer},
    {"the_owner_looks", the_owner_looks},
    {"a_tick_is_a_frame", a_tick_is_a_frame},
    {"the_load_goes_along", the_load_goes_along},
    {"a_full_link_tells_the_load", a_full_link_tells_the_load},
    {"frames_are_delayed_both_ways", frames_are_delayed_both_ways},
    {"frames_of_any_length_pass_a_fault", frames_of_any_length_pass_a_fault},
    {"a_rate_limits_both_ways", a_rate_limits_both_ways},
    {"what_is_held_comes_when_the_fault_ends", what_is_held_comes_when_the_fault_ends},
    {"only_one_way_is_held", only_one_way_is_held},
    {"what_is_delayed_comes_before_the_end", what_is_delayed_comes_before_the_end},
    {"a_faulty_port_says_its_last_words", a_faulty_port_says_its_last_words},
    {"a_port_that_closes_flushes", a_port_that_closes_flushes},
    {"flushing_ends", flushing_ends},
    {"a_port_may_end_in_any_state", a_port_may_end_in_any_state},
    {"wrong_commands_do_no_harm", wrong_commands_do_no_harm},
    {"a_truncated_command_is_a_badarg", a_truncated_command_is_a_badarg},
    {"without_memory_nothing_is_lost", without_memory_nothing_is_lost},
    {"any_thread_may_call", any_thread_may_call},
};

static const check_case_t of_sockets[] = {
    {"a_packet_costs_one_read", a_packet_costs_one_read},
    {"any_other_peer_is_told_no_load", any_other_peer_is_told_no_load},
    {"bytes_go_over_an_idle_link", bytes_go_over_an_idle_link},
    {"a_wait_for_bytes_ends_with_the_peer", a_wait_for_bytes_ends_with_the_peer},
};

int main(int argc, char **argv)
{
    check_carriers(cases, sizeof cases / sizeof *cases, NULL, argc, argv);
    check_carriers(of_sockets, sizeof of_sockets / sizeof *of_sockets, has_packets, argc, argv);
#ifdef BW_TEST_RDMA
    check_carriers(of_loaded, sizeof of_loaded / sizeof *of_loaded, is_loaded, argc, argv);
#endif
    return check_end();
}
