/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

#include "transfer.h"
#include "compress.h"
#include "keepalive.h"

#define ABORT_MS 2000 /* how long to wait for room for an ABORT */
#define TICK_MS 1000
#define BURST_MS 100 /* with a limited rate, how much lost time the stream may make up for */

typedef struct {
    rd_transfer_t *transfer;
    rd_stream_t *to;
    rd_end_t *input;
    uint8_t *at;    /* the frame that is being filled, or NULL if none */
    size_t filled;  /* bytes of payload in it */
    uint64_t total; /* bytes of the stream in frames that were sent */
    bool has_ended; /* the input has ended */
    bool has_said_end;
    bool has_said_id, may_begin; /* for a stream that can be resumed */
    double due_ms;               /* with a limited rate, nothing is read before this time */
    rd_why_t fault;              /* the input's fault */
    rd_compressor_t compressor;  /* if it has no block, nothing is compressed */
    rd_keeper_t keeper;
    uint8_t *aside; /* a block outside the ring, or NULL if not needed yet */
    size_t waiting; /* bytes in it for which the ring had no room */
} feed_t;

static void fail(feed_t *feed, const rd_why_t *why)
{
    feed->transfer->outcome = RD_TRANSFER_FAULT;
    feed->transfer->why = *why;
}

/* Returns the block into which the input is read. */
static uint8_t *block_of(const feed_t *feed)
{
    return feed->compressor.block ? feed->compressor.block : feed->at + RD_FRAME_BYTES;
}

static void compress(feed_t *feed, rd_frame_t *frame)
{
    size_t packed = rd_compress(&feed->compressor, feed->filled, feed->at + RD_FRAME_BYTES);

    if (packed > 0) {
        frame->flags |= RD_FLAG_ZSTD;
        frame->len = (uint32_t)packed;
    } else {
        memcpy(feed->at + RD_FRAME_BYTES, feed->compressor.block, feed->filled);
    }
}

static void send_block(feed_t *feed)
{
    rd_frame_t frame = {.kind = RD_DATA,
                        .flags = feed->to->hop.terms.flags & RD_FLAG_CRC,
                        .len = (uint32_t)feed->filled,
                        .value = (uint32_t)feed->filled,
                        .offset = feed->total};

    if (frame.flags & RD_FLAG_CRC)
        frame.crc = rd_crc(block_of(feed), feed->filled);
    if (feed->compressor.block)
        compress(feed, &frame);
    rd_stream_put(feed->to, feed->at, &frame);
    if (feed->transfer->rate > 0) {
        double now = (double)rd_now_ms() - BURST_MS;

        feed->due_ms = (feed->due_ms > now ? feed->due_ms : now) +
                       (double)feed->filled * 1000 / (double)feed->transfer->rate;
    }
    feed->total += feed->filled;
    atomic_store_explicit(&feed->transfer->bytes, feed->total, memory_order_relaxed);
    feed->at = NULL;
    feed->filled = 0;
}

/* A block holds at most a tenth of a second's bytes, so that a slow stream keeps flowing. */
static size_t block_bytes(const feed_t *feed)
{
    uint64_t tenth = feed->transfer->rate / 10;
    size_t block = feed->to->hop.terms.block;

    return tenth == 0 || tenth > block ? block : (size_t)tenth;
}

static int wait_ms(const feed_t *feed)
{
    double left = feed->transfer->rate > 0 ? feed->due_ms - (double)rd_now_ms() : 0;

    return left > 0 ? (int)(left < TICK_MS ? left + 1 : TICK_MS) : 0;
}

/* Like rd_end_read, for an input that may block. While the call blocks, the keeper uses the ring,
 * so the bytes are first read into a block outside it. The keeper leaves room for them in the ring,
 * but if the link is lost in the meantime, there may be none. */
