/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_GUARD_H
#define RD_GUARD_H

#include <pthread.h>
#include <sys/types.h>

#include "hop/key.h"

#define RD_GUARDS 2
#define RD_GUARD_GROUPS_MAX 128
#define RD_GUARD_PATH_BYTES 256

/* The things that the guards clean up. */
typedef struct {
    struct {
        pid_t group;
        int input; /* its copy of the write end of the group's standard input, or -1 if none */
    } of[RD_GUARD_GROUPS_MAX];
    size_t count;
    char path[RD_GUARD_PATH_BYTES]; /* the directory to remove, or "" if none */
} rd_known_t;

/*
 * Guards are processes that briefly outlive the process that created them (their owner) to clean up
 * after it, however it exits: they kill the process groups and remove the directory that it has
 * registered. They do nothing else, and exit when their owner does. In normal operation the owner
 * calls `rd_guard_forget` for whatever it is no longer responsible for. The guards and the owner
 * have the same information: if a guard is killed, the owner cleans up in `rd_guard_end`; if the
 * owner is killed along with one guard, the other guard cleans up.
 *
 * A guard accepts only orders that contain the secret it shares with its owner, so any other data
 * that arrives on its socket has no effect.
 */
typedef struct {
    struct {
        int fd; /* readable once the guard has exited, or -1 if none */
        pid_t pid;
    } of[RD_GUARDS];
    rd_key_t secret;
    pthread_mutex_t lock; /* protects everything, except in rd_guard_start */
    rd_known_t known;
} rd_guard_t;

/* Call this before the first thread is started. The guards close all inherited descriptors except
 * their own. */
bool rd_guard_start(rd_guard_t *guard_p, rd_why_t *why);
/* `input` is the write end of the group's standard input (-1 if none). The guards hold a copy of it
 * open, so that the group sees no end of input until rd_guard_release allows one. */
bool rd_guard_group(rd_guard_t *guard, pid_t group, int input);
/* Reports that the group's input is complete, so that the guards close their copies. Any thread may
 * call this. */
void rd_guard_release(rd_guard_t *guard, pid_t group);
void rd_guard_forget(rd_guard_t *guard, pid_t group);
/* Registers a directory of the owner that contains only files. Call this before creating the
 * directory, so that it is never left unguarded, and with "" once it no longer exists. */
bool rd_guard_directory(rd_guard_t *guard, const char *path);
/* Waits until the guards have killed and removed everything that is still registered. */
void rd_guard_end(rd_guard_t *guard);

#endif
