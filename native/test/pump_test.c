/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's pump over a real link of each carrier, without a VM: what it delivers, what it
 * queues, when it is busy, and that each of its calls ends soon, however fast the peer reads or
 * writes.
 */
#define _GNU_SOURCE
#include "carriers.h"
#include "driver_shim.h"

#include "../driver/pump.h"
#include "../link/frame.h"

#define RING BW_RING_MIN_BYTES
#define CALL_BYTES_MAX ((uint64_t)8 << 20) /* about 2 ms of copying: no call may move more */
#define CALL_FRAMES_MAX 20000u

/* The pump under test and the other end of its link, which the tests use by hand. */
static struct {
    bw_pump_t pump;
    bw_link_t *peer;
    const bw_link_ops_t *real_ops;
    bw_link_ops_t ops; /* of the pump's link, with hooks */
    uint8_t *spoils;   /* the frame that is delivered next, as the peer has it mapped, or NULL */
} here;

/* What "the VM" got: number, bytes, and whether each byte was that of pattern(). */
static struct {
    uint64_t frames, bytes;
    bool wrong;
} got;

static uint8_t pattern(uint64_t len, uint64_t i)
{
    return (uint8_t)(len * 7 + i * 31 + (i >> 8));
}

static void check_pattern(const uint8_t *at, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++)
        got.wrong |= at[i] != pattern(len, i);
}

/* The VM goes over a frame more than once; a rogue peer writes between its passes. */
static void shim_deliver(const uint8_t *at, uint64_t len)
{
    got.frames++;
    got.bytes += len;
    check_pattern(at, len);
    if (!here.spoils)
        return;
    memset(here.spoils + BW_FRAME_HEADER_BYTES, 0xEE, len);
    check_pattern(at, len);
    here.spoils += bw_frame_size((uint32_t)len);
}

/* The owner of the other end goes on. */
static void run_other_end(const bw_link_t *waited_for)
{
    if (waited_for == here.peer && !is_quiet(here.pump.link))
        (void)pump_wake(&here.pump);
    else if (here.peer && waited_for != here.peer)
        run_end_of(here.peer);
}

static void start(uint64_t ring_bytes)
{
    bw_error_t error = {0};
    bw_link_t *mine = NULL;

    memset(&here, 0, sizeof here);
    memset(&got, 0, sizeof got);
    memset(&shim, 0, sizeof shim);
    meanwhile = run_other_end;
    CHECK(open_ends(ring_bytes, &here.peer, &mine, &error));
    here.real_ops = mine->ops;
    here.ops = *mine->ops;
    mine->ops = &here.ops;
    pump_start(&here.pump, mine);
}

static void peer_closes(void)
{
    here.peer->ops->close(here.peer, NULL);
    here.peer = NULL;
}

static void stop(void)
{
    pump_reset(&here.pump);
    CHECK_EQ(shim.binaries, 0);
    here.pump.link->ops->close(here.pump.link, NULL);
    if (here.peer)
        peer_closes();
    free(shim.bytes);
}

/* Sends one message of `len` bytes in two pieces, as the VM would. */
static void send_message(size_t len)
{
    char *bytes = malloc(len + 1);
    SysIOVec iov[3] = {{.iov_base = NULL, .iov_len = 0},
                       {.iov_base = bytes, .iov_len = len / 3},
                       {.iov_base = bytes + len / 3, .iov_len = len - len / 3}};
    ErlIOVec ev = {.vsize = 3, .size = (ErlDrvSizeT)len, .iov = iov};
    bool fine;

    CHECK(bytes != NULL);
    for (size_t i = 0; i < len; i++)
        bytes[i] = (char)pattern(len, i);
    fine = pump_send(&here.pump, &ev);
    free(bytes);
    CHECK(fine);
}

/* The peer writes a whole frame; there must be room. */
static void peer_writes(uint32_t len)
{
    uint64_t size = bw_frame_size(len);
    bw_span_t span = {0};

    CHECK_EQ(here.peer->ops->reserve(here.peer, (size_t)size, &span), BW_OK);
    CHECK(span.len >= size);
    bw_frame_put_header(span.base, len ? BW_FRAME_DATA : BW_FRAME_TICK, len);
    for (uint32_t i = 0; i < len; i++)
        span.base[BW_FRAME_HEADER_BYTES + i] = pattern(len, i);
    here.peer->ops->commit(here.peer, (size_t)size);
}

