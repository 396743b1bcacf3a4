/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_JOBS_H
#define RD_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Jobs that threads do side by side and that end in the order in which they were given. They are
 * for work that waits, as for a file system of another host: there are more threads than
 * processors.
 *
 * One thread makes the jobs, gives them and ends them: all calls are its own. `work` runs in
 * another thread, beside that of other jobs, and may touch its job and what has a lock. `end` runs
 * in the thread that gives, in order, and may touch everything.
 */

#define RD_JOBS_THREADS 8u
#define RD_JOBS_MAX 32u /* given and not ended */

typedef struct rd_jobs rd_jobs_t;
typedef void (*rd_job_t)(void *context, void *job);

/* NULL: there is no memory, or no thread can be made. */
rd_jobs_t *rd_jobs_open(size_t job_bytes, rd_job_t work, rd_job_t end, void *context);

/* Room for the next job, with what was in it before (at first zeroes); ends the oldest one if there
 * is none. The same until one is given. */
void *rd_jobs_room(rd_jobs_t *jobs);

/* Gives the job in that room. `has_work`: without, it only waits for its turn to end. */
void rd_jobs_give(rd_jobs_t *jobs, bool has_work);

/* Were any given that have not ended? Not of NULL. */
bool rd_jobs_are_pending(const rd_jobs_t *jobs);

/* Waits until all that were given have ended. NULL: does nothing. */
void rd_jobs_drain(rd_jobs_t *jobs);

/* Drains, and frees; `forget`, which may be NULL, is called for each room. NULL: does nothing. */
void rd_jobs_close(rd_jobs_t *jobs, rd_job_t forget);

/*
 * Whether jobs are worth other threads. Eight are done at once; if one takes `least_us` or more,
 * the next 256 are given. If that has saved no time, as on one disk that is busy, 4,096 are done at
 * once before it is tried again, else eight.
 */
typedef struct {
    unsigned least_us; /* 0: each job is given; UINT_MAX: none */
    unsigned alone, beside;
    unsigned patience;    /* how many are done at once before the next decision */
    int64_t us, began_us; /* that those alone have taken; when the first was given */
    int64_t alone_us;     /* what one takes alone, by the last decision */
    bool is_beside;
} rd_pace_t;

/* A pace before the first job. */
rd_pace_t rd_pace_from(unsigned least_us);

/* Is the next job given? */
bool rd_pace_next(rd_pace_t *pace, int64_t now_us);

/* One that was done at once took so long. */
void rd_pace_took(rd_pace_t *pace, int64_t us);

#endif
