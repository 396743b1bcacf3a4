/* SPDX-License-Identifier: Apache-2.0 */
#include "open_beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define STEP (O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

void rd_beneath_open(rd_beneath_t *beneath_p, int top)
{
    *beneath_p = (rd_beneath_t){.top = top, .last = -1};
}

void rd_beneath_close(rd_beneath_t *beneath)
{
    rd_close(&beneath->last);
    beneath->top = -1;
}

/* Opens `dir` one path component at a time, and fails if any of them is a symbolic link. */
static int walk(int top, const char *dir)
{
    char name[RD_PATH_BYTES];
    int fd = openat(top, ".", O_PATH | STEP);

    while (fd >= 0 && *dir) {
        size_t len = strcspn(dir, "/");
        int next;

        memcpy(name, dir, len);
        name[len] = 0;
        next = openat(fd, name, O_PATH | STEP);
        close(fd);
        fd = next;
        dir += len + (dir[len] == '/');
    }
    return fd;
}

int rd_beneath_parent(rd_beneath_t *beneath, const char *path, const char **name_p)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;

    *name_p = slash ? slash + 1 : path;
    if (beneath->top < 0) {
        errno = ENOENT;
        return -1;
    }
    if (beneath->last >= 0 && strlen(beneath->dir) == len && memcmp(beneath->dir, path, len) == 0)
        return beneath->last;
    rd_close(&beneath->last);
    memcpy(beneath->dir, path, len);
    beneath->dir[len] = 0;
    beneath->last = walk(beneath->top, beneath->dir);
    return beneath->last;
}

int rd_beneath_file(rd_beneath_t *beneath, const char *path, int flags)
{
    const char *name = ".";
    int parent = *path ? rd_beneath_parent(beneath, path, &name) : beneath->top;

    return parent < 0 ? -1 : openat(parent, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
}