/* The peer takes all there is; bytes read are counted, the first of a frame are not looked at. */
static uint64_t peer_reads_all(void)
{
    bw_span_t span = {0};
    uint64_t bytes = 0;

    while (here.peer->ops->peek(here.peer, &span) == BW_OK) {
        here.peer->ops->release(here.peer, span.len);
        bytes += span.len;
    }
    return bytes;
}

/* The peer takes what comes, and the pump is woken, until there have been `bytes`. */
static void peer_reads(uint64_t bytes)
{
    for (uint64_t read = 0; read < bytes;) {
        bw_span_t span = {0};

        CHECK_EQ(await_bytes(here.peer, 1, &span), BW_OK);
        here.peer->ops->release(here.peer, span.len);
        read += span.len;
        if (!is_quiet(here.pump.link))
            CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    }
}

/* The poller calls the pump whenever there is cause, until so many frames have been delivered or it
 * says something else. What was sent may still be on its way at the first call. */
static wake_result_t wake_for(uint64_t frames)
{
    wake_result_t result = pump_wake(&here.pump);

    for (int ms = 0; ms < ARRIVES_MS && result == WAKE_ASLEEP && got.frames < frames; ms++) {
        if (here.peer)
            run_end_of(here.peer); /* of a socket: the rest of it goes out */
        if (is_quiet(here.pump.link))
            (void)poll(NULL, 0, 1);
        else
            result = pump_wake(&here.pump);
    }
    return result;
}

/* The same, until it says something else. */
static wake_result_t wake_to_the_end(void)
{
    return wake_for(UINT64_MAX);
}

/* ---- in ---- */

static void frames_of_every_kind_of_size_arrive(void)
{
    static const uint32_t lens[] = {1, 7, 8, 9, 64, 4095, 4096, 4097, 30000, 65528};
    uint64_t bytes = 0;

    /* of rdma's ring a part is free that the writer has not heard of */
    CHECK_IN(start(carrier->at_rest ? 2 * RING : RING));
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        CHECK_IN(peer_writes(lens[i]));
        CHECK_EQ(wake_for(i + 1), WAKE_ASLEEP);
        bytes += lens[i];
        CHECK_EQ(got.frames, i + 1);
        CHECK_EQ(got.bytes, bytes);
        CHECK(!got.wrong);
    }
    CHECK_IN(peer_writes(0)); /* a tick is counted, not delivered */
    CHECK(is_readable(here.pump.link));
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK_EQ(got.bytes, bytes);
    CHECK_EQ(here.pump.frames_in, 1 + sizeof lens / sizeof *lens);
    CHECK_IN(stop());
}

/* Of each size, in all the ways that a frame can go: a peer that writes while the VM decodes does
 * not reach what the VM decodes. */
static void what_the_vm_decodes_is_out_of_the_peers_reach(void)
{
    static const uint32_t lens[] = {1,    8,    64,   100,   1023,  1024,   1025,   64,    64,
                                    4096, 9000, 8168, 16000, 60000, 262144, 262145, 300000};
    const uint64_t frames = sizeof lens / sizeof *lens;
    bw_span_t span = {0};

    CHECK_IN(start(16 * RING));
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

/* A frame that comes byte by byte: at each step the pump sleeps, armed and quiet, and is woken. */
static void half_a_frame_is_slept_on(void)
{
    uint8_t frame[BW_FRAME_HEADER_BYTES + 104];

    CHECK_IN(start(RING));
    bw_frame_put_header(frame, BW_FRAME_DATA, 100);
    for (uint32_t i = 0; i < 104; i++)
        frame[BW_FRAME_HEADER_BYTES + i] = i < 100 ? pattern(100, i) : 0;
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    for (size_t i = 0; i < sizeof frame; i++) {
        bw_span_t span = {0};

        CHECK(is_quiet(here.pump.link));
        CHECK_EQ(here.peer->ops->reserve(here.peer, 1, &span), BW_OK);
        span.base[0] = frame[i];
        here.peer->ops->commit(here.peer, 1);
        CHECK(is_readable(here.pump.link));
        CHECK_EQ(got.frames, 0);
        CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    }
    CHECK_EQ(got.frames, 1);
    CHECK(!got.wrong);
    CHECK_IN(stop());
}

/* Larger than the ring, so it is gathered, with the padding of every length. */
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
                CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
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
            CHECK(pump_wake(&here.pump) == WAKE_ASLEEP);
        }
        while (got.frames == 0) { /* a socket's peer hands on what it holds */
            run_end_of(here.peer);
            CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
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
        CHECK_EQ(got.frames, 1); /* what came before is delivered */
        CHECK_IN(stop());
    }
}

