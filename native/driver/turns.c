/* SPDX-License-Identifier: Apache-2.0 */
#include "turns.h"

#include <stddef.h>

static bool is_shorter(const bw_turn_t *one, const bw_turn_t *other)
{
    return one->left != other->left ? one->left < other->left : one->number < other->number;
}

/* Merges two heaps, either of which may be NULL. */
static bw_turn_t *meld(bw_turn_t *one, bw_turn_t *other)
{
    bw_turn_t *above, *below;

    if (!one || !other)
        return one ? one : other;
    above = is_shorter(other, one) ? other : one;
    below = above == one ? other : one;
    below->sibling = above->child;
    if (above->child)
        above->child->before = below;
    below->before = above;
    above->child = below;
    return above;
}

/* Merges siblings into a heap: in pairs from left to right, then all pairs from right to left. */
static bw_turn_t *meld_siblings(bw_turn_t *first)
{
    bw_turn_t *pairs = NULL, *heap = NULL;

    while (first) {
        bw_turn_t *one = first, *other = one->sibling, *pair;

        first = other ? other->sibling : NULL;
        one->sibling = NULL;
        if (other)
            other->sibling = NULL;
        pair = meld(one, other);
        pair->sibling = pairs;
        pairs = pair;
    }
    while (pairs) {
        bw_turn_t *pair = pairs;

        pairs = pair->sibling;
        pair->sibling = NULL;
        heap = meld(heap, pair);
    }
    return heap;
}

void bw_turns_put(bw_turns_t *turns, bw_turn_t *turn)
{
    turn->next = NULL;
    turn->last = turns->latest;
    *(turns->latest ? &turns->latest->next : &turns->longest) = turn;
    turns->latest = turn;
    turn->child = turn->sibling = turn->before = NULL;
    turns->shortest = meld(turns->shortest, turn);
}

void bw_turns_remove(bw_turns_t *turns, bw_turn_t *turn, uint64_t bytes)
{
    bw_turn_t *children = meld_siblings(turn->child);

    turns->passed = turn == turns->longest ? 0 : turns->passed + bytes;
    *(turn->last ? &turn->last->next : &turns->longest) = turn->next;
    *(turn->next ? &turn->next->last : &turns->latest) = turn->last;
    if (turn == turns->shortest) {
        turns->shortest = children;
        return;
    }
    *(turn->before->child == turn ? &turn->before->child : &turn->before->sibling) = turn->sibling;
    if (turn->sibling)
        turn->sibling->before = turn->before;
    turns->shortest = meld(turns->shortest, children);
}
