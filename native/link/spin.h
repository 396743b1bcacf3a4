/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SPIN_H
#define BW_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * When is it worth looking at a ring again and again instead of sleeping until the doorbell?
 *
 * Waking an idle processor costs more than the rest of a round trip, so a short look pays if frames
 * have recently come within the budget. It does harm if others need the processor. There are two
 * signs of that: if much comes at a time, the node has work to do anyway, and if the poller does
 * not get the processor, somebody else wants it. But every host has some work of its own now and
 * then. What tells the two apart is the share: next to a process that never rests, the poller runs
 * for some milliseconds and then waits as long or longer; on a host at rest it waits a twentieth of
 * the time.
 *
 * So looks that find frames earn credit, and losses (the time for which the poller was away, or a
 * look in vain) are paid with several times as much. A poller that cannot pay gives up for a while,
 * for longer each time until its credit is full again. It starts with a little credit.
 *
 * The caller supplies the time, in microseconds of any monotonic clock.
 */
typedef struct {
    uint32_t budget_us;  /* longest look, 0: never */
    uint32_t wait_us;    /* smoothed: from drained to the next frame, at most BW_SPIN_LONG_US */
    uint32_t load_x16;   /* smoothed: frames that came together, times 16 */
    uint32_t ban_us;     /* for how long the next failure ends all looking */
    uint32_t credit_us;  /* of looks that have found frames */
    uint64_t drained_us; /* when the ring was last found empty after frames */
    uint64_t looked_us;  /* when the poller last looked, 0: not yet in this round */
    uint64_t banned_until_us; /* no looking before then */
} bw_spin_t;

#define BW_SPIN_LONG_US 1000u
/* A lone caller: gen_server:call sends the end of the last monitor, a monitor and the request, and
 * now and then one more frame comes with them. */
#define BW_SPIN_LOAD_MAX 4u
#define BW_SPIN_LOAD_BYTES 8192u /* this many bytes are as much work as a frame */
#define BW_SPIN_GAP_US 200u      /* if the poller was away for longer, others need the processor */
#define BW_SPIN_PRICE 4u         /* credit for each microsecond that is lost */
#define BW_SPIN_CREDIT_MAX_US 65536u
#define BW_SPIN_GRANT_US                                                                           \
    8192u /* at the start: more than a host at rest takes at a time, less than a neighbour */
#define BW_SPIN_BAN_MIN_US 1000u
#define BW_SPIN_BAN_MAX_US 1000000u

static inline void bw_spin_init(bw_spin_t *spin, uint32_t budget_us)
{
    *spin = (bw_spin_t){.budget_us = budget_us,
                        .wait_us = BW_SPIN_LONG_US,
                        .ban_us = BW_SPIN_BAN_MIN_US,
                        .credit_us = BW_SPIN_GRANT_US};
}

/* Returns the amount of work in what came together. */
static inline uint32_t bw_spin_load(uint64_t frames, uint64_t bytes)
{
    uint64_t load = frames + bytes / BW_SPIN_LOAD_BYTES;

    return load < UINT16_MAX ? (uint32_t)load : UINT16_MAX;
}

/* Learns that `load` has been read and the ring was found empty at `now_us`. */
static inline void bw_spin_learn(bw_spin_t *spin, uint64_t now_us, uint32_t load)
{
    uint64_t wait = now_us - spin->drained_us;

    if (wait > BW_SPIN_LONG_US)
        wait = BW_SPIN_LONG_US;
    spin->wait_us = (uint32_t)((7 * (uint64_t)spin->wait_us + wait) / 8);
    spin->load_x16 = (uint32_t)((7 * (uint64_t)spin->load_x16 + 16 * (uint64_t)load) / 8);
    spin->drained_us = now_us;
}

/* Returns whether to keep looking at the drained ring from now on. */
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

/* Returns false, and gives up looking, if there was not enough credit. */
static inline bool bw_spin_pays(bw_spin_t *spin, uint64_t now_us, uint64_t lost_us)
{
    if (lost_us > spin->credit_us / BW_SPIN_PRICE) {
        bw_spin_punish(spin, now_us);
        return false;
    }
    spin->credit_us -= (uint32_t)(BW_SPIN_PRICE * lost_us);
    return true;
}

/* The poller has looked at `now_us` and found `load`, or 0 for nothing. Returns true to look again
 * and false to sleep. A look in vain is paid for as well, because the peer may be waiting for this
 * very processor. */
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
