/* SPDX-License-Identifier: Apache-2.0 */
/* Streams that wait: for a reader, for the next hop, for a disk. They do not spin, and nobody takes
 * them for lost. */
#include "pipe_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>

static int slow = -1; /* a file whose close takes until `released` is readable */
static struct pollfd released;
static bool is_released;

int close(int fd)
{
    if (fd == slow) {
        slow = -1;
        is_released = poll(&released, 1, 10000) == 1;
    }
    return (int)syscall(SYS_close, fd);
}

/* ---- what waits does not spin ---- */

/* Beside a drain that runs: waits until it moves nothing more, kills the `victim`, and measures
 * what its thread needs in a second. Then the drain is stopped. */
typedef struct {
    receiver_t *receiver;
    pthread_t drains;
    pid_t victim; /* 0: none */
    double used_ms;
} meter_t;

static double used_ms(pthread_t thread)
{
    clockid_t clock;
    struct timespec used;

    if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &used) < 0)
        abort();
    return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

static void await_standstill(receiver_t *receiver)
{
    int64_t deadline = rd_now_ms() + LONG_MS;
    uint64_t was = 0, is;

    while (((is = atomic_load(&receiver->transfer.bytes)) != was || is == 0) &&
           rd_left_ms(deadline) > 0) {
        was = is;
        (void)poll(NULL, 0, 300);
    }
}

static void *measure(void *argument)
{
    meter_t *meter = argument;
    double before;

    await_standstill(meter->receiver);
    if (meter->victim > 0 && (kill(meter->victim, SIGKILL) < 0 || status_of(meter->victim) != 137))
        abort();
    (void)poll(NULL, 0, 300); /* the drain sees it */
    before = used_ms(meter->drains);
    (void)poll(NULL, 0, 1000);
    meter->used_ms = used_ms(meter->drains) - before;
    atomic_store(&meter->receiver->transfer.stop, true);
    rd_transfer_wake(&meter->receiver->transfer);
    return NULL;
}

static void a_dead_producer_and_a_full_pipe(void)
{
    receiver_t receiver;
    int ends[2];
    rd_end_t output;
    meter_t meter = {.receiver = &receiver, .drains = pthread_self()};
    pthread_t thread;

    CHECK(begin(&receiver, UINT64_MAX / 2, 65536) && pipe(ends) == 0);
    meter.victim = receiver.child;
    output = rd_end_of(ends[1], true);
    CHECK(pthread_create(&thread, NULL, measure, &meter) == 0);
    rd_drain(&receiver.transfer, &receiver.stream, &output, NULL);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(receiver.transfer.outcome == RD_TRANSFER_FAULT && output.fd >= 0);
    CHECK(meter.used_ms < 100);
    (void)rd_end_close(&output);
    close(ends[0]);
    end(&receiver);
}

/* The next hop's other side, which never reads. */
static pid_t start_idle_consumer(int listener)
{
    pid_t child = fork();
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(RD_CARRIERS_ALL, RD_BLOCK_BYTES);
    rd_hop_t hop;
    rd_why_t why;

    if (child != 0)
        return child;
    if (!rd_hop_accept(listener, &key, &terms, -1, rd_now_ms() + LONG_MS, NULL, &hop, &why))
        _exit(1);
    for (;;)
        (void)pause();
}

static void an_output_that_waits_for_the_next_hop(void)
{
    receiver_t receiver;
    uint16_t port;
    int listener = open_listener(&port);
    rd_end_t output = rd_end_of(open("/dev/null", O_WRONLY | O_CLOEXEC), true);
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(carrier, RD_BLOCK_BYTES);
    meter_t meter = {.receiver = &receiver, .drains = pthread_self()};
    pid_t next = start_idle_consumer(listener);
    pthread_t thread;
    rd_stream_t forward;
    rd_hop_t hop;
    rd_why_t why;

    close(listener);
    CHECK(begin(&receiver, UINT64_MAX / 2, 65536));
    CHECK(join_listener(port, &key, &terms, &hop, &why));
    rd_stream_open(&forward, &hop, "the next host");
    CHECK(pthread_create(&thread, NULL, measure, &meter) == 0);
    output.always_ready = false; /* as a pipe with a fast reader, which is always writable */
    rd_drain(&receiver.transfer, &receiver.stream, &output, &forward);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(receiver.transfer.outcome == RD_TRANSFER_FAULT && meter.used_ms < 100);
    CHECK(kill(next, SIGKILL) == 0 && status_of(next) == 137);
    rd_stream_close(&forward);
    (void)rd_end_close(&output);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_FAULT);
    end(&receiver);
}

