/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that streams which wait for a reader, for the next hop or for a disk do not spin, and are
 * not mistaken for lost. */
#include "pipe_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>

/* A call that blocks, as on a slow disk, until the descriptor `until` is readable. The other side
 * writes to that descriptor when it receives a keep-alive message. */
typedef enum { NO_CALL, READ, WRITE, SYNC, CLOSE } call_t;

static struct {
    _Atomic call_t call;
    int fd; /* -1 for any */
    struct pollfd until;
    _Atomic bool is_released;
    pthread_t by;
} held;

static void hold(call_t call, int fd)
{
    if (held.call != call || (held.fd >= 0 && held.fd != fd))
        return;
    held.call = NO_CALL;
    held.by = pthread_self();
    held.is_released = poll(&held.until, 1, 10000) == 1;
}

int close(int fd)
{
    hold(CLOSE, fd);
    return (int)syscall(SYS_close, fd);
}

int fdatasync(int fd)
{
    hold(SYNC, fd);
    return (int)syscall(SYS_fdatasync, fd);
}

ssize_t write(int fd, const void *data, size_t len)
{
    hold(WRITE, fd);
    return syscall(SYS_write, fd, data, len);
}

ssize_t read(int fd, void *data, size_t len)
{
    hold(READ, fd);
    return syscall(SYS_read, fd, data, len);
}

/* The file whose calls are held is not in the page cache. */
ssize_t preadv2(int fd, const struct iovec *pieces, int count, off_t offset, int flags)
{
    if (held.call != READ || held.fd != fd)
        return syscall(SYS_preadv2, fd, pieces, count, offset, 0, flags);
    errno = EAGAIN;
    return -1;
}

/* ---- waiting does not spin ---- */

/* Runs in parallel with a drain: waits until the drain transfers no more data, kills the `victim`,
 * lets another side continue, and measures how much CPU time the drain's thread uses in a second.
 * Then it stops the drain. */
typedef struct {
    receiver_t *receiver;
    pthread_t drains;
    pid_t victim; /* 0 if none */
    int go_on;    /* writing a byte here makes the other side continue; 0 if unused */
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
    if (meter->go_on > 0 && write(meter->go_on, "x", 1) != 1)
        abort();
    (void)poll(NULL, 0, 300); /* give the drain time to notice */
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

/* Starts the other side of the next hop. It never reads. If `quits`, it reports that its reader has
 * closed, and exits when told to. */
static pid_t start_consumer(int listener, bool quits, int go_on)
{
    pid_t child = fork();
    rd_stream_t stream;
    char byte;

    if (child != 0)
        return child;
    accept_by_hand(listener, &stream);
    if (quits &&
        rd_stream_say(&stream, &(rd_frame_t){.kind = RD_ABORT, .value = RD_ABORT_QUIT}, "enough") &&
        read(go_on, &byte, 1) == 1) {
        rd_stream_close(&stream);
        _exit(0);
    }
    for (;;)
        (void)pause();
}

static void open_forward(uint16_t port, rd_stream_t *forward)
{
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(carrier, RD_BLOCK_BYTES);
    rd_hop_t hop;
    rd_why_t why;

    CHECK(join_listener(port, &key, &terms, &hop, &why));
    rd_stream_open(forward, &hop, "the next host");
}

static void an_output_that_waits_for_the_next_hop(void)
{
    receiver_t receiver;
    uint16_t port;
    int listener = open_listener(&port);
    rd_end_t output = rd_end_of(open("/dev/null", O_WRONLY | O_CLOEXEC), true);
    meter_t meter = {.receiver = &receiver, .drains = pthread_self()};
    pid_t next = start_consumer(listener, false, -1);
    pthread_t thread;
    rd_stream_t forward;

    close(listener);
    CHECK(begin(&receiver, UINT64_MAX / 2, 65536));
    CHECK_IN(open_forward(port, &forward));
    CHECK(pthread_create(&thread, NULL, measure, &meter) == 0);
    output.always_ready = false; /* like a pipe with a fast reader, which is always writable */
    rd_drain(&receiver.transfer, &receiver.stream, &output, &forward);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(receiver.transfer.outcome == RD_TRANSFER_FAULT && meter.used_ms < 100);
    CHECK(kill(next, SIGKILL) == 0 && status_of(next) == 137);
    rd_stream_close(&forward);
    (void)rd_end_close(&output);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_FAULT);
    end(&receiver);
}

