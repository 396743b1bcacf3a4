/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that each call of the driver's pump returns soon, however fast the peer reads or writes.
 */
#include "pump_ends.h"

#define CALL_BYTES_MAX ((uint64_t)8 << 20) /* about 2 ms of copying; the limit for one call */
#define CALL_FRAMES_MAX 20000u

/* How much the peer has read or written during one call to the pump. */
static uint64_t hooked_frames, hooked_bytes;

/* The peer is so fast that another frame arrives whenever the pump wants to sleep. */
static bw_status_t arm_read_too_late(bw_link_t *link)
{
    bw_span_t span = {0};

    if (hooked_frames < 10 * CALL_FRAMES_MAX &&
        here.peer->ops->reserve(here.peer, bw_frame_size(8), &span) == BW_OK &&
        span.len >= bw_frame_size(8)) {
        peer_writes(8);
        hooked_frames++;
    }
    return here.real_ops->arm_read(link);
}

static void a_fast_writer_does_not_keep_a_call_from_ending(void)
{
    CHECK_IN(start(RING));
    hooked_frames = 0;
    here.ops.arm_read = arm_read_too_late;
    CHECK_IN(peer_writes(8));
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    CHECK(hooked_frames <= CALL_FRAMES_MAX);
    /* any remaining bytes lead to another call */
    here.ops.arm_read = here.real_ops->arm_read;
    CHECK_EQ(wake_for(hooked_frames + 1), WAKE_ASLEEP);
    CHECK_EQ(got.frames, hooked_frames + 1);
    CHECK_IN(stop());
}

/* The peer is so fast that the ring is empty again as soon as the pump has written something. */
static void commit_and_be_read(bw_link_t *link, size_t n)
{
    here.real_ops->commit(link, n);
    hooked_bytes += peer_reads_all();
}

/* Far more than one call may move. The test's sockets accept only a few KB at a time. */
static size_t many_bytes(void)
{
    return carrier->is_shared ? 48u << 20 : 12u << 20;
}

static void a_fast_reader_does_not_keep_a_call_from_ending(void)
{
    const size_t len = many_bytes();
    uint64_t all = 0;

    CHECK_IN(start(RING));
    here.ops.commit = commit_and_be_read;
    hooked_bytes = 0;
    CHECK_IN(send_message(len));
    CHECK(hooked_bytes <= CALL_BYTES_MAX);
    all = hooked_bytes;
    for (int idle = 0; idle < ARRIVES_MS && all < bw_frame_size(len);) {
        uint64_t before = all;

        hooked_bytes = peer_reads_all(); /* bytes that were still in flight on a socket */
        all += hooked_bytes;
        if (all == bw_frame_size(len))
            break;
        if (carrier->is_shared || (carrier->at_rest && shim.busy))
            CHECK(pump_is_called()); /* otherwise the transfer would stall here */
        hooked_bytes = 0;
        CHECK_EQ(wake_pump(), WAKE_ASLEEP);
        CHECK(hooked_bytes <= CALL_BYTES_MAX);
        all += hooked_bytes;
        if (all == before) /* a socket's receiver has not reported free space yet */
            idle += 1 + poll(NULL, 0, 1);
    }
    CHECK_EQ(all, bw_frame_size(len));
    CHECK_EQ(pump_queued(&here.pump), 0);
    CHECK_IN(stop());
}

/* The peer is fast in both directions: there is always another frame, and there is always room. */
static void a_fast_peer_does_not_keep_a_call_from_ending(void)
{
    uint64_t read_before;

    CHECK_IN(start(RING));
    here.ops.commit = commit_and_be_read;
    CHECK_IN(send_message(many_bytes()));
    CHECK(shim.busy);
    here.ops.arm_read = arm_read_too_late;
    for (int idle = 0; idle < ARRIVES_MS && shim.busy;) {
        uint64_t frames_before = got.frames;

        hooked_frames = 0;
        read_before = pump_queued(&here.pump);
        CHECK_EQ(wake_pump(), WAKE_ASLEEP);
        CHECK(read_before - pump_queued(&here.pump) <= CALL_BYTES_MAX);
        CHECK(got.frames - frames_before <= CALL_FRAMES_MAX);
        if (shim.busy && (carrier->is_shared || carrier->at_rest))
            CHECK(pump_is_called());
        if (peer_reads_all() == 0 && pump_queued(&here.pump) == read_before)
            idle += 1 + poll(NULL, 0, 1);
    }
    CHECK(!shim.busy);
    CHECK_IN(stop());
}

/* A hostile peer lets its large frame grow by one byte whenever the pump wants to sleep. */
static bw_status_t arm_read_a_byte_too_late(bw_link_t *link)
{
    bw_span_t span = {0};

    if (hooked_bytes < 100 * CALL_FRAMES_MAX &&
        here.peer->ops->reserve(here.peer, 1, &span) == BW_OK) {
        span.base[0] = 1;
        here.peer->ops->commit(here.peer, 1);
        hooked_bytes++;
    }
    return here.real_ops->arm_read(link);
}

static void a_byte_at_a_time_does_not_keep_a_call_from_ending(void)
{
    bw_span_t span = {0};

    CHECK_IN(start(RING));
    CHECK_EQ(here.peer->ops->reserve(here.peer, 8, &span), BW_OK);
    bw_frame_put_header(span.base, BW_FRAME_DATA, 40u << 20);
    here.peer->ops->commit(here.peer, 8);
    here.ops.arm_read = arm_read_a_byte_too_late;
    hooked_bytes = 0;
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    CHECK(hooked_bytes <= CALL_FRAMES_MAX);
    CHECK(pump_is_called());
    CHECK_IN(stop());
}

static const check_case_t cases[] = {
    {"a_fast_writer_does_not_keep_a_call_from_ending",
     a_fast_writer_does_not_keep_a_call_from_ending},
    {"a_fast_reader_does_not_keep_a_call_from_ending",
     a_fast_reader_does_not_keep_a_call_from_ending},
    {"a_fast_peer_does_not_keep_a_call_from_ending", a_fast_peer_does_not_keep_a_call_from_ending},
    {"a_byte_at_a_time_does_not_keep_a_call_from_ending",
     a_byte_at_a_time_does_not_keep_a_call_from_ending},
};

CARRIERS_MAIN(cases)
