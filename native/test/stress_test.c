/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of random sizes with known contents, both ways at once, with real sleeping and waking:
 * between two processes over the shm carrier, and between two threads over rings in plain memory,
 * where the thread sanitizer sees both sides at the same addresses.
 *
 * usage: stress_test [FRAMES] [CASE]...
 * FRAMES each way; default STRESS_FRAMES of the environment, or 1000000 (100000 under a sanitizer)
 *
 * An end that sleeps is always owed a doorbell by the other; if none comes in WAKE_MS, one was
 * lost.
 */
#define _GNU_SOURCE
#include "check.h"
#include "rings.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>

#include "../link/frame.h"

#define WAKE_MS 20000
#define RING BW_RING_MIN_BYTES
#define LARGEST (3 * RING) /* so that some frames are larger than the ring */

#if defined(__has_feature) /* clang */
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static uint64_t frames_each_way = 100000;
#else
static uint64_t frames_each_way = 1000000;
#endif

/* ---- frames whose contents follow from their number ---- */

typedef struct {
    uint64_t number, seed;
    bw_frame_kind_t kind;
    uint32_t len;
    uint64_t size; /* with header and padding */
} known_frame_t;

static known_frame_t known_frame(uint64_t stream, uint64_t number)
{
    uint64_t random = (stream << 56 ^ number) * 0x9E3779B97F4A7C15ull + 1, dice;
    known_frame_t frame = {.number = number, .kind = BW_FRAME_DATA};

    dice = next_random(&random) % 1000;
    frame.len = (uint32_t)(next_random(&random) % (dice < 2     ? LARGEST
                                                   : dice < 60  ? 16384
                                                   : dice < 300 ? 1024
                                                                : 100));
    frame.seed = next_random(&random);
    if (frame.len == 0)
        frame.kind = BW_FRAME_TICK;
    frame.size = bw_frame_size(frame.len);
    return frame;
}

/* Bytes `from` to `from + n` of the frame as it stands in the ring: header, payload, padding. */
static void frame_bytes(const known_frame_t *frame, uint64_t from, uint8_t *to, size_t n)
{
    uint8_t word[8];

    while (n > 0) {
        uint64_t index = from / 8, in_word = from % 8;
        size_t take = n < 8 - in_word ? n : (size_t)(8 - in_word);

        if (index == 0) {
            bw_frame_put_header(word, frame->kind, frame->len);
        } else {
            uint64_t value = (frame->seed + index) * 0xBF58476D1CE4E5B9ull;

            memcpy(word, &value, 8);
        }
        memcpy(to, word + in_word, take);
        to += take;
        from += take;
        n -= take;
    }
}

/* ---- one end ---- */

typedef struct {
    bw_link_t *link;
    uint64_t out_stream, in_stream;
    uint64_t random;
    uint64_t frames;
    uint64_t sent, received;    /* whole frames */
    uint64_t out_done, in_done; /* bytes of the frame under way */
    bw_frame_t in_frame;        /* its header as it was parsed, once in_done > 0 */
    uint64_t sleeps;
    int patience_ms;
    const char *failure;
} end_t;

/* How far sending may be ahead of receiving. A window of 1 makes both sleep at nearly every frame,
 * a large one fills the rings. */
static uint64_t window(const end_t *end)
{
    static const uint64_t windows[] = {1, 100000, 3, 64};

    return windows[end->received / 2048 % 4];
}

static bool may_send(const end_t *end)
{
    return end->sent < end->frames &&
           (end->out_done > 0 || end->sent < end->received + window(end) ||
            end->received == end->frames);
}

/* Sends until the window is used up, the ring is full (*room_p: what to wait for) or it is enough
 * for this time. Pieces have any length, so headers are cut in two as well. */
static bool send_some(end_t *end, size_t *room_p)
{
    *room_p = 0;
    for (int pieces = 0; pieces < 200 && may_send(end); pieces++) {
        known_frame_t frame = known_frame(end->out_stream, end->sent);
        uint64_t left = frame.size - end->out_done;
        size_t want = left < RING / 2 ? (size_t)left : RING / 2;
        bw_span_t span = {0};
        bw_status_t status;

        if (next_random(&end->random) % 8 == 0)
            want = (size_t)(1 + next_random(&end->random) % want);
        status = end->link->ops->reserve(end->link, want, &span);
        if (status == BW_AGAIN) {
            *room_p = next_random(&end->random) % 2 ? want : RING / 2;
            return true;
        }
        if (status != BW_OK || span.len == 0 || span.len > RING) {
            end->failure = "reserve";
            return false;
        }
        want = want < span.len ? want : span.len;
        frame_bytes(&frame, end->out_done, span.base, want);
        end->link->ops->commit(end->link, want);
        end->out_done += want;
        if (end->out_done == frame.size) {
            end->out_done = 0;
            end->sent++;
        }
    }
    return true;
}

