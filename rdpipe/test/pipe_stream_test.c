/* SPDX-License-Identifier: Apache-2.0 */
/* Streams over a hop: the same bytes, the same length, and no short one that looks whole. */
#include "pipe_ends.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>

#include "transfer.h"

#define KEY "a key that both sides have"

typedef struct {
    rd_transfer_t transfer;
    rd_stream_t stream;
    pid_t child;
} receiver_t;

static int failing = -1; /* a file whose next fdatasync fails, and as with Linux only that one */

int fdatasync(int fd)
{
    if (fd != failing)
        return (int)syscall(SYS_fdatasync, fd);
    failing = -1;
    errno = EIO;
    return -1;
}

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

static int level;       /* of the compression of the running case */
static bool is_stopped; /* the producer is to stop before it has read an end */

typedef struct {
    uint64_t state;
} dice_t;

static uint64_t throw_dice(dice_t *dice, uint64_t below)
{
    dice->state ^= dice->state << 13;
    dice->state ^= dice->state >> 7;
    dice->state ^= dice->state << 17;
    return dice->state % below;
}

/* Byte `at` of all test streams. */
static uint8_t byte_of(uint64_t at)
{
    return (uint8_t)((at * 2654435761u) >> 13 ^ at >> 21);
}

/* Writes the stream in pieces of random size, then closes. */
static void write_stream(int fd, uint64_t total, uint64_t piece_max, uint64_t seed)
{
    static uint8_t piece[1 << 20];
    dice_t dice = {seed * 2 + 1};

    for (uint64_t at = 0; at < total;) {
        uint64_t len = 1 + throw_dice(&dice, piece_max), done = 0;

        if (len > total - at)
            len = total - at;
        for (uint64_t i = 0; i < len; i++)
            piece[i] = byte_of(at + i);
        while (done < len) {
            ssize_t n = write(fd, piece + done, len - done);

            if (n <= 0)
                return;
            done += (uint64_t)n;
        }
        at += len;
    }
}

/* A producer in a child: feeds what `write_stream` gives it through a pipe. Its status is the
 * outcome of its transfer. */
static pid_t start_producer(uint16_t port, uint64_t total, uint64_t piece_max, int status)
{
    pid_t child = fork(), writer;
    rd_key_t key;
    rd_terms_t terms = terms_of(carrier, 65536);
    rd_hop_t hop;
    rd_transfer_t transfer;
    rd_stream_t stream;
    rd_end_t input;
    rd_why_t why;
    int ends[2];

    if (child != 0)
        return child;
    if (pipe(ends) < 0)
        _exit(90);
    writer = fork();
    if (writer == 0) {
        close(ends[0]);
        write_stream(ends[1], total, piece_max, total + 7);
        _exit(0);
    }
    close(ends[1]);
    key = key_of(KEY);
    terms.zstd = level;
    if (!join_listener(port, &key, &terms, &hop, &why) || !rd_transfer_init(&transfer, &why))
        _exit(91);
    atomic_store(&transfer.status, status);
    rd_stream_open(&stream, &hop, "the consumer");
    input = rd_end_of(ends[0], false);
    if (is_stopped)
        (void)status_of(writer);
    atomic_store(&transfer.stop, is_stopped);
    rd_feed(&transfer, &stream, &input);
    rd_stream_close(&stream);
    if (!is_stopped)
        (void)status_of(writer);
    _exit((int)transfer.outcome);
}

/* Takes the producer that connects, and closes the listener. */
static bool take_producer(receiver_t *receiver, int listener, uint32_t block)
{
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(RD_CARRIERS_ALL, block);
    rd_hop_t hop;
    rd_why_t why;
    bool done =
        rd_hop_accept(listener, &key, &terms, -1, rd_now_ms() + LONG_MS, NULL, &hop, &why) &&
        rd_transfer_init(&receiver->transfer, &why);

    close(listener);
    if (done)
        rd_stream_open(&receiver->stream, &hop, "the producer");
    return done;
}

static bool begin(receiver_t *receiver, uint64_t total, uint64_t piece_max, int status)
{
    uint16_t port;
    int listener = open_listener(&port);

    receiver->child = start_producer(port, total, piece_max, status);
    return take_producer(receiver, listener, RD_BLOCK_BYTES);
}

static void end(receiver_t *receiver)
{
    rd_stream_close(&receiver->stream);
    rd_transfer_free(&receiver->transfer);
}

