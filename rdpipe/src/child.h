/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CHILD_H
#define RD_CHILD_H

#include <sys/types.h>

#include "end.h"
#include "guard.h"

/* A shell command between two pipes, in a process group of its own. */
typedef struct {
    pid_t pid; /* 0: none; also the process group */
    bool is_over, is_killed;
    bool wants_terminal; /* the kernel has stopped it: its group is not in the foreground */
    bool is_gone;        /* nothing is left of the group: its id may be another's by now */
    int status;          /* as a shell tells it, once it is over */
    int64_t kill_at;     /* SIGKILL goes then; 0: never */
} rd_child_t;

/*
 * Starts `sh -c COMMAND`. Its standard input and output are pipes whose other ends are given; a
 * NULL means /dev/null. Standard error is ours. The guards learn of it before it runs, and
 * keep its input open until rd_guard_release.
 */
bool rd_child_start(rd_child_t *child_p, const char *command, rd_guard_t *guard, rd_end_t *stdin_p,
                    rd_end_t *stdout_p, rd_why_t *why);

/* To be called on SIGCHLD. True: it has just ended. `wants_terminal` may have changed, too. */
bool rd_child_reap(rd_child_t *child, rd_guard_t *guard);

void rd_child_signal(const rd_child_t *child, int sig);
/* SIGTERM to the group now, SIGKILL after a while (rd_child_tick). */
void rd_child_end(rd_child_t *child);
/* Milliseconds until it wants to be called again, -1: never. */
int rd_child_tick(rd_child_t *child, rd_guard_t *guard);

#endif