/* Starts a producer that has sent END, and then sends a keep-alive message. */
static pid_t start_producer_that_waits(uint16_t port, int go_on)
{
    pid_t child = fork();
    rd_stream_t stream;
    rd_frame_t frame;
    uint8_t *at;
    char byte;

    if (child != 0)
        return child;
    join_by_hand(port, 65536, &stream);
    at = room_by_hand(&stream, 5);
    frame = hello_at(at);
    rd_stream_put(&stream, at, &frame);
    (void)rd_stream_say(&stream, &(rd_frame_t){.kind = RD_END, .offset = 5}, NULL);
    if (read(go_on, &byte, 1) != 1)
        _exit(1);
    (void)rd_stream_say(&stream, &(rd_frame_t){.kind = RD_PING}, NULL);
    rd_stream_discard_rest(&stream, true, rd_now_ms() + LONG_MS);
    _exit(0);
}

/* Makes it look as if the producer had been silent for too long. */
static void be_deaf(void *of)
{
    receiver_t *receiver = of;

    receiver->stream.heard_ms -= RD_SILENCE_MS;
}

/* While the next hop has not confirmed the end, nothing is read from the producer, so its messages
 * do not wake the drain, and its silence is ignored. */
static void an_end_that_the_next_hop_takes_slowly(void)
{
    receiver_t receiver;
    uint16_t port, next_port;
    int listener = open_listener(&port), next_listener = open_listener(&next_port), ends[2];
    rd_end_t none = {.fd = -1};
    meter_t meter = {.receiver = &receiver, .drains = pthread_self()};
    pid_t next = start_consumer(next_listener, false, -1), producer;
    pthread_t thread;
    rd_stream_t forward;

    close(next_listener);
    CHECK(pipe(ends) == 0);
    meter.go_on = ends[1];
    producer = start_producer_that_waits(port, ends[0]);
    CHECK(take_producer(&receiver, listener, RD_BLOCK_BYTES));
    receiver.transfer.at_end = be_deaf;
    receiver.transfer.of = &receiver;
    CHECK_IN(open_forward(next_port, &forward));
    CHECK(pthread_create(&thread, NULL, measure, &meter) == 0);
    rd_drain(&receiver.transfer, &receiver.stream, &none, &forward);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_EQ(receiver.transfer.why.cause, RD_CAUSE_STOPPED); /* stopped by the meter */
    CHECK(receiver.transfer.outcome == RD_TRANSFER_FAULT && meter.used_ms < 100);
    CHECK(kill(next, SIGKILL) == 0 && status_of(next) == 137);
    rd_stream_close(&forward);
    end(&receiver);
    CHECK_EQ(status_of(producer), 0);
    close(ends[0]);
    close(ends[1]);
}

static void a_next_hop_that_quits_before_a_full_pipe(void)
{
    receiver_t receiver;
    uint16_t port;
    int listener = open_listener(&port), out[2], ends[2];
    rd_end_t output;
    meter_t meter = {.receiver = &receiver, .drains = pthread_self()};
    pid_t next;
    pthread_t thread;
    rd_stream_t forward;

    CHECK(pipe(out) == 0 && pipe(ends) == 0);
    meter.go_on = ends[1];
    next = start_consumer(listener, true, ends[0]);
    close(listener);
    CHECK(begin(&receiver, UINT64_MAX / 2, 65536));
    CHECK_IN(open_forward(port, &forward));
    output = rd_end_of(out[1], true);
    CHECK(pthread_create(&thread, NULL, measure, &meter) == 0);
    rd_drain(&receiver.transfer, &receiver.stream, &output, &forward);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(receiver.transfer.outcome == RD_TRANSFER_FAULT && meter.used_ms < 100);
    CHECK_EQ(status_of(next), 0);
    rd_stream_close(&forward);
    (void)rd_end_close(&output);
    close(out[0]);
    close(ends[0]);
    close(ends[1]);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_FAULT);
    end(&receiver);
}

