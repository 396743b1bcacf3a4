/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_ROUNDS_H
#define BW_ROUNDS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Decides whether it pays to wait for other processes that are about to send.
 *
 * A round is what goes out with one system call. Where many processes talk to a peer, their frames
 * come in runs, and a round of many costs as much as a round of one. A lone caller sends a call, or
 * gets one and answers, and then nobody has anything to send until the peer has sent something: few
 * frames go out and few come in, in turns. Nodes that call each other only now and then do not take
 * turns, but time passes between their rounds. Neither gains anything by waiting.
 *
 * Where each round was a single frame, the next one will probably be single as well, so there is
 * nothing to gather at all; an answer by rpc is two frames, but a process runs between them. A link
 * that is new or was quiet for a while is treated as such a link until its rounds show otherwise,
 * because waiting for others takes two processes a turn and sets a timer, which a link that is
 * hardly used cannot win back.
 *
 * The caller supplies the counts and the time, in microseconds of any monotonic clock.
 */
typedef struct {
    uint64_t out, in; /* frames at the end of the last round */
    uint64_t at_us;   /* when that round ended */
    uint64_t turn;    /* frames out since the peer sent something, or since a pause */
    uint32_t lone;    /* rounds in a row that were a lone caller's */
    uint32_t singles; /* of these, the last ones that were one frame each */
    bool is_apart;    /* there was a pause between the last two rounds */
} bw_rounds_t;

#define BW_ROUND_LONE_FRAMES 3u  /* a call is up to three: demonitor, monitor and the message */
#define BW_ROUND_APART_US 200u   /* a sender that sends again this late does not send in runs */
#define BW_ROUND_NEAR_US 20u     /* a frame that comes this soon could have been gathered */
#define BW_ROUND_QUIET_US 10000u /* after this time the earlier rounds no longer say anything */
#define BW_ROUNDS_LONE 8u

/* Must be called before a frame is sent. A new link counts as quiet since the clock began. */
static inline void bw_rounds_forget(bw_rounds_t *rounds, uint64_t now_us)
{
    if (now_us - rounds->at_us >= BW_ROUND_QUIET_US)
        rounds->lone = rounds->singles = BW_ROUNDS_LONE;
}

static inline void bw_round_ends(bw_rounds_t *rounds, uint64_t frames_out, uint64_t frames_in,
                                 uint64_t now_us)
{
    uint64_t out = frames_out - rounds->out, in = frames_in - rounds->in;
    uint64_t since_us = now_us - rounds->at_us;

    if (since_us >= BW_ROUND_QUIET_US) { /* one frame has gone out alone; the next may gather */
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

/* Returns whether frames go out one at a time. */
static inline bool bw_rounds_are_single(const bw_rounds_t *rounds)
{
    return rounds->singles == BW_ROUNDS_LONE;
}

#endif
