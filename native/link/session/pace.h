/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_PACE_H
#define BW_SESSION_PACE_H

#include <stdbool.h>

/*
 * Decides how many of several connections to use, based on the throughput in successive periods. It
 * adds connections as long as each addition increases the throughput by a tenth; if one does not,
 * it is undone and tried again later.
 */
#define BW_PACE_HOLD 8u
#define BW_PACE_HOLD_MAX 64u

typedef struct {
    unsigned use, most;
    unsigned fewer;       /* number in use before the last addition; 0 once that was evaluated */
    double before;        /* the throughput with `fewer` connections */
    unsigned hold, holds; /* periods to wait now, and the next time */
} bw_pace_t;

static inline bw_pace_t bw_pace_of(unsigned first, unsigned most)
{
    return (bw_pace_t){.use = first, .most = most, .holds = BW_PACE_HOLD};
}

/* Called at the end of a period. `is_hungry` means that there was more to send than was sent. */
static inline void bw_pace_step(bw_pace_t *pace, double rate, bool is_hungry)
{
    if (!is_hungry)
        return;
    if (pace->hold > 0) {
        pace->hold--;
        return;
    }
    if (pace->fewer > 0 && rate < pace->before * 1.1) {
        pace->use = pace->fewer;
        pace->fewer = 0;
        pace->hold = pace->holds;
        if (pace->holds < BW_PACE_HOLD_MAX)
            pace->holds *= 2;
        return;
    }
    pace->fewer = 0;
    if (pace->use >= pace->most)
        return;
    pace->before = rate;
    pace->fewer = pace->use;
    pace->use *= pace->use == 1 ? 4 : 2;
    if (pace->use > pace->most)
        pace->use = pace->most;
}

#endif
