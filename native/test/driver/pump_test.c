/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the driver's pump: what it delivers, what it queues, and when it is busy.
 */
#include "pump_ends.h"

/* ---- input ---- */

static void frames_of_every_kind_of_size_arrive(void)
{
    static const uint32_t lens[] = {1, 7, 8, 9, 64, 4095, 4096, 4097, 30000, 65528};
    uint64_t bytes = 0;

    /* part of rdma's ring is free, but the writer has not been notified yet */
    CHECK_IN(start(carrier->at_rest ? 2 * RING : RING));
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        CHECK_IN(peer_writes(lens[i]));
        CHECK_EQ(wake_for(i + 1), WAKE_ASLEEP);
        bytes += lens[i];
        CHECK_EQ(got.frames, i + 1);
        CHECK_EQ(got.bytes, bytes);
        CHECK(!got.wrong);
    }
    CHECK_IN(peer_writes(0)); /* ticks are counted but not delivered */
    /* rdma's completions also wake the pump */
    while (here.pump.frames_in == sizeof lens / sizeof *lens) {
        CHECK(pump_is_called());
        CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    }
    CHECK_EQ(got.bytes, bytes);
    CHECK_EQ(here.pump.frames_in, 1 + sizeof lens / sizeof *lens);
    CHECK_IN(stop());
}

/* Whatever the size of a frame and however it is delivered, a peer that writes while the VM is
 * decoding must not be able to change the bytes being decoded. */
static void what_the_vm_decodes_is_out_of_the_peers_reach(void)
{
    static const uint32_t lens[] = {1,    8,    64,   100,   1023,  1024,   1025,   64,    64,
                                    4096, 9000, 8168, 16000, 60000, 262144, 262145, 300000};
    const uint64_t frames = sizeof lens / sizeof *lens;
    bw_span_t span = {0};

    CHECK_IN(start(16 * RING));
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    CHECK_EQ(here.peer->ops->reserve(here.peer, 1, &span), BW_OK);
    for (size_t i = 0; i < frames; i++)
        CHECK_IN(peer_writes(lens[i]));
    if (carrier->is_shared)
        here.spoils = span.base;
    CHECK_EQ(wake_for(frames), WAKE_ASLEEP);
    CHECK_EQ(got.frames, frames);
    CHECK(!got.wrong);
    CHECK_IN(stop());
}

/* A frame arrives byte by byte: after each byte the pump sleeps, armed and quiet, and is then
 * woken. */
static void half_a_frame_is_slept_on(void)
{
    uint8_t frame[BW_FRAME_HEADER_BYTES + 104];

    CHECK_IN(start(RING));
    bw_frame_put_header(frame, BW_FRAME_DATA, 100);
    for (uint32_t i = 0; i < 104; i++)
        frame[BW_FRAME_HEADER_BYTES + i] = i < 100 ? pattern(100, i) : 0;
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    for (size_t i = 0; i < sizeof frame; i++) {
        bw_span_t span = {0};

        CHECK(pump_is_quiet());
        CHECK_EQ(here.peer->ops->reserve(here.peer, 1, &span), BW_OK);
        span.base[0] = frame[i];
        here.peer->ops->commit(here.peer, 1);
        CHECK(pump_is_called());
        CHECK_EQ(got.frames, 0);
        CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    }
    CHECK_EQ(got.frames, 1);
    CHECK(!got.wrong);
    CHECK_IN(stop());
}

/* There are more frames than one call delivers, and no separate event announces the rest. */
static void frames_of_several_turns_arrive(void)
{
    CHECK_IN(start(RING));
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    for (int i = 0; i < 1200; i++)
        CHECK_IN(peer_writes(8));
    CHECK_EQ(wake_for(1200), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 1200);
    CHECK(!got.wrong);
    CHECK_IN(stop());
}

