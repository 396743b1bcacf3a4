/* SPDX-License-Identifier: Apache-2.0 */
/* Tests jobs that run in parallel on threads. */
#include "check.h"

#include <limits.h>
#include <stdatomic.h>

#include "copy/copy_jobs.h"

typedef struct {
    unsigned number;
    bool has_work, is_done;
} job_t;

typedef struct {
    unsigned ended, out_of_order, undone;
    atomic_uint worked;
    pthread_barrier_t all_at_once;
} world_t;

static void do_job(void *context, void *argument)
{
    world_t *world = context;
    job_t *job = argument;

    /* some jobs take longer than the ones after them */
    if (job->number % 7 == 0)
        (void)usleep(300);
    job->is_done = true;
    atomic_fetch_add(&world->worked, 1);
}

static void end_job(void *context, void *argument)
{
    world_t *world = context;
    job_t *job = argument;

    world->out_of_order += job->number != world->ended;
    world->undone += job->is_done != job->has_work;
    world->ended++;
}

static void jobs_end_in_the_order_in_which_they_were_given(void)
{
    enum { COUNT = 2000 };
    static world_t world;
    rd_jobs_t *jobs = rd_jobs_open(sizeof(job_t), do_job, end_job, &world);

    CHECK(jobs);
    for (unsigned i = 0; i < COUNT; i++) {
        job_t *job = rd_jobs_room(jobs);

        CHECK(i - world.ended < RD_JOBS_MAX);
        CHECK(rd_jobs_room(jobs) == job);
        *job = (job_t){.number = i, .has_work = i % 3 != 0};
        rd_jobs_give(jobs, job->has_work);
        if (i == COUNT / 2) {
            rd_jobs_drain(jobs);
            CHECK_EQ(world.ended, i + 1);
        }
    }
    rd_jobs_close(jobs, NULL);
    CHECK_EQ(world.ended, COUNT);
    CHECK_EQ(world.worked, COUNT - (COUNT + 2) / 3);
    CHECK_EQ(world.out_of_order, 0);
    CHECK_EQ(world.undone, 0);
}

/* The first job lasts longer than the second. */
static void do_job_of_two(void *context, void *argument)
{
    world_t *world = context;
    const job_t *job = argument;

    if (job->number % 2 == 0) {
        while (atomic_load(&world->worked) % 2 == 0)
            (void)usleep(100);
        (void)usleep(2000);
    }
    atomic_fetch_add(&world->worked, 1);
}

/* Jobs without work do not wake a thread, but they complete, and the next jobs reuse their
 * slots. */
static void a_job_after_many_without_work_is_done_once(void)
{
    static world_t world;
    rd_jobs_t *jobs = rd_jobs_open(sizeof(job_t), do_job_of_two, end_job, &world);

    CHECK(jobs);
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < RD_JOBS_MAX; i++) {
            (void)rd_jobs_room(jobs);
            rd_jobs_give(jobs, false);
        }
        for (unsigned i = 0; i < 2; i++) {
            job_t *job = rd_jobs_room(jobs);

            job->number = i;
            rd_jobs_give(jobs, true);
        }
        rd_jobs_drain(jobs);
        CHECK_EQ(world.worked, 2 * (round + 1));
    }
    rd_jobs_close(jobs, NULL);
}

static void meet(void *context, void *argument)
{
    world_t *world = context;

    (void)argument;
    (void)pthread_barrier_wait(&world->all_at_once);
}

/* Each job waits for all the others. */
static void as_many_as_there_are_threads_are_done_at_once(void)
{
    static world_t world;
    rd_jobs_t *jobs = rd_jobs_open(sizeof(job_t), meet, end_job, &world);

    CHECK(jobs);
    CHECK_EQ(pthread_barrier_init(&world.all_at_once, NULL, RD_JOBS_THREADS), 0);
    for (unsigned i = 0; i < 10 * RD_JOBS_THREADS; i++) {
        job_t *job = rd_jobs_room(jobs);

        *job = (job_t){.number = i};
        rd_jobs_give(jobs, true);
    }
    rd_jobs_close(jobs, NULL);
    CHECK_EQ(world.ended, 10 * RD_JOBS_THREADS);
    CHECK_EQ(world.out_of_order, 0);
}

static void count_room(void *context, void *argument)
{
    (void)argument;
    ++*(unsigned *)context;
}

static void each_room_is_forgotten(void)
{
    unsigned rooms = 0;
    rd_jobs_t *jobs = rd_jobs_open(sizeof(job_t), do_job, end_job, &rooms);

    CHECK(jobs);
    rd_jobs_close(jobs, count_room);
    CHECK_EQ(rooms, RD_JOBS_MAX);
}

/* Returns how many of `count` jobs go to threads, if a job takes `alone` when it is done directly,
 * and jobs on threads complete at intervals of `beside`. */
static unsigned given_of(rd_pace_t *pace, unsigned count, int64_t alone, int64_t beside)
{
    static int64_t now;
    unsigned given = 0;

    for (unsigned i = 0; i < count; i++) {
        if (rd_pace_next(pace, now)) {
            given++;
            now += beside;
        } else {
            rd_pace_took(pace, alone);
            now += alone;
        }
    }
    return given;
}

static void only_what_takes_long_is_given(void)
{
    rd_pace_t quick = rd_pace_from(200), slow = rd_pace_from(200);
    rd_pace_t all = rd_pace_from(0), none = rd_pace_from(UINT_MAX);

    CHECK_EQ(given_of(&quick, 10000, 199, 30), 0);
    CHECK_EQ(given_of(&all, 1000, 0, 0), 1000);
    CHECK_EQ(given_of(&none, 1000, 1000000, 1), 0);
    CHECK(given_of(&slow, 10000, 200, 50) > 9000);
    /* the jobs become quick, and then slow again */
    (void)given_of(&slow, 5000, 10, 30);
    CHECK_EQ(given_of(&slow, 10000, 10, 30), 0);
    CHECK(given_of(&slow, 10000, 5000, 1000) > 9000);
}

static void what_saves_no_time_is_given_seldom(void)
{
    rd_pace_t pace = rd_pace_from(200);
    unsigned given = given_of(&pace, 100000, 300, 350);

    CHECK(given > 1000 && given < 10000);
    given = given_of(&pace, 100000, 300, 200);
    CHECK(given > 80000);
}

static const check_case_t cases[] = {
    {"jobs end in the order in which they were given",
     jobs_end_in_the_order_in_which_they_were_given},
    {"as many as there are threads are done at once",
     as_many_as_there_are_threads_are_done_at_once},
    {"a job after many without work is done once", a_job_after_many_without_work_is_done_once},
    {"each room is forgotten", each_room_is_forgotten},
    {"only what takes long is given", only_what_takes_long_is_given},
    {"what saves no time is given seldom", what_saves_no_time_is_given_seldom},
};

CHECK_MAIN(cases)
