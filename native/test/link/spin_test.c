/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the rule that decides when to poll instead of sleeping, on the test's own clock: when
 * polling begins and ends, and that the pauses without polling become longer the more often other
 * threads need the processor. Also tests what polling gains and costs if the processor is available
 * at the times recorded on a real machine (spin_traces.h).
 */
#include "../check.h"

#include "../../link/spin.h"
#include "spin_traces.h"

#define BUDGET 200u

static bw_spin_t spin;
static uint64_t now;

static void setup(uint32_t budget_us)
{
    now = 1000000;
    bw_spin_init(&spin, budget_us);
}

/* `times` arrivals with load `load`, each `wait_us` after the ring was drained. */
static void arrivals(int times, uint32_t wait_us, uint32_t load)
{
    for (int i = 0; i < times; i++) {
        now += wait_us;
        bw_spin_learn(&spin, now, load);
    }
}

static void never_without_a_budget(void)
{
    setup(0);
    arrivals(1000, 0, 1);
    CHECK(!bw_spin_begins(&spin, now));
}

static void begins_when_waits_have_become_short(void)
{
    setup(BUDGET);
    CHECK(!bw_spin_begins(&spin, now));
    arrivals(2, 10, 1);
    CHECK(!bw_spin_begins(&spin, now));
    arrivals(30, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    arrivals(30, 500, 1);
    CHECK(!bw_spin_begins(&spin, now));
}

static void not_while_frames_come_in_bulk(void)
{
    setup(BUDGET);
    arrivals(50, 10, BW_SPIN_LOAD_MAX + 1);
    CHECK(!bw_spin_begins(&spin, now));
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
}

/* The messages that reach a server between two replies: demonitor, monitor and request. */
static void for_a_lone_call_of_a_server(void)
{
    setup(BUDGET);
    arrivals(50, 10, 3);
    CHECK(bw_spin_begins(&spin, now));
    arrivals(1, 10, 4);
    CHECK(bw_spin_begins(&spin, now));
}

static void not_for_large_frames(void)
{
    setup(BUDGET);
    arrivals(50, 10, bw_spin_load(1, 65536));
    CHECK(!bw_spin_begins(&spin, now));
    arrivals(50, 10, bw_spin_load(1, 4096));
    CHECK(bw_spin_begins(&spin, now));
    CHECK_EQ(bw_spin_load(0, 100), 0);
    CHECK_EQ(bw_spin_load(UINT64_MAX / 2, UINT64_MAX), UINT16_MAX);
}

static void one_long_pause_counts_little(void)
{
    setup(BUDGET);
    arrivals(50, 10, 1);
    arrivals(1, UINT32_MAX, 1);
    CHECK(spin.wait_us < BUDGET);
}

static void look_in_vain(void)
{
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    for (uint64_t end = now + BUDGET; now < end; now += 10)
        CHECK(bw_spin_goes_on(&spin, now, 0));
    now += 10;
    CHECK(!bw_spin_goes_on(&spin, now, 0));
}

static void ends_when_the_budget_is_used_up(void)
{
    setup(BUDGET);
    for (uint32_t i = 0; i < BW_SPIN_GRANT_US / (BW_SPIN_PRICE * BUDGET); i++)
        CHECK_IN(look_in_vain());
    CHECK(bw_spin_begins(&spin, now));
    CHECK_IN(look_in_vain());
    CHECK(!bw_spin_begins(&spin, now + BW_SPIN_BAN_MIN_US - 1));
    CHECK(bw_spin_begins(&spin, now + BW_SPIN_BAN_MIN_US));
}

static void frames_renew_the_budget(void)
{
    setup(BUDGET);
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    for (int i = 0; i < 10000; i++) {
        now += 150;
        CHECK(bw_spin_goes_on(&spin, now, 1));
    }
}

/* Begins a round and is preempted during it. */
static void gap(void)
{
    CHECK(bw_spin_begins(&spin, now));
    CHECK(bw_spin_goes_on(&spin, now, 0));
    now += BW_SPIN_GRANT_US / BW_SPIN_PRICE + 1;
    CHECK(!bw_spin_goes_on(&spin, now, 0));
    CHECK(!bw_spin_begins(&spin, now));
}

static void gaps_ban_for_longer_and_longer(void)
{
    uint64_t ban = BW_SPIN_BAN_MIN_US;

    setup(BUDGET);
    for (int i = 0; i < 20; i++) {
        arrivals(50, 10, 1);
        CHECK_IN(gap());
        CHECK(!bw_spin_begins(&spin, now + ban - 1));
        CHECK(bw_spin_begins(&spin, now + ban));
        now += ban;
        ban = 2 * ban < BW_SPIN_BAN_MAX_US ? 2 * ban : BW_SPIN_BAN_MAX_US;
    }
    CHECK_EQ(ban, BW_SPIN_BAN_MAX_US);
}

/* `times` frames arrive while the poller looks, 10 us apart. */
static void found(int times)
{
    for (int i = 0; i < times; i++) {
        now += 10;
        CHECK(bw_spin_goes_on(&spin, now, 1));
    }
}

#define FULL (BW_SPIN_CREDIT_MAX_US / 10 + 1)

static void full_credit_ends_the_escalation(void)
{
    setup(BUDGET);
    arrivals(50, 10, 1);
    CHECK_IN(gap());
    CHECK_EQ(spin.ban_us, 2 * BW_SPIN_BAN_MIN_US);
    now += BW_SPIN_BAN_MAX_US;
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    CHECK_IN(found(FULL));
    CHECK_EQ(spin.ban_us, BW_SPIN_BAN_MIN_US);
}

static void what_was_earned_pays_for_gaps(void)
{
    uint64_t lost = BW_SPIN_CREDIT_MAX_US / BW_SPIN_PRICE / 4;

    setup(BUDGET);
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    CHECK_IN(found(FULL));
    for (int i = 0; i < 4; i++) {
        now += lost;
        CHECK(bw_spin_goes_on(&spin, now, 1));
    }
    now += lost;
    CHECK(!bw_spin_goes_on(&spin, now, 1));
    CHECK(!bw_spin_begins(&spin, now));
}

static void what_was_earned_pays_for_looks_in_vain(void)
{
    setup(BUDGET);
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    CHECK_IN(found(BW_SPIN_PRICE * BUDGET / 10));
    now += BUDGET;
    CHECK(bw_spin_goes_on(&spin, now, 0));
    now += 1;
    CHECK(!bw_spin_goes_on(&spin, now, 0));
    CHECK(bw_spin_begins(&spin, now)); /* it sleeps, and may poll again after the next frame */
}

static void ends_when_frames_come_in_bulk(void)
{
    setup(BUDGET);
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    for (int i = 0; i < 3; i++)
        (void)bw_spin_goes_on(&spin, now += 10, 50);
    CHECK(!bw_spin_goes_on(&spin, now += 10, 50));
    CHECK_EQ(spin.ban_us, BW_SPIN_BAN_MIN_US);
}

/* ---- on a real machine's processors ---- */

#define WAIT_US 4u   /* until the reply */
#define WORK_US 4u   /* and until the next request of a single caller */
#define SLEEP_US 60u /* until the reply, if two sleeping CPUs have to be woken for it */
#define SECONDS 20u

typedef struct {
    uint64_t frames, found, hit; /* found by a look; found after a gap */
    uint64_t looked_us;
} sum_t;

typedef struct {
    const turn_t *turns;
    size_t count, next;
    uint64_t left_us; /* remaining in the turn */
} processor_t;

/* Runs the caller's thread for `us` and returns how long it was off the CPU during that time. */
static uint64_t run(processor_t *processor, uint64_t us)
{
    uint64_t away = 0;

    now += us;
    for (; us >= processor->left_us;
         processor->left_us = processor->turns[processor->next].runs_us) {
        us -= processor->left_us;
        away += processor->turns[processor->next].away_us;
        processor->next = (processor->next + 1) % processor->count;
    }
    processor->left_us -= us;
    now += away;
    return away;
}

/* Polls until the reply arrives. Returns false if the caller fell asleep first. */
static bool looks(processor_t *processor, sum_t *sum, uint64_t *away_p)
{
    uint64_t asked = now;
    bool comes = false, goes_on = true;

    while (goes_on && !comes) {
        *away_p += run(processor, 1);
        comes = now - asked >= WAIT_US;
        sum->looked_us++;
        goes_on = bw_spin_goes_on(&spin, now, comes);
    }
    sum->frames += comes;
    sum->found += comes;
    sum->hit += comes && *away_p > 0;
    return comes && goes_on;
}

/* A single caller sends requests repeatedly. A caller that sleeps gives up the CPU before its turn
 * ends, so the rest of its turn is preserved. */
static sum_t call_on(const turn_t *turns, size_t count)
{
    processor_t processor = {.turns = turns, .count = count, .left_us = turns[0].runs_us};
    sum_t sum = {0};
    uint64_t end;

    setup(BUDGET);
    end = now + SECONDS * 1000000;
    while (now < end) {
        uint64_t away = 0;

        if (bw_spin_begins(&spin, now))
            while (looks(&processor, &sum, &away))
                away = run(&processor, WORK_US);
        now += SLEEP_US; /* the reply wakes the caller */
        bw_spin_learn(&spin, now, 1);
        sum.frames++;
        now += WORK_US;
    }
    return sum;
}

static void gains_on_a_machine_at_rest(void)
{
    sum_t sum = call_on(at_rest, sizeof at_rest / sizeof *at_rest);

    CHECK(sum.found * 100 >= sum.frames * 97);
    CHECK(sum.hit * 1000 <= sum.frames);
}

static void costs_little(const turn_t *turns, size_t count)
{
    sum_t sum = call_on(turns, count);

    CHECK(sum.looked_us * 100 <= SECONDS * 1000000);
    CHECK(sum.hit * 1000 <= sum.frames);
    CHECK_EQ(spin.ban_us, BW_SPIN_BAN_MAX_US);
}

static void costs_little_beside_neighbours(void)
{
    CHECK_IN(costs_little(one_neighbour, sizeof one_neighbour / sizeof *one_neighbour));
    CHECK_IN(costs_little(two_neighbours, sizeof two_neighbours / sizeof *two_neighbours));
}

/* When the competing processes exit, polling is worthwhile again within a second or two. */
static void recovers_when_neighbours_end(void)
{
    (void)call_on(two_neighbours, sizeof two_neighbours / sizeof *two_neighbours);
    CHECK_EQ(spin.ban_us, BW_SPIN_BAN_MAX_US);
    now = spin.banned_until_us;
    arrivals(50, WAIT_US, 1);
    CHECK(bw_spin_begins(&spin, now));
    CHECK_IN(found(FULL));
    CHECK_EQ(spin.ban_us, BW_SPIN_BAN_MIN_US);
}

static void time_between_rounds_is_no_gap(void)
{
    setup(BUDGET);
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    CHECK(bw_spin_goes_on(&spin, now, 0));
    now += BUDGET - 1; /* the poller took over, and a new round begins */
    CHECK(bw_spin_begins(&spin, now));
    CHECK(bw_spin_goes_on(&spin, now, 0));
    CHECK_EQ(spin.ban_us, BW_SPIN_BAN_MIN_US);
}

static const check_case_t cases[] = {
    {"never_without_a_budget", never_without_a_budget},
    {"begins_when_waits_have_become_short", begins_when_waits_have_become_short},
    {"not_while_frames_come_in_bulk", not_while_frames_come_in_bulk},
    {"for_a_lone_call_of_a_server", for_a_lone_call_of_a_server},
    {"not_for_large_frames", not_for_large_frames},
    {"one_long_pause_counts_little", one_long_pause_counts_little},
    {"ends_when_the_budget_is_used_up", ends_when_the_budget_is_used_up},
    {"frames_renew_the_budget", frames_renew_the_budget},
    {"gaps_ban_for_longer_and_longer", gaps_ban_for_longer_and_longer},
    {"full_credit_ends_the_escalation", full_credit_ends_the_escalation},
    {"what_was_earned_pays_for_gaps", what_was_earned_pays_for_gaps},
    {"what_was_earned_pays_for_looks_in_vain", what_was_earned_pays_for_looks_in_vain},
    {"ends_when_frames_come_in_bulk", ends_when_frames_come_in_bulk},
    {"gains_on_a_machine_at_rest", gains_on_a_machine_at_rest},
    {"costs_little_beside_neighbours", costs_little_beside_neighbours},
    {"recovers_when_neighbours_end", recovers_when_neighbours_end},
    {"time_between_rounds_is_no_gap", time_between_rounds_is_no_gap},
};

CHECK_MAIN(cases)