/* Takes what of the current frame is in the span; 0: there must be more first. */
static size_t take(end_t *end, const uint8_t *at, size_t avail)
{
    known_frame_t known = known_frame(end->in_stream, end->received);
    uint8_t wanted[4096];
    size_t n;

    if (end->in_done == 0) {
        bw_frame_state_t state = bw_frame_parse(at, avail, &end->in_frame);

        if (state == BW_FRAME_SHORT)
            return 0;
        if (state == BW_FRAME_CORRUPT || end->in_frame.len != known.len ||
            end->in_frame.kind != known.kind || end->in_frame.size != known.size) {
            end->failure = "a header is not the one that was sent";
            return 0;
        }
        /* small frames are left until they are whole, as the driver does */
        if (state == BW_FRAME_PART && known.size <= RING / 16)
            return 0;
    }
    n = known.size - end->in_done < sizeof wanted ? (size_t)(known.size - end->in_done)
                                                  : sizeof wanted;
    n = n < avail ? n : avail;
    frame_bytes(&known, end->in_done, wanted, n);
    if (memcmp(wanted, at, n) != 0) {
        end->failure = "bytes are not those that were sent";
        return 0;
    }
    end->in_done += n;
    if (end->in_done == known.size) {
        end->in_done = 0;
        end->received++;
    }
    return n;
}

/* Reads all there is, or less and says so in *more_p. */
static bool receive_some(end_t *end, bool *more_p)
{
    bw_span_t span = {0};
    size_t used = 0, n, budget = (size_t)(next_random(&end->random) % (2 * RING));
    bw_status_t status = end->link->ops->peek(end->link, &span);

    *more_p = false;
    if (status == BW_AGAIN)
        return true;
    if (status != BW_OK || span.len == 0 || span.len > RING) {
        end->failure = "peek";
        return false;
    }
    while (used < span.len && !*more_p && (n = take(end, span.base + used, span.len - used)) > 0) {
        used += n;
        *more_p = used >= budget;
    }
    if (used > 0)
        end->link->ops->release(end->link, used);
    return end->failure == NULL;
}

/* Sleeps until the doorbell comes. */
static bool sleep_well(end_t *end)
{
    struct pollfd poller = {.fd = end->link->ops->fd(end->link), .events = POLLIN};
    int ready;

    end->sleeps++;
    do
        ready = poll(&poller, 1, end->patience_ms);
    while (ready < 0 && errno == EINTR);
    if (ready == 1)
        return true;
    end->failure = "no doorbell came: a lost wake-up";
    return false;
}

/* Works until all is sent and received: reads, hushes, writes, arms, sleeps, in the driver's order.
 * False: failure says why. */
static bool run_end(end_t *end)
{
    const bw_link_ops_t *ops = end->link->ops;

    while (end->sent < end->frames || end->received < end->frames) {
        bool more;
        size_t room = 0;
        bw_status_t status;

        if (!receive_some(end, &more))
            return false;
        ops->hush(end->link);
        if (!send_some(end, &room))
            return false;
        if (more || (room == 0 && may_send(end)))
            continue;
        status = room > 0 ? ops->arm_write(end->link, room) : BW_OK;
        if (status == BW_OK && end->received < end->frames)
            status = ops->arm_read(end->link);
        if (status != BW_OK && status != BW_AGAIN) {
            end->failure = "arming";
            return false;
        }
        if (status == BW_OK && (end->sent < end->frames || end->received < end->frames) &&
            !sleep_well(end))
            return false;
    }
    return true;
}

static end_t end_of(bw_link_t *link, int side, uint64_t frames)
{
    return (end_t){.link = link,
                   .out_stream = (uint64_t)(1 + side),
                   .in_stream = (uint64_t)(2 - side),
                   .random = (uint64_t)(77 + side),
                   .frames = frames,
                   .patience_ms = WAKE_MS};
}

static void report(const end_t *end)
{
    printf("    %s: %" PRIu64 " frames sent, %" PRIu64 " received, slept %" PRIu64 " times%s%s\n",
           end->out_stream == 1 ? "this end " : "other end", end->sent, end->received, end->sleeps,
           end->failure ? ", FAILED: " : "", end->failure ? end->failure : "");
}

/* ---- two processes ---- */

#ifndef __SANITIZE_THREAD__ /* it cannot follow a fork */

