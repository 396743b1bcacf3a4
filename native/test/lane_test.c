/* SPDX-License-Identifier: Apache-2.0
 *
 * The driver's pump as a lane's, over each carrier, without a VM: what credit lets through, what
 * the last word does, and what is known of what the peer has not taken.
 */
#include "carriers.h"
#include "driver_shim.h"

#include "../driver/pump.h"
#include "../link/frame.h"

#define RING BW_RING_MIN_BYTES
#define MARK 65
#define WHOLE_MAX (32u << 20)

/* Two lanes that talk to each other. */
static struct {
    bw_pump_t pump, peer;
} here;

static struct {
    uint64_t frames, bytes;
    uint64_t wrong; /* bytes of binaries in parts that are not what was sent */
} got;

/* Byte `i` of the binary in parts. */
static uint8_t content(uint32_t number, uint64_t i)
{
    return (uint8_t)(i * 7 + i / 256 + number);
}

static void shim_deliver(const uint8_t *at, uint64_t len)
{
    got.frames++;
    got.bytes += len;
    for (uint64_t i = 0; i < len && shim.head_len == 5; i++)
        got.wrong += at[i] != content((uint8_t)shim.head[4], i);
}

static void start(uint32_t largest)
{
    bw_link_t *mine = NULL, *other = NULL;
    bw_error_t error = {0};

    memset(&here, 0, sizeof here);
    memset(&got, 0, sizeof got);
    memset(&shim, 0, sizeof shim);
    CHECK(open_ends(RING, &other, &mine, &error));
    pump_start(&here.pump, mine);
    pump_be_lane(&here.pump, largest, MARK, WHOLE_MAX);
    pump_start(&here.peer, other);
    pump_be_lane(&here.peer, largest, MARK, WHOLE_MAX);
}

static void peer_closes(void)
{
    here.peer.link->ops->close(here.peer.link, NULL);
    here.peer.link = NULL;
}

static void stop(void)
{
    pump_reset(&here.pump);
    CHECK_EQ(shim.binaries, 0);
    here.pump.link->ops->close(here.pump.link, NULL);
    if (here.peer.link)
        peer_closes();
    free(shim.bytes);
}

static void send_frame(bw_pump_t *pump, size_t len)
{
    char *bytes = calloc(1, len + 1);
    SysIOVec iov[2] = {{.iov_base = NULL}, {.iov_base = bytes, .iov_len = len}};
    ErlIOVec ev = {.vsize = 2, .size = (ErlDrvSizeT)len, .iov = iov};
    bool fine;

    CHECK(bytes != NULL);
    fine = pump_send(pump, &ev);
    free(bytes);
    CHECK(fine);
}

/* Sends the bytes of a binary from `from` on, as a part of it. */
static void send_part(uint32_t number, uint64_t size, uint64_t from, size_t len)
{
    size_t all = BW_PART_HEAD_BYTES + len;
    char *bytes = calloc(1, all);
    SysIOVec iov[2] = {{.iov_base = NULL}, {.iov_base = bytes, .iov_len = all}};
    ErlIOVec ev = {.vsize = 2, .size = (ErlDrvSizeT)all, .iov = iov};
    bool fine;

    CHECK(bytes != NULL);
    bytes[0] = MARK;
    for (int i = 0; i < 4; i++)
        bytes[1 + i] = (char)(number >> (24 - 8 * i));
    for (int i = 0; i < 8; i++)
        bytes[5 + i] = (char)(size >> (56 - 8 * i));
    for (size_t i = 0; i < len; i++)
        bytes[BW_PART_HEAD_BYTES + i] = (char)content(number, from + i);
    fine = pump_send(&here.peer, &ev);
    free(bytes);
    CHECK(fine);
}

/* Wakes the pump until so many frames have come, or it says something else; what was sent is there
 * by then. */