/* A child that compares what it reads with the stream; its status is 0 if it is that and whole. */
static pid_t start_reader(int fd, int other, uint64_t total, uint64_t stop_after)
{
    pid_t child = fork();
    static uint8_t piece[300000];
    uint64_t at = 0;
    ssize_t n = 0;

    if (child != 0)
        return child;
    close(other);
    while (at < stop_after && (n = read(fd, piece, sizeof piece)) > 0)
        for (ssize_t i = 0; i < n; i++, at++)
            if (piece[i] != byte_of(at))
                _exit(2);
    _exit(n < 0 || (at != total && at < stop_after) ? 1 : 0);
}

static void drain_into(receiver_t *receiver, int fd)
{
    rd_end_t output = rd_end_of(fd, true);

    rd_drain(&receiver->transfer, &receiver->stream, &output, NULL);
    (void)rd_end_close(&output);
}

static void stream_of(uint64_t total, uint64_t piece_max, int status)
{
    receiver_t receiver;
    int ends[2];
    pid_t reader;

    CHECK(begin(&receiver, total, piece_max, status));
    CHECK(pipe(ends) == 0);
    reader = start_reader(ends[0], ends[1], total, UINT64_MAX);
    close(ends[0]);
    drain_into(&receiver, ends[1]);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_DONE);
    CHECK_EQ(atomic_load(&receiver.transfer.bytes), total);
    CHECK_EQ(receiver.transfer.producer_status, status);
    CHECK_EQ(status_of(reader), 0);
    end(&receiver);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_DONE);
}

static void all_sizes(void)
{
    static const uint64_t sizes[] = {0,     1,      2,       65535,   65536,   65537,
                                     99999, 131072, 1048576, 5000000, 16777217};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_IN(stream_of(sizes[i], 200000, 0));
}

/* Packed on the way, unpacked before it is written; what does not shrink goes as it is. */
static void compressed_streams(void)
{
    level = 1;
    CHECK_IN(stream_of(0, 1, 0));
    CHECK_IN(stream_of(1, 1, 0));
    CHECK_IN(stream_of(5000000, 200000, 0));
    CHECK_IN(stream_of(30000, 100, 7));
    level = 0;
}

static void small_pieces(void)
{
    CHECK_IN(stream_of(300000, 100, 0));
}

static void the_producers_status_arrives(void)
{
    CHECK_IN(stream_of(1000, 1000, 3));
    CHECK_IN(stream_of(0, 1, 141));
}

/* A reader that quits ends the writer, as a broken pipe would. */
static void a_reader_that_quits_ends_the_producer(void)
{
    receiver_t receiver;
    int ends[2];
    pid_t reader;

    CHECK(begin(&receiver, UINT64_MAX / 2, 65536, 0));
    CHECK(pipe(ends) == 0);
    reader = start_reader(ends[0], ends[1], 0, 1000000);
    close(ends[0]);
    drain_into(&receiver, ends[1]);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_QUIT);
    CHECK_EQ(status_of(reader), 0);
    end(&receiver);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_QUIT);
}

static void no_room_is_an_error_on_both_sides(void)
{
    receiver_t receiver;
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);

    CHECK(full >= 0);
    CHECK(begin(&receiver, 10000000, 65536, 0));
    drain_into(&receiver, full);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_FAULT);
    CHECK(strstr(receiver.transfer.why.text, "No space left") != NULL);
    end(&receiver);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_FAULT);
}

static void a_file_size_limit_is_an_error_on_both_sides(void)
{
    receiver_t receiver;
    char path[] = "/tmp/pipe-limit-XXXXXX";
    int file = mkstemp(path);
    struct rlimit old, low;

    unlink(path);
    (void)signal(SIGXFSZ, SIG_IGN);
    CHECK(file >= 0 && begin(&receiver, 10000000, 65536, 0));
    CHECK(getrlimit(RLIMIT_FSIZE, &old) == 0);
    low = (struct rlimit){1000000, old.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &low) == 0);
    drain_into(&receiver, file);
    CHECK(setrlimit(RLIMIT_FSIZE, &old) == 0);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_FAULT);
    CHECK(strstr(receiver.transfer.why.text, "File too large") != NULL);
    end(&receiver);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_FAULT);
}

