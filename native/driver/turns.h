/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TURNS_H
#define BW_TURNS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Large messages that wait for their next fragment to be sent. Next is the one with the fewest
 * fragments left. After BW_TURNS_PASSING_BYTES of others it is the one that has waited longest, so
 * each of n messages sends a fragment within n times that many bytes. A pairing heap and a list
 * both link the turns themselves, so no memory is allocated, and a change takes O(log n) on
 * average.
 */

#define BW_TURNS_PASSING_BYTES (256 * 1024)

/* A message that waits, embedded in the record that its user keeps of it. The user sets the first
 * two fields before bw_turns_put and must not change them before bw_turns_remove. */
typedef struct bw_turn {
    uint64_t left;                            /* fragments that have not been sent */
    uint64_t number;                          /* if `left` is equal, the lowest number is next */
    struct bw_turn *last, *next;              /* in order of arrival */
    struct bw_turn *child, *sibling, *before; /* `before`: the sibling on the left, or the parent */
} bw_turn_t;

typedef struct {
    bw_turn_t *longest, *latest; /* the one that has waited longest, and the latest arrival */
    bw_turn_t *shortest;         /* the root of the heap */
    uint64_t passed;             /* bytes that have passed the one that has waited longest */
} bw_turns_t;

static inline bool bw_turns_wait(const bw_turns_t *turns)
{
    return turns->longest;
}

/* At least one must wait. */
static inline bw_turn_t *bw_turns_next(const bw_turns_t *turns)
{
    return turns->passed < BW_TURNS_PASSING_BYTES ? turns->shortest : turns->longest;
}

void bw_turns_put(bw_turns_t *turns, bw_turn_t *turn);

/* Removes a message, because a fragment of it with `bytes` bytes is sent now; 0 if none is. */
void bw_turns_remove(bw_turns_t *turns, bw_turn_t *turn, uint64_t bytes);

#endif
