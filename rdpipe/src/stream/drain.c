/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "transfer.h"
#include "compress.h"
#include "keepalive.h"

#define TICK_MS 1000
/* How long to wait for the producer to close first, so that our last message is not lost. */
#define PARTING_MS 5000
#define ABORT_MS 2000

/* Closing an output on a disk may take a long time, so a separate thread does it. */
typedef struct {
    rd_transfer_t *transfer;
    rd_end_t output;
    uint64_t total;
    pthread_t thread;
    bool has_begun, has_thread;
    _Atomic bool is_over;
    rd_why_t why; /* "" if it was closed without an error */
} closing_t;

typedef struct {
    rd_transfer_t *transfer;
    rd_stream_t *from;
    rd_end_t *output;
    rd_stream_t *forward; /* NULL if none */
    uint64_t total;       /* bytes of the stream that were accepted, in complete frames */
    size_t written;       /* bytes of the first frame that were written to the output */
    bool is_checked;      /* the first frame's checksum is correct */
    bool is_blocked;      /* the output accepts no more of the first frame now */
    bool is_forwarded;    /* the first frame was forwarded */
    uint32_t sent_on; /* bytes of the first frame sent to the next hop, if it is sent in pieces */
    bool has_ended;   /* END has arrived */
    bool has_resumed; /* RESUME has arrived */
    rd_buffer_t *buffer; /* buffer in front of the output, or NULL if none */
    bool is_dropped;     /* the output was too slow */
    int64_t stuck_ms;    /* when the output stopped accepting data, or 0 if it accepts data */
    bool is_flushing;    /* END has arrived, and the output is being flushed */
    size_t left;         /* after END: bytes in the buffer when it was last checked */
    int64_t confirm_at;  /* when to record the offset again */
    bool output_quit;    /* the output's reader has closed */
    bool forward_done, forward_quit; /* the forward hop has answered DONE, or has quit */
    const uint8_t *plain;            /* the bytes of the stream in the first frame */
    /* Private copy of the first frame's payload, if the peer could still change it. */
    uint8_t *copy;
    rd_compressor_t compressor; /* opened when the first compressed frame arrives */
    closing_t closing;
    rd_keeper_t keeper;
    rd_why_t fault;
} drain_t;

static bool has_output(const drain_t *drain)
{
    return drain->output->fd >= 0 && !drain->is_dropped;
}

static bool is_wanted(const drain_t *drain)
{
    return has_output(drain) || (drain->forward && !drain->forward_quit) || drain->has_ended;
}

static void close_buffer(drain_t *drain)
{
    if (!drain->buffer)
        return;
    rd_keeper_lend(&drain->keeper);
    rd_buffer_close(drain->buffer);
    rd_keeper_take_back(&drain->keeper);
    drain->buffer = NULL;
}

static void quit_output(drain_t *drain)
{
    drain->output_quit = true;
    close_buffer(drain);
    (void)rd_end_close(drain->output);
}

/* ---- resuming a stream ---- */

static bool confirm(drain_t *drain)
{
    rd_transfer_t *transfer = drain->transfer;
    bool done;

    rd_keeper_lend(&drain->keeper);
    done =
        rd_resume_confirm(transfer->resume, drain->output->fd, drain->total, false, &drain->fault);
    rd_keeper_take_back(&drain->keeper);
    drain->confirm_at = rd_now_ms() + RD_CONFIRM_MS;
    return done;
}

/* Returns true if the frame was handled. */
static bool take_id(drain_t *drain, const rd_frame_t *frame, const uint8_t *payload)
{
    rd_resume_t *resume = drain->transfer->resume;
    rd_frame_t answer = {.kind = RD_RESUME};
    bool done;

    if (!resume || drain->has_resumed || drain->total > 0)
        return rd_because(&drain->fault,
                          resume
                              ? "the producer sent an unexpected frame"
                              : "the sender was called with --resume, but this receiver was not"),
               true;
    rd_keeper_lend(&drain->keeper);
    done = rd_resume_accept(resume, drain->output->fd, (const char *)payload, frame->len,
                            &drain->fault);
    rd_keeper_take_back(&drain->keeper);
    if (!done)
        return true;
    answer.offset = resume->bytes;
    if (!rd_stream_say(drain->from, &answer, NULL))
        return false;
    drain->has_resumed = true;
    drain->total = resume->bytes;
    atomic_store(&drain->transfer->first, drain->total);
    atomic_store(&drain->transfer->bytes, drain->total);
    drain->confirm_at = rd_now_ms() + RD_CONFIRM_MS;
    return true;
}