/* ---- a slow disk does not mean a lost host ---- */

/* Waits for the producer's first frame, and leaves it unread. */
static void await_frame(receiver_t *receiver)
{
    rd_frame_t frame;
    const uint8_t *payload;
    rd_why_t why;

    for (int64_t deadline = rd_now_ms() + LONG_MS; rd_left_ms(deadline) > 0;)
        if (rd_stream_next(&receiver->stream, &frame, &payload, &why) == RD_NOTHING)
            rd_streams_wait(&receiver->stream, NULL, NULL, 0, 1000);
        else
            break;
}

/* A side that was delayed has not checked for messages for a long time, but now finds the messages
 * that arrived in the meantime. */
static void what_came_meanwhile_is_heard(void)
{
    receiver_t receiver;
    rd_why_t why;
    bool is_heard;

    CHECK(begin(&receiver, 1000, 1000));
    await_frame(&receiver);
    receiver.stream.heard_ms -= RD_SILENCE_MS;
    CHECK(rd_stream_tick(&receiver.stream, &why));
    /* Silence counts again once nothing more arrives. */
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

/* Call this in a separate process. Receives the next frame. If the other side is lost, the process
 * exits with status 1. */
static rd_frame_t next_by_hand(rd_stream_t *stream, const uint8_t **payload_p)
{
    rd_frame_t frame;
    rd_why_t why;

    for (;;)
        switch (rd_stream_next(stream, &frame, payload_p, &why)) {
        case RD_NOTHING:
            rd_streams_wait(stream, NULL, NULL, 0, 1000);
            break;
        case RD_LOST:
            _exit(1);
        case RD_FRAME:
            return frame;
        }
}

typedef enum { WITHOUT_END, AT_ONCE, LATER, RESUMED, RESUMED_LATER } manner_t;

/* Starts a producer that sends a handcrafted "hello" and reports the first keep-alive message. Its
 * status is 0 if everything was accepted. */
static pid_t start_producer_that_hears(uint16_t port, manner_t manner, int tell)
{
    static const char id[] = "0123456789abcdef0123456789abcdef";
    pid_t child = fork();
    rd_stream_t stream;
    rd_frame_t frame;
    const uint8_t *payload;
    uint8_t *at;

    if (child != 0)
        return child;
    join_by_hand(port, 65536, &stream);
    if (manner >= RESUMED)
        (void)rd_stream_say(&stream, &(rd_frame_t){.kind = RD_RESUME}, id);
    /* In these cases the interval has passed, so the consumer records its offset after the next
     * write. */
    if (manner == LATER || manner == RESUMED_LATER)
        (void)poll(NULL, 0, 2 * RD_CONFIRM_MS);
    at = room_by_hand(&stream, 5);
    frame = hello_at(at);
    rd_stream_put(&stream, at, &frame);
    if (manner != WITHOUT_END)
        (void)rd_stream_say(&stream, &(rd_frame_t){.kind = RD_END, .offset = 5}, NULL);
    for (;;) {
        frame = next_by_hand(&stream, &payload);
        if (frame.kind != RD_PING && frame.kind != RD_RESUME)
            _exit(frame.kind == RD_DONE ? 0 : 2);
        if (frame.kind == RD_PING)
            (void)!write(tell, "x", 1);
        rd_stream_release(&stream, &frame);
    }
}

/* Makes the next keep-alive message due. */
static void be_silent(void *of)
{
    receiver_t *receiver = of;

    receiver->stream.said_ms -= RD_PING_MS;
}

/* The producer receives a keep-alive message while the call is held. */
static void receive_with(call_t call, manner_t manner)
{
    receiver_t receiver;
    rd_resume_t resume;
    char path[] = "/tmp/pipe-slow-XXXXXX", note[64];
    int file = mkstemp(path), pings[2];
    uint16_t port;
    int listener = open_listener(&port);
    pid_t producer;
    rd_why_t why;

    (void)snprintf(note, sizeof note, "%s.note", path);
    CHECK(file >= 0 && pipe(pings) == 0 && rd_resume_take(&resume, note, file, &why));
    producer = start_producer_that_hears(port, manner, pings[1]);
    CHECK(take_producer(&receiver, listener, RD_BLOCK_BYTES));
    receiver.transfer.resume = manner == AT_ONCE ? NULL : &resume;
    receiver.transfer.at_end = call == CLOSE ? be_silent : NULL;
    receiver.transfer.of = &receiver;
    await_frame(&receiver);
    if (call != CLOSE && manner != RESUMED_LATER)
        be_silent(&receiver);
    held.fd = manner == RESUMED ? -1 : file; /* -1: the call on the note is held */
    held.until = (struct pollfd){.fd = pings[0], .events = POLLIN};
    held.is_released = false;
    held.call = call;
    drain_into(&receiver, file);
    CHECK(held.is_released);
    CHECK(call == CLOSE || pthread_equal(held.by, pthread_self()));
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_DONE);
    end(&receiver);
    CHECK_EQ(status_of(producer), 0);
    CHECK(unlink(path) == 0 && (manner == AT_ONCE || unlink(note) == 0));
    close(pings[0]);
    close(pings[1]);
}

