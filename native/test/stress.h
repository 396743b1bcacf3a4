/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_STRESS_H
#define BW_TEST_STRESS_H

/*
 * One end of a link under stress, over any carrier. It sends frames of random sizes with known
 * contents, receives those of the other end, and sleeps and wakes like the driver.
 *
 * A sleeping end must always be woken by the other; if no wake-up comes within WAKE_MS, one was
 * lost.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>

#include "check.h"
#include "rings.h"

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

/* Writes bytes `from` to `from + n` of the frame as they are in the ring: header, payload,
 * padding. */
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
    uint64_t sent, received;    /* numbers of complete frames */
    uint64_t out_done, in_done; /* number of bytes of the current frame */
    bw_frame_t in_frame;        /* its parsed header, once in_done > 0 */
    uint64_t sleeps;
    int patience_ms;
    /* The link buffers sent bytes that we have to pass on, and it notices when the other end
     * closes. */
    bool has_buffer;
    const char *failure;
} end_t;

/* Returns how far sending may get ahead of receiving. With a window of 1 both ends sleep at nearly
 * every frame; a large window fills the rings. */
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

/* Sends until the window is used up, the ring is full (*room_p is then how much free space to wait
 * for) or enough has been sent for now. Pieces have arbitrary lengths, so headers are split as
 * well. */
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

/* Consumes bytes of the current frame from the span. Returns 0 if more bytes have to arrive
 * first. */
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
        /* small frames are not consumed until they are complete, as in the driver */
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

/* Reads everything that has arrived, or sets *more_p. */
static bool receive_some(end_t *end, bool *more_p)
{
    bw_span_t span = {0};
    size_t used = 0, n, budget = (size_t)(next_random(&end->random) % (2 * RING));
    bw_status_t status = end->link->ops->peek(end->link, &span);

    *more_p = false;
    if (status == BW_AGAIN) {
        if (end->has_buffer && end->link->ops->is_finished(end->link))
            end->failure = "the stream has ended";
        return end->failure == NULL;
    }
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

/* Sleeps until the doorbell rings. */
static bool sleep_well(end_t *end)
{
    struct pollfd poller = bw_link_polled(end->link);
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

/* Waits until everything that was sent has left this process, including the encrypted bytes that a
 * carrier buffers outside the ring. */
static bool hand_on(end_t *end)
{
    const bw_carrier_t *ops = end->link->ops;
    bw_link_stats_t stats;

    for (;;) {
        bool is_blocked;

        ops->clear_event(end->link);
        ops->stats(end->link, &stats);
        is_blocked = ops->wants && ops->wants(end->link) & POLLOUT;
        if (stats.fill_out == 0 && !is_blocked)
            return true;
        if ((is_blocked || ops->arm_write(end->link, stats.ring_bytes) == BW_OK) &&
            !sleep_well(end))
            return false;
    }
}

/* Works until everything has been sent and received: reads, clears, writes, arms and sleeps in the
 * same order as the driver. On failure, `failure` contains the reason. */
static bool run_end(end_t *end)
{
    const bw_carrier_t *ops = end->link->ops;

    while (end->sent < end->frames || end->received < end->frames) {
        bool more;
        size_t room = 0;
        bw_status_t status;

        if (!receive_some(end, &more))
            return false;
        ops->clear_event(end->link);
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
        if (status != BW_OK || (end->sent >= end->frames && end->received >= end->frames))
            continue;
        /* an end that has already closed no longer rings the doorbell */
        if (end->has_buffer && ops->is_finished(end->link)) {
            end->failure = "the stream has ended";
            return false;
        }
        if (!sleep_well(end))
            return false;
    }
    return !end->has_buffer || hand_on(end);
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

/* Removes this program's own argument, a number of frames, from the front of the list. */
static void take_frames(int *argc_p, char ***argv_p)
{
    const char *frames = getenv("STRESS_FRAMES");

    if (frames)
        frames_each_way = strtoull(frames, NULL, 10);
    if (*argc_p > 1 && (*argv_p)[1][0] >= '1' && (*argv_p)[1][0] <= '9') {
        frames_each_way = strtoull((*argv_p)[1], NULL, 10);
        ++*argv_p;
        --*argc_p;
    }
}

#endif
