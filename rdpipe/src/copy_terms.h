/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_TERMS_H
#define RD_COPY_TERMS_H

#include "digest.h"

/*
 * What the two ends of a copy can do beyond protocol 4. The list offers it in the digest of each
 * START item, and the target's side writes its answer there. Versions that know nothing of this
 * send zeroes and pass on what they get, so the copy then goes as protocol 4 has it.
 */

typedef enum { RD_DELTA_AUTO, RD_DELTA_ALWAYS, RD_DELTA_NEVER } rd_delta_t;

typedef struct {
    rd_digest_key_t key; /* of digests and blocks; of SHA-256 if the other side knows no XXH3 */
    bool has_delta;      /* changed files may go as blocks */
    bool has_notes;      /* parts may be known by their notes */
} rd_copy_terms_t;

/* "auto", "always" or "never". */
bool rd_delta_parse(const char *text, rd_delta_t *delta_p);
const char *rd_delta_name(rd_delta_t delta);

/* The list's side. */
void rd_copy_terms_offer(rd_item_t *start, rd_delta_t delta);

/* The target's side: takes of the offer what it can do as well, and writes that into the item. */
void rd_copy_terms_answer(rd_item_t *start, rd_copy_terms_t *terms_p);

/* What the answer says, to the parts behind it. */
void rd_copy_terms_read(const rd_item_t *start, rd_copy_terms_t *terms_p);

#endif