/* ---- a slow disk is no lost host ---- */

/* Whoever was held up itself has heard nothing for long, and finds now what came meanwhile. */
static void what_came_meanwhile_is_heard(void)
{
    receiver_t receiver;
    rd_frame_t frame;
    const uint8_t *payload;
    rd_why_t why;
    bool is_heard;

    CHECK(begin(&receiver, 1000, 1000));
    for (int64_t deadline = rd_now_ms() + LONG_MS; rd_left_ms(deadline) > 0;)
        if (rd_stream_next(&receiver.stream, &frame, &payload, &why) == RD_NOTHING)
            rd_streams_wait(&receiver.stream, NULL, NULL, 0, 1000);
        else
            break;
    receiver.stream.heard_ms -= RD_SILENCE_MS;
    CHECK(rd_stream_tick(&receiver.stream, &why));
    /* As soon as nothing comes any more it is silence. */
    do {
        receiver.stream.heard_ms -= RD_SILENCE_MS;
        is_heard = rd_stream_tick(&receiver.stream, &why);
        (void)poll(NULL, 0, 100);
    } while (is_heard);
    receiver.stream.heard_ms = rd_now_ms();
    drain_into(&receiver, open("/dev/null", O_WRONLY | O_CLOEXEC));
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_DONE);
    end(&receiver);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_DONE);
}

/* A producer by hand that tells of the first sign of life after its END. Its status is 0 if all was
 * taken. */
static pid_t start_listener_of_pings(uint16_t port, int tell)
{
    pid_t child = fork();
    rd_stream_t stream;
    rd_frame_t frame = {.kind = RD_END};
    const uint8_t *payload;
    rd_why_t why;

    if (child != 0)
        return child;
    join_by_hand(port, 65536, &stream);
    (void)rd_stream_say(&stream, &frame, NULL);
    for (;;)
        switch (rd_stream_next(&stream, &frame, &payload, &why)) {
        case RD_NOTHING:
            rd_streams_wait(&stream, NULL, NULL, 0, 1000);
            break;
        case RD_LOST:
            _exit(1);
        case RD_FRAME:
            if (frame.kind != RD_PING)
                _exit(frame.kind == RD_DONE ? 0 : 2);
            (void)!write(tell, "x", 1);
            rd_stream_release(&stream, &frame);
        }
}

/* So that the next sign of life is due. */
static void be_silent(void *of)
{
    receiver_t *receiver = of;

    receiver->stream.said_ms -= RD_PING_MS;
}

static void a_close_that_takes_long(void)
{
    receiver_t receiver;
    char path[] = "/tmp/pipe-slow-XXXXXX";
    int file = mkstemp(path), pings[2];
    uint16_t port;
    int listener = open_listener(&port);
    pid_t producer;

    CHECK(file >= 0 && unlink(path) == 0 && pipe(pings) == 0);
    producer = start_listener_of_pings(port, pings[1]);
    CHECK(take_producer(&receiver, listener, RD_BLOCK_BYTES));
    receiver.transfer.at_end = be_silent;
    receiver.transfer.of = &receiver;
    released = (struct pollfd){.fd = pings[0], .events = POLLIN};
    is_released = false;
    slow = file;
    drain_into(&receiver, file);
    CHECK(is_released);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_DONE);
    end(&receiver);
    CHECK_EQ(status_of(producer), 0);
    close(pings[0]);
    close(pings[1]);
}

static const check_case_t cases[] = {
    {"a dead producer and a full pipe", a_dead_producer_and_a_full_pipe},
    {"an output that waits for the next hop", an_output_that_waits_for_the_next_hop},
    {"what came meanwhile is heard", what_came_meanwhile_is_heard},
    {"a close that takes long", a_close_that_takes_long},
};

int main(int argc, char **argv)
{
    return run_over_carriers(cases, sizeof cases / sizeof *cases, argc, argv);
}
