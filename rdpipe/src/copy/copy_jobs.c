/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_jobs.h"

#include <pthread.h>
#include <stdlib.h>

#define TRIED_ALONE 8u
#define TRIED_BESIDE 256
#define PATIENCE 4096u

typedef enum { IDLE, GIVEN, DONE } state_t;

struct rd_jobs {
    size_t bytes;
    rd_job_t work, end;
    void *context;
    uint8_t *rooms;
    pthread_t threads[RD_JOBS_THREADS];
    unsigned thread_count;
    uint64_t ended; /* number of completed jobs; used only by the submitting thread */
    pthread_mutex_t lock;
    pthread_cond_t is_given, is_done;
    /* protected by the lock */
    state_t states[RD_JOBS_MAX];
    uint64_t given, taken; /* number of jobs submitted and taken; `taken` is never below `ended` */
    unsigned idle;         /* idle threads */
    bool is_closing;
};

static void *room_of(const rd_jobs_t *jobs, uint64_t number)
{
    return jobs->rooms + (number % RD_JOBS_MAX) * jobs->bytes;
}

/* Takes the next job that has work. Returns false if no more will be submitted. The caller holds
 * the lock. */
static bool next(rd_jobs_t *jobs, uint64_t *number_p)
{
    for (;;) {
        while (jobs->taken < jobs->given) {
            *number_p = jobs->taken++;
            if (jobs->states[*number_p % RD_JOBS_MAX] == GIVEN)
                return true;
        }
        if (jobs->is_closing)
            return false;
        jobs->idle++;
        (void)pthread_cond_wait(&jobs->is_given, &jobs->lock);
        jobs->idle--;
    }
}

static void *run(void *argument)
{
    rd_jobs_t *jobs = argument;
    uint64_t number;

    (void)pthread_mutex_lock(&jobs->lock);
    while (next(jobs, &number)) {
        (void)pthread_mutex_unlock(&jobs->lock);
        jobs->work(jobs->context, room_of(jobs, number));
        (void)pthread_mutex_lock(&jobs->lock);
        jobs->states[number % RD_JOBS_MAX] = DONE;
        (void)pthread_cond_signal(&jobs->is_done);
    }
    (void)pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

rd_jobs_t *rd_jobs_open(size_t job_bytes, rd_job_t work, rd_job_t end, void *context)
{
    rd_jobs_t *jobs = calloc(1, sizeof *jobs);

    if (!jobs)
        return NULL;
    jobs->bytes = (job_bytes + 63) / 64 * 64; /* no two threads share a cache line */
    jobs->work = work;
    jobs->end = end;
    jobs->context = context;
    jobs->rooms = calloc(RD_JOBS_MAX, jobs->bytes);
    (void)pthread_mutex_init(&jobs->lock, NULL);
    (void)pthread_cond_init(&jobs->is_given, NULL);
    (void)pthread_cond_init(&jobs->is_done, NULL);
    while (jobs->rooms && jobs->thread_count < RD_JOBS_THREADS &&
           pthread_create(&jobs->threads[jobs->thread_count], NULL, run, jobs) == 0)
        jobs->thread_count++;
    if (jobs->thread_count > 0)
        return jobs;
    rd_jobs_close(jobs, NULL);
    return NULL;
}

/* Completes the oldest job if it is done, and with `waits` as soon as it is. Returns whether a job
 * was completed. */
static bool end_one(rd_jobs_t *jobs, bool waits)
{
    state_t *state = &jobs->states[jobs->ended % RD_JOBS_MAX];
    bool is_done;

    (void)pthread_mutex_lock(&jobs->lock);
    while (*state == GIVEN && waits)
        (void)pthread_cond_wait(&jobs->is_done, &jobs->lock);
    is_done = *state == DONE;
    if (is_done)
        *state = IDLE;
    /* A job without work may be completed before a thread has skipped it. Its slot is then reused,
     * so no thread may take its number any more. */
    if (is_done && jobs->taken == jobs->ended)
        jobs->taken++;
    (void)pthread_mutex_unlock(&jobs->lock);
    if (is_done) {
        jobs->end(jobs->context, room_of(jobs, jobs->ended));
        jobs->ended++;
    }
    return is_done;
}

/* Reads `given` without the lock, because only this thread writes it. */
void *rd_jobs_room(rd_jobs_t *jobs)
{
    while (end_one(jobs, jobs->given - jobs->ended == RD_JOBS_MAX))
        ;
    return room_of(jobs, jobs->given);
}

void rd_jobs_give(rd_jobs_t *jobs, bool has_work)
{
    (void)pthread_mutex_lock(&jobs->lock);
    jobs->states[jobs->given % RD_JOBS_MAX] = has_work ? GIVEN : DONE;
    jobs->given++;
    if (has_work && jobs->idle > 0)
        (void)pthread_cond_signal(&jobs->is_given);
    (void)pthread_mutex_unlock(&jobs->lock);
}

bool rd_jobs_are_pending(const rd_jobs_t *jobs)
{
    return jobs && jobs->ended < jobs->given;
}

void rd_jobs_drain(rd_jobs_t *jobs)
{
    while (rd_jobs_are_pending(jobs))
        (void)end_one(jobs, true);
}

void rd_jobs_close(rd_jobs_t *jobs, rd_job_t forget)
{
    if (!jobs)
        return;
    rd_jobs_drain(jobs);
    (void)pthread_mutex_lock(&jobs->lock);
    jobs->is_closing = true;
    (void)pthread_cond_broadcast(&jobs->is_given);
    (void)pthread_mutex_unlock(&jobs->lock);
    for (unsigned i = 0; i < jobs->thread_count; i++)
        (void)pthread_join(jobs->threads[i], NULL);
    for (unsigned i = 0; forget && i < RD_JOBS_MAX; i++)
        forget(jobs->context, room_of(jobs, i));
    (void)pthread_cond_destroy(&jobs->is_given);
    (void)pthread_cond_destroy(&jobs->is_done);
    (void)pthread_mutex_destroy(&jobs->lock);
    free(jobs->rooms);
    free(jobs);
}

rd_pace_t rd_pace_from(unsigned least_us)
{
    return (rd_pace_t){.least_us = least_us, .patience = TRIED_ALONE};
}

bool rd_pace_next(rd_pace_t *pace, int64_t now_us)
{
    int64_t alone_us, us;

    if (pace->least_us == 0)
        return true;
    if (!pace->is_beside)
        return false;
    if (pace->beside == 0)
        pace->began_us = now_us;
    if (pace->beside++ < TRIED_BESIDE)
        return true;
    alone_us = TRIED_BESIDE * pace->alone_us;
    us = now_us - pace->began_us;
    *pace = rd_pace_from(pace->least_us);
    if (us > alone_us / 5 * 4)
        pace->patience = PATIENCE;
    return false;
}

void rd_pace_took(rd_pace_t *pace, int64_t us)
{
    pace->us += us;
    if (++pace->alone < pace->patience)
        return;
    us = pace->us / pace->alone;
    *pace = rd_pace_from(pace->least_us);
    pace->alone_us = us;
    pace->is_beside = us >= (int64_t)pace->least_us;
}