static ssize_t read_aside(feed_t *feed, size_t len)
{
    size_t block = feed->to->hop.terms.block;
    ssize_t n = (ssize_t)feed->waiting;

    if (!feed->aside)
        feed->aside = malloc(block);
    if (!feed->aside)
        return -1;
    if (n == 0) {
        rd_keeper_lend(&feed->keeper);
        n = rd_end_read(feed->input, feed->aside, len);
        rd_keeper_take_back(&feed->keeper);
        if (n <= 0)
            return n;
        feed->at = rd_stream_room(feed->to, block);
    }
    feed->waiting = feed->at ? 0 : (size_t)n;
    if (!feed->at) {
        errno = EAGAIN;
        return -1;
    }
    memcpy(block_of(feed), feed->aside, (size_t)n);
    return n;
}

/* Like rd_end_read, but appends to the block. */
static ssize_t read_on(feed_t *feed, size_t len)
{
    struct iovec to = {.iov_base = block_of(feed) + feed->filled, .iov_len = len};
    ssize_t n;

    if (!rd_end_may_wait(feed->input))
        return rd_end_read(feed->input, to.iov_base, len);
    /* Read the bytes from the page cache if they are in it. A result of 0 does not prove the end of
     * the file (Linux 5.9 and 5.10). */
    n = feed->waiting > 0 ? 0 : preadv2(feed->input->fd, &to, 1, -1, RWF_NOWAIT);
    if (n > 0)
        return n;
    if (feed->filled == 0)
        return read_aside(feed, len);
    errno = EAGAIN;
    return -1;
}

