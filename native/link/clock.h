/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CLOCK_H
#define BW_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Return the time of the system's monotonic clock. Any thread may call them. */
static inline uint64_t bw_clock_us(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static inline int64_t bw_clock_ms(void)
{
    return (int64_t)(bw_clock_us() / 1000);
}

#endif
