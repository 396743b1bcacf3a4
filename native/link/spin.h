/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SPIN_H
#define BW_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Decides when it is worth polling a ring instead of sleeping until the doorbell rings.
 *
 * Waking an idle CPU costs more than the rest of a round trip, so spinning for a short time is
 * worthwhile if recent frames have arrived within the budget. It does harm if other processes need
 * the CPU. There are two signs of that: if many frames arrive at a time, the node has work to do
 * anyway, and if the poller does not get the CPU, another process is using it. Every host has some
 * background work, but far less time is lost to it: on an idle host, the poller spends a twentieth
 * of its time waiting for a CPU, whereas next to a process that is always busy, it runs for a few
 * milliseconds and then waits at least as long.
 *
 * So looks that find frames earn credit, and losses (time for which the poller did not run, or a
 * spin that found nothing) cost several times as much credit. A poller without enough credit stops
 * spinning for a while, and longer each time until its credit is full again.
 *
 * The caller supplies the time, in microseconds of any monotonic clock.
 */
typedef struct {
    uint32_t budget_us;  /* maximum time to spin; 0 to disable */
    uint32_t wait_us;    /* smoothed idle time before the next frame, at most BW_SPIN_LONG_US */
    uint32_t load_x16;   /* smoothed number of frames that arrive together, times 16 */
    uint32_t ban_us;     /* for how long the next failure disables spinning */
    uint32_t credit_us;  /* earned by looks that found frames */
    uint64_t drained_us; /* when the ring was last found empty after frames */
    uint64_t looked_us;  /* when the poller last looked; 0 if not yet in this round */
    uint64_t banned_until_us; /* no spinning before this time */
} bw_spin_t;

#define BW_SPIN_LONG_US 1000u
/* The load of a lone caller: gen_server:call sends the removal of the last monitor, a new monitor
 * and the request, and occasionally one more frame arrives with them. */
#define BW_SPIN_LOAD_MAX 4u
#define BW_SPIN_LOAD_BYTES 8192u /* this many bytes count as one frame */
#define BW_SPIN_GAP_US 200u      /* if the poller is off the CPU longer, other processes need it */
#define BW_SPIN_PRICE 4u         /* cost in credit for each microsecond lost */
#define BW_SPIN_CREDIT_MAX_US 65536u
#define BW_SPIN_GRANT_US 8192u /* initial credit: enough for background work */
#define BW_SPIN_BAN_MIN_US 1000u
#define BW_SPIN_BAN_MAX_US 1000000u

static inline void bw_spin_init(bw_spin_t *spin, uint32_t budget_us)
{
    *spin = (bw_spin_t){.budget_us = budget_us,
                        .wait_us = BW_SPIN_LONG_US,
                        .ban_us = BW_SPIN_BAN_MIN_US,
                        .credit_us = BW_SPIN_GRANT_US};
}

/* Returns a measure of the work in the frames that arrived together. */
static inline uint32_t bw_spin_load(uint64_t frames, uint64_t bytes)
{
    uint64_t load = frames + bytes / BW_SPIN_LOAD_BYTES;

    return load < UINT16_MAX ? (uint32_t)load : UINT16_MAX;
}

/* Records that `load` has been read and that the ring was then empty, at `now_us`. */
static inline void bw_spin_learn(bw_spin_t *spin, uint64_t now_us, uint32_t load)
{
    uint64_t wait = now_us - spin->drained_us;

    if (wait > BW_SPIN_LONG_US)
        wait = BW_SPIN_LONG_US;
    spin->wait_us = (uint32_t)((7 * (uint64_t)spin->wait_us + wait) / 8);
    spin->load_x16 = (uint32_t)((7 * (uint64_t)spin->load_x16 + 16 * (uint64_t)load) / 8);
    spin->drained_us = now_us;
}

static inline bool bw_spin_begins(bw_spin_t *spin, uint64_t now_us)
{
    spin->looked_us = 0;
    return spin->wait_us < spin->budget_us && spin->load_x16 <= 16 * BW_SPIN_LOAD_MAX &&
           now_us >= spin->banned_until_us;
}

static inline void bw_spin_punish(bw_spin_t *spin, uint64_t now_us)
{
    spin->banned_until_us = now_us + spin->ban_us;
    spin->ban_us = spin->ban_us > BW_SPIN_BAN_MAX_US / 2 ? BW_SPIN_BAN_MAX_US : 2 * spin->ban_us;
    spin->credit_us = BW_SPIN_GRANT_US;
}

static inline void bw_spin_earn(bw_spin_t *spin, uint64_t waited_us)
{
    spin->credit_us += (uint32_t)(waited_us < spin->budget_us ? waited_us : spin->budget_us);
    if (spin->credit_us < BW_SPIN_CREDIT_MAX_US)
        return;
    spin->credit_us = BW_SPIN_CREDIT_MAX_US;
    spin->ban_us = BW_SPIN_BAN_MIN_US;
}

/* Pays for a loss. Returns false, and stops spinning, if there was not enough credit. */
static inline bool bw_spin_pays(bw_spin_t *spin, uint64_t now_us, uint64_t lost_us)
{
    if (lost_us > spin->credit_us / BW_SPIN_PRICE) {
        bw_spin_punish(spin, now_us);
        return false;
    }
    spin->credit_us -= (uint32_t)(BW_SPIN_PRICE * lost_us);
    return true;
}

/* Records that the poller looked at `now_us` and found `load`, or 0 if it found nothing. Returns
 * true if it should look again, and false if it should sleep. A spin that finds nothing also costs
 * credit, because the peer may be waiting for this very CPU. */
static inline bool bw_spin_goes_on(bw_spin_t *spin, uint64_t now_us, uint32_t load)
{
    uint64_t away = spin->looked_us ? now_us - spin->looked_us : 0;
    bool is_gap = away > BW_SPIN_GAP_US;

    spin->looked_us = now_us;
    if (load > 0) {
        if (!is_gap)
            bw_spin_earn(spin, now_us - spin->drained_us);
        bw_spin_learn(spin, now_us, load);
    }
    if (is_gap && !bw_spin_pays(spin, now_us, away))
        return false;
    if (now_us - spin->drained_us <= spin->budget_us)
        return spin->load_x16 <= 16 * BW_SPIN_LOAD_MAX;
    if (!is_gap)
        (void)bw_spin_pays(spin, now_us, spin->budget_us);
    return false;
}

#endif