/* The frame is larger than the ring, so it is copied out, with padding of every length. */
static void large_frames_are_gathered(void)
{
    for (uint32_t len = 5 * RING; len < 5 * RING + 9; len++) {
        uint64_t size = bw_frame_size(len), written = 0;

        CHECK_IN(start(RING));
        while (written < size) {
            bw_span_t span = {0};
            size_t n, at = 0;

            run_end_of(here.peer);
            if (here.peer->ops->reserve(here.peer, 1, &span) == BW_AGAIN) {
                CHECK_EQ(wake_pump(), WAKE_ASLEEP);
                continue;
            }
            n = span.len < size - written ? span.len : (size_t)(size - written);
            if (written == 0) {
                bw_frame_put_header(span.base, BW_FRAME_DATA, len);
                at = BW_FRAME_HEADER_BYTES;
            }
            for (; at < n; at++)
                span.base[at] = pattern(len, written + at - BW_FRAME_HEADER_BYTES);
            here.peer->ops->commit(here.peer, n);
            written += n;
            CHECK(wake_pump() == WAKE_ASLEEP);
        }
        while (got.frames == 0) { /* a socket's peer sends what it holds back */
            run_end_of(here.peer);
            CHECK_EQ(wake_pump(), WAKE_ASLEEP);
        }
        CHECK_EQ(got.frames, 1);
        CHECK_EQ(got.bytes, len);
        CHECK(!got.wrong);
        CHECK_IN(stop());
    }
}

static void garbage_fails_the_link(void)
{
    static const uint64_t headers[] = {0,
                                       UINT64_MAX,
                                       0x0001BEA300000000,
                                       0x0002BEA300000001,
                                       0x0003BEA300000001,
                                       0x0001BEA380000000};

    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        bw_span_t span = {0};

        CHECK_IN(start(RING));
        CHECK_IN(peer_writes(10));
        CHECK_EQ(here.peer->ops->reserve(here.peer, 8, &span), BW_OK);
        memcpy(span.base, &headers[i], 8);
        here.peer->ops->commit(here.peer, 8);
        CHECK_EQ(wake_to_the_end(), WAKE_FAILED);
        CHECK_EQ(got.frames, 1); /* the frames before it are delivered */
        CHECK_IN(stop());
    }
}

/* The peer's last bytes are read first; whether asleep or not, the pump notices the end without
 * checking the socket. */
static void a_closed_peer_is_noticed_when_all_is_read(void)
{
    CHECK_IN(start(RING));
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    CHECK_IN(peer_writes(10));
    CHECK_IN(peer_writes(1000));
    CHECK_IN(peer_closes());
    CHECK(pump_is_called());
    CHECK_EQ(wake_to_the_end(), WAKE_FINISHED);
    CHECK_EQ(got.frames, 2);
    CHECK_IN(stop());

    CHECK_IN(start(RING));
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    CHECK(pump_is_quiet());
    CHECK_IN(peer_closes());
    CHECK(pump_is_called());
    CHECK_EQ(wake_pump(), WAKE_FINISHED);
    CHECK_IN(stop());
}

/* A peer that closes its end cleanly does not leave a partial frame. Over shm, the owner of the
 * socket between the nodes notices the end, after a while; over other carriers, a stream that ends
 * like this counts as failed. */
static void half_a_frame_is_no_orderly_end(void)
{
    bw_span_t span = {0};

    CHECK_IN(start(RING));
    CHECK_EQ(here.peer->ops->reserve(here.peer, 64, &span), BW_OK);
    bw_frame_put_header(span.base, BW_FRAME_DATA, 100);
    here.peer->ops->commit(here.peer, 64);
    CHECK_IN(peer_closes());
    if (carrier->is_shared)
        CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    else
        CHECK_EQ(wake_to_the_end(), WAKE_FAILED);
    CHECK_EQ(got.frames, 0);
    CHECK_IN(stop());
}

/* The peer corrupts its memory at the very moment of arming. */
static bw_status_t arm_corrupt(bw_link_t *link)
{
    (void)link;
    return BW_CORRUPT;
}

/* Bytes arrive after the last look and before the link is armed. */
static bw_status_t arm_too_late(bw_link_t *link)
{
    peer_writes(10);
    return here.real_ops->arm_read(link);
}

/* Looks until something has arrived. */
static wake_result_t look_to_the_end(void)
{
    wake_result_t result;

    for (int ms = 0; ms < ARRIVES_MS; ms++) {
        here.pump.spinning = true;
        result = pump_look(&here.pump);
        if (result != WAKE_ASLEEP && result != WAKE_LOOKING)
            return result;
        (void)poll(NULL, 0, 1);
    }
    return WAKE_ASLEEP;
}

