/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_TERMS_H
#define RD_COPY_TERMS_H

#include "digest.h"

/*
 * The features on which the two ends of a copy agree beyond protocol 4. `list` makes its offer in
 * the digest field of each START item, and the target's side writes its answer there. Versions that
 * do not know these features send zeros and pass on what they receive, so the copy then uses
 * protocol 4.
 */

typedef enum { RD_DELTA_AUTO, RD_DELTA_ALWAYS, RD_DELTA_NEVER } rd_delta_t;

typedef struct {
    rd_digest_key_t key; /* for digests and blocks; SHA-256 if the other side has no XXH3 */
    /* For checking the assembled copy of a changed file: SHA-256 if both processors have
     * instructions for it, otherwise BLAKE2b. */
    const rd_digest_key_t *check;
    bool has_delta; /* changed files may be sent as blocks */
    bool has_notes; /* parts may be recognized by their notes */
} rd_copy_terms_t;

/* Translate "auto", "always" or "never" to a value, and back. */
bool rd_delta_parse(const char *text, rd_delta_t *delta_p);
const char *rd_delta_name(rd_delta_t delta);

/* Writes the offer into a START item. Called by `list`. */
void rd_copy_terms_offer(rd_item_t *start, rd_delta_t delta);

/* Accepts what the target's side supports, and writes the answer into the item. */
void rd_copy_terms_answer(rd_item_t *start, rd_copy_terms_t *terms_p);

/* Reads the answer. Called by the parts after `have`, and by `have` if it accepts nothing. */
void rd_copy_terms_read(const rd_item_t *start, rd_copy_terms_t *terms_p);

#endif
