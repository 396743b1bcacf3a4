/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_GUARD_H
#define RD_GUARD_H

#include <pthread.h>
#include <sys/types.h>

#include "key.h"

#define RD_GUARDS 2
#define RD_GUARD_GROUPS_MAX 128
#define RD_GUARD_PATH_BYTES 256

/* What the guards clean up. */
typedef struct {
    struct {
        pid_t group;
        int input; /* the guard's copy of the write end of the group's standard input; -1: none */
    } of[RD_GUARD_GROUPS_MAX];
    size_t count;
    char path[RD_GUARD_PATH_BYTES]; /* "": none */
} rd_known_t;

/*
 * Guards are processes that outlive their maker by a moment to clean up after it, however it ends:
 * they kill the process groups and remove the directory that they were told of. They do nothing
 * else, and end with their maker. A maker that ends in order calls `rd_guard_forget` for what it is
 * no longer responsible for. The guards and the maker know the same: if a guard is killed, its
 * maker cleans up in `rd_guard_end`; if it is killed along with the maker, the other guard does.
 *
 * A guard obeys only orders with the secret that it shares with its maker, so anything else that
 * gets into its socket has no effect.
 */
typedef struct {
    struct {
        int fd; /* readable once the guard has ended; -1: none */
        pid_t pid;
    } of[RD_GUARDS];
    rd_key_t secret;
    pthread_mutex_t lock; /* protects everything, except in rd_guard_start */
    rd_known_t known;
} rd_guard_t;

/* Call this before the first thread is started. The guards close every descriptor but their own. */
bool rd_guard_start(rd_guard_t *guard_p, rd_why_t *why);
/* `input` is the write end of the group's standard input (-1: none). The guards keep a copy of it,
 * so that the group does not see an end of its input unless rd_guard_release has allowed one. */
bool rd_guard_group(rd_guard_t *guard, pid_t group, int input);
/* The group's input has ended in order. Any thread may call this. */
void rd_guard_release(rd_guard_t *guard, pid_t group);
void rd_guard_forget(rd_guard_t *guard, pid_t group);
/* A directory of the maker that holds nothing but files. Call this before creating it, so that at
 * every moment a guard would remove it. "" once it no longer exists. */
bool rd_guard_directory(rd_guard_t *guard, const char *path);
/* Ends the guards, and waits until they have killed and removed everything that is still known. */
void rd_guard_end(rd_guard_t *guard);

#endif
