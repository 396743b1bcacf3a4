/* SPDX-License-Identifier: Apache-2.0 */
/* Tests when the next piece is compressed: never if that would use more CPU time than allowed, and
 * rarely if compression has not saved anything. */
#include "../check.h"

#include "../../link/session/worth.h"

#define MS 1000000ull
#define S (1000 * MS)

static void a_short_piece_is_not_tried(void)
{
    bw_worth_t worth = {.percent = 5};

    CHECK(!bw_worth_try(&worth, 0, BW_WORTH_LEAST_BYTES - 1, S));
    CHECK(bw_worth_try(&worth, 0, BW_WORTH_LEAST_BYTES, S));
}

/* Returns how many pieces are left uncompressed before compression is next tried. */
static unsigned passes(bw_worth_t *worth, unsigned kind)
{
    unsigned count = 0;

    while (!bw_worth_try(worth, kind, 1000, S))
        count++;
    return count;
}

static void what_saves_nothing_is_tried_ever_less(void)
{
    bw_worth_t worth = {.percent = 5};
    static const unsigned wanted[] = {0, 1, 2, 4, 8, 16, 32, 64, 64, 64};

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        CHECK_EQ(passes(&worth, 1), wanted[i]);
        bw_worth_note(&worth, 1, 1000, 1003, 1000);
    }
    CHECK_EQ(passes(&worth, 0), 0); /* the other kind is not affected */
}

static void what_saves_something_is_tried_again(void)
{
    bw_worth_t worth = {.percent = 5};

    for (int i = 0; i < 5; i++) {
        (void)passes(&worth, 0);
        bw_worth_note(&worth, 0, 1000, 876, 1000);
    }
    CHECK_EQ(passes(&worth, 0), 16);
    bw_worth_note(&worth, 0, 1000, 875, 1000);
    CHECK_EQ(passes(&worth, 0), 0);
    bw_worth_note(&worth, 0, 1000, 1000, 1000);
    CHECK_EQ(passes(&worth, 0), 1);
}

/* Each piece takes 1 ms, and there is always another one. */
static uint64_t spent_ns(unsigned percent, uint64_t step_ns, uint64_t end_ns)
{
    bw_worth_t worth = {.percent = percent};
    uint64_t spent = 0;

    for (uint64_t now = 100 * S; now < 100 * S + end_ns; now += step_ns)
        if (bw_worth_try(&worth, 0, 1000, now)) {
            bw_worth_note(&worth, 0, 1000, 100, MS);
            spent += MS;
        }
    return spent;
}

/* The limit is the allowed share of CPU time, plus the credit for one second, plus one piece. */
static void time_is_bounded(void)
{
    static const unsigned percents[] = {1, 5, 100};
    static const uint64_t steps[] = {1000, 300000,
                                     2 * MS}; /* 1 us: less than is credited at once */

    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 3; k++) {
            uint64_t end = steps[k] < MS ? 20 * S : 2000 * S, part = end / 100 * percents[i];
            uint64_t spent = spent_ns(percents[i], steps[k], end);
            uint64_t all = end / steps[k] * MS; /* compresses every piece */

            CHECK(spent <= part + S / 100 * percents[i] + 2 * MS);
            CHECK(spent >= (part < all ? part : all) * 95 / 100);
        }
}

/* Time that passed earlier does not accumulate as credit. */
static void a_rest_is_no_credit(void)
{
    bw_worth_t worth = {.percent = 5};
    uint64_t spent = 0;

    (void)bw_worth_try(&worth, 0, 1000, S);
    while (bw_worth_try(&worth, 0, 1000, 1000 * S)) {
        bw_worth_note(&worth, 0, 1000, 100, MS);
        spent += MS;
    }
    CHECK(spent >= 50 * MS && spent <= 52 * MS);
}

static const check_case_t cases[] = {
    {"a_short_piece_is_not_tried", a_short_piece_is_not_tried},
    {"what_saves_nothing_is_tried_ever_less", what_saves_nothing_is_tried_ever_less},
    {"what_saves_something_is_tried_again", what_saves_something_is_tried_again},
    {"time_is_bounded", time_is_bounded},
    {"a_rest_is_no_credit", a_rest_is_no_credit},
};

CHECK_MAIN(cases)
