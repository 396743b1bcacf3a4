/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_KEEPALIVE_H
#define RD_KEEPALIVE_H

#include <pthread.h>

#include "stream.h"

/*
 * Sends keep-alive messages while a thread is blocked in a disk operation, which may take longer
 * than the other side waits for a message. The thread lends its streams to the keeper for the
 * duration of the operation, and the keeper's own thread sends pings on them in the meantime.
 */
typedef struct {
    rd_stream_t *of[2];   /* NULL if none */
    size_t spare;         /* bytes of payload for which the first stream keeps room */
    pthread_mutex_t lock; /* held by the thread that uses the streams */
    pthread_t thread;
    int stop; /* an eventfd, or -1 if there is no thread, so that nothing is sent */
} rd_keeper_t;

/* `is_needed` says whether the calling thread will make blocking calls to a disk. It must stop the
 * keeper in either case. */
void rd_keeper_start(rd_keeper_t *keeper, bool is_needed, rd_stream_t *one, rd_stream_t *other,
                     size_t spare);
void rd_keeper_stop(rd_keeper_t *keeper);

/* Call these before and after a call that may block on a disk. They invalidate everything that the
 * streams returned before, except for a frame that is being read. */
static inline void rd_keeper_lend(rd_keeper_t *keeper)
{
    (void)pthread_mutex_unlock(&keeper->lock);
}

static inline void rd_keeper_take_back(rd_keeper_t *keeper)
{
    (void)pthread_mutex_lock(&keeper->lock);
}

#endif
