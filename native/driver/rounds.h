/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_ROUNDS_H
#define BW_ROUNDS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Is it worth waiting for others who are about to send, too?
 *
 * A round is what goes out by one system call. Where many processes talk to a peer, their frames
 * come in runs, and a round of many costs as much as a round of one. A lone caller sends a call, or
 * gets one and answers, and then nobody has anything to send until the peer has: few frames out,
 * few in, by turns. He gains nothing by waiting.
 *
 * Pure: the caller brings the counts.
 */
typedef struct {
    uint64_t out, in;      /* frames when the last round ended */
    uint32_t alternations; /* rounds in a row that were a lone caller's */
} bw_rounds_t;

#define BW_ROUND_LONE_FRAMES 3u /* a call is up to three: demonitor, monitor and the message */
#define BW_ROUNDS_LONE 8u

static inline void bw_round_ends(bw_rounds_t *rounds, uint64_t frames_out, uint64_t frames_in)
{
    uint64_t out = frames_out - rounds->out, in = frames_in - rounds->in;

    rounds->out = frames_out;
    rounds->in = frames_in;
    if (out > BW_ROUND_LONE_FRAMES || in > BW_ROUND_LONE_FRAMES || in == 0)
        rounds->alternations = 0;
    else if (rounds->alternations < BW_ROUNDS_LONE)
        rounds->alternations++;
}

static inline bool bw_rounds_are_lone(const bw_rounds_t *rounds)
{
    return rounds->alternations == BW_ROUNDS_LONE;
}

#endif