/* A stream that is cut off leaves the output open: its reader must not see an end. */
static void a_killed_producer_is_no_end(void)
{
    receiver_t receiver;
    rd_end_t output;

    CHECK(begin(&receiver, UINT64_MAX / 2, 65536, 0));
    CHECK(kill(receiver.child, SIGKILL) == 0);
    output = rd_end_of(open("/dev/null", O_WRONLY | O_CLOEXEC), true);
    rd_drain(&receiver.transfer, &receiver.stream, &output, NULL);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_FAULT);
    CHECK(strstr(receiver.transfer.why.text, "lost") != NULL);
    CHECK(output.fd >= 0);
    (void)rd_end_close(&output);
    CHECK_EQ(status_of(receiver.child), 128 + SIGKILL);
    end(&receiver);
}

/* A command that we killed has ended its output and has a status: that is no end of the stream. */
static void a_stopped_producer_is_no_end(void)
{
    receiver_t receiver;
    rd_end_t output = rd_end_of(open("/dev/null", O_WRONLY | O_CLOEXEC), true);

    is_stopped = true;
    CHECK(begin(&receiver, 1000, 1000, 143));
    is_stopped = false;
    rd_drain(&receiver.transfer, &receiver.stream, &output, NULL);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_FAULT);
    CHECK(output.fd >= 0);
    (void)rd_end_close(&output);
    end(&receiver);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_FAULT);
}

/* The other side of the same: a consumer that is killed is no broken pipe. */
static void a_killed_consumer_is_a_fault(void)
{
    receiver_t receiver;
    int marks[2];
    pid_t consumer;
    int status;
    char byte;

    CHECK(pipe(marks) == 0);
    consumer = fork();
    if (consumer == 0) {
        if (!begin(&receiver, UINT64_MAX / 2, 65536, 0))
            _exit(1);
        close(marks[0]);
        if (write(marks[1], "x", 1) != 1)
            _exit(1);
        status = status_of(receiver.child); /* nobody reads: it waits for us */
        _exit(status);
    }
    close(marks[1]);
    CHECK(read(marks[0], &byte, 1) == 1);
    CHECK(kill(consumer, SIGKILL) == 0);
    CHECK_EQ(status_of(consumer), 128 + SIGKILL);
    /* The producer is now nobody's child here; its end closes the mark that it has inherited. */
    CHECK(read(marks[0], &byte, 1) == 0);
    close(marks[0]);
}

typedef enum { HEAD, HALF, FLIP, SKIP_SOME, SHORTEN, TRASH, BAD_ZSTD } damage_t;

/* In a process of its own: joins as the producer of a stream, and returns the room for its first
 * block. */
static uint8_t *join_by_hand(uint16_t port, uint32_t ring_bytes, uint32_t bytes, rd_hop_t *hop,
                             rd_stream_t *stream)
{
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(carrier, ring_bytes);
    rd_why_t why;
    uint8_t *at;

    if (!join_listener(port, &key, &terms, hop, &why))
        _exit(91);
    rd_stream_open(stream, hop, "the consumer");
    at = rd_stream_room(stream, bytes);
    if (!at)
        _exit(92);
    return at;
}

/* The end of a producer that sends frames by hand: its status is 0 if it hears an ABORT. */
static _Noreturn void await_abort(rd_stream_t *stream)
{
    rd_frame_t frame;
    const uint8_t *payload;
    rd_why_t why;

    for (int64_t deadline = rd_now_ms() + LONG_MS; rd_left_ms(deadline) > 0;) {
        switch (rd_stream_next(stream, &frame, &payload, &why)) {
        case RD_NOTHING:
            rd_streams_wait(stream, NULL, NULL, 0, 1000);
            break;
        case RD_LOST:
            _exit(1);
        case RD_FRAME:
            if (frame.kind == RD_ABORT || frame.kind == RD_DONE)
                _exit(frame.kind == RD_ABORT ? 0 : 2);
            rd_stream_release(stream, &frame);
        }
    }
    _exit(3);
}

