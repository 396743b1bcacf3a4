/* SPDX-License-Identifier: Apache-2.0
 *
 * The rule of looking instead of sleeping, on a clock of the test's own: when it begins, when it
 * ends, and that it gives up for longer the more often others need the processor.
 */
#include "check.h"

#include "../link/spin.h"

#define BUDGET 200u

static bw_spin_t spin;
static uint64_t now;

static void setup(uint32_t budget_us)
{
    now = 1000000;
    bw_spin_init(&spin, budget_us);
}

/* `times` arrivals of `load`, each `wait_us` after the ring was drained. */
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

static void ends_when_the_budget_is_used_up(void)
{
    setup(BUDGET);
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    for (uint64_t end = now + BUDGET; now < end; now += 10)
        CHECK(bw_spin_goes_on(&spin, now, 0));
    now += 10;
    CHECK(!bw_spin_goes_on(&spin, now, 0));
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

/* Begins a round and loses the processor in it. */
static void gap(void)
{
    CHECK(bw_spin_begins(&spin, now));
    CHECK(bw_spin_goes_on(&spin, now, 0));
    now += BW_SPIN_GAP_US + 1;
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

static void looks_without_a_gap_shorten_the_ban(void)
{
    setup(BUDGET);
    arrivals(50, 10, 1);
    CHECK_IN(gap());
    CHECK_EQ(spin.ban_us, 2 * BW_SPIN_BAN_MIN_US);
    now += BW_SPIN_BAN_MAX_US;
    arrivals(50, 10, 1);
    CHECK(bw_spin_begins(&spin, now));
    for (uint32_t i = 0; i < 3 * BW_SPIN_REWARD; i++) {
        now += 10;
        CHECK(bw_spin_goes_on(&spin, now, 1));
    }
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
    {"not_for_large_frames", not_for_large_frames},
    {"one_long_pause_counts_little", one_long_pause_counts_little},
    {"ends_when_the_budget_is_used_up", ends_when_the_budget_is_used_up},
    {"frames_renew_the_budget", frames_renew_the_budget},
    {"gaps_ban_for_longer_and_longer", gaps_ban_for_longer_and_longer},
    {"looks_without_a_gap_shorten_the_ban", looks_without_a_gap_shorten_the_ban},
    {"time_between_rounds_is_no_gap", time_between_rounds_is_no_gap},
};

CHECK_MAIN(cases)
