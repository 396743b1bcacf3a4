/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the measurement of how late a process was scheduled, for a reader that polls the value once
 * a second. */
#include "../check.h"

#include "../../driver/late.h"

static void the_most_of_two_seconds_is_told(void)
{
    late_t late = {0};

    CHECK_EQ(late_us(&late, false, 0, 5000000), 0);
    late_note(&late, 5000000, 5000300);
    late_note(&late, 5100000, 5100100);
    CHECK_EQ(late_us(&late, false, 0, 5999999), 300);
    CHECK_EQ(late_us(&late, false, 0, 6500000), 300);
    late_note(&late, 6500000, 6500200);
    CHECK_EQ(late_us(&late, false, 0, 6999999), 300);
    CHECK_EQ(late_us(&late, false, 0, 7000000), 200);
    CHECK_EQ(late_us(&late, false, 0, 8000000), 0);
}

static void who_has_not_come_yet_counts(void)
{
    late_t late = {0};

    late_note(&late, 5000000, 5000300);
    CHECK_EQ(late_us(&late, true, 5900000, 7400000), 1500000);
    CHECK_EQ(late_us(&late, true, 5000400, 5000500), 300);
}

static const check_case_t cases[] = {
    {"the_most_of_two_seconds_is_told", the_most_of_two_seconds_is_told},
    {"who_has_not_come_yet_counts", who_has_not_come_yet_counts},
};

CHECK_MAIN(cases)
