/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that bytes are never accepted as correct if they are wrong, changed or lost at the
 * producer, in transit or on the disk. */
#include "pipe_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static int failing = -1; /* a file whose next fdatasync fails, and no later one, as on Linux */

int fdatasync(int fd)
{
    if (fd != failing)
        return (int)syscall(SYS_fdatasync, fd);
    failing = -1;
    errno = EIO;
    return -1;
}

static ino_t synced; /* the last directory that was synced */

int fsync(int fd)
{
    struct stat is;

    if (fstat(fd, &is) == 0 && S_ISDIR(is.st_mode))
        synced = is.st_ino;
    return (int)syscall(SYS_fsync, fd);
}

static int unreadable = -1; /* a device whose reads fail, like those of a damaged tape */

ssize_t read(int fd, void *data, size_t len)
{
    if (fd != unreadable)
        return syscall(SYS_read, fd, data, len);
    errno = EIO;
    return -1;
}

ssize_t preadv2(int fd, const struct iovec *pieces, int count, off_t offset, int flags)
{
    if (fd != unreadable)
        return syscall(SYS_preadv2, fd, pieces, count, offset, 0, flags);
    errno = EOPNOTSUPP;
    return -1;
}

/* RESUMES does no damage, but uses a stream that can be resumed after an interruption. */
typedef enum { HEAD, HALF, FLIP, SKIP_SOME, SHORTEN, TRASH, BAD_ZSTD, RESUMES } damage_t;

/* Finishes a producer that sends handcrafted frames. Its status is 0 if it receives an ABORT. */
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