/* The other end, in a process of its own that has no hand on ours. */
static pid_t start_other(bw_link_t *link, bw_link_t *ours, uint64_t frames)
{
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        end_t other = end_of(link, 1, frames);
        bool fine;

        ours->ops->close(ours, NULL);
        fine = run_end(&other);
        report(&other);
        fflush(stdout);
        link->ops->close(link, NULL);
        _exit(!fine);
    }
    link->ops->close(link, NULL);
    return pid;
}

static void two_processes(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};
    end_t mine;
    int status;
    pid_t pid;

    CHECK(open_link(RING, &joined, &accepted, &error));
    pid = start_other(accepted, joined, frames_each_way);
    CHECK(pid > 0);
    mine = end_of(joined, 0, frames_each_way);
    if (!run_end(&mine))
        kill(pid, SIGKILL);
    report(&mine);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(mine.failure == NULL);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(mine.sleeps > 100); /* else nothing about waking was tested */
    joined->ops->close(joined, NULL);
}

/* The other process dies at any moment. What it left in the ring is whole frames and perhaps a part
 * of one, never anything wrong, and writing to it does no harm. */
static void the_other_dies(void)
{
    for (int round = 0; round < 25; round++) {
        bw_link_t *joined = NULL, *accepted = NULL;
        struct timespec pause = {.tv_nsec = 200000 * (round + 1)};
        bw_error_t error = {0};
        end_t mine;
        pid_t pid;

        CHECK(open_link(RING, &joined, &accepted, &error));
        pid = start_other(accepted, joined, UINT64_MAX);
        CHECK(pid > 0);
        mine = end_of(joined, 0, 40ull * (uint64_t)round);
        CHECK(run_end(&mine));
        nanosleep(&pause, NULL);
        kill(pid, SIGKILL);
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
        mine.frames = UINT64_MAX;
        mine.patience_ms = 50;
        CHECK(!run_end(&mine));
        CHECK(strstr(mine.failure, "no doorbell") != NULL);
        joined->ops->close(joined, NULL);
    }
}

#endif

/* ---- two threads ---- */

/* A link over rings in memory that both ends see at the same address. */
typedef struct {
    bw_link_t link;
    bw_tx_t tx;
    bw_rx_t rx;
    int bell, peer_bell;
} plain_link_t;

static void ring_bell(int fd)
{
    eventfd_write(fd, 1);
}

static bw_status_t plain_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    return bw_tx_reserve(&((plain_link_t *)link)->tx, want, span_p);
}

static void plain_commit(bw_link_t *link, size_t n)
{
    if (bw_tx_commit(&((plain_link_t *)link)->tx, n))
        ring_bell(((plain_link_t *)link)->peer_bell);
}

static bw_status_t plain_peek(bw_link_t *link, bw_span_t *span_p)
{
    return bw_rx_peek(&((plain_link_t *)link)->rx, span_p);
}

static void plain_release(bw_link_t *link, size_t n)
{
    if (bw_rx_release(&((plain_link_t *)link)->rx, n))
        ring_bell(((plain_link_t *)link)->peer_bell);
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
    return ((const plain_link_t *)link)->bell;
}

static void plain_hush(bw_link_t *link)
{
    eventfd_t count;

    (void)eventfd_read(((plain_link_t *)link)->bell, &count);
}

static const bw_link_ops_t plain_ops = {
    .kind = "plain",
    .reserve = plain_reserve,
    .commit = plain_commit,
    .peek = plain_peek,
    .release = plain_release,
    .arm_read = plain_arm_read,
    .arm_write = plain_arm_write,
    .fd = plain_fd,
    .hush = plain_hush,
};

static void *run_in_thread(void *end)
{
    return run_end(end) ? end : NULL;
}

static void run_threads(bw_link_t *left, bw_link_t *right, uint64_t frames)
{
    end_t mine = end_of(left, 0, frames), other = end_of(right, 1, frames);
    pthread_t thread;
    void *fine = NULL;

    CHECK_EQ(pthread_create(&thread, NULL, run_in_thread, &other), 0);
    run_end(&mine);
    CHECK_EQ(pthread_join(thread, &fine), 0);
    report(&mine);
    report(&other);
    CHECK(mine.failure == NULL && other.failure == NULL && fine);
    CHECK(mine.sleeps + other.sleeps > 100);
}