static wake_result_t wake_for(uint64_t frames)
{
    wake_result_t result = pump_wake(&here.pump);

    for (int ms = 0; ms < ARRIVES_MS && result == WAKE_ASLEEP && got.frames < frames; ms++) {
        if (here.peer.link)
            run_end_of(here.peer.link);
        if (is_quiet(here.pump.link))
            (void)poll(NULL, 0, 1);
        else
            result = pump_wake(&here.pump);
    }
    return result;
}

static wake_result_t wake_to_the_end(void)
{
    return wake_for(UINT64_MAX);
}

/* ---- credit ---- */

static void nothing_comes_without_credit(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    for (int i = 0; i < 10; i++)
        CHECK_IN(send_frame(&here.peer, 100));
    CHECK_EQ(wake_for(0), WAKE_ASLEEP);
    for (int ms = 0; ms < ARRIVES_MS && !here.pump.is_paused; ms++) {
        CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
        (void)poll(NULL, 0, !here.pump.is_paused);
    }
    CHECK(here.pump.is_paused);
    CHECK_EQ(got.frames, 0);
    CHECK_EQ(pump_credit(&here.pump, 0, 1000), WAKE_ASLEEP);
    CHECK_EQ(pump_credit(&here.pump, 3, 0), WAKE_ASLEEP);
    CHECK_EQ(wake_for(3), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 3);
    CHECK(here.pump.has_run_out);
    here.pump.has_run_out = false;
    CHECK_EQ(pump_wake(&here.pump), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 3);
    CHECK(!here.pump.has_run_out);
    CHECK_EQ(pump_credit(&here.pump, INT64_MAX, INT64_MAX), WAKE_ASLEEP);
    CHECK_EQ(wake_for(10), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 10);
    CHECK(!here.pump.has_run_out);
    CHECK_IN(stop());
}

/* A look that finds no credit is the last. What waits then is given, though the peer has closed. */
static void what_waits_for_credit_outlives_looks(void)
{
    wake_result_t result;

    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_EQ(pump_credit(&here.pump, 1, 1000), WAKE_ASLEEP);
    for (int i = 0; i < 3; i++)
        CHECK_IN(send_frame(&here.peer, 100));
    CHECK_IN(peer_closes());
    for (int ms = 0; ms < ARRIVES_MS && !here.pump.is_paused; ms++) {
        here.pump.spinning = true;
        result = pump_look(&here.pump);
        CHECK(result == WAKE_ASLEEP || result == WAKE_LOOKING);
        (void)poll(NULL, 0, !here.pump.is_paused);
    }
    CHECK(here.pump.is_paused);
    CHECK(!here.pump.spinning);
    here.pump.spinning = true;
    CHECK_EQ(pump_look(&here.pump), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 1);
    result = pump_credit(&here.pump, 10, 1000);
    CHECK_EQ(result == WAKE_ASLEEP ? wake_to_the_end() : result, WAKE_FINISHED);
    CHECK_EQ(got.frames, 3);
    CHECK_IN(stop());
}

static void a_large_frame_makes_a_debt(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_EQ(pump_credit(&here.pump, 5, 100), WAKE_ASLEEP);
    CHECK_IN(send_frame(&here.peer, 30000));
    CHECK_IN(send_frame(&here.peer, 1));
    CHECK_EQ(wake_for(1), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 1);
    CHECK_EQ(here.pump.credit_bytes, -29900);
    CHECK_EQ(pump_credit(&here.pump, 0, 29900), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 1);
    CHECK_EQ(pump_credit(&here.pump, 0, 1), WAKE_ASLEEP);
    CHECK_EQ(wake_for(2), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 2);
    CHECK_IN(stop());
}

static void an_empty_frame_is_one(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_EQ(pump_credit(&here.pump, 2, 1), WAKE_ASLEEP);
    for (int i = 0; i < 3; i++)
        CHECK_IN(send_frame(&here.peer, 0));
    CHECK_EQ(wake_for(2), WAKE_ASLEEP);
    CHECK_EQ(got.frames, 2);
    CHECK_EQ(got.bytes, 0);
    CHECK(here.pump.has_run_out);
    CHECK_IN(stop());
}