/* ---- DATA ---- */

/* Decompresses the first frame, after copying its payload if the peer can still change it. Once the
 * frame has been checked this does nothing, so that exactly the checked bytes are written. */
static bool unpack(drain_t *drain, const rd_frame_t *frame, const uint8_t *payload)
{
    if (drain->is_checked)
        return true;
    if (frame->flags & (RD_FLAG_CRC | RD_FLAG_ZSTD) && rd_stream_is_shared(drain->from)) {
        if (!drain->copy)
            drain->copy = malloc(drain->from->hop.terms.block);
        if (!drain->copy)
            return rd_because(&drain->fault, "out of memory for a block");
        payload = memcpy(drain->copy, payload, frame->len);
    }
    if (!(frame->flags & RD_FLAG_ZSTD)) {
        drain->plain = payload;
        return true;
    }
    if (!drain->compressor.block &&
        !rd_compressor_open(&drain->compressor, drain->from->hop.terms.block, 0, false))
        return rd_because(&drain->fault,
                          rd_zstd_version() ? "out of memory for decompression" : RD_NO_ZSTD);
    drain->plain = drain->compressor.block;
    if (!rd_decompress(&drain->compressor, payload, frame->len, frame->value))
        return rd_because(&drain->fault, "a compressed piece of the stream is damaged");
    return true;
}

/* Returns whether the next hop accepts only smaller blocks, for example because a limit on file
 * sizes (RLIMIT_FSIZE) keeps its rings small. */
static bool is_too_long(const drain_t *drain, const rd_frame_t *frame)
{
    return drain->forward && frame->value > drain->forward->hop.terms.block;
}

static bool is_sound(drain_t *drain, const rd_frame_t *frame, const uint8_t *payload)
{
    bool is_read = has_output(drain) || is_too_long(drain, frame);

    if (frame->offset != drain->total || drain->has_ended)
        return rd_because(&drain->fault, "a piece of the stream is missing or arrived twice");
    /* A node that only forwards leaves the check to the last node. */
    if (is_read && !unpack(drain, frame, payload))
        return false;
    if (is_read && frame->flags & RD_FLAG_CRC && !drain->is_checked &&
        rd_crc(drain->plain, frame->value) != frame->crc)
        return rd_because(&drain->fault,
                          "checksum error: the received bytes differ from those that were sent");
    drain->is_checked = true;
    return true;
}

static void fail_output(drain_t *drain)
{
    if (errno == EPIPE)
        quit_output(drain);
    else
        (void)rd_because(&drain->fault, "writing %s: %s", rd_end_name(drain->output, true),
                         strerror(errno));
}

/* The output stays open until its reader has been killed, because the reader must not mistake what
 * it has received for the complete stream. */
static void drop_output(drain_t *drain)
{
    drain->is_dropped = true;
    close_buffer(drain);
    atomic_store(&drain->transfer->is_dropped, true);
    if (drain->transfer->at_drop)
        drain->transfer->at_drop(drain->transfer->of);
}

/* Drops the output if it has accepted nothing for too long. Returns true if it was dropped. */
static bool is_too_slow(drain_t *drain)
{
    int64_t now = rd_now_ms();

    if (drain->stuck_ms == 0)
        drain->stuck_ms = now;
    if (drain->transfer->drop_ms == 0 || now - drain->stuck_ms < drain->transfer->drop_ms)
        return false;
    drop_output(drain);
    return true;
}

static ssize_t write_some(drain_t *drain, const void *data, size_t len)
{
    ssize_t n;

    if (drain->buffer)
        return rd_buffer_put(drain->buffer, data, len);
    rd_keeper_lend(&drain->keeper);
    n = rd_end_write(drain->output, data, len);
    rd_keeper_take_back(&drain->keeper);
    return n;
}

/* Returns true if the buffer is empty, or if there is no point in waiting for it. */
static bool flush(drain_t *drain)
{
    size_t left = 0;
    int state = drain->buffer ? rd_buffer_end(drain->buffer, &left) : 1;

    if (left != drain->left)
        drain->stuck_ms = 0;
    drain->left = left;
    if (state == 0 && is_too_slow(drain))
        state = 1;
    drain->is_flushing = state == 0;
    if (state < 0 && !drain->is_dropped)
        fail_output(drain);
    return state != 0;
}

