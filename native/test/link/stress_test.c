/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends frames of random sizes with known contents in both directions at once, with real sleeping
 * and waking: between two processes and between two threads over each carrier, and between two
 * threads over rings in plain memory, where the thread sanitizer sees both sides at the same
 * addresses.
 *
 * usage: stress_test [FRAMES] [CASE]...
 * FRAMES is the number of frames in each direction. It defaults to STRESS_FRAMES in the
 * environment, or 1000000 (100000 under a sanitizer). If it is 20000 or more, the cases with two
 * threads, and those with two processes without shared rings, send only a third of it.
 */
#include "../carriers.h"
#include "../stress.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>

/* A third of the frames, or all of them if there are so few that the run would end before it
 * reaches the windows that fill the rings. */
static uint64_t a_third_of_many(void)
{
    return frames_each_way < 20000 ? frames_each_way : frames_each_way / 3;
}

/* ---- two processes ---- */

#ifndef __SANITIZE_THREAD__ /* which cannot follow a fork */

static end_t carried_end(bw_link_t *link, int side, uint64_t frames)
{
    end_t end = end_of(link, side, frames);

    end.has_buffer = !carrier->is_shared;
    return end;
}

/* Starts the other end in a separate process. */
static pid_t start_other(uint64_t frames, bw_link_t **mine_p)
{
    bw_link_t *link;
    pair_t pair;
    end_t other;
    bool fine;
    pid_t pid;

    if (!open_pair(&pair))
        return -1;
    fflush(stdout);
    pid = fork();
    if (pid != 0) {
        *mine_p = take_end(&pair, 0, RING);
        return *mine_p ? pid : -1;
    }
    link = take_end(&pair, 1, RING);
    if (!link)
        _exit(1);
    other = carried_end(link, 1, frames);
    fine = run_end(&other);
    report(&other);
    fflush(stdout);
    link->ops->close(link, NULL);
    _exit(!fine);
}

static void two_processes(void)
{
    uint64_t frames = carrier->is_shared ? frames_each_way : a_third_of_many();
    bw_link_t *link = NULL;
    end_t mine;
    int status;
    pid_t pid = start_other(frames, &link);

    CHECK(pid > 0);
    mine = carried_end(link, 0, frames);
    if (!run_end(&mine))
        kill(pid, SIGKILL);
    report(&mine);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(mine.failure == NULL);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(mine.sleeps > 100); /* otherwise wake-ups were not tested */
    link->ops->close(link, NULL);
}

/* The other process is killed at a random moment. It has left complete frames and perhaps a part of
 * one, but nothing invalid, and writing to the link does no harm. */
static void the_other_dies(void)
{
    for (int round = 0; round < 25; round++) {
        bw_link_t *link = NULL;
        struct timespec pause = {.tv_nsec = 200000 * (round + 1)};
        pid_t pid = start_other(UINT64_MAX, &link);
        end_t mine;

        CHECK(pid > 0);
        mine = carried_end(link, 0, 40ull * (uint64_t)round);
        CHECK(run_end(&mine));
        nanosleep(&pause, NULL);
        kill(pid, SIGKILL);
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
        mine.frames = UINT64_MAX;
        mine.patience_ms = carrier->tells_of_death ? ARRIVES_MS : 50;
        CHECK(!run_end(&mine));
        CHECK_EQ(strstr(mine.failure, "no doorbell") != NULL, !carrier->tells_of_death);
        link->ops->close(link, NULL);
    }
}

#endif

/* ---- two threads ---- */

/* A link over rings in memory that both ends have mapped at the same address. */
typedef struct {
    bw_link_t link;
    bw_tx_t tx;
    bw_rx_t rx;
    int event, peer_event;
} plain_link_t;

static void signal_event(int fd)
{
    eventfd_write(fd, 1);
}

static bw_status_t plain_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    return bw_tx_reserve(&((plain_link_t *)link)->tx, want, span_p);
}

static void plain_commit(bw_link_t *link, size_t n)
{
    if (tx_commit(&((plain_link_t *)link)->tx, n))
        signal_event(((plain_link_t *)link)->peer_event);
}

static bw_status_t plain_peek(bw_link_t *link, bw_span_t *span_p)
{
    return bw_rx_peek(&((plain_link_t *)link)->rx, span_p);
}

static void plain_release(bw_link_t *link, size_t n)
{
    if (bw_rx_release(&((plain_link_t *)link)->rx, n))
        signal_event(((plain_link_t *)link)->peer_event);
}

static bw_status_t plain_arm_read(bw_link_t *link)
{
    return bw_rx_arm(&((plain_link_t *)link)->rx);
}

static bw_status_t plain_arm_write(bw_link_t *link, size_t room)
{
    return bw_tx_arm(&((plain_link_t *)link)->tx, room);
}

static int plain_fd(const bw_link_t *link)
{
    return ((const plain_link_t *)link)->event;
}

static void plain_clear_event(bw_link_t *link)
{
    eventfd_t count;

    (void)eventfd_read(((plain_link_t *)link)->event, &count);
}