/* Sends available data even if the block is not full. Returns true if it did anything. */
static bool read_block(feed_t *feed)
{
    size_t block = block_bytes(feed);
    ssize_t n = 0;

    if (feed->has_ended || wait_ms(feed) > 0 || !feed->may_begin)
        return false;
    feed->at = rd_stream_room(feed->to, feed->to->hop.terms.block);
    if (!feed->at)
        return false;
    while (feed->filled < block) {
        n = read_on(feed, block - feed->filled);
        if (n > 0)
            feed->filled += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    /* EIO from a terminal means that its session has ended, so it counts as end of input. From a
     * tape it is an error. */
    feed->has_ended = n == 0 || (n < 0 && errno == EIO && feed->input->is_terminal);
    if (n < 0 && errno != EAGAIN && !feed->has_ended) {
        (void)rd_because(&feed->fault, "reading %s: %s", rd_end_name(feed->input, false),
                         strerror(errno));
        return true;
    }
    if (feed->filled > 0) {
        send_block(feed);
        return true;
    }
    return feed->has_ended;
}

static bool say_end(feed_t *feed)
{
    rd_frame_t end = {.kind = RD_END, .offset = feed->total};

    if (!feed->has_ended || feed->has_said_end)
        return false;
    /* `stop` must be checked last: if the input has ended because its process was killed, `stop`
     * was set before, and the stream is not complete. */
    if (atomic_load(&feed->transfer->stop))
        return false;
    feed->has_said_end = rd_stream_say(feed->to, &end, NULL);
    return feed->has_said_end;
}

static bool say_id(feed_t *feed)
{
    static const rd_frame_t frame = {.kind = RD_RESUME};

    if (feed->may_begin || feed->has_said_id)
        return false;
    feed->has_said_id = rd_stream_say(feed->to, &frame, feed->transfer->resume->id);
    return feed->has_said_id;
}

static void begin_at(feed_t *feed, uint64_t bytes)
{
    bool done;

    rd_keeper_lend(&feed->keeper);
    done = rd_resume_seek(feed->transfer->resume, feed->input->fd, bytes, &feed->fault);
    rd_keeper_take_back(&feed->keeper);
    if (!done)
        return;
    feed->may_begin = true;
    feed->total = bytes;
    atomic_store(&feed->transfer->first, bytes);
    atomic_store(&feed->transfer->bytes, bytes);
}

/* Reads the messages from the consumer. Returns true if it did anything. */
static bool read_answer(feed_t *feed)
{
    rd_frame_t frame;
    const uint8_t *payload;
    rd_why_t why;

    switch (rd_stream_next(feed->to, &frame, &payload, &why)) {
    case RD_NOTHING:
        return false;
    case RD_LOST:
        fail(feed, &why);
        return true;
    case RD_FRAME:
        break;
    }
    if (frame.kind == RD_DONE && feed->has_said_end && frame.offset == feed->total)
        feed->transfer->outcome = RD_TRANSFER_DONE;
    else if (frame.kind == RD_ABORT) {
        feed->transfer->outcome =
            frame.value == RD_ABORT_QUIT ? RD_TRANSFER_QUIT : RD_TRANSFER_FAULT;
        (void)rd_because_of(&feed->transfer->why, rd_abort_cause(&frame), "%s: %.*s",
                            feed->to->peer, (int)frame.len, (const char *)payload);
    } else if (frame.kind == RD_RESUME && feed->has_said_id && !feed->may_begin)
        begin_at(feed, frame.offset);
    else if (frame.kind != RD_PING)
        (void)rd_because(&feed->fault, "%s sent an unexpected answer", feed->to->peer);
    rd_stream_release(feed->to, &frame);
    return true;
}

/* The other side must not mistake what it has received for the complete stream. */
static void say_abort(feed_t *feed, const rd_why_t *reason)
{
    rd_frame_t cut = rd_abort_of(feed->total, reason);
    int64_t deadline = rd_now_ms() + ABORT_MS;

    rd_stream_say_last(feed->to, &cut, reason->text, deadline);
    if (feed->to->hop.is_behind)
        rd_stream_discard_rest(feed->to, true, deadline);
    fail(feed, reason);
}

static void wait_for_work(feed_t *feed)
{
    int pause = wait_ms(feed);
    bool wants_input = feed->may_begin && !feed->has_ended && feed->to->wants == 0 && pause == 0;
    struct pollfd polled[2] = {{.fd = feed->transfer->wake, .events = POLLIN},
                               {.fd = wants_input ? feed->input->fd : -1, .events = POLLIN}};
    eventfd_t ignored;

    rd_streams_wait(feed->to, NULL, polled, 2, pause > 0 && pause < TICK_MS ? pause : TICK_MS);
    if (polled[0].revents)
        (void)eventfd_read(feed->transfer->wake, &ignored);
}

void rd_feed(rd_transfer_t *transfer, rd_stream_t *to, rd_end_t *input)
{
    feed_t feed = {.transfer = transfer, .to = to, .input = input, .may_begin = !transfer->resume};
    rd_why_t why;

    to->heard_ms = rd_now_ms(); /* the peer did not have to send anything until now */
    rd_keeper_start(&feed.keeper, rd_end_may_wait(input), to, NULL, to->hop.terms.block);
    atomic_store(&transfer->size, rd_end_size(input));
    if (to->hop.terms.zstd > 0 &&
        !rd_compressor_open(&feed.compressor, to->hop.terms.block, to->hop.terms.zstd, true))
        (void)rd_because(&feed.fault,
                         rd_zstd_version() ? "out of memory for compression" : RD_NO_ZSTD);
    while (transfer->outcome == RD_TRANSFER_RUNS) {
        bool done = read_answer(&feed);

        if (transfer->outcome != RD_TRANSFER_RUNS)
            break;
        to->wants = 0;
        done |= say_id(&feed);
        done |= read_block(&feed);
        done |= say_end(&feed);
        if (feed.fault.text[0])
            say_abort(&feed, &feed.fault);
        else if (atomic_load(&transfer->stop))
            say_abort(&feed, &(rd_why_t){"stopped", RD_CAUSE_STOPPED});
        else if (!rd_stream_tick(to, &why))
            fail(&feed, &why);
        else if (!done)
            wait_for_work(&feed);
    }
    rd_keeper_stop(&feed.keeper);
    if (feed.compressor.block)
        rd_compressor_close(&feed.compressor);
    free(feed.aside);
    (void)rd_end_close(input);
}
