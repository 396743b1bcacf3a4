/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_WORTH_H
#define BW_SESSION_WORTH_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Decides whether compressing the next piece of a stream is worth the CPU time.
 *
 * There are two kinds of pieces, because large messages, unlike small ones, often contain data that
 * is already compressed. If a piece hardly becomes shorter, the next piece of the same kind is sent
 * uncompressed without trying, then the next two, four, and so on, until one compresses well.
 *
 * The CPU time spent counts as a debt, which is reduced by `percent` of the elapsed time. Nothing
 * is compressed while the debt is larger than what one second pays off.
 */
#define BW_WORTH_KINDS 2u
#define BW_WORTH_LEAST_BYTES 192u /* shorter pieces hardly justify their header */
#define BW_WORTH_SAVED_PART 8u    /* compression must save at least an eighth of the bytes */
#define BW_WORTH_PASSES_MAX 64u

typedef struct {
    unsigned percent; /* of the time of one CPU */
    struct {
        unsigned pass, passes; /* pieces still to be skipped; how many are skipped in this series */
    } kinds[BW_WORTH_KINDS];
    uint64_t owed_ns, at_ns; /* the debt, and the time at which it was last updated */
} bw_worth_t;

static inline uint64_t bw_worth_second_ns(const bw_worth_t *worth)
{
    return (uint64_t)worth->percent * 10000000;
}

static inline void bw_worth_pay(bw_worth_t *worth, uint64_t now_ns)
{
    uint64_t passed_ms = (now_ns - worth->at_ns) / 1000000;
    uint64_t paid_ns = passed_ms * bw_worth_second_ns(worth) / 1000;

    worth->at_ns += passed_ms * 1000000;
    worth->owed_ns -= paid_ns < worth->owed_ns ? paid_ns : worth->owed_ns;
}

/* Returns whether to compress the next piece. Counts a piece that is skipped. */
static inline bool bw_worth_try(bw_worth_t *worth, unsigned kind, uint64_t bytes, uint64_t now_ns)
{
    if (bytes < BW_WORTH_LEAST_BYTES)
        return false;
    bw_worth_pay(worth, now_ns);
    if (worth->owed_ns > bw_worth_second_ns(worth))
        return false;
    if (worth->kinds[kind].pass == 0)
        return true;
    worth->kinds[kind].pass--;
    return false;
}

static inline void bw_worth_note(bw_worth_t *worth, unsigned kind, uint64_t before, uint64_t after,
                                 uint64_t spent_ns)
{
    unsigned passes = worth->kinds[kind].passes;

    worth->owed_ns += spent_ns;
    if (after <= before - before / BW_WORTH_SAVED_PART) {
        worth->kinds[kind].passes = 0;
        return;
    }
    passes = passes == 0 ? 1 : 2 * passes;
    if (passes > BW_WORTH_PASSES_MAX)
        passes = BW_WORTH_PASSES_MAX;
    worth->kinds[kind].pass = worth->kinds[kind].passes = passes;
}

#endif