/* Hops that are ready wait until the others are ready as well; until then, nothing is sent on
 * them. */
static void a_late_beginning_is_no_silence(void)
{
    receiver_t receiver;
    uint16_t port;
    int listener = open_listener(&port);
    pid_t producer = start_producer_that_hears(port, LATER, -1);

    CHECK(take_producer(&receiver, listener, RD_BLOCK_BYTES));
    receiver.stream.heard_ms -= RD_SILENCE_MS;
    drain_into(&receiver, open("/dev/null", O_WRONLY | O_CLOEXEC));
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_DONE);
    end(&receiver);
    CHECK_EQ(status_of(producer), 0);
}

/* The reader quits before a write could fail, because the buffer has not reached the level at which
 * writing starts. */
static void quit_before_the_buffer_flows(bool is_socket)
{
    receiver_t receiver;
    uint16_t port;
    int listener = open_listener(&port), ends[2];
    pid_t producer = start_producer_that_hears(port, WITHOUT_END, -1);

    CHECK((is_socket ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends)) == 0);
    CHECK(take_producer(&receiver, listener, RD_BLOCK_BYTES));
    close(ends[0]);
    receiver.transfer.buffer = RD_BUFFER_MIN;
    receiver.transfer.start = 100;
    drain_into(&receiver, ends[1]);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_QUIT);
    end(&receiver);
    CHECK_EQ(status_of(producer), 2); /* not everything was accepted */
}

static void a_reader_that_quits_before_the_buffer_flows(void)
{
    CHECK_IN(quit_before_the_buffer_flows(false));
    CHECK_IN(quit_before_the_buffer_flows(true));
}

static void a_close_that_takes_long(void)
{
    CHECK_IN(receive_with(CLOSE, AT_ONCE));
}

static void a_write_that_takes_long(void)
{
    CHECK_IN(receive_with(WRITE, AT_ONCE));
}

static void a_note_that_takes_long(void)
{
    CHECK_IN(receive_with(SYNC, RESUMED));
}

/* This waits until the keep-alive message is due, so it is run for only one carrier. */
static void an_fdatasync_that_takes_long(void)
{
    if (carrier == RD_CARRIER_SHM)
        CHECK_IN(receive_with(SYNC, RESUMED_LATER));
}

/* Starts a consumer that accepts "hello" by hand and reports the first keep-alive message. */
static pid_t start_consumer_that_hears(int listener, int tell)
{
    pid_t child = fork();
    rd_stream_t stream;
    rd_frame_t frame;
    const uint8_t *payload;

    if (child != 0)
        return child;
    accept_by_hand(listener, &stream);
    do {
        frame = next_by_hand(&stream, &payload);
        if (frame.kind == RD_PING)
            (void)!write(tell, "x", 1);
        if (frame.kind == RD_DATA && (frame.len != 5 || memcmp(payload, "hello", 5) != 0))
            _exit(2);
        rd_stream_release(&stream, &frame);
    } while (frame.kind != RD_END);
    (void)rd_stream_say(&stream, &(rd_frame_t){.kind = RD_DONE, .offset = 5}, NULL);
    rd_stream_discard_rest(&stream, false, rd_now_ms() + LONG_MS);
    _exit(frame.offset == 5 ? 0 : 3);
}