static const bw_carrier_t plain_ops = {
    .kind = "plain",
    .reserve = plain_reserve,
    .commit = plain_commit,
    .peek = plain_peek,
    .release = plain_release,
    .arm_read = plain_arm_read,
    .arm_write = plain_arm_write,
    .fd = plain_fd,
    .clear_event = plain_clear_event,
};

static _Atomic int ended; /* number of threads that have finished */

/* Over rdma the owner must keep running, because otherwise the rest is not sent. */
static bool run_to_the_end_of_both(end_t *end)
{
    bool fine = run_end(end);

    ended++;
    while (carrier->at_rest && ended < 2) {
        run_end_of(end->link);
        (void)poll(NULL, 0, 1);
    }
    return fine;
}

static void *run_in_thread(void *end)
{
    return run_to_the_end_of_both(end) ? end : NULL;
}

static void run_threads(bw_link_t *left, bw_link_t *right, uint64_t frames, bool has_buffer)
{
    end_t mine = end_of(left, 0, frames), other = end_of(right, 1, frames);
    pthread_t thread;
    void *fine = NULL;

    ended = 0;
    mine.has_buffer = other.has_buffer = has_buffer;
    CHECK_EQ(pthread_create(&thread, NULL, run_in_thread, &other), 0);
    run_to_the_end_of_both(&mine);
    CHECK_EQ(pthread_join(thread, &fine), 0);
    report(&mine);
    report(&other);
    CHECK(mine.failure == NULL && other.failure == NULL && fine);
    CHECK(mine.sleeps + other.sleeps > 100);
}