static void a_look_reads_or_ends_or_fails(void)
{
    bw_span_t span = {0};

    CHECK_IN(start(RING)); /* without a budget, each look is the last one */
    here.pump.spinning = true;
    here.ops.arm_read = arm_too_late;
    CHECK_EQ(pump_look(&here.pump), WAKE_ASLEEP);
    CHECK(pump_is_called());                      /* the poller reads it */
    CHECK_EQ(pump_look(&here.pump), WAKE_ASLEEP); /* no longer spinning, so this does nothing */
    CHECK_EQ(got.frames, 0);
    CHECK_IN(stop());

    CHECK_IN(start(RING));
    here.pump.spinning = true;
    CHECK_IN(peer_writes(10));
    CHECK_IN(peer_closes());
    CHECK_EQ(look_to_the_end(), WAKE_FINISHED);
    CHECK_EQ(got.frames, 1);
    CHECK_IN(stop());

    CHECK_IN(start(RING));
    here.pump.spinning = true;
    CHECK_EQ(here.peer->ops->reserve(here.peer, 8, &span), BW_OK);
    memset(span.base, 0xff, 8);
    here.peer->ops->commit(here.peer, 8);
    CHECK_EQ(look_to_the_end(), WAKE_FAILED);
    CHECK_IN(stop());

    CHECK_IN(start(RING));
    here.pump.spinning = true;
    here.ops.arm_read = arm_corrupt;
    CHECK_EQ(pump_look(&here.pump), WAKE_FAILED);
    CHECK_EQ(wake_pump(), WAKE_FAILED);
    CHECK_IN(stop());
}

static bw_status_t arm_write_corrupt(bw_link_t *link, size_t room)
{
    (void)link;
    (void)room;
    return BW_CORRUPT;
}

static bw_status_t reserve_corrupt(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    (void)link;
    (void)want;
    (void)span_p;
    return BW_CORRUPT;
}

/* ---- output ---- */

/* This many bytes of complete frames wait for room before the port becomes busy. */
#define FEW_BYTES ((uint64_t)64 * 1024)

/* If the queue can no longer be moved into the ring, the link fails at the next wake-up. */
static void a_ring_that_turns_bad_fails_the_queue(void)
{
    for (int first = 0; first < 2; first++) {
        CHECK_IN(start(RING));
        CHECK_IN(send_message(3 * RING));
        CHECK(shim.busy);
        if (first)
            here.ops.arm_write = arm_write_corrupt;
        else
            here.ops.reserve = reserve_corrupt;
        here.ops.write = NULL;
        CHECK_EQ(wake_pump(), WAKE_FAILED);
        CHECK_IN(stop());
    }
    CHECK_IN(start(RING));
    here.ops.reserve = reserve_corrupt;
    CHECK(!pump_tick(&here.pump));
    CHECK_IN(stop());
}

/* The VM never sends an empty message, which would be read as a tick. */
static void an_empty_message_is_a_tick(void)
{
    SysIOVec iov = {.iov_base = NULL};
    ErlIOVec ev = {.vsize = 1, .size = 0, .iov = &iov};

    CHECK_IN(start(RING));
    CHECK(pump_send(&here.pump, &ev));
    CHECK_EQ(here.pump.frames_out, 1);
    CHECK_IN(peer_reads(BW_FRAME_HEADER_BYTES));
    CHECK_IN(stop());
}

static void a_full_ring_makes_the_port_busy_until_half_is_free(void)
{
    bw_span_t span = {0};
    uint64_t waits, frames;

    if (!carrier->is_shared)
        return; /* room does not grow byte by byte here; the next case covers this carrier */
    CHECK_IN(start(RING));
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    CHECK_IN(send_message(RING - 100));
    CHECK(!shim.busy);
    for (int i = 0; i < 100 && !shim.busy; i++)
        CHECK_IN(send_message(1000));
    CHECK(shim.busy);
    waits = pump_queued(&here.pump);
    CHECK(waits > 0);
    CHECK(waits <= FEW_BYTES + bw_frame_size(1000));
    frames = here.pump.frames_out;
    CHECK(pump_tick(&here.pump)); /* bytes are flowing anyway, so no tick is queued behind them */
    CHECK_EQ(here.pump.frames_out, frames);
    CHECK_EQ(here.peer->ops->peek(here.peer, &span), BW_OK);
    CHECK_EQ(span.len, RING);
    here.peer->ops->release(here.peer, RING / 2 - 1);
    CHECK(pump_is_quiet());
    here.peer->ops->release(here.peer, 1);
    CHECK(pump_is_called());
    CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    CHECK_EQ(pump_queued(&here.pump), waits - RING / 2);
    CHECK(shim.busy);
    CHECK_IN(peer_reads(RING / 2 + waits));
    CHECK_IN(room_comes());
    CHECK_IN(stop());
}

