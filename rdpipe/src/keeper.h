/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_KEEPER_H
#define RD_KEEPER_H

#include <pthread.h>

#include "stream.h"

/*
 * Signs of life from a thread that is in a call of a disk, which may take longer than the other
 * side waits for a word. The thread lends its streams for the time of the call, and a thread of the
 * keeper speaks meanwhile.
 */
typedef struct {
    rd_stream_t *of[2];   /* NULL: none */
    size_t spare;         /* room for a payload of so many bytes is left in the first */
    pthread_mutex_t lock; /* held by whoever has the streams */
    pthread_t thread;
    int stop; /* an eventfd; -1: there is no thread, and nobody speaks */
} rd_keeper_t;

/* `is_needed`: there are such calls. To be stopped in any case, by the same thread. */
void rd_keeper_start(rd_keeper_t *keeper, bool is_needed, rd_stream_t *one, rd_stream_t *other,
                     size_t spare);
void rd_keeper_stop(rd_keeper_t *keeper);

/* Around such a call. What the streams gave before, but for a frame to read, holds no more. */
static inline void rd_keeper_lend(rd_keeper_t *keeper)
{
    (void)pthread_mutex_unlock(&keeper->lock);
}

static inline void rd_keeper_take_back(rd_keeper_t *keeper)
{
    (void)pthread_mutex_lock(&keeper->lock);
}

#endif