/* Positions start just below 2^64, so both rings wrap there under way. */
static void two_threads_in_plain_memory(void)
{
    static alignas(64) bw_ring_shared_t shared[2];
    uint64_t start = 0 - 10 * RING;
    uint8_t *data[2] = {map_twice(RING), map_twice(RING)};
    int bells[2] = {eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    plain_link_t ends[2];

    for (int i = 0; i < 2; i++) {
        CHECK(data[i] != NULL && bells[i] >= 0);
        bw_ring_init(&shared[i], start);
    }
    for (int i = 0; i < 2; i++) {
        ends[i] =
            (plain_link_t){.link = {.ops = &plain_ops}, .bell = bells[i], .peer_bell = bells[!i]};
        bw_tx_attach(&ends[i].tx, &shared[i], data[i], RING, start);
        bw_rx_attach(&ends[i].rx, &shared[!i], data[!i], RING, start);
    }
    CHECK_IN(run_threads(&ends[0].link, &ends[1].link, frames_each_way / 3));
    CHECK(ends[0].tx.head < start);
    for (int i = 0; i < 2; i++) {
        close(bells[i]);
        munmap(data[i], 2 * RING);
    }
}

static void two_threads_over_shm(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};

    CHECK(open_link(RING, &joined, &accepted, &error));
    CHECK_IN(run_threads(joined, accepted, frames_each_way / 3));
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

/* ---- two threads, one moment ---- */

/*
 * "I say that I sleep, then look" against "I publish, then look whether you sleep", at the same
 * moment, over and over: either the one sees the bytes (or the room), or the other must ring.
 * The moments are a few nanoseconds wide, so this finds a missing fence that the long runs do not.
 */
typedef struct {
    bw_tx_t tx;
    bw_rx_t rx;
    bool other_commits; /* the other thread commits, else it releases */
    _Atomic uint64_t go, done;
    bool rang; /* by the other thread, in the round that is done */
} moment_t;

#define MOMENT_BYTES 8

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* False if the other thread had no processor meanwhile. */
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
        moment->rang = moment->other_commits ? bw_tx_commit(&moment->tx, MOMENT_BYTES)
                                             : bw_rx_release(&moment->rx, MOMENT_BYTES);
        atomic_store_explicit(&moment->done, round, memory_order_release);
    }
}

/* Back to an empty ring (a full one if the other releases) by whoever did not move. */
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
        bw_tx_commit(&moment->tx, MOMENT_BYTES);
    }
}

static void moments(bool other_commits)
{
    static alignas(64) bw_ring_shared_t shared;
    moment_t moment = {.other_commits = other_commits};
    uint8_t *data = map_twice(RING);
    uint64_t round = 0, armed = 0, not_armed = 0, delay = 32, random = 3;
    int64_t end_ms = now_ms() + 4000;
    bw_span_t span = {0};
    pthread_t thread;

    CHECK(data != NULL);
    bw_ring_init(&shared, 0);
    bw_tx_attach(&moment.tx, &shared, data, RING, 0);
    bw_rx_attach(&moment.rx, &shared, data, RING, 0);
    if (!other_commits) {
        CHECK_EQ(bw_tx_reserve(&moment.tx, RING, &span), BW_OK);
        bw_tx_commit(&moment.tx, RING);
    }
    CHECK_EQ(pthread_create(&thread, NULL, publish_at_the_moment, &moment), 0);
    while (round < frames_each_way && now_ms() < end_ms && !check_failed) {
        bw_status_t status;
        bool together;

        round++;
        atomic_store_explicit(&moment.go, round, memory_order_release);
        waste(delay + next_random(&random) % 16);
        status = other_commits ? bw_rx_arm(&moment.rx) : bw_tx_arm(&moment.tx, MOMENT_BYTES);
        together = wait_for(&moment.done, round);
        armed += together && status == BW_OK;
        not_armed += together && status == BW_AGAIN;
        /* later if too early, earlier if too late: it stays where the two meet */
        if (together)
            delay = status == BW_OK ? delay + 1 : delay > 0 ? delay - 1 : 0;
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
    if (!check_failed && (armed < 100 || not_armed < 100))
        SKIP("the two threads never met: no two processors were free");
}

static void arming_to_read_against_commit(void)
{
    moments(true);
}

static void arming_to_write_against_release(void)
{
    moments(false);
}

static const check_case_t cases[] = {
    {"arming_to_read_against_commit", arming_to_read_against_commit},
    {"arming_to_write_against_release", arming_to_write_against_release},
    {"two_threads_in_plain_memory", two_threads_in_plain_memory},
    {"two_threads_over_shm", two_threads_over_shm},
#ifndef __SANITIZE_THREAD__
    {"two_processes", two_processes},
    {"the_other_dies", the_other_dies},
#endif
};

int main(int argc, char **argv)
{
    const char *frames = getenv("STRESS_FRAMES");

    if (frames)
        frames_each_way = strtoull(frames, NULL, 10);
    if (argc > 1 && argv[1][0] >= '1' && argv[1][0] <= '9') {
        frames_each_way = strtoull(argv[1], NULL, 10);
        argv++;
        argc--;
    }
    return check_run(cases, sizeof cases / sizeof *cases, argc, argv);
}