/* Last words first; asleep or not, the end is noticed without a look at the socket. */
static void a_closed_peer_is_noticed_when_all_is_read(void)
{
    CHECK_IN(start(RING));
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK_IN(peer_writes(10));
    CHECK_IN(peer_writes(1000));
    CHECK_IN(peer_closes());
    CHECK(is_readable(here.pump.link));
    CHECK_EQ(wake_to_the_end(), WAKE_FINISHED);
    CHECK_EQ(got.frames, 2);
    CHECK_IN(stop());

    CHECK_IN(start(RING));
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK(is_quiet(here.pump.link));
    CHECK_IN(peer_closes());
    CHECK(is_readable(here.pump.link));
    CHECK_EQ(pump_wake(&here.pump), WAKE_FINISHED);
    CHECK_IN(stop());
}

/* Nobody who ends in order leaves half a frame. Beside shm that is left to the socket, whose owner
 * waits a while; a stream that ends so has failed. */
static void half_a_frame_is_no_orderly_end(void)
{
    bw_span_t span = {0};

    CHECK_IN(start(RING));
    CHECK_EQ(here.peer->ops->reserve(here.peer, 64, &span), BW_OK);
    bw_frame_put_header(span.base, BW_FRAME_DATA, 100);
    here.peer->ops->commit(here.peer, 64);
    CHECK_IN(peer_closes());
    if (carrier->is_shared)
        CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    else
        CHECK_EQ(wake_to_the_end(), WAKE_FAILED);
    CHECK_EQ(got.frames, 0);
    CHECK_IN(stop());
}

/* The peer's memory turns bad at the very moment of arming. */
static bw_status_t arm_corrupt(bw_link_t *link)
{
    (void)link;
    return BW_CORRUPT;
}

/* Something comes between the last look and the arming. */
static bw_status_t arm_too_late(bw_link_t *link)
{
    peer_writes(10);
    return here.real_ops->arm_read(link);
}

/* Looks as long as nothing has come. */
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

    CHECK_IN(start(RING)); /* without a budget each look is the last */
    here.pump.spinning = true;
    here.ops.arm_read = arm_too_late;
    CHECK_EQ(pump_look(&here.pump), WAKE_ASLEEP);
    CHECK(is_readable(here.pump.link));           /* the poller reads it */
    CHECK_EQ(pump_look(&here.pump), WAKE_ASLEEP); /* not its turn */
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
    CHECK_EQ(pump_wake(&here.pump), WAKE_FAILED);
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

/* ---- out ---- */

/* A queue that cannot be moved into the ring any more ends the link at the next wake-up. */
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
        CHECK_EQ(pump_wake(&here.pump), WAKE_FAILED);
        CHECK_IN(stop());
    }
    CHECK_IN(start(RING));
    here.ops.reserve = reserve_corrupt;
    CHECK(!pump_tick(&here.pump));
    CHECK_IN(stop());
}

/* The VM sends no empty message; one would be read as a tick. */
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

    if (!carrier->is_shared)
        return; /* room does not come by the byte: the next case */
    CHECK_IN(start(RING));
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK_IN(send_message(RING - 100));
    CHECK(!shim.busy);
    CHECK_IN(send_message(1000));
    CHECK(shim.busy);
    CHECK(shim.len > 0);
    CHECK(pump_tick(&here.pump)); /* bytes flow anyway: no tick behind a queue */
    CHECK_EQ(here.pump.frames_out, 2);
    CHECK_EQ(here.peer->ops->peek(here.peer, &span), BW_OK);
    CHECK_EQ(span.len, RING);
    here.peer->ops->release(here.peer, RING / 2 - 1);
    CHECK(is_quiet(here.pump.link));
    here.peer->ops->release(here.peer, 1);
    CHECK(is_readable(here.pump.link));
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK_EQ(shim.len, 0);
    CHECK(shim.busy); /* what was queued has filled a part of the half */
    CHECK(peer_reads_all() > 0);
    CHECK(is_readable(here.pump.link));
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK(!shim.busy);
    CHECK_IN(stop());
}

static void a_peer_that_does_not_read_makes_the_port_busy(void)
{
    uint64_t sent = 0;

    CHECK_IN(start(RING));
    for (; !shim.busy && sent < 100 * RING; sent += bw_frame_size(1000))
        CHECK_IN(send_message(1000));
    CHECK(shim.busy);
    CHECK(shim.len <= bw_frame_size(1000)); /* never more than a frame */
    for (int i = 0; i < 100; i++)
        CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK(shim.busy);
    CHECK_IN(peer_reads(sent));
    CHECK(!shim.busy);
    CHECK_EQ(shim.len, 0);
    CHECK_IN(stop());
}

