/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_GUARD_H
#define RD_GUARD_H

#include <pthread.h>
#include <sys/types.h>

#include "key.h"

#define RD_GUARDS 2
#define RD_GUARD_GROUPS_MAX 128
#define RD_GUARD_PATH_BYTES 256

/* What is cleaned up. */
typedef struct {
    struct {
        pid_t group;
        int input; /* the guard's copy of the writing end of its standard input, -1: none */
    } of[RD_GUARD_GROUPS_MAX];
    size_t count;
    char path[RD_GUARD_PATH_BYTES]; /* "": none */
} rd_known_t;

/*
 * Processes that outlive their maker by a moment, to clean up after it however it ends: they kill
 * the process groups and remove the directory that they were told of. They do nothing else, and end
 * with their maker. A maker that ends in order says `rd_guard_forget` of what is none of its
 * business any more. All know the same: if a guard is killed, its maker cleans up in
 * `rd_guard_end`; if it is killed with the maker, the other guard does.
 *
 * A guard obeys only orders that hold the secret which it shares with its maker: whatever else
 * gets into its socket is no order.
 */
typedef struct {
    struct {
        int fd; /* readable when the guard has ended, -1: none */
        pid_t pid;
    } of[RD_GUARDS];
    rd_key_t secret;
    pthread_mutex_t lock; /* of all, but for rd_guard_start */
    rd_known_t known;
} rd_guard_t;

/* Before the first thread. The guards close all descriptors but their own. */
bool rd_guard_start(rd_guard_t *guard_p, rd_why_t *why);
/* `input` is the writing end of its standard input (-1: none): the guards keep a copy of it, so
 * that the group sees no end of it unless rd_guard_release has allowed one. */
bool rd_guard_group(rd_guard_t *guard, pid_t group, int input);
/* The group's input has ended in order. From any thread. */
void rd_guard_release(rd_guard_t *guard, pid_t group);
void rd_guard_forget(rd_guard_t *guard, pid_t group);
/* A directory of the maker's own with nothing in it but files, told of before it is made, so that
 * there is no moment at which nobody would remove it. "": it is not there. */
bool rd_guard_directory(rd_guard_t *guard, const char *path);
/* Ends them: what is still known is killed and removed. Waits for that. */
void rd_guard_end(rd_guard_t *guard);

#endif