static void a_frame_above_the_limit_fails(void)
{
    CHECK_IN(start(1000));
    CHECK_EQ(pump_credit(&here.pump, 10, 100000), WAKE_ASLEEP);
    CHECK_IN(send_frame(&here.peer, 1000));
    CHECK_IN(send_frame(&here.peer, 1001));
    CHECK_EQ(wake_to_the_end(), WAKE_FAILED);
    CHECK_EQ(got.frames, 1);
    CHECK_EQ(strcmp(here.pump.reason, "beamway_frame_too_large"), 0);
    CHECK_IN(stop());
}

/* ---- the end ---- */

/* It needs no credit, but everything before it does. */
static void the_last_word_comes_behind_all(void)
{
    wake_result_t result;

    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_IN(send_frame(&here.peer, 500));
    CHECK(pump_end(&here.peer));
    CHECK_EQ(wake_for(0), WAKE_ASLEEP);
    CHECK(!here.pump.has_end);
    result = pump_credit(&here.pump, 1, 1);
    CHECK_EQ(result == WAKE_ASLEEP ? wake_to_the_end() : result, WAKE_FINISHED);
    CHECK_EQ(got.frames, 1);
    CHECK(here.pump.has_end);
    CHECK_IN(stop());
}

/* Without one the end of the link is told all the same. */
static void an_end_without_a_word(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_EQ(pump_credit(&here.pump, 10, 10000), WAKE_ASLEEP);
    CHECK_IN(send_frame(&here.peer, 500));
    CHECK_IN(peer_closes());
    CHECK_EQ(wake_to_the_end(), WAKE_FINISHED);
    CHECK_EQ(got.frames, 1);
    CHECK(!here.pump.has_end);
    CHECK_IN(stop());
}

/* A controller's pump knows no last word. */
static void the_distribution_has_no_last_word(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    here.pump.is_lane = false;
    CHECK(pump_end(&here.peer));
    CHECK_EQ(wake_to_the_end(), WAKE_FAILED);
    CHECK_IN(stop());
}

/* Wakes both until nothing of what was sent is queued any more. */
static void let_all_through(uint64_t frames)
{
    for (int ms = 0; ms < ARRIVES_MS && (shim.len > 0 || got.frames < frames); ms++) {
        (void)wake_for(0);
        CHECK_EQ(pump_wake(&here.peer), WAKE_ASLEEP);
        (void)poll(NULL, 0, 1);
    }
}

/* Both ends see one ring: a frame counts until the peer has taken it. */
static void unreleased_in_a_ring(void)
{
    CHECK_IN(send_frame(&here.peer, 100));
    CHECK_IN(send_frame(&here.peer, 0));
    CHECK_EQ(pump_unreleased(&here.peer), bw_frame_size(100) + bw_frame_size(0));
    CHECK(pump_end(&here.peer));
    CHECK_EQ(pump_unreleased(&here.peer), bw_frame_size(100) + bw_frame_size(0));
    CHECK_EQ(pump_credit(&here.pump, 1, 1), WAKE_ASLEEP);
    CHECK_EQ(wake_for(1), WAKE_ASLEEP);
    CHECK_EQ(pump_unreleased(&here.peer), bw_frame_size(0));
}

/* Until no more than that has not left. */
static void let_leave(uint64_t most)
{
    for (int ms = 0; ms < ARRIVES_MS && pump_unreleased(&here.peer) > most; ms++) {
        CHECK_EQ(pump_wake(&here.peer), WAKE_ASLEEP);
        (void)poll(NULL, 0, 1);
    }
    CHECK(pump_unreleased(&here.peer) <= most);
}

/* A frame counts until it has left: over tcp the kernel takes the small one at once (carriers.h),
 * over rdma the peer tells when it has taken a quarter of the ring, and after a handshake of TLS
 * its kernel may in a while. */
