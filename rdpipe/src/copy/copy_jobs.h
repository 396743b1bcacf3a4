/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_JOBS_H
#define RD_COPY_JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Jobs that run in parallel on threads but complete in the order in which they were submitted. They
 * are meant for work that blocks, for example on a network file system, so there are more threads
 * than processors.
 *
 * One thread prepares, submits and completes the jobs, and only this thread may make these calls.
 * `work` runs on another thread, in parallel with other jobs, and may access only its own job and
 * data protected by a lock. `end` runs on the submitting thread, in order, and may access
 * everything.
 */

#define RD_JOBS_THREADS 8u
#define RD_JOBS_MAX 32u /* maximum number of jobs that are submitted but not yet complete */

typedef struct rd_jobs rd_jobs_t;
typedef void (*rd_job_t)(void *context, void *job);

/* Returns NULL if memory is exhausted or no thread could be created. */
rd_jobs_t *rd_jobs_open(size_t job_bytes, rd_job_t work, rd_job_t end, void *context);

/* Returns a slot for the next job, which still holds the slot's previous job (zeros at first).
 * Waits for the oldest job and completes it if no slot is free. Returns the same slot until a job
 * is submitted. */
void *rd_jobs_room(rd_jobs_t *jobs);

/* Submits the job in that slot. If `has_work` is false there is nothing for a thread to do, and
 * only the job's `end` is called, in its turn. */
void rd_jobs_give(rd_jobs_t *jobs, bool has_work);

/* Returns whether any submitted job is not complete yet. False for NULL. */
bool rd_jobs_are_pending(const rd_jobs_t *jobs);

/* Waits until every submitted job is complete. Does nothing for NULL. */
void rd_jobs_drain(rd_jobs_t *jobs);

/* Drains, calls `forget` (may be NULL) for each slot, and frees the jobs. Does nothing for NULL. */
void rd_jobs_close(rd_jobs_t *jobs, rd_job_t forget);

/*
 * Decides whether it is worthwhile to run jobs on other threads. First, eight jobs are done
 * directly, and if they take `least_us` or more on average, the next 256 go to threads. If the
 * threads save less than a fifth of the time, as on a single busy disk, 4,096 jobs are done
 * directly before the next attempt, otherwise eight.
 */
typedef struct {
    unsigned least_us;      /* if 0, every job goes to a thread; if UINT_MAX, none does */
    unsigned alone, beside; /* jobs done directly and given to threads since the last decision */
    unsigned patience;      /* how many jobs are done directly before the next decision */
    int64_t us, began_us;   /* total time of the direct jobs; when the first went to a thread */
    int64_t alone_us;       /* time per direct job at the last decision */
    bool is_beside;
} rd_pace_t;

rd_pace_t rd_pace_from(unsigned least_us);

/* Returns whether the next job goes to a thread. */
bool rd_pace_next(rd_pace_t *pace, int64_t now_us);

/* Records how many microseconds a job took that was done directly. */
void rd_pace_took(rd_pace_t *pace, int64_t us);

#endif