/* Returns true if the whole frame was written, or if no output is open. */
static bool write_frame(drain_t *drain, const rd_frame_t *frame)
{
    drain->is_blocked = false;
    while (has_output(drain) && drain->written < frame->value) {
        ssize_t n = write_some(drain, drain->plain + drain->written, frame->value - drain->written);

        if (n >= 0) {
            drain->written += (size_t)n;
            drain->stuck_ms = 0;
        } else if (errno == EAGAIN && !is_too_slow(drain)) {
            drain->is_blocked = true;
            return false;
        } else if (drain->is_dropped) {
            break;
        } else if (errno != EINTR) {
            fail_output(drain);
        }
        if (drain->fault.text[0])
            return false;
    }
    return true;
}

static bool send_frame(drain_t *drain, const rd_frame_t *frame, const uint8_t *payload)
{
    uint8_t *at = rd_stream_room(drain->forward, frame->len);

    if (!at)
        return false;
    memcpy(at + RD_FRAME_BYTES, payload, frame->len);
    rd_stream_put(drain->forward, at, frame);
    return true;
}

static bool send_piece(drain_t *drain, const rd_frame_t *frame)
{
    uint32_t block = drain->forward->hop.terms.block, left = frame->value - drain->sent_on;
    uint32_t len = left < block ? left : block;
    rd_frame_t piece = {.kind = RD_DATA,
                        .flags = frame->flags & RD_FLAG_CRC,
                        .len = len,
                        .value = len,
                        .offset = frame->offset + drain->sent_on};

    if (piece.flags & RD_FLAG_CRC)
        piece.crc = rd_crc(drain->plain + drain->sent_on, len);
    if (!send_frame(drain, &piece, drain->plain + drain->sent_on))
        return false;
    drain->sent_on += len;
    return true;
}

/* Returns true if the frame was forwarded, or if there is no next hop. */
static bool send_on(drain_t *drain, const rd_frame_t *frame, const uint8_t *payload)
{
    if (!drain->forward || drain->forward_quit || drain->is_forwarded)
        return true;
    if (is_too_long(drain, frame)) {
        while (drain->sent_on < frame->value)
            if (!send_piece(drain, frame))
                return false;
    } else if (!send_frame(drain, frame, payload)) {
        return false;
    }
    drain->is_forwarded = true;
    return true;
}

static bool take_data(drain_t *drain, const rd_frame_t *frame, const uint8_t *payload)
{
    bool is_sent, is_written;

    if (!is_sound(drain, frame, payload))
        return true;
    is_sent = send_on(drain, frame, payload);
    is_written = write_frame(drain, frame);
    if (!is_sent || !is_written)
        return drain->fault.text[0] != 0;
    drain->total += frame->value;
    atomic_store_explicit(&drain->transfer->bytes, drain->total, memory_order_relaxed);
    drain->written = 0;
    drain->sent_on = 0;
    drain->is_checked = drain->is_forwarded = false;
    if (drain->transfer->resume && rd_left_ms(drain->confirm_at) == 0)
        (void)confirm(drain);
    return true;
}

/* ---- closing the output ---- */

static void *run_closing(void *argument)
{
    closing_t *closing = argument;
    rd_transfer_t *transfer = closing->transfer;

    if ((!transfer->resume || rd_resume_confirm(transfer->resume, closing->output.fd,
                                                closing->total, true, &closing->why)) &&
        !rd_end_close(&closing->output))
        (void)rd_because(&closing->why, "closing %s: %s", rd_end_name(&closing->output, true),
                         strerror(errno));
    atomic_store(&closing->is_over, true);
    rd_transfer_wake(transfer);
    return NULL;
}

static void end_closing(drain_t *drain)
{
    closing_t *closing = &drain->closing;

    rd_keeper_lend(&drain->keeper);
    if (closing->has_thread)
        (void)pthread_join(closing->thread, NULL);
    rd_keeper_take_back(&drain->keeper);
    closing->has_thread = false;
    drain->output->fd = closing->output.fd;
}

/* Returns true if the output is closed, or has failed. */
static bool close_output(drain_t *drain)
{
    closing_t *closing = &drain->closing;

    if (!closing->has_begun) {
        closing->transfer = drain->transfer;
        closing->output = *drain->output;
        closing->total = drain->total;
        closing->has_begun = true;
        closing->has_thread = drain->output->always_ready &&
                              pthread_create(&closing->thread, NULL, run_closing, closing) == 0;
        if (!closing->has_thread) {
            rd_keeper_lend(&drain->keeper);
            (void)run_closing(closing);
            rd_keeper_take_back(&drain->keeper);
        }
    }
    drain->is_flushing = !atomic_load(&closing->is_over);
    if (drain->is_flushing)
        return false;
    end_closing(drain);
    if (closing->why.text[0])
        drain->fault = closing->why;
    return true;
}

