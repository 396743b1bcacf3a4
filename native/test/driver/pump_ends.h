/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_PUMP_ENDS_H
#define BW_TEST_PUMP_ENDS_H

/* Runs the driver's pump over a real link of each carrier, without a VM. The test itself operates
 * the other end. */
#include "../carriers.h"
#include "driver_shim.h"

#include "../../driver/pump.h"
#include "../../link/frame.h"

#define RING BW_RING_MIN_BYTES

/* The pump under test and the other end of its link. */
static struct {
    bw_pump_t pump;
    bw_link_t *peer;
    const bw_carrier_t *real_ops;
    bw_carrier_t ops; /* the function table of the pump's link, with hooks */
    uint8_t *spoils;  /* the frame to be delivered next, as mapped by the peer, or NULL */
} here;

/* A summary of what "the VM" received: the numbers of frames and bytes, and whether each byte
 * matched pattern(). */
static struct {
    uint64_t frames, bytes;
    bool wrong;
} got;

static inline uint8_t pattern(uint64_t len, uint64_t i)
{
    return (uint8_t)(len * 7 + i * 31 + (i >> 8));
}

static inline void check_pattern(const uint8_t *at, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++)
        got.wrong |= at[i] != pattern(len, i);
}

/* The VM reads a frame more than once, and a hostile peer writes to the frame between two reads. */
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

/* Returns whether the poller would report nothing and the pump has not asked to be called. */
static inline bool pump_is_quiet(void)
{
    return !here.pump.comes_back && is_quiet(here.pump.link);
}

static inline bool pump_is_called(void)
{
    return here.pump.comes_back || is_readable(here.pump.link);
}

/* Calls the pump as if the poller had reported every possible event. */
static inline wake_result_t wake_pump(void)
{
    const bw_link_t *link = here.pump.link;

    if (link->ops->wants && link->ops->wants(link) & POLLOUT &&
        pump_has_room(&here.pump) == WAKE_FAILED)
        return WAKE_FAILED;
    return pump_wake(&here.pump);
}

/* Lets the owner of the other end run. */
static inline void run_other_end(const bw_link_t *waited_for)
{
    if (waited_for == here.peer && !pump_is_quiet())
        (void)wake_pump();
    else if (here.peer && waited_for != here.peer)
        run_end_of(here.peer);
}

static inline void start(uint64_t ring_bytes)
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

static inline void peer_closes(void)
{
    here.peer->ops->close(here.peer, NULL);
    here.peer = NULL;
}

static inline void stop(void)
{
    pump_reset(&here.pump);
    pump_drop(&here.pump);
    CHECK_EQ(shim.binaries, 0);
    CHECK_EQ(shim.pieces, 0);
    CHECK_EQ(shim.len, 0);
    here.pump.link->ops->close(here.pump.link, NULL);
    if (here.peer)
        peer_closes();
    free(shim.bytes);
}

/* Sends one message of `len` bytes in two pieces, as the VM would. */
static inline void send_message(size_t len)
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

/* The peer writes a complete frame; there must be room for it. */
static inline void peer_writes(uint32_t len)
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

/* The peer reads everything available. Returns the number of bytes without checking their
 * values. */
static inline uint64_t peer_reads_all(void)
{
    bw_span_t span = {0};
    uint64_t bytes = 0;

    while (here.peer->ops->peek(here.peer, &span) == BW_OK) {
        here.peer->ops->release(here.peer, span.len);
        bytes += span.len;
    }
    return bytes;
}

/* The peer reads, and the pump is woken, until `bytes` bytes have arrived. */
static inline void peer_reads(uint64_t bytes)
{
    for (uint64_t read = 0; read < bytes;) {
        bw_span_t span = {0};

        CHECK_EQ(await_bytes(here.peer, 1, &span), BW_OK);
        here.peer->ops->release(here.peer, span.len);
        read += span.len;
        if (!pump_is_quiet())
            CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    }
}

/* The peer has read everything. Space becomes free, over rdma with a delay, and the poller reports
 * it. */
static inline void room_comes(void)
{
    for (int ms = 0; ms < ARRIVES_MS && (shim.busy || pump_queued(&here.pump) > 0); ms++) {
        run_end_of(here.peer);
        if (pump_is_quiet())
            (void)poll(NULL, 0, 1);
        else
            CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    }
    CHECK(!shim.busy);
    CHECK_EQ(pump_queued(&here.pump), 0);
}

/* The poller calls the pump whenever there is a reason to, until this many frames have been
 * delivered or the pump returns anything but WAKE_ASLEEP. At the first call the bytes may still be
 * in flight. */
static inline wake_result_t wake_for(uint64_t frames)
{
    wake_result_t result = wake_pump();

    for (int ms = 0; ms < ARRIVES_MS && result == WAKE_ASLEEP && got.frames < frames; ms++) {
        if (here.peer)
            run_end_of(here.peer); /* sends what a socket link still holds back */
        if (pump_is_quiet())
            (void)poll(NULL, 0, 1);
        else
            result = wake_pump();
    }
    return result;
}

/* Wakes the pump until it returns anything but WAKE_ASLEEP. */
static inline wake_result_t wake_to_the_end(void)
{
    return wake_for(UINT64_MAX);
}

#endif
