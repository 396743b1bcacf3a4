/* SPDX-License-Identifier: Apache-2.0 */
#include "pulse.h"

#include <stdatomic.h>
#include <time.h>

static _Atomic int64_t last_ms;   /* 0 if no pulse is expected */
static _Atomic int64_t limit_ms;  /* how long after a pulse the next one counts as missing */
static _Atomic int64_t missed_ms; /* written before `stops` */
static _Atomic uint32_t stops;

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Two threads may both find a pulse missing, but only one of them counts it. After that, no pulse
 * is expected until one comes, because the process that gives the pulses may itself be hanging. */
static void look(int64_t now)
{
    int64_t last = atomic_load(&last_ms);

    if (last == 0 || now - last < atomic_load(&limit_ms))
        return;
    if (atomic_compare_exchange_strong(&last_ms, &last, 0)) {
        atomic_store(&missed_ms, now - last);
        (void)atomic_fetch_add(&stops, 1);
    }
}

void bw_pulse(uint32_t next_ms)
{
    int64_t now = now_ms();

    look(now);
    atomic_store(&last_ms, now);
    atomic_store(&limit_ms, 2 * (int64_t)next_ms);
}

void bw_pulse_end(void)
{
    atomic_store(&last_ms, 0);
}

int64_t bw_pulse_missed(uint32_t *seen_p)
{
    uint32_t now;

    look(now_ms());
    now = atomic_load(&stops);
    if (now == *seen_p)
        return 0;
    *seen_p = now;
    return atomic_load(&missed_ms);
}
