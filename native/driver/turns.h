/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TURNS_H
#define BW_TURNS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A queue of large messages, each waiting for its next fragment to be sent. The message with the
 * fewest fragments left goes next. But once BW_TURNS_PASSING_BYTES of other messages have been sent
 * ahead of the message that has waited longest, that message goes next, so each of n messages sends
 * a fragment within n times that many bytes. The turns themselves form a pairing heap and a list,
 * so no memory is allocated, and a change takes O(log n) on average.
 */

#define BW_TURNS_PASSING_BYTES (256 * 1024)

/* A waiting message, embedded in the user's own record of it. The user sets the first two fields
 * before bw_turns_put and must not change them before bw_turns_remove. */
typedef struct bw_turn {
    uint64_t left;                            /* fragments that have not been sent */
    uint64_t number;                          /* if `left` is equal, the lowest number is next */
    struct bw_turn *last, *next;              /* neighbours in order of arrival */
    struct bw_turn *child, *sibling, *before; /* `before`: the left sibling, or the parent */
} bw_turn_t;

typedef struct {
    bw_turn_t *longest, *latest; /* the message that has waited longest; the last to arrive */
    bw_turn_t *shortest;         /* the root of the heap */
    uint64_t passed;             /* bytes sent ahead of `longest` */
} bw_turns_t;

static inline bool bw_turns_wait(const bw_turns_t *turns)
{
    return turns->longest;
}

/* Returns the message whose turn it is. There must be at least one. */
static inline bw_turn_t *bw_turns_next(const bw_turns_t *turns)
{
    return turns->passed < BW_TURNS_PASSING_BYTES ? turns->shortest : turns->longest;
}

void bw_turns_put(bw_turns_t *turns, bw_turn_t *turn);

/* `bytes` is the size of the fragment that is being sent, or 0 if there is another reason. */
void bw_turns_remove(bw_turns_t *turns, bw_turn_t *turn, uint64_t bytes);

#endif
