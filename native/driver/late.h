/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_LATE_H
#define BW_LATE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * How late a process came after it was asked to. It keeps the maximum of the current second of a
 * clock and of the one before, so a reader that looks once a second misses nothing. The caller
 * supplies the time.
 */
typedef struct {
    uint64_t second, most_us, before_us; /* the maximum in this second and in the one before */
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

/* The process has come. */
static inline void late_note(late_t *late, uint64_t asked_us, uint64_t now_us)
{
    late_turn(late, now_us / LATE_SECOND_US);
    if (now_us - asked_us > late->most_us)
        late->most_us = now_us - asked_us;
}

/* If `is_asked`, the process was asked at `asked_us` and has not come yet. */
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
