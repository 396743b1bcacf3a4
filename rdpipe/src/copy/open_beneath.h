/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_OPEN_BENEATH_H
#define RD_OPEN_BENEATH_H

#include <sys/types.h>

#include "copy_item.h"

/*
 * Opens paths below a directory without trusting what is in it. No step follows a symbolic link, so
 * no path leads out. The paths must be safe (rd_path_is_safe). The directory of the most recent
 * path stays open, because the next path is often in the same directory.
 */
typedef struct {
    int top;  /* owned by the caller; -1 if there is none, in which case every look-up fails */
    int last; /* -1 if none */
    char dir[RD_PATH_BYTES];
} rd_beneath_t;

void rd_beneath_open(rd_beneath_t *beneath_p, int top);
/* Closes the directory of the most recent path, but not `top`. Every later look-up fails. */
void rd_beneath_close(rd_beneath_t *beneath);

/* Returns the directory that holds `path` (not "") and sets *name_p to the last name of the path,
 * or returns -1 with errno. Both are valid until the next call. */
int rd_beneath_parent(rd_beneath_t *beneath, const char *path, const char **name_p);

/* Opens `path` (which may be "") itself, with flags as for openat, and never follows a link. The
 * caller closes it. */
int rd_beneath_file(rd_beneath_t *beneath, const char *path, int flags);

#endif