/* Nothing of it is in the ring or the queue: a length that was cut off would spoil all that
 * follows.
 */
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
        CHECK_EQ(shim.len, 0);
        CHECK_EQ(here.pump.frames_out, 0);
    }
    CHECK_IN(stop());
}

/* What one pump sends, another reads: by hand, piece by piece, all sizes about the ring's. */
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
            CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
        }
        CHECK_EQ(read, size);
        CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
        CHECK(!shim.busy);
        CHECK_IN(stop());
    }
}

/* ---- calls end ---- */

/* What the peer moved within one call of the pump. */
static uint64_t hooked_frames, hooked_bytes;

/* A peer so fast that there is always one more frame when the pump wants to sleep. */
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
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK(hooked_frames <= CALL_FRAMES_MAX);
    /* whatever is left leads to another call */
    here.ops.arm_read = here.real_ops->arm_read;
    CHECK_EQ(wake_for(hooked_frames + 1), WAKE_ASLEEP);
    CHECK_EQ(got.frames, hooked_frames + 1);
    CHECK_IN(stop());
}

/* A peer so fast that the ring is empty again whenever the pump has written something. */
static void commit_and_be_read(bw_link_t *link, size_t n)
{
    here.real_ops->commit(link, n);
    hooked_bytes += peer_reads_all();
}

/* Far more than one call may move. Our sockets take a few KB at a time, and the shim's queue is
 * moved up each time. */
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
    for (int calls = 0; calls < 100000 && all < bw_frame_size(len); calls++) {
        hooked_bytes = peer_reads_all(); /* of a socket: what was on its way */
        all += hooked_bytes;
        if (all == bw_frame_size(len))
            break;
        if (carrier->is_shared || (carrier->at_rest && shim.busy))
            CHECK(is_readable(here.pump.link)); /* else nobody would go on */
        hooked_bytes = 0;
        CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
        CHECK(hooked_bytes <= CALL_BYTES_MAX);
        all += hooked_bytes;
    }
    CHECK_EQ(all, bw_frame_size(len));
    CHECK_EQ(shim.len, 0);
    CHECK_IN(stop());
}

/* Both at once: there is always one more frame, and always room. */
static void a_fast_peer_does_not_keep_a_call_from_ending(void)
{
    uint64_t read_before, calls = 0;

    CHECK_IN(start(RING));
    here.ops.commit = commit_and_be_read;
    CHECK_IN(send_message(many_bytes()));
    CHECK(shim.busy);
    here.ops.arm_read = arm_read_too_late;
    while (shim.busy && calls++ < 100000) {
        uint64_t frames_before = got.frames;

        hooked_frames = 0;
        read_before = shim.len;
        CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
        CHECK(read_before - shim.len <= CALL_BYTES_MAX);
        CHECK(got.frames - frames_before <= CALL_FRAMES_MAX);
        if (shim.busy && (carrier->is_shared || carrier->at_rest))
            CHECK(is_readable(here.pump.link));
        (void)peer_reads_all();
    }
    CHECK(!shim.busy);
    CHECK_IN(stop());
}

/* A hostile one: a large frame that grows by a byte whenever the pump wants to sleep. */
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
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK(hooked_bytes <= CALL_FRAMES_MAX);
    CHECK(is_readable(here.pump.link));
    CHECK_IN(stop());
}

static const check_case_t cases[] = {
    {"frames_of_every_kind_of_size_arrive", frames_of_every_kind_of_size_arrive},
    {"what_the_vm_decodes_is_out_of_the_peers_reach",
     what_the_vm_decodes_is_out_of_the_peers_reach},
    {"half_a_frame_is_slept_on", half_a_frame_is_slept_on},
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
    {"a_fast_writer_does_not_keep_a_call_from_ending",
     a_fast_writer_does_not_keep_a_call_from_ending},
    {"a_fast_reader_does_not_keep_a_call_from_ending",
     a_fast_reader_does_not_keep_a_call_from_ending},
    {"a_fast_peer_does_not_keep_a_call_from_ending", a_fast_peer_does_not_keep_a_call_from_ending},
    {"a_byte_at_a_time_does_not_keep_a_call_from_ending",
     a_byte_at_a_time_does_not_keep_a_call_from_ending},
};

CARRIERS_MAIN(cases)
