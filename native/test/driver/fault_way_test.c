/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which bytes a fault holds back, and for how long: delays that preserve the order, rates,
 * and blocked links. */
#include "../check.h"

#include "../../driver/fault_way.h"

static bw_fault_way_t way;

static void nothing_is_held_without_a_fault(void)
{
    const bw_fault_t none = {0};

    way = (bw_fault_way_t){0};
    bw_fault_note(&way, &none, 10, 5);
    CHECK_EQ(bw_fault_open(&way, &none, false, 5), 10);
    CHECK_EQ(bw_fault_wait_us(&way, &none, false, 5), UINT64_MAX);
    CHECK_EQ(bw_fault_open(&way, &none, false, 6), 10);
}

static void bytes_wait_for_their_time(void)
{
    const bw_fault_t slow = {.delay_ms = 100};

    way = (bw_fault_way_t){0};
    bw_fault_note(&way, &slow, 10, 0);
    bw_fault_note(&way, &slow, 30, 50000);
    CHECK_EQ(bw_fault_open(&way, &slow, false, 99999), 0);
    CHECK_EQ(bw_fault_wait_us(&way, &slow, false, 99000), 1000);
    CHECK_EQ(bw_fault_open(&way, &slow, false, 100000), 10);
    CHECK_EQ(bw_fault_wait_us(&way, &slow, false, 100000), 50000);
    CHECK_EQ(bw_fault_open(&way, &slow, false, 150000), 30);
}

/* Bytes that keep arriving do not delay earlier ones any further. */
static void a_steady_stream_is_delayed_alike(void)
{
    const bw_fault_t slow = {.delay_ms = 10};

    way = (bw_fault_way_t){0};
    for (uint64_t i = 1; i <= 1000; i++) {
        bw_fault_note(&way, &slow, i, i * 300);
        if (i > 50)
            CHECK(bw_fault_open(&way, &slow, false, i * 300) + 40 >= i);
    }
}

static void jitter_keeps_the_order(void)
{
    const bw_fault_t uneven = {.delay_ms = 10, .jitter_ms = 50};
    uint64_t before = 0, latest = 0;
    int pauses = 0;

    way = (bw_fault_way_t){.random = 1};
    for (uint64_t i = 1; i <= 500; i++)
        bw_fault_note(&way, &uneven, i, i * 1000);
    for (uint64_t now = 0; now < 600000; now += 1000) {
        uint64_t open = bw_fault_open(&way, &uneven, false, now);

        CHECK(open >= before && (open == 0 || open * 1000 + 10000 <= now));
        pauses += open == before;
        latest = open > before ? now : latest;
        before = open;
    }
    CHECK_EQ(before, 500);
    CHECK(pauses > 100); /* 100 more than with bytes sent at a steady pace */
    CHECK(latest >= 510000 && latest <= 560000);
}

static void a_rate_lets_so_much_go_on(void)
{
    const bw_fault_t narrow = {.rate = 10000};
    uint64_t now = 0, step;

    way = (bw_fault_way_t){0};
    bw_fault_note(&way, &narrow, 5000, 0);
    CHECK_EQ(bw_fault_open(&way, &narrow, false, 0), 0);
    while ((step = bw_fault_wait_us(&way, &narrow, false, now)) != UINT64_MAX) {
        now += step;
        (void)bw_fault_open(&way, &narrow, false, now);
        CHECK(now <= 1000000);
    }
    CHECK_EQ(now, 500000);
    CHECK_EQ(way.open, 5000);
    /* Unused capacity during a pause does not accumulate. */
    bw_fault_note(&way, &narrow, 10000, 60000000);
    CHECK_EQ(bw_fault_open(&way, &narrow, false, 60000000), 5000);
    CHECK(bw_fault_open(&way, &narrow, false, 120000000) <= 5500);
}

static void what_is_held_goes_on_when_the_fault_ends(void)
{
    const bw_fault_t cut = {.holds_in = true}, slow = {.delay_ms = 10000}, none = {0};

    way = (bw_fault_way_t){0};
    bw_fault_note(&way, &cut, 10, 0);
    CHECK_EQ(bw_fault_open(&way, &cut, cut.holds_in, 1u << 30), 0);
    CHECK_EQ(bw_fault_wait_us(&way, &cut, cut.holds_in, 0), UINT64_MAX);
    bw_fault_note(&way, &slow, 20, 1u << 30);
    bw_fault_retime(&way, &none, 1u << 30);
    CHECK_EQ(bw_fault_wait_us(&way, &none, false, 1u << 30), 0);
    CHECK_EQ(bw_fault_open(&way, &none, false, 1u << 30), 20);
}

/* There are more marks than can be stored, so bytes are delayed longer, but none is lost. */
static void many_pieces_need_no_more_memory(void)
{
    const bw_fault_t slow = {.delay_ms = 10000};

    way = (bw_fault_way_t){0};
    for (uint64_t i = 1; i <= 3 * BW_FAULT_MARKS; i++)
        bw_fault_note(&way, &slow, i, i * 2000);
    CHECK_EQ(bw_fault_open(&way, &slow, false, 10000000 + 2000), 1);
    CHECK_EQ(bw_fault_open(&way, &slow, false, 10000000 + 3 * BW_FAULT_MARKS * 2000),
             3 * BW_FAULT_MARKS);
}

static const check_case_t cases[] = {
    {"nothing_is_held_without_a_fault", nothing_is_held_without_a_fault},
    {"bytes_wait_for_their_time", bytes_wait_for_their_time},
    {"a_steady_stream_is_delayed_alike", a_steady_stream_is_delayed_alike},
    {"jitter_keeps_the_order", jitter_keeps_the_order},
    {"a_rate_lets_so_much_go_on", a_rate_lets_so_much_go_on},
    {"what_is_held_goes_on_when_the_fault_ends", what_is_held_goes_on_when_the_fault_ends},
    {"many_pieces_need_no_more_memory", many_pieces_need_no_more_memory},
};

CHECK_MAIN(cases)
