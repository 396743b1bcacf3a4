/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_GUARD_H
#define RD_GUARD_H

#include <sys/types.h>

#include "text.h"

#define RD_GUARD_GROUPS_MAX 128
#define RD_GUARD_PATH_BYTES 256

/* What is cleaned up. */
typedef struct {
    pid_t groups[RD_GUARD_GROUPS_MAX];
    size_t count;
    char path[RD_GUARD_PATH_BYTES]; /* "": none */
} rd_known_t;

/*
 * A process that outlives its maker by a moment, to clean up after it however it ends: it kills the
 * process groups and removes the directory that it was told of. It does nothing else, and ends with
 * its maker. A maker that ends in order says `rd_guard_forget` of what is none of its business any
 * more. Both know the same: if the guard is killed, its maker cleans up in `rd_guard_end`.
 */
typedef struct {
    int fd; /* readable when the guard has ended: -1: none */
    pid_t pid;
    rd_known_t known;
} rd_guard_t;

/* Before the first thread. The guard closes all descriptors but its own. */
bool rd_guard_start(rd_guard_t *guard_p, rd_why_t *why);
bool rd_guard_group(rd_guard_t *guard, pid_t group);
void rd_guard_forget(rd_guard_t *guard, pid_t group);
/* A directory of the maker's own with nothing in it but files, told of before it is made, so that
 * there is no moment at which nobody would remove it. "": it is not there. */
bool rd_guard_directory(rd_guard_t *guard, const char *path);
/* Ends it: what is still known is killed and removed. Waits for that. */
void rd_guard_end(rd_guard_t *guard);

#endif
