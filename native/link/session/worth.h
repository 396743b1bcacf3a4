/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SESSION_WORTH_H
#define BW_SESSION_WORTH_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Decides whether compressing the next piece of a stream is worth the processor time. The caller
 * supplies the time.
 *
 * There are two kinds of pieces, because large messages are often compressed already while small
 * ones are not. A piece that hardly becomes shorter lets the next one of its kind pass untried,
 * then the next two, four, and so on, until one is worth it.
 *
 * The processor time spent is a debt, which a part of each second pays back. Nothing is compressed
 * while the debt is more than a second pays.
 */
#define BW_WORTH_KINDS 2u
#define BW_WORTH_LEAST_BYTES 192u /* less is hardly worth the header of a piece */
#define BW_WORTH_SAVED_PART 8u    /* it has to save at least this part of itself */
#define BW_WORTH_PASSES_MAX 64u

typedef struct {
    unsigned percent; /* of a processor's time */
    struct {
        unsigned pass, passes; /* pieces that pass untried, and how many the next time */
    } kinds[BW_WORTH_KINDS];
    uint64_t owed_ns, at_ns; /* the debt as it was at that time */
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

/* Returns whether to compress the next piece. A piece that passes untried is counted. */
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

/* A piece has been compressed. */
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
