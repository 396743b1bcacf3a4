/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes through the whole driver without a VM (test/vm), over each carrier: credit, what their
 * owners are told, what gathers, looking, and how they end.
 */
#include "port_pair.h"

static bool other_has_three(void)
{
    return vm_frames(other) == 3;
}

static const char *last_term(ErlDrvPort port, const char *term)
{
    const char *text;

    while ((text = vm_heard(port)))
        if (strcmp(text, term) == 0)
            return text;
    return NULL;
}

static void credit_lets_frames_through(void)
{
    CHECK_IN(start_lanes());
    for (int i = 0; i < 5; i++)
        CHECK_IN(send_frame(one, 200));
    for (int round = 0; round < 20; round++)
        (void)vm_run(1);
    CHECK_EQ(vm_frames(other), 0);
    CHECK(give_credit(other, 3, 1000000));
    CHECK_IN(run_until(other_has_three));
    CHECK(last_term(other, "{port,passive}"));
    CHECK(give_credit(other, 100, 1000000));
    wanted[0] = 0;
    wanted[1] = 5;
    CHECK_IN(run_until(all_has_come));
    CHECK_IN(stop());
}

/* Whoever asks is told when the lane takes frames again. */
static void who_asks_is_told(void)
{
    CHECK_IN(start_lanes());
    for (int i = 0; i < 100 && !vm_is_busy(one); i++)
        CHECK_IN(send_frame(one, 300000));
    CHECK(vm_is_busy(one));
    CHECK(port_does(one, COMMAND_LANE_ASK, NULL, NULL));
    CHECK(vm_heard(one) == NULL);
    CHECK(give_credit(other, 1000, 1u << 30));
    for (int round = 0; round < PORT_ROUNDS && vm_is_busy(one); round++)
        (void)vm_run(1);
    CHECK(last_term(one, "{port,writable}"));
    CHECK_IN(stop());
}

/* A binary in parts is one message. */
static void parts_are_put_together(void)
{
    uint8_t part[BW_PART_HEAD_BYTES + 40000] = {LANE_MARK};

    CHECK_IN(start_lanes());
    CHECK(give_credit(other, 10, 1u << 30));
    part[4] = 7;               /* its number */
    part[5 + 7] = 80000 & 255; /* its size */
    part[5 + 6] = 80000 >> 8 & 255;
    part[5 + 5] = 80000 >> 16;
    for (int i = 0; i < 2; i++) {
        for (int round = 0; round < PORT_ROUNDS && vm_is_busy(one); round++)
            (void)vm_run(1);
        vm_send(one, part, sizeof part);
    }
    wanted[0] = 0;
    wanted[1] = 1;
    CHECK_IN(run_until(all_has_come));
    CHECK_EQ(vm_bytes(other), 80000);
    CHECK_IN(stop());
}

/* The system calls by which a port has written. */
static uint64_t writes_of(ErlDrvPort port)
{
    vm_reply_t stats;

    return port_does(port, COMMAND_STATS, NULL, &stats) ? bw_number(stats.bytes + 5 * 8, 8) : 0;
}

#define GATHERED 20

/* Two lanes with an owner each; frames of `one` have gathered, `wanted` says how many there are. */
static void start_gathering(void)
{
    const char *term = NULL;
    uint64_t before;

    CHECK_IN(start_lanes());
    CHECK(attend_lane(one, 0) && attend_lane(other, 0));
    CHECK(give_credit(other, 100000, 1u << 30));
    wanted[0] = wanted[1] = 0;
    before = writes_of(one);
    CHECK_IN(send_frame(one, 100));
    wanted[1]++;
    CHECK_EQ(writes_of(one), before + 1); /* the first goes at once */
    for (int i = 0; i < 10000 && !term; i++) {
        CHECK_IN(send_frame(one, 100));
        wanted[1]++;
        term = vm_heard(one);
    }
    CHECK(term && strcmp(term, "{port,flush}") == 0);
    before = writes_of(one);
    for (int i = 0; i < GATHERED; i++) {
        CHECK_IN(send_frame(one, 100));
        wanted[1]++;
    }
    CHECK_EQ(writes_of(one), before);
    CHECK(vm_heard(one) == NULL); /* asked once */
}

static void frames_of_a_lane_gather(void)
{
    uint64_t before;

    CHECK_IN(start_gathering());
    before = writes_of(one);
    CHECK(port_does(one, COMMAND_FLUSH, NULL, NULL));
    CHECK_EQ(writes_of(one), before + 1);
    CHECK_IN(run_until(all_has_come));
    CHECK_IN(stop());
}

static void what_gathers_does_not_wait_for_its_owner(void)
{
    CHECK_IN(start_gathering());
    vm_skip(1);
    CHECK_IN(run_until(all_has_come));
    CHECK_IN(send_frame(one, 100)); /* still asked */
    wanted[1]++;
    vm_skip(1);
    CHECK_IN(run_until(all_has_come));
    CHECK_IN(stop());
}

static void much_goes_at_once(void)
{
    uint64_t before;

    CHECK_IN(start_gathering());
    before = writes_of(one);
    for (int i = 0; i < 700; i++) {
        CHECK_IN(send_frame(one, 100));
        wanted[1]++;
    }
    CHECK(writes_of(one) > before); /* once, or as often as the system takes a part */
    CHECK(writes_of(one) < before + 10);
    vm_skip(1);
    CHECK_IN(run_until(all_has_come));
    CHECK_IN(stop());
}

