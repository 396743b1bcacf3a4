/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CHILD_H
#define RD_CHILD_H

#include <sys/types.h>

#include "stream/endpoint.h"
#include "guard.h"

/* A shell command between two pipes, in its own process group. */
typedef struct {
    pid_t pid; /* 0 if none; also the process group */
    bool is_over, is_killed;
    bool wants_terminal; /* the kernel has stopped it because its group is not in the foreground */
    bool is_gone;        /* the group is empty, so its ID may belong to a different group by now */
    int status;          /* the exit status as a shell reports it, once the command has exited */
    int64_t kill_at;     /* when to send SIGKILL, or 0 for never */
} rd_child_t;

/*
 * Starts `sh -c COMMAND`. Its standard input and output are pipes, and the caller gets their other
 * ends; if `stdin_p` or `stdout_p` is NULL, the command gets /dev/null instead. It inherits our
 * standard error. The guards are informed before it runs, and hold its input open until
 * rd_guard_release.
 */
bool rd_child_start(rd_child_t *child_p, const char *command, rd_guard_t *guard, rd_end_t *stdin_p,
                    rd_end_t *stdout_p, rd_why_t *why);

/* Call this on SIGCHLD. Returns true if the command has just exited. Updates `wants_terminal`. */
bool rd_child_reap(rd_child_t *child, rd_guard_t *guard);

void rd_child_signal(const rd_child_t *child, int sig);
/* Sends SIGTERM to the group now; rd_child_tick sends SIGKILL after a while. */
void rd_child_end(rd_child_t *child);
/* Returns the number of milliseconds until the next call is due, or -1 if none is. */
int rd_child_tick(rd_child_t *child, rd_guard_t *guard);

#endif
