/* SPDX-License-Identifier: Apache-2.0 */
/* Tests streams over a hop: they arrive with the same bytes and length, and a short stream never
 * looks complete. */
#include "pipe_streams.h"

#include <fcntl.h>
#include <sys/resource.h>

static void stream_of(uint64_t total, uint64_t piece_max)
{
    receiver_t receiver;
    int ends[2];
    pid_t reader;

    CHECK(begin(&receiver, total, piece_max));
    CHECK(pipe(ends) == 0);
    reader = start_reader(ends[0], ends[1], total, UINT64_MAX);
    close(ends[0]);
    drain_into(&receiver, ends[1]);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_DONE);
    CHECK_EQ(atomic_load(&receiver.transfer.bytes), total);
    CHECK_EQ(status_of(reader), 0);
    end(&receiver);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_DONE);
}

static void all_sizes(void)
{
    static const uint64_t sizes[] = {0,     1,      2,       65535,   65536,   65537,
                                     99999, 131072, 1048576, 5000000, 16777217};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_IN(stream_of(sizes[i], 200000));
}

/* Blocks are compressed in transit, and decompressed before they are written. A block that would
 * not shrink is sent uncompressed. */
static void compressed_streams(void)
{
    level = 1;
    CHECK_IN(stream_of(0, 1));
    CHECK_IN(stream_of(1, 1));
    CHECK_IN(stream_of(5000000, 200000));
    CHECK_IN(stream_of(30000, 100));
    level = 0;
}

static void small_pieces(void)
{
    CHECK_IN(stream_of(300000, 100));
}

/* If the reader quits, the producer ends, as it would with a broken pipe. */
static void a_reader_that_quits_ends_the_producer(void)
{
    receiver_t receiver;
    int ends[2];
    pid_t reader;

    CHECK(begin(&receiver, UINT64_MAX / 2, 65536));
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
    CHECK(begin(&receiver, 10000000, 65536));
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
    CHECK(file >= 0 && begin(&receiver, 10000000, 65536));
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

/* If a stream is interrupted, the output stays open, so that its reader does not see an end. */
static void a_killed_producer_is_no_end(void)
{
    receiver_t receiver;
    rd_end_t output;

    CHECK(begin(&receiver, UINT64_MAX / 2, 65536));
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

/* Killing a command closes its output, but that must not count as the end of the stream. */
static void a_stopped_producer_is_no_end(void)
{
    receiver_t receiver;
    rd_end_t output = rd_end_of(open("/dev/null", O_WRONLY | O_CLOEXEC), true);

    is_stopped = true;
    CHECK(begin(&receiver, 1000, 1000));
    is_stopped = false;
    rd_drain(&receiver.transfer, &receiver.stream, &output, NULL);
    CHECK_EQ(receiver.transfer.outcome, RD_TRANSFER_FAULT);
    CHECK(output.fd >= 0);
    (void)rd_end_close(&output);
    end(&receiver);
    CHECK_EQ(status_of(receiver.child), RD_TRANSFER_FAULT);
}

/* On the other side, a killed consumer must not look like a broken pipe. */
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
        if (!begin(&receiver, UINT64_MAX / 2, 65536))
            _exit(1);
        close(marks[0]);
        if (write(marks[1], "x", 1) != 1)
            _exit(1);
        status = status_of(receiver.child); /* there is no reader, so it is still blocked */
        _exit(status);
    }
    close(marks[1]);
    CHECK(read(marks[0], &byte, 1) == 1);
    CHECK(kill(consumer, SIGKILL) == 0);
    CHECK_EQ(status_of(consumer), 128 + SIGKILL);
    /* The producer is an orphan now and cannot be waited for, but when it exits, its inherited end
     * of `marks` is closed. */
    CHECK(read(marks[0], &byte, 1) == 0);
    close(marks[0]);
}

static const check_case_t cases[] = {
    {"all sizes", all_sizes},
    {"small pieces", small_pieces},
    {"compressed streams", compressed_streams},
    {"a reader that quits ends the producer", a_reader_that_quits_ends_the_producer},
    {"no room is an error on both sides", no_room_is_an_error_on_both_sides},
    {"a file size limit is an error on both sides", a_file_size_limit_is_an_error_on_both_sides},
    {"a killed producer is no end", a_killed_producer_is_no_end},
    {"a stopped producer is no end", a_stopped_producer_is_no_end},
    {"a killed consumer is a fault", a_killed_consumer_is_a_fault},
};

int main(int argc, char **argv)
{
    return run_over_carriers(cases, sizeof cases / sizeof *cases, argc, argv);
}
