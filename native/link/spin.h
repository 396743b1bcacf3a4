/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SPIN_H
#define BW_SPIN_H

#include <stdbool.h>
#include <stdint.h>

/*
 * When is it worth looking at a ring again and again instead of sleeping until the doorbell?
 *
 * Waking an idle processor costs more than all the rest of a round trip, so a short look is worth
 * it if the next frame has lately come within the budget. It is harmful if others need the
 * processor: if much comes at a time the node has work to do anyway, and if the poller was
 * not given the processor for a while then others outside the node want it. One such gap may only
 * mean that both peers happened to share a processor, which the system mends as soon as both are
 * busy; so looking is given up for a short while first, and for longer the more often it fails.
 *
 * Pure: the caller brings the time, in microseconds of any clock that does not go back.
 */
typedef struct {
    uint32_t budget_us;  /* longest look, 0: never */
    uint32_t wait_us;    /* smoothed: from drained to the next frame, at most BW_SPIN_LONG_US */
    uint32_t load_x16;   /* smoothed: frames that came together, times 16 */
    uint32_t ban_us;     /* how long the next failure ends all looking */
    uint32_t rewarded;   /* looks in a row that found frames without a gap */
    uint64_t drained_us; /* when the ring was last found empty after frames */
    uint64_t looked_us;  /* when the poller last looked, 0: not yet in this round */
    uint64_t banned_until_us; /* no looking before */
} bw_spin_t;

#define BW_SPIN_LONG_US 1000u
#define BW_SPIN_LOAD_MAX 2u      /* a lone caller: the reply to a remote call is two frames */
#define BW_SPIN_LOAD_BYTES 8192u /* so many bytes are as much work as a frame */
#define BW_SPIN_GAP_US 200u      /* the poller was away so long: others need the processor */
#define BW_SPIN_BAN_MIN_US 1000u
#define BW_SPIN_BAN_MAX_US 1000000u
#define BW_SPIN_REWARD 1024u /* so many looks without a gap halve the ban */

static inline void bw_spin_init(bw_spin_t *spin, uint32_t budget_us)
{
    *spin = (bw_spin_t){
        .budget_us = budget_us, .wait_us = BW_SPIN_LONG_US, .ban_us = BW_SPIN_BAN_MIN_US};
}

/* The work in what came together. */
static inline uint32_t bw_spin_load(uint64_t frames, uint64_t bytes)
{
    uint64_t load = frames + bytes / BW_SPIN_LOAD_BYTES;

    return load < UINT16_MAX ? (uint32_t)load : UINT16_MAX;
}

/* `load` has been read, and the ring was drained, at `now`. */
static inline void bw_spin_learn(bw_spin_t *spin, uint64_t now_us, uint32_t load)
{
    uint64_t wait = now_us - spin->drained_us;

    if (wait > BW_SPIN_LONG_US)
        wait = BW_SPIN_LONG_US;
    spin->wait_us = (uint32_t)((7 * (uint64_t)spin->wait_us + wait) / 8);
    spin->load_x16 = (uint32_t)((7 * (uint64_t)spin->load_x16 + 16 * (uint64_t)load) / 8);
    spin->drained_us = now_us;
}

/* Shall the drained ring be looked at from now on? */
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
    spin->rewarded = 0;
}

static inline void bw_spin_reward(bw_spin_t *spin)
{
    if (++spin->rewarded < BW_SPIN_REWARD)
        return;
    spin->rewarded = 0;
    if (spin->ban_us > BW_SPIN_BAN_MIN_US)
        spin->ban_us /= 2;
}

/* The poller has looked at `now` and found `load`, 0 for nothing. True: look again; false: sleep.
 * A look in vain costs as much trust as a gap: the peer may be waiting for this very processor. */
static inline bool bw_spin_goes_on(bw_spin_t *spin, uint64_t now_us, uint32_t load)
{
    bool gap = spin->looked_us && now_us - spin->looked_us > BW_SPIN_GAP_US;

    spin->looked_us = now_us;
    if (load > 0) {
        bw_spin_learn(spin, now_us, load);
        bw_spin_reward(spin);
    }
    if (!gap && now_us - spin->drained_us <= spin->budget_us)
        return true;
    bw_spin_punish(spin, now_us);
    return false;
}

#endif