/* Positions start just below 2^64, so they overflow in both rings during the run. */
static void two_threads_in_plain_memory(void)
{
    static alignas(64) bw_ring_shared_t shared[2];
    uint64_t start = 0 - 10 * RING;
    uint8_t *data[2] = {map_twice(RING), map_twice(RING)};
    int events[2] = {eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
                     eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    plain_link_t ends[2];

    for (int i = 0; i < 2; i++) {
        CHECK(data[i] != NULL && events[i] >= 0);
        bw_ring_init(&shared[i], start);
    }
    for (int i = 0; i < 2; i++) {
        ends[i] = (plain_link_t){
            .link = {.ops = &plain_ops}, .event = events[i], .peer_event = events[!i]};
        bw_tx_attach(&ends[i].tx, &shared[i], data[i], RING, start);
        bw_rx_attach(&ends[i].rx, &shared[!i], data[!i], RING, start);
    }
    CHECK_IN(run_threads(&ends[0].link, &ends[1].link, a_third_of_many(), false));
    CHECK(ends[0].tx.head < start);
    for (int i = 0; i < 2; i++) {
        close(events[i]);
        munmap(data[i], 2 * RING);
    }
}

static void two_threads(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    uint64_t frames = carrier->at_rest ? frames_each_way / 30 : a_third_of_many();
    bw_error_t error = {0};

    CHECK(open_ends(RING, &joined, &accepted, &error));
    CHECK_IN(run_threads(joined, accepted, frames, !carrier->is_shared && !carrier->at_rest));
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

/* ---- two threads, one moment ---- */

/*
 * "I announce that I will sleep, then look" meets "I publish, then check whether you are asleep",
 * at the same moment, over and over: either the thread that wants to sleep sees the bytes (or the
 * room), or the other thread must ring. The critical moments last only a few nanoseconds, so this
 * finds missing fences that the long runs do not find.
 */
typedef struct {
    bw_tx_t tx;
    bw_rx_t rx;
    bool other_commits; /* the other thread commits, otherwise it releases */
    _Atomic uint64_t go, done;
    bool rang; /* set by the other thread, in the round that has just ended */
} moment_t;

#define MOMENT_BYTES 8

/* Returns false if the other thread was off the CPU during that time. */
static bool wait_for(const _Atomic uint64_t *counter, uint64_t value)
{
    int spins;

    for (spins = 0; atomic_load_explicit(counter, memory_order_acquire) < value; spins++)
        if (spins > 2000)
            sched_yield();
    return spins <= 2000;
}

static void waste(uint64_t loops)
{
    for (volatile uint64_t i = 0; i < loops; i++)
        ;
}

static void *publish_at_the_moment(void *arg)
{
    moment_t *moment = arg;
    uint64_t random = 5;

    for (uint64_t round = 1;; round++) {
        bw_span_t span;

        wait_for(&moment->go, round);
        if (atomic_load(&moment->go) == UINT64_MAX)
            return NULL;
        if (moment->other_commits)
            bw_tx_reserve(&moment->tx, MOMENT_BYTES, &span);
        else
            bw_rx_peek(&moment->rx, &span);
        waste(next_random(&random) % 32);
        moment->rang = moment->other_commits ? tx_commit(&moment->tx, MOMENT_BYTES)
                                             : bw_rx_release(&moment->rx, MOMENT_BYTES);
        atomic_store_explicit(&moment->done, round, memory_order_release);
    }
}

/* Restores an empty ring (or a full one if the other thread releases). Called by the thread that
 * did not commit or release. */
static void restore(moment_t *moment)
{
    bw_span_t span = {0};

    if (moment->other_commits) {
        CHECK_EQ(bw_rx_peek(&moment->rx, &span), BW_OK);
        CHECK_EQ(span.len, MOMENT_BYTES);
        bw_rx_release(&moment->rx, MOMENT_BYTES);
    } else {
        CHECK_EQ(bw_tx_reserve(&moment->tx, MOMENT_BYTES, &span), BW_OK);
        CHECK_EQ(span.len, MOMENT_BYTES);
        tx_commit(&moment->tx, MOMENT_BYTES);
    }
}

/* How often both threads must act simultaneously with each of the two results, and the time limit
 * for that. */
#define COLLISIONS 100
#define COLLIDE_MS 60000

static bool has_two_processors(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= 2;
}

static void moments(bool other_commits)
{
    static alignas(64) bw_ring_shared_t shared;
    moment_t moment = {.other_commits = other_commits};
    uint8_t *data = map_twice(RING);
    uint64_t round = 0, armed = 0, not_armed = 0, delay = 32, random = 3;
    uint64_t alike = 0, step; /* number of equal results in a row */
    bw_status_t last = BW_AGAIN;
    int64_t began_ms = now_ms();
    bw_span_t span = {0};
    pthread_t thread;

    if (!has_two_processors())
        SKIP("processors: two threads must run at the same time");
    CHECK(data != NULL);
    bw_ring_init(&shared, 0);
    bw_tx_attach(&moment.tx, &shared, data, RING, 0);
    bw_rx_attach(&moment.rx, &shared, data, RING, 0);
    if (!other_commits) {
        CHECK_EQ(bw_tx_reserve(&moment.tx, RING, &span), BW_OK);
        tx_commit(&moment.tx, RING);
    }
    CHECK_EQ(pthread_create(&thread, NULL, publish_at_the_moment, &moment), 0);
    /* Takes longer than usual only if the two have hardly ever collided, because other processes
     * are using the CPUs. */
    while (!check_failed &&
           ((round < frames_each_way && now_ms() < began_ms + 4000) ||
            ((armed < COLLISIONS || not_armed < COLLISIONS) && now_ms() < began_ms + COLLIDE_MS))) {
        bw_status_t status;
        bool together;

        round++;
        atomic_store_explicit(&moment.go, round, memory_order_release);
        waste(delay + next_random(&random) % 16);
        status = other_commits ? bw_rx_arm(&moment.rx) : bw_tx_arm(&moment.tx, MOMENT_BYTES);
        together = wait_for(&moment.done, round);
        armed += together && status == BW_OK;
        not_armed += together && status == BW_AGAIN;
        /* If this thread acted too early, it acts later in the next round; if too late, it acts
         * earlier. The steps grow while the result stays the same, so that the time settles where
         * the two collide. */
        if (together) {
            alike = status == last ? alike + 1 : 0;
            step = 1 + alike / 8;
            delay = status == BW_OK ? delay + step : delay > step ? delay - step : 0;
            last = status;
        }
        if (status != BW_AGAIN && !(status == BW_OK && moment.rang)) {
            printf("FAIL %s: round %" PRIu64 ": asleep, and nobody rang\n", check_name, round);
            check_failed = 1;
        }
        restore(&moment);
    }
    atomic_store(&moment.go, UINT64_MAX);
    pthread_join(thread, NULL);
    printf("    %" PRIu64 " rounds; of those with both at work %" PRIu64 " armed, %" PRIu64
           " did not\n",
           round, armed, not_armed);
    munmap(data, 2 * RING);
    if (check_failed)
        return;
    CHECK(armed >= COLLISIONS);
    CHECK(not_armed >= COLLISIONS);
}

static void arming_to_read_against_commit(void)
{
    moments(true);
}

static void arming_to_write_against_release(void)
{
    moments(false);
}

static const check_case_t rings[] = {
    {"arming_to_read_against_commit", arming_to_read_against_commit},
    {"arming_to_write_against_release", arming_to_write_against_release},
    {"two_threads_in_plain_memory", two_threads_in_plain_memory},
};

static const check_case_t cases[] = {
    {"two_threads", two_threads},
};

#ifndef __SANITIZE_THREAD__
static const check_case_t forking[] = {
    {"two_processes", two_processes},
    {"the_other_dies", the_other_dies},
};
#endif

int main(int argc, char **argv)
{
    take_frames(&argc, &argv);
    check_each("", rings, sizeof rings / sizeof *rings, argc, argv);
#ifndef __SANITIZE_THREAD__
    check_carriers(forking, sizeof forking / sizeof *forking, may_fork, argc, argv);
#endif
    check_carriers(cases, sizeof cases / sizeof *cases, NULL, argc, argv);
    return check_end();
}
