/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_LONE_CALLER_H
#define BW_LONE_CALLER_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Decides whether it is worthwhile to wait for other processes that are about to send.
 *
 * A round is a batch of frames sent with one system call. If many processes talk to a peer, their
 * frames come in bursts, and a round of many frames costs no more than a round of one. A lone
 * caller, by contrast, sends a request or answers one, and then no process has anything to send
 * until the peer has sent something, so the two sides alternate with a few frames each. Nodes that
 * call each other only occasionally do not alternate, but there are pauses between their rounds. In
 * both cases there is no point in waiting.
 *
 * If each recent round was a single frame, the next one probably will be as well, so there is
 * nothing to gather; an rpc reply consists of two frames, but a process runs between them. A link
 * that is new or has been quiet for a while is assumed to be of this kind until its rounds show
 * otherwise. The reason is that waiting involves scheduling two processes and setting a timer,
 * which is not worthwhile on a link that is hardly used.
 *
 * The caller supplies the counts and the time, in microseconds of any monotonic clock.
 */
typedef struct {
    uint64_t out, in; /* frame counts at the end of the last round */
    uint64_t at_us;   /* when that round ended */
    uint64_t turn;    /* frames sent since the peer last sent something, or since a pause */
    uint32_t lone;    /* consecutive rounds that look like those of a lone caller */
    uint32_t singles; /* how many of the latest of these consisted of a single frame */
    bool is_apart;    /* there was a pause between the last two rounds */
} bw_rounds_t;

#define BW_ROUND_LONE_FRAMES 3u  /* a call has up to three: demonitor, monitor and the message */
#define BW_ROUND_APART_US 200u   /* after such a pause, the sender is not sending in bursts */
#define BW_ROUND_NEAR_US 20u     /* a frame that follows this soon could have been gathered */
#define BW_ROUND_QUIET_US 10000u /* after this time, earlier rounds are no longer relevant */
#define BW_ROUNDS_LONE 8u

/* A new link counts as having been quiet since time 0. */
static inline bool bw_rounds_were_quiet(const bw_rounds_t *rounds, uint64_t now_us)
{
    return now_us - rounds->at_us >= BW_ROUND_QUIET_US;
}

/* Must be called before a frame is sent. */
static inline void bw_rounds_forget(bw_rounds_t *rounds, uint64_t now_us)
{
    if (bw_rounds_were_quiet(rounds, now_us))
        rounds->lone = rounds->singles = BW_ROUNDS_LONE;
}

static inline void bw_round_ends(bw_rounds_t *rounds, uint64_t frames_out, uint64_t frames_in,
                                 uint64_t now_us)
{
    uint64_t out = frames_out - rounds->out, in = frames_in - rounds->in;
    uint64_t since_us = now_us - rounds->at_us;

    if (since_us >= BW_ROUND_QUIET_US) { /* this frame was alone; the next may be in a burst */
        rounds->lone = BW_ROUNDS_LONE;
        rounds->singles = BW_ROUNDS_LONE - 2;
    }
    rounds->is_apart = since_us >= BW_ROUND_APART_US;
    rounds->out = frames_out;
    rounds->in = frames_in;
    rounds->at_us = now_us;
    rounds->turn = in > 0 || rounds->is_apart ? out : rounds->turn + out;
    if (rounds->turn > BW_ROUND_LONE_FRAMES || in > BW_ROUND_LONE_FRAMES) {
        rounds->lone = rounds->singles = 0;
        return;
    }
    if (rounds->lone < BW_ROUNDS_LONE)
        rounds->lone++;
    if (out != 1 || (in == 0 && since_us < BW_ROUND_NEAR_US))
        rounds->singles = 0;
    else if (rounds->singles < BW_ROUNDS_LONE)
        rounds->singles++;
}

static inline bool bw_rounds_are_lone(const bw_rounds_t *rounds)
{
    return rounds->lone == BW_ROUNDS_LONE;
}

static inline bool bw_rounds_are_single(const bw_rounds_t *rounds)
{
    return rounds->singles == BW_ROUNDS_LONE;
}

#endif
