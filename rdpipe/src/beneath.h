/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BENEATH_H
#define RD_BENEATH_H

#include <sys/types.h>

#include "item.h"

/*
 * Paths below a directory, whatever lies there: no step goes through a symbolic link, so that none
 * leads out. Paths are safe ones (rd_path_is_safe). The directory of the last path stays open, as
 * the next one is often in it.
 */
typedef struct {
    int top;  /* the caller's; -1: there is none, and nothing below it */
    int last; /* -1: none */
    char dir[RD_PATH_BYTES];
} rd_beneath_t;

void rd_beneath_open(rd_beneath_t *beneath_p, int top);
void rd_beneath_close(rd_beneath_t *beneath);

/* The directory that holds `path` (not ""), and its last name there; -1 and errno. Valid until the
 * next call. */
int rd_beneath_parent(rd_beneath_t *beneath, const char *path, const char **name_p);

/* Opens `path` (may be "") itself; flags as for openat, never through a link. The caller closes. */
int rd_beneath_file(rd_beneath_t *beneath, const char *path, int flags, mode_t mode);

#endif