static bw_carrier_t frail;
static const bw_carrier_t *sound;

static bw_status_t reserve_or_lose(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    return held.is_released ? BW_AGAIN : sound->reserve(link, want, span_p);
}

static bw_status_t arm_or_lose(bw_link_t *link)
{
    return held.is_released ? BW_SYSTEM : sound->arm_read(link);
}

/* The link is lost while the call is held, and then has no more room, as with rdma. */
static void make_frail(bw_link_t *link)
{
    sound = link->ops;
    frail = *sound;
    frail.reserve = reserve_or_lose;
    frail.arm_read = arm_or_lose;
    link->ops = &frail;
}

/* The consumer receives a keep-alive message while the read is held. */
static void send_with_slow_read(bool is_lost)
{
    char path[] = "/tmp/pipe-slow-XXXXXX";
    int file = mkstemp(path), pings[2];
    uint16_t port;
    int listener = open_listener(&port);
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(carrier, 65536);
    rd_transfer_t transfer;
    rd_stream_t stream;
    rd_end_t input;
    rd_hop_t hop;
    rd_why_t why;
    pid_t consumer;

    CHECK(file >= 0 && unlink(path) == 0 && pipe(pings) == 0);
    CHECK(write(file, "hello", 5) == 5 && lseek(file, 0, SEEK_SET) == 0);
    consumer = start_consumer_that_hears(listener, pings[1]);
    close(listener);
    CHECK(join_listener(port, &key, &terms, &hop, &why) && rd_transfer_init(&transfer, &why));
    if (is_lost)
        make_frail(hop.link);
    rd_stream_open(&stream, &hop, "the consumer");
    stream.said_ms -= RD_PING_MS;
    input = rd_end_of(file, false);
    held.fd = file;
    held.until = (struct pollfd){.fd = pings[0], .events = POLLIN};
    held.is_released = false;
    held.call = READ;
    rd_feed(&transfer, &stream, &input);
    CHECK(held.is_released);
    CHECK_EQ(transfer.outcome, is_lost ? RD_TRANSFER_FAULT : RD_TRANSFER_DONE);
    CHECK(!is_lost || transfer.why.cause == RD_CAUSE_LOST);
    rd_stream_close(&stream);
    rd_transfer_free(&transfer);
    CHECK_EQ(status_of(consumer), is_lost);
    close(pings[0]);
    close(pings[1]);
}

static void a_read_that_takes_long(void)
{
    CHECK_IN(send_with_slow_read(false));
}

static void a_link_that_is_lost_during_a_read(void)
{
    CHECK_IN(send_with_slow_read(true));
}

static const check_case_t cases[] = {
    {"a dead producer and a full pipe", a_dead_producer_and_a_full_pipe},
    {"an output that waits for the next hop", an_output_that_waits_for_the_next_hop},
    {"an end that the next hop takes slowly", an_end_that_the_next_hop_takes_slowly},
    {"a next hop that quits before a full pipe", a_next_hop_that_quits_before_a_full_pipe},
    {"what came meanwhile is heard", what_came_meanwhile_is_heard},
    {"a late beginning is no silence", a_late_beginning_is_no_silence},
    {"a reader that quits before the buffer flows", a_reader_that_quits_before_the_buffer_flows},
    {"a close that takes long", a_close_that_takes_long},
    {"a write that takes long", a_write_that_takes_long},
    {"a note that takes long", a_note_that_takes_long},
    {"an fdatasync that takes long", an_fdatasync_that_takes_long},
    {"a read that takes long", a_read_that_takes_long},
    {"a link that is lost during a read", a_link_that_is_lost_during_a_read},
};

int main(int argc, char **argv)
{
    return run_over_carriers(cases, sizeof cases / sizeof *cases, argc, argv);
}