static void a_peer_that_does_not_read_makes_the_port_busy(void)
{
    uint64_t sent = 0;

    CHECK_IN(start(RING));
    for (; !shim.busy && sent < 100 * RING; sent += bw_frame_size(1000))
        CHECK_IN(send_message(1000));
    CHECK(shim.busy);
    CHECK(pump_queued(&here.pump) <= FEW_BYTES + bw_frame_size(1000));
    for (int i = 0; i < 100; i++)
        CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    CHECK(shim.busy);
    CHECK_IN(peer_reads(sent));
    CHECK_IN(room_comes());
    CHECK_IN(stop());
}

/* No part of it may reach the ring or the queue, because a truncated length would corrupt
 * everything that follows. */
static void a_message_above_the_largest_frame_is_refused(void)
{
    char byte = 0;
    SysIOVec iov[2] = {{.iov_base = NULL}, {.iov_base = &byte, .iov_len = 1}};
    static const uint64_t sizes[] = {(uint64_t)BW_FRAME_MAX_BYTES + 1, UINT32_MAX,
                                     (uint64_t)UINT32_MAX + 1, (uint64_t)UINT32_MAX + 2};

    CHECK_IN(start(RING));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ErlIOVec ev = {.vsize = 2, .size = (ErlDrvSizeT)sizes[i], .iov = iov};

        CHECK(!pump_send(&here.pump, &ev));
        CHECK_EQ(peer_reads_all(), 0);
        CHECK_EQ(pump_queued(&here.pump), 0);
        CHECK_EQ(here.pump.frames_out, 0);
    }
    CHECK_IN(stop());
}

/* One pump sends, and the test itself reads piece by piece. The messages have all sizes close to
 * that of the ring. */
static void messages_about_the_size_of_the_ring_come_through(void)
{
    for (size_t len = RING - 24; len < RING + 24; len++) {
        uint64_t read = 0, size = bw_frame_size((uint32_t)len);

        CHECK_IN(start(RING));
        CHECK_IN(send_message(len));
        for (int round = 0; round < 1000 && read < size; round++) {
            bw_span_t span = {0};

            CHECK_EQ(await_bytes(here.peer, 1, &span), BW_OK);
            for (uint64_t i = 0; i < span.len; i++)
                if (read + i >= BW_FRAME_HEADER_BYTES && read + i < BW_FRAME_HEADER_BYTES + len)
                    CHECK_EQ(span.base[i], pattern(len, read + i - BW_FRAME_HEADER_BYTES));
            here.peer->ops->release(here.peer, span.len);
            read += span.len;
            CHECK_EQ(wake_pump(), WAKE_ASLEEP);
        }
        CHECK_EQ(read, size);
        CHECK_IN(room_comes());
        CHECK_IN(stop());
    }
}

static const check_case_t cases[] = {
    {"frames_of_every_kind_of_size_arrive", frames_of_every_kind_of_size_arrive},
    {"what_the_vm_decodes_is_out_of_the_peers_reach",
     what_the_vm_decodes_is_out_of_the_peers_reach},
    {"half_a_frame_is_slept_on", half_a_frame_is_slept_on},
    {"frames_of_several_turns_arrive", frames_of_several_turns_arrive},
    {"large_frames_are_gathered", large_frames_are_gathered},
    {"garbage_fails_the_link", garbage_fails_the_link},
    {"a_closed_peer_is_noticed_when_all_is_read", a_closed_peer_is_noticed_when_all_is_read},
    {"half_a_frame_is_no_orderly_end", half_a_frame_is_no_orderly_end},
    {"a_look_reads_or_ends_or_fails", a_look_reads_or_ends_or_fails},
    {"a_ring_that_turns_bad_fails_the_queue", a_ring_that_turns_bad_fails_the_queue},
    {"an_empty_message_is_a_tick", an_empty_message_is_a_tick},
    {"a_full_ring_makes_the_port_busy_until_half_is_free",
     a_full_ring_makes_the_port_busy_until_half_is_free},
    {"a_peer_that_does_not_read_makes_the_port_busy",
     a_peer_that_does_not_read_makes_the_port_busy},
    {"a_message_above_the_largest_frame_is_refused", a_message_above_the_largest_frame_is_refused},
    {"messages_about_the_size_of_the_ring_come_through",
     messages_about_the_size_of_the_ring_come_through},
};

CARRIERS_MAIN(cases)