/* ---- the other frames ---- */

static bool take_end(drain_t *drain, const rd_frame_t *frame)
{
    if (frame->offset != drain->total || drain->has_ended) {
        (void)rd_because(&drain->fault,
                         "the stream's length differs from what its producer reports");
        return true;
    }
    if (!drain->is_forwarded && drain->forward && !drain->forward_quit &&
        !rd_stream_say(drain->forward, frame, NULL))
        return false;
    drain->is_forwarded = true;
    if (!flush(drain))
        return false;
    if (drain->fault.text[0])
        return true;
    close_buffer(drain);
    if (drain->transfer->at_end && !drain->is_dropped && !drain->closing.has_begun)
        drain->transfer->at_end(drain->transfer->of);
    if (!drain->is_dropped && !close_output(drain))
        return false;
    drain->has_ended = true;
    return true;
}

/* Truncates an output file only now, so that its old content is not lost if the pipeline fails
 * before the first bytes arrive. */
static void begin_output(drain_t *drain)
{
    if (drain->transfer->empties && has_output(drain) && ftruncate(drain->output->fd, 0) < 0)
        (void)rd_because(&drain->fault, "%s: %s", rd_end_name(drain->output, true),
                         strerror(errno));
    drain->transfer->empties = false;
}

/* Returns true if it did anything. */
static bool take_next(drain_t *drain)
{
    rd_frame_t frame;
    const uint8_t *payload;
    bool is_taken = true;

    switch (rd_stream_next(drain->from, &frame, &payload, &drain->fault)) {
    case RD_NOTHING:
        return false;
    case RD_LOST:
        return true;
    case RD_FRAME:
        break;
    }
    if (frame.kind == RD_DATA || frame.kind == RD_END)
        begin_output(drain);
    if (frame.kind == RD_RESUME)
        is_taken = take_id(drain, &frame, payload);
    else if ((frame.kind == RD_DATA || frame.kind == RD_END) && drain->transfer->resume &&
             !drain->has_resumed)
        (void)rd_because(&drain->fault,
                         "this receiver was called with --resume, but the sender was not");
    else if (frame.kind == RD_DATA)
        is_taken = take_data(drain, &frame, payload);
    else if (frame.kind == RD_END)
        is_taken = take_end(drain, &frame);
    else if (frame.kind == RD_ABORT)
        (void)rd_because_of(&drain->fault, rd_abort_cause(&frame), "%s: %.*s", drain->from->peer,
                            (int)frame.len, (const char *)payload);
    else if (frame.kind != RD_PING)
        (void)rd_because(&drain->fault, "the producer sent an unexpected frame");
    if (is_taken && !drain->fault.text[0])
        rd_stream_release(drain->from, &frame);
    return is_taken;
}

/* Returns whether the next hop must still send its final answer. */
static bool is_heard(const drain_t *drain)
{
    return drain->forward && !drain->forward_done && !drain->forward_quit;
}

/* Reads the answers from the next hop. Returns true if it did anything. */
static bool read_forward(drain_t *drain)
{
    rd_frame_t frame;
    const uint8_t *payload;

    if (!is_heard(drain))
        return false;
    switch (rd_stream_next(drain->forward, &frame, &payload, &drain->fault)) {
    case RD_NOTHING:
        return false;
    case RD_LOST:
        return true;
    case RD_FRAME:
        break;
    }
    if (frame.kind == RD_DONE)
        drain->forward_done = true;
    else if (frame.kind == RD_ABORT && frame.value == RD_ABORT_QUIT)
        drain->forward_quit = true;
    else if (frame.kind == RD_ABORT)
        (void)rd_because_of(&drain->fault, rd_abort_cause(&frame), "%.*s", (int)frame.len,
                            (const char *)payload);
    rd_stream_release(drain->forward, &frame);
    return true;
}

/* ---- the end ---- */

static void say_last(rd_stream_t *stream, const rd_frame_t *frame, const char *text)
{
    rd_stream_say_last(stream, frame, text, rd_now_ms() + ABORT_MS);
}

