/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_terms.h"

#include <assert.h>
#include <sys/random.h>

#include "copy_note.h"

/* Stored in the digest field of a START item; the layout is part of the protocol. */
typedef struct {
    uint8_t offered, accepted;       /* feature bits */
    uint8_t kernel[RD_KERNEL_BYTES]; /* identifies the boot of the source's kernel */
    uint8_t seed[RD_SEED_BYTES];
} terms_t;

static_assert(sizeof(terms_t) == RD_DIGEST_BYTES, "they fill the digest");

enum { HAS_XXH3 = 1, HAS_DELTA = 2, ALWAYS_DELTA = 4, HAS_NOTES = 8, FAST_SHA256 = 16 };

static const rd_digest_key_t sha256 = {.kind = RD_DIGEST_SHA256},
                             blake2b = {.kind = RD_DIGEST_BLAKE2B};

static const char *const delta_names[] = {"auto", "always", "never"};

bool rd_delta_parse(const char *text, rd_delta_t *delta_p)
{
    for (size_t i = 0; i < sizeof delta_names / sizeof *delta_names; i++)
        if (strcmp(text, delta_names[i]) == 0) {
            *delta_p = (rd_delta_t)i;
            return true;
        }
    return false;
}

const char *rd_delta_name(rd_delta_t delta)
{
    return delta_names[delta];
}

void rd_copy_terms_offer(rd_item_t *start, rd_delta_t delta)
{
    terms_t terms = {.offered = HAS_NOTES};

    rd_kernel_id(terms.kernel);
    if (rd_digest_has_xxh3() &&
        getrandom(terms.seed, sizeof terms.seed, 0) == (ssize_t)sizeof terms.seed)
        terms.offered |= HAS_XXH3;
    if (rd_digest_has_fast_sha256())
        terms.offered |= FAST_SHA256;
    if (delta != RD_DELTA_NEVER)
        terms.offered |= HAS_DELTA;
    if (delta == RD_DELTA_ALWAYS)
        terms.offered |= ALWAYS_DELTA;
    memcpy(start->digest, &terms, sizeof terms);
}

/* Returns whether the source is on a host with a different kernel. On the same kernel the data
 * stays in memory, so sending it in full is faster than reading the old version from a disk. */
static bool is_far(const terms_t *terms)
{
    uint8_t kernel[RD_KERNEL_BYTES];

    rd_kernel_id(kernel);
    return memcmp(kernel, terms->kernel, sizeof kernel) != 0;
}

void rd_copy_terms_answer(rd_item_t *start, rd_copy_terms_t *terms_p)
{
    terms_t terms;

    memcpy(&terms, start->digest, sizeof terms);
    terms.accepted = terms.offered & (HAS_NOTES | (rd_digest_has_xxh3() ? HAS_XXH3 : 0) |
                                      (rd_digest_has_fast_sha256() ? FAST_SHA256 : 0));
    if (terms.offered & HAS_DELTA && (terms.offered & ALWAYS_DELTA || is_far(&terms)))
        terms.accepted |= HAS_DELTA;
    memcpy(start->digest, &terms, sizeof terms);
    rd_copy_terms_read(start, terms_p);
}

void rd_copy_terms_read(const rd_item_t *start, rd_copy_terms_t *terms_p)
{
    terms_t terms;

    memcpy(&terms, start->digest, sizeof terms);
    *terms_p = (rd_copy_terms_t){.key.kind = RD_DIGEST_SHA256,
                                 .check = terms.accepted & FAST_SHA256 ? &sha256 : &blake2b,
                                 .has_delta = (terms.accepted & HAS_DELTA) != 0,
                                 .has_notes = (terms.accepted & HAS_NOTES) != 0};
    if (terms.accepted & HAS_XXH3 && rd_digest_has_xxh3())
        rd_digest_key(&terms_p->key, terms.seed);
}
