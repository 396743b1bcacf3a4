/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_LATE_H
#define BW_LATE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Measures how long a process takes to respond to requests. It keeps the maximum of this second and
 * of the previous one, so a reader that checks once a second misses nothing.
 */
typedef struct {
    uint64_t second, most_us, before_us; /* the maximum in this second and in the previous one */
} late_t;

#define LATE_SECOND_US 1000000u

static inline void late_turn(late_t *late, uint64_t second)
{
    if (second == late->second)
        return;
    late->before_us = second == late->second + 1 ? late->most_us : 0;
    late->most_us = 0;
    late->second = second;
}

/* Records that the process has responded to the request made at `asked_us`. */
static inline void late_note(late_t *late, uint64_t asked_us, uint64_t now_us)
{
    late_turn(late, now_us / LATE_SECOND_US);
    if (now_us - asked_us > late->most_us)
        late->most_us = now_us - asked_us;
}

/* Returns the longest recent delay. If `is_asked`, a request made at `asked_us` is still pending,
 * and its delay so far counts as well. */
static inline uint64_t late_us(const late_t *late, bool is_asked, uint64_t asked_us,
                               uint64_t now_us)
{
    late_t turned = *late;

    late_turn(&turned, now_us / LATE_SECOND_US);
    if (is_asked && now_us - asked_us > turned.most_us)
        turned.most_us = now_us - asked_us;
    return turned.most_us > turned.before_us ? turned.most_us : turned.before_us;
}

#endif
