/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_DELETE_H
#define RD_COPY_DELETE_H

#include "copy.h"

/*
 * What --delete does. `have` compares each directory that the source has listed as a whole with the
 * one at the target, and puts a DELETE item for each thing that only the target has: what lies in a
 * directory before the directory itself. `unpack` collects these, and deletes only when the source
 * has come to its end without an error on either side.
 *
 * The source could always name fewer things than it has, so it decides what is deleted below the
 * target, up to the user's bound. It cannot reach anything else: `unpack` follows no symbolic link,
 * and refuses what the user did not ask for, what he excluded, and what changed its kind meanwhile.
 */

/* ---- at `have` ---- */

typedef struct rd_extras rd_extras_t;

/* NULL: no memory. The complaints and the stream are the caller's. */
rd_extras_t *rd_extras_open(rd_complaints_t *complaints, rd_items_out_t *out);

/* The items that come are of another source, which is copied to the directory `top`: the caller's,
 * -1 if it does not exist yet. `part`: the new tree of --atomic, -1 if there is none; what an
 * earlier copy has left there without being listed now goes by items of RD_HAS_PART. */
void rd_extras_begin(rd_extras_t *extras, int top, int part);

/* The next item of the list, before it is put. At a LEAVE this puts the DELETE items of that
 * directory. False: *why, the list contradicts itself, or nobody reads any more. */
bool rd_extras_take(rd_extras_t *extras, const rd_item_t *item, rd_why_t *why);

void rd_extras_close(rd_extras_t *extras);

/* ---- at `unpack` ---- */

typedef struct {
    rd_names_t paths; /* of this source, in the order of their deletion: 'd' or 'f', then a path */
    uint64_t asked;   /* how many of all sources were asked for */
    rd_names_t deleted; /* of all sources: paths below the target that the user named */
} rd_deletions_t;

/* Takes a DELETE item. False: *why, the other side must not ask for it. */
bool rd_deletions_add(rd_deletions_t *deletions, const rd_copy_t *copy, const rd_item_t *item,
                      rd_why_t *why);

/* May what was asked for be deleted now? `is_whole`: the source has come without an error so far.
 * If not, this says why, and forgets what was asked for. */
bool rd_deletions_are_allowed(rd_deletions_t *deletions, rd_complaints_t *complaints,
                              bool is_whole);

/* Deletes below `top`, complains of what stays, and forgets what was asked for. */
void rd_deletions_run(rd_deletions_t *deletions, rd_complaints_t *complaints, int top);

/* What was asked for went with the old tree of --atomic: notes it as deleted, unless `done` is
 * false, and forgets it. */
void rd_deletions_took_place(rd_deletions_t *deletions, const rd_complaints_t *complaints,
                             bool done);

void rd_deletions_free(rd_deletions_t *deletions);

#endif
