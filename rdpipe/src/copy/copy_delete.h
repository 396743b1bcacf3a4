/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_DELETE_H
#define RD_COPY_DELETE_H

#include "copy.h"

/*
 * How --delete works: once the source has listed a directory in full, `have` compares it with the
 * one at the target, and sends a DELETE item for each entry that only the target has, the contents
 * of a directory before the directory itself. `unpack` collects these items, and deletes the
 * entries only after the whole source has been copied without an error on either side.
 *
 * A source can always name fewer files than it has, so it decides what is deleted below the target,
 * up to the user's limit. It cannot reach anything else, because `unpack` follows no symbolic link,
 * and does not delete anything that the user did not ask to delete, that the user excluded, or
 * whose type has changed in the meantime.
 */

/* ---- at `have` ---- */

typedef struct rd_extras rd_extras_t;

/* Returns NULL if memory is exhausted. The caller still owns the complaints and the stream. */
rd_extras_t *rd_extras_open(rd_complaints_t *complaints, rd_items_out_t *out);

/* Announces that the following items belong to the next source, which is copied to the directory
 * `top` (owned by the caller; -1 if it does not exist yet). `part` is the new tree of --atomic, or
 * -1. Entries that an earlier copy left in the new tree and that are no longer listed are sent with
 * RD_HAS_PART. */
void rd_extras_begin(rd_extras_t *extras, int top, int part);

/* Processes the next item of the list before it is forwarded. At a LEAVE this sends the DELETE
 * items for that directory. Returns false with *why set if the list contradicts itself or memory is
 * exhausted. */
bool rd_extras_take(rd_extras_t *extras, const rd_item_t *item, rd_why_t *why);

void rd_extras_close(rd_extras_t *extras);

/* ---- at `unpack` ---- */

typedef struct {
    rd_names_t paths;   /* to delete for this source, in order: 'd' or 'f', then the path */
    uint64_t asked;     /* number of requests from all sources */
    rd_names_t deleted; /* deleted so far, from all sources, as paths below the user's target */
} rd_deletions_t;

/* Returns false with *why set if the other side was not allowed to request this. */
bool rd_deletions_add(rd_deletions_t *deletions, const rd_copy_t *copy, const rd_item_t *item,
                      rd_why_t *why);

/* Returns whether the requested entries may be deleted now. `is_whole` says whether the source has
 * arrived without an error so far. If they may not, this reports the reason and discards the
 * requests. */
bool rd_deletions_are_allowed(rd_deletions_t *deletions, rd_complaints_t *complaints,
                              bool is_whole);

/* Deletes the requested entries below `top`, reports those that could not be deleted, and discards
 * the requests. */
void rd_deletions_run(rd_deletions_t *deletions, rd_complaints_t *complaints, int top);

/* Call this after the old tree of --atomic was removed, and the requested entries with it. Records
 * them as deleted, unless `done` is false, and discards the requests. */
void rd_deletions_took_place(rd_deletions_t *deletions, rd_complaints_t *complaints, bool done);

void rd_deletions_free(rd_deletions_t *deletions);

#endif