static void unreleased_on_the_way(void)
{
    uint64_t left, untold = carrier->at_rest ? RING / 4 : 0;

    CHECK_IN(send_frame(&here.peer, 100));
    left = pump_unreleased(&here.peer);
    CHECK_EQ(left, left > 0 && carrier->needs_both ? bw_frame_size(100) : 0);
    CHECK_IN(send_frame(&here.peer, 200000));
    left = pump_unreleased(&here.peer);
    CHECK(left > 100 && left <= bw_frame_size(100) + bw_frame_size(200000));
    CHECK_IN(let_leave(carrier->at_rest ? left : bw_frame_size(200000) - 1));
    CHECK(pump_end(&here.peer));
    CHECK(pump_unreleased(&here.peer) <= left); /* the kernel may have taken more */
    CHECK_EQ(pump_credit(&here.pump, 2, 300000), WAKE_ASLEEP);
    CHECK_IN(let_all_through(2));
    CHECK_EQ(got.bytes, 200100);
    CHECK_IN(let_leave(untold));
}

/* The bytes of frames that have not left, the last word not counted. */
static void what_is_unreleased_is_known(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_IN(carrier->is_shared ? unreleased_in_a_ring() : unreleased_on_the_way());
    pump_mute(&here.peer);
    CHECK_IN(send_frame(&here.peer, 5000));
    CHECK(pump_unreleased(&here.peer) >= bw_frame_size(5000));
    CHECK_IN(stop());
}

/* Nobody reads: whoever closes is busy until all is out, and takes nothing more. */
static void a_lane_that_closes_is_busy_until_all_is_out(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_IN(send_frame(&here.peer, 60000));
    CHECK(pump_end(&here.peer));
    pump_close(&here.peer, !carrier->is_shared);
    CHECK(shim.busy);
    CHECK_EQ(pump_wake(&here.peer), WAKE_ASLEEP);
    CHECK_EQ(pump_credit(&here.pump, 10, 100000), WAKE_ASLEEP);
    CHECK_EQ(wake_to_the_end(), WAKE_FINISHED);
    CHECK_EQ(got.bytes, 60000);
    CHECK(here.pump.has_end);
    /* over rdma the last quarter of the ring is not told of: the peer closes */
    for (int ms = 0; ms < ARRIVES_MS && shim.busy && !carrier->at_rest; ms++) {
        CHECK_EQ(pump_wake(&here.peer), WAKE_ASLEEP);
        (void)poll(NULL, 0, shim.busy);
    }
    CHECK(!shim.busy || carrier->at_rest);
    CHECK_IN(stop());
}

/* ---- parts ---- */

/* Two binaries and ordinary frames in between; no binary counts before it is whole. */
static void parts_come_as_one(void)
{
    static const size_t sizes[] = {1, 4083, 4084, 0, 8192, 5000, 20000};
    uint64_t at[2] = {0, 0};
    size_t size = 41360;

    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_EQ(pump_credit(&here.pump, 9, 1000000), WAKE_ASLEEP);
    for (int i = 0; i < 7; i++) {
        for (uint32_t n = 0; n < 2; n++) {
            CHECK_EQ(got.frames, (uint64_t)i + (i == 6 ? n : 0));
            CHECK_IN(send_part(7 + n, size, at[n], sizes[i]));
            CHECK_IN(let_all_through((uint64_t)i + (at[n] + sizes[i] == size ? 1 + n : 0)));
            at[n] += sizes[i];
        }
        if (i < 6) {
            CHECK_IN(send_frame(&here.peer, 10));
            CHECK_IN(let_all_through((uint64_t)i + 1));
        }
    }
    CHECK_EQ(at[0], size);
    CHECK_EQ(got.frames, 8);
    CHECK_EQ(got.bytes, 2 * size + 60);
    CHECK_EQ(got.wrong, 0);
    CHECK_EQ(here.pump.credit_frames, 1);
    CHECK_EQ(here.pump.credit_bytes, 1000000 - 60 - 2 * (int64_t)size);
    CHECK_EQ(here.pump.parts.count, 0);
    CHECK_EQ(here.pump.parts.bytes, 0);
    CHECK_IN(stop());
}

