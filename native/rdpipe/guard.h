/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_GUARD_H
#define RD_GUARD_H

#include <sys/types.h>

#include "text.h"

/*
 * A process that outlives its maker by a moment, to clean up after it however it ends: it kills the
 * process groups and removes the directory that it was told of. It does nothing else, and ends with
 * its maker. A maker that ends in order says `rd_guard_forget` of what is none of its business any
 * more.
 */
typedef struct {
    int fd; /* readable when the guard has ended: -1: none */
    pid_t pid;
} rd_guard_t;

/* Before the first thread. The guard closes all descriptors but its own. */
bool rd_guard_start(rd_guard_t *guard_p, rd_why_t *why);
bool rd_guard_group(const rd_guard_t *guard, pid_t group);
void rd_guard_forget(const rd_guard_t *guard, pid_t group);
/* A directory with nothing in it but files. */
bool rd_guard_directory(const rd_guard_t *guard, const char *path);
/* Ends it: it kills and removes what it still knows. Waits for that. */
void rd_guard_end(rd_guard_t *guard);

#endif