static void finish(drain_t *drain)
{
    rd_frame_t done = {.kind = RD_DONE, .offset = drain->total};
    rd_frame_t quit = {.kind = RD_ABORT, .value = RD_ABORT_QUIT, .offset = drain->total};
    rd_frame_t cut = rd_abort_of(drain->total, &drain->fault);
    rd_transfer_t *transfer = drain->transfer;

    if (drain->fault.text[0]) {
        say_last(drain->from, &cut, drain->fault.text);
        if (drain->forward && !drain->forward_quit)
            say_last(drain->forward, &cut, drain->fault.text);
        transfer->why = drain->fault;
        transfer->outcome = RD_TRANSFER_FAULT;
        if (drain->has_resumed && !drain->has_ended && has_output(drain))
            (void)confirm(drain); /* ignore an error here, because the first fault explains it */
    } else if (drain->has_ended) {
        say_last(drain->from, &done, NULL);
        transfer->outcome = drain->output_quit ? RD_TRANSFER_QUIT : RD_TRANSFER_DONE;
    } else {
        say_last(drain->from, &quit, "the reader has closed its end");
        transfer->outcome = RD_TRANSFER_QUIT;
    }
    rd_stream_discard_rest(drain->from, false, rd_now_ms() + PARTING_MS);
}

static void wait_for_work(drain_t *drain)
{
    /* poll reports a pipe without a reader even if no event is asked for. With a buffer, `wake`
     * reports that there is room. */
    struct pollfd polled[2] = {
        {.fd = drain->transfer->wake, .events = POLLIN},
        {.fd = drain->output->always_ready ? -1 : drain->output->fd,
         .events = drain->is_blocked && !drain->buffer && has_output(drain) ? POLLOUT : 0}};
    eventfd_t ignored;

    /* After END nothing more is read from this hop, so it is not polled; otherwise every wait would
     * return immediately after a ping or a close. */
    drain->from->wants = 0;
    rd_streams_wait(drain->has_ended ? NULL : drain->from, is_heard(drain) ? drain->forward : NULL,
                    polled, 2, TICK_MS);
    if (polled[0].revents)
        (void)eventfd_read(drain->transfer->wake, &ignored);
    if (polled[1].revents & (POLLERR | POLLHUP)) /* UNIX sockets set only POLLHUP */
        quit_output(drain);
}

static bool ticks(drain_t *drain)
{
    /* The sender's silence means nothing while we have unread data, because it may have no room to
     * send more, or after END, because nothing is read from it then. */
    if (drain->has_ended || drain->is_checked || drain->written > 0 || drain->is_flushing)
        drain->from->heard_ms = rd_now_ms();
    return rd_stream_tick(drain->from, &drain->fault) &&
           (!is_heard(drain) || rd_stream_tick(drain->forward, &drain->fault));
}

void rd_drain(rd_transfer_t *transfer, rd_stream_t *from, rd_end_t *output, rd_stream_t *forward)
{
    drain_t drain = {.transfer = transfer, .from = from, .output = output, .forward = forward};

    from->heard_ms = rd_now_ms(); /* the peer did not have to send anything until now */
    if (forward)
        forward->heard_ms = from->heard_ms;
    rd_keeper_start(&drain.keeper, rd_end_may_wait(output), from, forward, 0);
    if (transfer->buffer > 0 && has_output(&drain))
        drain.buffer =
            rd_buffer_open(output, transfer->buffer, transfer->start, transfer->wake, &drain.fault);
    while (!drain.fault.text[0] && is_wanted(&drain)) {
        bool done;

        if (forward)
            forward->wants = 0;
        done = read_forward(&drain);
        if (!drain.fault.text[0])
            done |= !drain.has_ended && take_next(&drain);
        if (drain.has_ended && !is_heard(&drain))
            break;
        if (atomic_load(&transfer->stop) && !drain.fault.text[0])
            (void)rd_because_of(&drain.fault, RD_CAUSE_STOPPED, "stopped");
        if (!drain.fault.text[0] && ticks(&drain) && !done)
            wait_for_work(&drain);
    }
    /* If the output could not be opened, `stop` is set and there is no output. That is a fault and
     * must not look as if the reader had closed. */
    if (atomic_load(&transfer->stop) && !drain.has_ended && !drain.fault.text[0])
        (void)rd_because_of(&drain.fault, RD_CAUSE_STOPPED, "stopped");
    close_buffer(&drain);
    if (drain.closing.has_thread)
        end_closing(&drain);
    finish(&drain);
    rd_keeper_stop(&drain.keeper);
    if (drain.compressor.block)
        rd_compressor_close(&drain.compressor);
    free(drain.copy);
}