/* A producer that sends frames by hand, one of them wrong. */
static pid_t start_rogue(uint16_t port, damage_t damage)
{
    pid_t child = fork();
    rd_hop_t hop;
    rd_stream_t stream;
    rd_frame_t frame = {.kind = RD_DATA, .flags = RD_FLAG_CRC, .len = 5, .value = 5};
    rd_frame_t end_frame = {.kind = RD_END, .offset = 5};
    uint8_t *at;

    if (child != 0)
        return child;
    at = join_by_hand(port, 65536, 5, &hop, &stream);
    memcpy(at + RD_FRAME_BYTES, "hello", 5);
    frame.crc = rd_crc(at + RD_FRAME_BYTES, 5);
    if (damage == FLIP)
        at[RD_FRAME_BYTES] ^= 1;
    if (damage == SKIP_SOME)
        frame.offset = 1;
    if (damage == SHORTEN)
        end_frame.offset = 6;
    if (damage == BAD_ZSTD)
        frame.flags |= RD_FLAG_ZSTD;
    if (damage == TRASH)
        frame.kind = (rd_kind_t)99;
    if (damage == HALF) { /* ends in the middle of a frame, in order */
        rd_frame_put(at, &frame);
        hop.link->ops->commit(hop.link, RD_FRAME_BYTES + 2);
        rd_stream_close(&stream);
        _exit(0);
    }
    rd_stream_put(&stream, at, &frame);
    if (damage == HEAD) /* ends in the middle of a stream, in order */
        _exit(0);
    (void)rd_stream_say(&stream, &end_frame, NULL);
    await_abort(&stream);
}

static void damage_is_seen(void)
{
    static const struct {
        damage_t damage;
        const char *text;
    } of[] = {{HEAD, "lost"},         {HALF, "lost"},      {FLIP, "checksum"},
              {SKIP_SOME, "missing"}, {SHORTEN, "length"}, {TRASH, "no frame"},
              {BAD_ZSTD, "damaged"}};

    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        receiver_t receiver;
        uint16_t port;
        int listener = open_listener(&port);
        pid_t rogue = start_rogue(port, of[i].damage);

        CHECK(take_producer(&receiver, listener, RD_BLOCK_BYTES));
        drain_into(&receiver, open("/dev/null", O_WRONLY | O_CLOEXEC));
        CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_FAULT);
        CHECK(strstr(receiver.transfer.why.text, of[i].text) != NULL);
        end(&receiver);
        CHECK_EQ(status_of(rogue), 0);
    }
}

#define LONG_BLOCK ((uint32_t)2 * 1024 * 1024) /* more than a pipe takes */

/* A producer that changes a block where it lies, as soon as it is told that it has been checked. */
static pid_t start_changer(uint16_t port, int checked, int changed)
{
    pid_t child = fork();
    rd_hop_t hop;
    rd_stream_t stream;
    rd_frame_t frame = {
        .kind = RD_DATA, .flags = RD_FLAG_CRC, .len = LONG_BLOCK, .value = LONG_BLOCK};
    rd_frame_t end_frame = {.kind = RD_END, .offset = LONG_BLOCK};
    uint8_t *at;
    char byte;

    if (child != 0)
        return child;
    at = join_by_hand(port, LONG_BLOCK, LONG_BLOCK, &hop, &stream);
    for (size_t i = 0; i < LONG_BLOCK; i++)
        at[RD_FRAME_BYTES + i] = byte_of(i);
    frame.crc = rd_crc(at + RD_FRAME_BYTES, LONG_BLOCK);
    rd_stream_put(&stream, at, &frame);
    for (int64_t deadline = rd_now_ms() + LONG_MS; rd_left_ms(deadline) > 0;) {
        struct pollfd polled = {.fd = checked, .events = POLLIN};

        rd_streams_wait(&stream, NULL, &polled, 1, 1000);
        if (polled.revents)
            break;
    }
    if (read(checked, &byte, 1) != 1)
        _exit(93);
    memset(at + RD_FRAME_BYTES, 0xEE, LONG_BLOCK);
    if (write(changed, &byte, 1) != 1)
        _exit(94);
    (void)rd_stream_say(&stream, &end_frame, NULL);
    rd_stream_discard_rest(&stream, false, rd_now_ms() + 2000);
    _exit(0);
}

static void what_was_checked_is_what_is_written(void)
{
    receiver_t receiver;
    int output[2], checked[2], changed[2];
    uint16_t port;
    int listener = open_listener(&port);
    pid_t changer, reader;

    CHECK(pipe(output) == 0 && pipe(checked) == 0 && pipe(changed) == 0);
    changer = start_changer(port, checked[0], changed[1]);
    reader = fork();
    if (reader == 0) {
        struct pollfd polled = {.fd = output[0], .events = POLLIN};
        char byte = 'x';

        close(output[1]);
        if (poll(&polled, 1, LONG_MS) != 1 || write(checked[1], &byte, 1) != 1 ||
            read(changed[0], &byte, 1) != 1)
            _exit(1);
        for (uint64_t at = 0; at < LONG_BLOCK; at++)
            if (read(output[0], &byte, 1) != 1 || (uint8_t)byte != byte_of(at))
                _exit(2);
        _exit(0);
    }
    close(output[0]);
    CHECK(take_producer(&receiver, listener, LONG_BLOCK));
    drain_into(&receiver, output[1]);
    CHECK_EQ(status_of(reader), 0);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_DONE);
    end(&receiver);
    CHECK_EQ(status_of(changer), 0);
    for (int i = 0; i < 2; i++) {
        close(checked[i]);
        close(changed[i]);
    }
}

