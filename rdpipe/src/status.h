/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_STATUS_H
#define RD_STATUS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/*
 * What a running pipeline tells others of its user on this host (the console reads it): a small
 * file in $XDG_RUNTIME_DIR/rdpipe, or /tmp/rdpipe-UID, named after the process. It is written anew
 * at most once a second, whole or not at all, and removed in the end. That nobody can be told is no
 * failure of the pipeline.
 */

typedef struct {
    char file[PATH_MAX], fresh[PATH_MAX + 4]; /* "" if there is no folder */
    int64_t again_ms;
} rd_status_t;

/* Finds or makes the folder; removes what killed pipelines have left there. */
void rd_status_begin(rd_status_t *status);

/* A stream to write the JSON object to, or NULL if it is too early. */
FILE *rd_status_open(rd_status_t *status);

/* What was written is the status from now on. */
void rd_status_close(const rd_status_t *status, FILE *to);

void rd_status_end(const rd_status_t *status);

#endif
