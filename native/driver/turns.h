/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TURNS_H
#define BW_TURNS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Large messages that wait for their next fragment to go. The one with the fewest fragments left is
 * next. After BW_TURNS_PASSING_BYTES of others the one that has waited longest is next instead, so
 * each of n messages gets a fragment within n times as much. A pairing heap and a list, both of
 * which link the turns themselves: no memory is allocated, and a change takes O(log n) on average.
 */

#define BW_TURNS_PASSING_BYTES (256 * 1024)

/* A message that waits; part of what its user keeps of it. The user sets the first two fields
 * before bw_turns_put and does not change them before bw_turns_remove. */
typedef struct bw_turn {
    uint64_t left;                            /* fragments that have not gone */
    uint64_t number;                          /* of equal ones the lowest is next */
    struct bw_turn *last, *next;              /* in the order in which they came */
    struct bw_turn *child, *sibling, *before; /* `before`: the sibling on the left, or the parent */
} bw_turn_t;

typedef struct {
    bw_turn_t *longest, *latest; /* the one that has waited longest, and the one that came last */
    bw_turn_t *shortest;         /* the root of the heap */
    uint64_t passed;             /* bytes that have passed the one that has waited longest */
} bw_turns_t;

static inline bool bw_turns_wait(const bw_turns_t *turns)
{
    return turns->longest;
}

/* There must be one. */
static inline bw_turn_t *bw_turns_next(const bw_turns_t *turns)
{
    return turns->passed < BW_TURNS_PASSING_BYTES ? turns->shortest : turns->longest;
}

void bw_turns_put(bw_turns_t *turns, bw_turn_t *turn);

/* A message that waits does so no more, because a fragment of so many bytes goes now; or none. */
void bw_turns_remove(bw_turns_t *turns, bw_turn_t *turn, uint64_t bytes);

#endif