/* A producer of five bytes that may go on after a cut. Its status is 0 if it hears an ABORT. */
static pid_t start_resumer(uint16_t port)
{
    static const char id[] = "0123456789abcdef0123456789abcdef";
    pid_t child = fork();
    rd_hop_t hop;
    rd_stream_t stream;
    rd_frame_t frame = {.kind = RD_DATA, .flags = RD_FLAG_CRC, .len = 5, .value = 5};
    rd_frame_t end_frame = {.kind = RD_END, .offset = 5};
    uint8_t *at;

    if (child != 0)
        return child;
    (void)join_by_hand(port, 65536, 5, &hop, &stream);
    (void)rd_stream_say(&stream, &(rd_frame_t){.kind = RD_RESUME}, id);
    at = rd_stream_room(&stream, 5);
    if (!at)
        _exit(92);
    memcpy(at + RD_FRAME_BYTES, "hello", 5);
    frame.crc = rd_crc(at + RD_FRAME_BYTES, 5);
    rd_stream_put(&stream, at, &frame);
    (void)rd_stream_say(&stream, &end_frame, NULL);
    await_abort(&stream);
}

static void lost_bytes_are_not_noted(void)
{
    receiver_t receiver;
    rd_resume_t resume;
    rd_why_t why;
    char path[] = "/tmp/pipe-resume-XXXXXX", note[64];
    int file = mkstemp(path);
    uint16_t port;
    int listener = open_listener(&port);
    pid_t producer = start_resumer(port);

    (void)snprintf(note, sizeof note, "%s.note", path);
    CHECK(file >= 0 && rd_resume_take(&resume, note, file, &why));
    CHECK(take_producer(&receiver, listener, RD_BLOCK_BYTES));
    receiver.transfer.resume = &resume;
    failing = file;
    drain_into(&receiver, file);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_FAULT);
    CHECK(strstr(receiver.transfer.why.text, strerror(EIO)) != NULL);
    end(&receiver);
    CHECK_EQ(status_of(producer), 0);
    file = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(rd_resume_take(&resume, note, file, &why));
    CHECK_EQ(resume.bytes, 0);
    close(file);
    CHECK(unlink(path) == 0 && unlink(note) == 0);
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

    CHECK(begin(&receiver, UINT64_MAX / 2, 65536, 0) && pipe(ends) == 0);
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
    CHECK(begin(&receiver, UINT64_MAX / 2, 65536, 0));
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

    CHECK(begin(&receiver, 1000, 1000, 0));
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
    rd_hop_t hop;
    rd_stream_t stream;
    rd_frame_t frame = {.kind = RD_END};
    const uint8_t *payload;
    rd_why_t why;

    if (child != 0)
        return child;
    (void)join_by_hand(port, 65536, 5, &hop, &stream);
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
    {"all sizes", all_sizes},
    {"small pieces", small_pieces},
    {"compressed streams", compressed_streams},
    {"the producer's status arrives", the_producers_status_arrives},
    {"a reader that quits ends the producer", a_reader_that_quits_ends_the_producer},
    {"no room is an error on both sides", no_room_is_an_error_on_both_sides},
    {"a file size limit is an error on both sides", a_file_size_limit_is_an_error_on_both_sides},
    {"a killed producer is no end", a_killed_producer_is_no_end},
    {"a stopped producer is no end", a_stopped_producer_is_no_end},
    {"a killed consumer is a fault", a_killed_consumer_is_a_fault},
    {"damage is seen", damage_is_seen},
    {"what was checked is what is written", what_was_checked_is_what_is_written},
    {"lost bytes are not noted", lost_bytes_are_not_noted},
    {"a dead producer and a full pipe", a_dead_producer_and_a_full_pipe},
    {"an output that waits for the next hop", an_output_that_waits_for_the_next_hop},
    {"what came meanwhile is heard", what_came_meanwhile_is_heard},
    {"a close that takes long", a_close_that_takes_long},
};

int main(int argc, char **argv)
{
    return run_over_carriers(cases, sizeof cases / sizeof *cases, argc, argv);
}