static void what_has_gathered_goes_before_the_end(void)
{
    CHECK_IN(start_gathering());
    CHECK(port_does(one, COMMAND_LANE_CLOSE, NULL, NULL));
    CHECK_IN(run_until(both_have_ended));
    CHECK_EQ(vm_frames(other), wanted[1]);
    CHECK(last_term(other, "{port,closed,closed,0}"));
    CHECK_IN(stop());
}

/* `other` is told to look: frames come to it one by one. */
static void start_looking(void)
{
    const char *term = NULL;

    CHECK_IN(start_lanes());
    CHECK(attend_lane(one, 0) && attend_lane(other, 10000));
    CHECK(give_credit(other, 100000, 1u << 30));
    wanted[0] = wanted[1] = 0;
    for (int round = 0; round < 2000 && !term; round++) {
        CHECK_IN(send_when_idle(one, 64));
        wanted[1]++;
        (void)vm_run(1);
        term = vm_heard(other);
    }
    CHECK(term && strcmp(term, "{port,look}") == 0);
}

static void the_owner_of_a_lane_looks(void)
{
    CHECK_IN(start_looking());
    CHECK_IN(look_until_it_sleeps(other));
    CHECK_IN(send_when_idle(one, 64)); /* it sleeps: this one wakes it */
    wanted[1]++;
    CHECK_IN(run_until(all_has_come));
    CHECK_IN(stop());
}

static bool other_looks_and_all_has_come(void)
{
    return port_does(other, COMMAND_LOOK, NULL, NULL) && all_has_come();
}

/* Its owner may not look any more. */
static void a_lane_that_looks_closes(void)
{
    CHECK_IN(start_looking());
    CHECK_IN(run_until(other_looks_and_all_has_come));
    CHECK(port_does(other, COMMAND_LANE_CLOSE, NULL, NULL));
    CHECK(give_credit(one, 10, 100000));
    CHECK_IN(run_until(both_have_ended));
    CHECK_IN(stop());
}

static void a_lane_closes_in_order(void)
{
    CHECK_IN(start_lanes());
    CHECK(give_credit(other, 10, 100000));
    CHECK_IN(send_frame(one, 500));
    CHECK(port_does(one, COMMAND_LANE_CLOSE, NULL, NULL));
    CHECK_IN(run_until(both_have_ended));
    CHECK_EQ(vm_frames(other), 1);
    CHECK(last_term(one, "{port,closed,local_close,0}"));
    CHECK(last_term(other, "{port,closed,closed,0}"));
    CHECK_EQ(strcmp(vm_reason(one), "normal"), 0);
    CHECK_EQ(strcmp(vm_reason(other), "normal"), 0);
    CHECK_IN(stop());
}

static bool has_come_unread(void)
{
    vm_reply_t reply;

    return port_does(other, COMMAND_STATS, NULL, &reply) &&
           bw_number(reply.bytes + 8 * 8, 8) > 0; /* bytes in the ring */
}

/* The socket beside the link ends: what has come is given, then the lane is over. */
static void a_guard_ends_a_lane(void)
{
    int guards[2];
    const char *term = NULL;

    CHECK_IN(start_joined());
    CHECK(connect_sockets(0, &guards[0], &guards[1]));
    CHECK(open_lane(one, 0) && open_lane(other, guards[1]));
    close(guards[1]);
    CHECK_IN(send_frame(one, 500));
    CHECK_IN(run_until(has_come_unread));
    close(guards[0]);
    (void)vm_run(1);
    CHECK(give_credit(other, 10, 100000));
    for (int round = 0; round < PORT_ROUNDS && !vm_reason(other); round++)
        if (!vm_run(1))
            vm_skip(50); /* the silence that is the end */
    CHECK_EQ(vm_frames(other), 1);
    while (!term && (term = vm_heard(other)))
        if (strncmp(term, "{port,closed,connection_closed,", 31) != 0)
            term = NULL;
    CHECK(term != NULL);
    CHECK_IN(stop());
}

static const check_case_t cases[] = {
    {"credit_lets_frames_through", credit_lets_frames_through},
    {"who_asks_is_told", who_asks_is_told},
    {"parts_are_put_together", parts_are_put_together},
    {"the_owner_of_a_lane_looks", the_owner_of_a_lane_looks},
    {"a_lane_that_looks_closes", a_lane_that_looks_closes},
    {"a_lane_closes_in_order", a_lane_closes_in_order},
    {"a_guard_ends_a_lane", a_guard_ends_a_lane},
};

static const check_case_t of_sockets[] = {
    {"frames_of_a_lane_gather", frames_of_a_lane_gather},
    {"what_gathers_does_not_wait_for_its_owner", what_gathers_does_not_wait_for_its_owner},
    {"much_goes_at_once", much_goes_at_once},
    {"what_has_gathered_goes_before_the_end", what_has_gathered_goes_before_the_end},
};

int main(int argc, char **argv)
{
    check_carriers(cases, sizeof cases / sizeof *cases, NULL, argc, argv);
    check_carriers(of_sockets, sizeof of_sockets / sizeof *of_sockets, has_packets, argc, argv);
    return check_end();
}