/* A frame that holds all of a binary is given as it is; so is one that begins like a part on a lane
 * without a mark. */
static void not_all_that_looks_so_is_a_part(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    CHECK_EQ(pump_credit(&here.pump, 9, 1000000), WAKE_ASLEEP);
    CHECK_IN(send_part(1, 100, 0, 100));
    CHECK_EQ(wake_for(1), WAKE_ASLEEP);
    CHECK_EQ(got.bytes, 100 + BW_PART_HEAD_BYTES);
    here.pump.parts.mark = 0;
    CHECK_IN(send_part(1, 100, 0, 50));
    CHECK_EQ(wake_for(2), WAKE_ASLEEP);
    CHECK_EQ(got.bytes, 150 + 2 * BW_PART_HEAD_BYTES);
    CHECK_IN(stop());
}

/* What no correct peer says ends the lane; what is unfinished then is freed. */
static void wrong_parts_fail(void)
{
    for (int what = 0; what < 5; what++) {
        CHECK_IN(start(BW_FRAME_MAX_BYTES));
        CHECK_EQ(pump_credit(&here.pump, 900, 1000000), WAKE_ASLEEP);
        CHECK_IN(send_part(1, 100, 0, 60));
        if (what == 0) /* more than there is room for */
            CHECK_IN(send_part(1, 100, 60, 41));
        if (what == 1) /* another size */
            CHECK_IN(send_part(1, 101, 60, 10));
        if (what == 2) /* too large */
            CHECK_IN(send_part(2, WHOLE_MAX + 1, 0, 10));
        if (what == 3) /* far too large */
            CHECK_IN(send_part(2, (uint64_t)1 << 40, 0, 10));
        for (uint32_t i = 2; what == 4 && i < 2 + BW_PARTS_MAX; i++) /* too many */
            CHECK_IN(send_part(i, 100, 0, 10));
        CHECK_EQ(wake_to_the_end(), WAKE_FAILED);
        CHECK_EQ(got.frames, 0);
        CHECK_IN(stop());
    }
}

/* A binary that is allowed and finds no memory is not the peer's fault. */
static void a_part_without_memory_has_a_reason_of_its_own(void)
{
    CHECK_IN(start(BW_FRAME_MAX_BYTES));
    here.pump.parts.largest = UINT32_MAX;
    CHECK_EQ(pump_credit(&here.pump, 900, 1000000), WAKE_ASLEEP);
    CHECK_IN(send_part(1, 100, 0, 60));
    CHECK_IN(send_part(2, SHIM_BINARY_MAX + 1, 0, 10));
    CHECK_EQ(wake_to_the_end(), WAKE_FAILED);
    CHECK(here.pump.reason && strcmp(here.pump.reason, "enomem") == 0);
    CHECK_IN(stop());
}

static const check_case_t cases[] = {
    {"nothing_comes_without_credit", nothing_comes_without_credit},
    {"what_waits_for_credit_outlives_looks", what_waits_for_credit_outlives_looks},
    {"a_large_frame_makes_a_debt", a_large_frame_makes_a_debt},
    {"an_empty_frame_is_one", an_empty_frame_is_one},
    {"a_frame_above_the_limit_fails", a_frame_above_the_limit_fails},
    {"the_last_word_comes_behind_all", the_last_word_comes_behind_all},
    {"an_end_without_a_word", an_end_without_a_word},
    {"the_distribution_has_no_last_word", the_distribution_has_no_last_word},
    {"what_is_unreleased_is_known", what_is_unreleased_is_known},
    {"a_lane_that_closes_is_busy_until_all_is_out", a_lane_that_closes_is_busy_until_all_is_out},
    {"parts_come_as_one", parts_come_as_one},
    {"not_all_that_looks_so_is_a_part", not_all_that_looks_so_is_a_part},
    {"wrong_parts_fail", wrong_parts_fail},
    {"a_part_without_memory_has_a_reason_of_its_own",
     a_part_without_memory_has_a_reason_of_its_own},
};

CARRIERS_MAIN(cases)
