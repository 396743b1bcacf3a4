/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_STATUS_H
#define RD_STATUS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * Shows a running pipeline to other programs of the same user (the console reads it), in a small
 * file named after the process ID in $XDG_RUNTIME_DIR/rdpipe or /tmp/rdpipe-UID. The file is
 * replaced atomically, at most once a second, and removed at the end. An error in writing it does
 * not make the pipeline fail.
 */

typedef struct {
    char file[PATH_MAX], fresh[PATH_MAX + 4]; /* "" if there is no directory */
    int64_t again_ms;
} rd_status_t;

/* Finds or creates the directory, and removes the files that killed pipelines have left there. */
void rd_status_begin(rd_status_t *status);

/* Returns a stream for the JSON object, or NULL if it is too early for an update. */
FILE *rd_status_open(rd_status_t *status);

/* Publishes what was written to the stream. */
void rd_status_close(const rd_status_t *status, FILE *to);

void rd_status_end(const rd_status_t *status);

#endif