/* Starts a producer that sends handcrafted frames, one of them wrong. */
static pid_t start_rogue(uint16_t port, damage_t damage)
{
    static const char id[] = "0123456789abcdef0123456789abcdef";
    pid_t child = fork();
    rd_stream_t stream;
    rd_frame_t frame, end_frame = {.kind = RD_END, .offset = 5};
    uint8_t *at;

    if (child != 0)
        return child;
    join_by_hand(port, 65536, &stream);
    if (damage == RESUMES)
        (void)rd_stream_say(&stream, &(rd_frame_t){.kind = RD_RESUME}, id);
    at = room_by_hand(&stream, 5);
    frame = hello_at(at);
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
    if (damage == HALF) { /* closes cleanly in the middle of a frame */
        rd_frame_put(at, &frame);
        stream.hop.link->ops->commit(stream.hop.link, RD_FRAME_BYTES + 2);
        rd_stream_close(&stream);
        _exit(0);
    }
    rd_stream_put(&stream, at, &frame);
    if (damage == HEAD) /* closes cleanly in the middle of a stream */
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
              {SKIP_SOME, "missing"}, {SHORTEN, "length"}, {TRASH, "not a frame"},
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

/* Starts a producer whose input cannot be read. Its status is the outcome of its transfer. */
static pid_t start_failing_producer(uint16_t port, bool is_terminal)
{
    pid_t child = fork();
    rd_transfer_t transfer;
    rd_stream_t stream;
    rd_end_t input;
    rd_why_t why;

    if (child != 0)
        return child;
    join_by_hand(port, 65536, &stream);
    if (!rd_transfer_init(&transfer, &why))
        _exit(91);
    input = rd_end_of(open("/dev/urandom", O_RDONLY | O_CLOEXEC), false);
    input.is_terminal = is_terminal;
    unreadable = input.fd;
    rd_feed(&transfer, &stream, &input);
    rd_stream_close(&stream);
    _exit((int)transfer.outcome);
}

static void a_device_that_fails_is_no_end(void)
{
    for (int is_terminal = 0; is_terminal < 2; is_terminal++) {
        rd_outcome_t wanted = is_terminal ? RD_TRANSFER_DONE : RD_TRANSFER_FAULT;
        receiver_t receiver;
        uint16_t port;
        int listener = open_listener(&port);
        pid_t producer = start_failing_producer(port, is_terminal);

        CHECK(take_producer(&receiver, listener, RD_BLOCK_BYTES));
        drain_into(&receiver, open("/dev/null", O_WRONLY | O_CLOEXEC));
        CHECK_EQ(receiver.transfer.outcome, wanted);
        CHECK(is_terminal || strstr(receiver.transfer.why.text, strerror(EIO)) != NULL);
        end(&receiver);
        CHECK_EQ(status_of(producer), wanted);
    }
}

#define LONG_BLOCK ((uint32_t)2 * 1024 * 1024) /* more than fits into a pipe */

/* Starts a producer that changes a block in place as soon as it is told that the block has been
 * checked. */
static pid_t start_changer(uint16_t port, int checked, int changed)
{
    pid_t child = fork();
    rd_stream_t stream;
    rd_frame_t frame = {
        .kind = RD_DATA, .flags = RD_FLAG_CRC, .len = LONG_BLOCK, .value = LONG_BLOCK};
    rd_frame_t end_frame = {.kind = RD_END, .offset = LONG_BLOCK};
    uint8_t *at;
    char byte;

    if (child != 0)
        return child;
    join_by_hand(port, LONG_BLOCK, &stream);
    at = room_by_hand(&stream, LONG_BLOCK);
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

/* Starts a consumer that releases more of the ring than it contains. */
static pid_t start_freer(int listener)
{
    pid_t child = fork();
    rd_stream_t stream;
    rd_frame_t frame;
    const uint8_t *payload;
    rd_why_t why;

    if (child != 0)
        return child;
    accept_by_hand(listener, &stream);
    while (rd_stream_next(&stream, &frame, &payload, &why) == RD_NOTHING)
        rd_streams_wait(&stream, NULL, NULL, 0, 1000);
    stream.hop.link->ops->release(stream.hop.link, BW_RING_MAX_BYTES);
    for (;;)
        (void)pause();
}

/* Runs only for carriers whose ring both sides can access. */
static void who_frees_what_was_never_sent_is_lost(void)
{
    uint16_t port;
    int listener = open_listener(&port);
    rd_key_t key = key_of(KEY);
    rd_terms_t terms = terms_of(carrier, 65536);
    rd_end_t input = rd_end_of(open("/dev/zero", O_RDONLY | O_CLOEXEC), false);
    rd_transfer_t transfer;
    rd_stream_t stream;
    rd_hop_t hop;
    rd_why_t why;
    pid_t freer;

    if (carrier != RD_CARRIER_SHM) {
        close(listener);
        (void)rd_end_close(&input);
        return;
    }
    freer = start_freer(listener);
    close(listener);
    CHECK(join_listener(port, &key, &terms, &hop, &why) && rd_transfer_init(&transfer, &why));
    rd_stream_open(&stream, &hop, "the consumer");
    rd_feed(&transfer, &stream, &input);
    CHECK_EQ(transfer.outcome, RD_TRANSFER_FAULT);
    CHECK(strstr(transfer.why.text, "lost") != NULL);
    rd_stream_close(&stream);
    rd_transfer_free(&transfer);
    CHECK(kill(freer, SIGKILL) == 0 && status_of(freer) == 137);
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
    pid_t producer = start_rogue(port, RESUMES);

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

/* Without the note, the next call would append the stream from its beginning to what the output
 * already has. */
static void a_first_note_outlives_a_loss_of_power(void)
{
    static const char id[] = "0123456789abcdef0123456789abcdef";
    char folder[] = "/tmp/pipe-resume-XXXXXX", output[64], note[64];
    rd_resume_t resume;
    struct stat is;
    rd_why_t why;
    int file;

    CHECK(mkdtemp(folder) != NULL && stat(folder, &is) == 0);
    (void)snprintf(output, sizeof output, "%s/output", folder);
    (void)snprintf(note, sizeof note, "%s/note", folder);
    file = open(output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    CHECK(file >= 0 && rd_resume_take(&resume, note, file, &why));
    synced = 0;
    CHECK(rd_resume_accept(&resume, file, id, sizeof id - 1, &why));
    CHECK_EQ(synced, is.st_ino);
    close(file);
    CHECK(unlink(output) == 0 && unlink(note) == 0 && rmdir(folder) == 0);
}

static const check_case_t cases[] = {
    {"damage is seen", damage_is_seen},
    {"a device that fails is no end", a_device_that_fails_is_no_end},
    {"what was checked is what is written", what_was_checked_is_what_is_written},
    {"who frees what was never sent is lost", who_frees_what_was_never_sent_is_lost},
    {"lost bytes are not noted", lost_bytes_are_not_noted},
    {"a first note outlives a loss of power", a_first_note_outlives_a_loss_of_power},
};

int main(int argc, char **argv)
{
    return run_over_carriers(cases, sizeof cases / sizeof *cases, argc, argv);
}
