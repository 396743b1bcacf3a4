/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_JOBS_H
#define RD_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Jobs that threads do side by side, and that end in the order in which they were given. They are
 * for work that waits, for example on a network file system, so there are more threads than
 * processors.
 *
 * One thread prepares the jobs, gives them and ends them, and only it makes these calls. `work`
 * runs in another thread, in parallel with other jobs, and may touch only its job and what a lock
 * protects. `end` runs in the giving thread, in order, and may touch everything.
 */

#define RD_JOBS_THREADS 8u
#define RD_JOBS_MAX 32u /* given and not ended */

typedef struct rd_jobs rd_jobs_t;
typedef void (*rd_job_t)(void *context, void *job);

/* NULL: no memory, or no thread could be created. */
rd_jobs_t *rd_jobs_open(size_t job_bytes, rd_job_t work, rd_job_t end, void *context);

/* Returns room for the next job, which still holds the room's previous job (zeros at first). Ends
 * the oldest job if no room is free. Returns the same room until a job is given. */
void *rd_jobs_room(rd_jobs_t *jobs);

/* Gives the job in that room. Without `has_work` it has nothing to do, and only waits for its turn
 * to end. */
void rd_jobs_give(rd_jobs_t *jobs, bool has_work);

/* Have any jobs been given that have not ended? False for NULL. */
bool rd_jobs_are_pending(const rd_jobs_t *jobs);

/* Waits until every job that was given has ended. Does nothing for NULL. */
void rd_jobs_drain(rd_jobs_t *jobs);

/* Drains, calls `forget` (may be NULL) for each room, and frees. Does nothing for NULL. */
void rd_jobs_close(rd_jobs_t *jobs, rd_job_t forget);

/*
 * Decides whether jobs are worth other threads. Eight are done at once; if they take `least_us` or
 * more on average, the next 256 are given to threads. If that has saved no time, as on a single
 * busy disk, 4,096 are done at once before the next attempt, otherwise eight.
 */
typedef struct {
    unsigned least_us; /* 0: each job is given; UINT_MAX: none is */
    unsigned alone, beside;
    unsigned patience;    /* how many are done at once before the next decision */
    int64_t us, began_us; /* what those have taken; when the first one was given */
    int64_t alone_us;     /* what one took when done at once, as of the last decision */
    bool is_beside;
} rd_pace_t;

/* Returns the pace before the first job. */
rd_pace_t rd_pace_from(unsigned least_us);

/* Is the next job given to a thread? */
bool rd_pace_next(rd_pace_t *pace, int64_t now_us);

/* A job that was done at once took `us`. */
void rd_pace_took(rd_pace_t *pace, int64_t us);

#endif
