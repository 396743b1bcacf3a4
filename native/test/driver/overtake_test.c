/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests distribution frames in the driver's pump: small signals pass the fragments of large ones,
 * the frames of each process keep their order, senders that fill the link are reported, and a
 * closing port reports when everything has been sent. The frames are like those that ERTS writes,
 * and the test reads them as the peer would.
 */
#include "pump_ends.h"

#define FRAGMENT 65536u
#define SMALL 64u

/* A record of what the peer has read: one letter per frame, and the number of bytes before it. */
static struct {
    char tags[4096];
    uint64_t at[4096];
    unsigned frames;
    uint64_t bytes;
    uint8_t *half; /* an incomplete frame */
    size_t half_len;
} read_by_peer;

static void start_distribution(uint64_t ring_bytes)
{
    CHECK_IN(start(ring_bytes));
    free(read_by_peer.half);
    memset(&read_by_peer, 0, sizeof read_by_peer);
    (void)pump_defer(&here.pump);
}

/* ---- frames ---- */

static uint8_t *put_pid(uint8_t *at, uint32_t process)
{
    static const uint8_t node[] = {88, 119, 3, 'a', '@', 'b'};

    memcpy(at, node, sizeof node);
    at = bw_put(at + sizeof node, process, 4);
    at = bw_put(at, 0, 4);
    return bw_put(at, 1, 4);
}

static uint64_t sequence_of(uint32_t process)
{
    return (uint64_t)process << 32 | 0x33;
}

/* Sends a frame in two pieces, as the VM would; the tag is its last byte. Returns false if it was
 * not accepted. */
static bool send_tagged(char tag, uint8_t header, uint32_t process, uint32_t fragment, size_t len)
{
    uint8_t *bytes = calloc(1, len), *at = bytes;
    SysIOVec iov[3] = {{.iov_base = NULL}};
    ErlIOVec ev = {.vsize = 3, .size = (ErlDrvSizeT)len, .iov = iov};
    bool is_taken;

    at = bw_put(at, 131u << 8 | header, 2);
    if (header != 68) {
        at = bw_put(at, sequence_of(process), 8);
        at = bw_put(at, fragment, 8);
    }
    if (header != 70) {
        static const uint8_t send_sender[] = {0, 104, 3, 97, 22};

        memcpy(at, send_sender, sizeof send_sender);
        at = put_pid(put_pid(at + sizeof send_sender, process), 7);
    }
    bytes[len - 1] = (uint8_t)tag;
    iov[1] = (SysIOVec){.iov_base = (char *)bytes, .iov_len = (size_t)(at - bytes)};
    iov[2] = (SysIOVec){.iov_base = (char *)at, .iov_len = len - (size_t)(at - bytes)};
    is_taken = pump_send(&here.pump, &ev);
    free(bytes);
    return is_taken;
}

static void send_small(char tag, uint32_t process)
{
    CHECK(send_tagged(tag, 68, process, 0, SMALL));
}

static void send_large(char tag, uint32_t process, uint32_t fragments)
{
    for (uint32_t left = fragments; left > 0; left--)
        CHECK(send_tagged(tag, left == fragments ? 69 : 70, process, left, FRAGMENT));
}

/* ---- the peer ---- */

static void peer_takes(const uint8_t *at, size_t len)
{
    uint8_t *all = realloc(read_by_peer.half, read_by_peer.half_len + len);
    size_t used = 0, have = read_by_peer.half_len + len;
    bw_frame_t frame;

    CHECK(all != NULL);
    memcpy(all + read_by_peer.half_len, at, len);
    while (bw_frame_parse(all + used, have - used, &frame) == BW_FRAME_WHOLE) {
        CHECK(read_by_peer.frames < sizeof read_by_peer.tags);
        read_by_peer.tags[read_by_peer.frames] = (char)all[used + frame.head + frame.len - 1];
        read_by_peer.at[read_by_peer.frames++] = read_by_peer.bytes;
        read_by_peer.bytes += frame.size;
        used += frame.size;
    }
    memmove(all, all + used, have - used);
    read_by_peer.half = all;
    read_by_peer.half_len = have - used;
}

/* Reads until this many frames have arrived, and wakes the pump whenever there is a reason to. */
static void peer_reads_frames(unsigned frames)
{
    for (int ms = 0; ms < ARRIVES_MS && read_by_peer.frames < frames;) {
        bw_span_t span = {0};

        if (here.peer->ops->peek(here.peer, &span) == BW_OK) {
            CHECK_IN(peer_takes(span.base, span.len));
            here.peer->ops->release(here.peer, span.len);
        } else {
            CHECK(pump_flush(&here.pump));
            run_end_of(here.peer);
            ms += poll(NULL, 0, 1) == 0;
        }
        if (!pump_is_quiet())
            CHECK_EQ(wake_pump(), WAKE_ASLEEP);
    }
    CHECK_EQ(read_by_peer.frames, frames);
}

static uint64_t place_of(char tag)
{
    for (unsigned i = 0; i < read_by_peer.frames; i++)
        if (read_by_peer.tags[i] == tag)
            return read_by_peer.at[i];
    return UINT64_MAX;
}

static uint64_t bytes_that_left(void)
{
    bw_link_stats_t stats;

    here.pump.link->ops->stats(here.pump.link, &stats);
    return stats.bytes_out;
}

/* ---- cases ---- */

/* One process sends fragments, another a small signal. The only frames that can no longer be
 * overtaken are those that have left or are in flight: `in_ring` fragments in the ring, and little
 * else. */
static void pass_fragments(char large, char small, uint32_t in_ring)
{
    unsigned frames = read_by_peer.frames + 151;
    uint64_t left, before = bytes_that_left();

    CHECK_IN(send_large(large, 1, 150));
    left = bytes_that_left();
    CHECK(pump_queued(&here.pump) > 0);
    if (carrier->is_shared)
        CHECK(left - before > (in_ring - 1) * FRAGMENT &&
              left - before <= (in_ring + 1) * FRAGMENT + 1024);
    CHECK_IN(send_small(small, 2));
    CHECK(!shim.busy);
    CHECK_IN(peer_reads_frames(frames));
    CHECK(place_of(small) <= left + (here.real_ops->write ? 9 : 3) * FRAGMENT + 1024);
    CHECK_EQ(pump_queued(&here.pump), 0);
}

/* While no other frame overtakes fragments, the ring may contain more of them. */
static void a_small_signal_passes_fragments(void)
{
    CHECK_IN(start_distribution(64 * RING)); /* 4 MB, as between nodes */
    CHECK_IN(pass_fragments('a', 'b', 16));
    CHECK_IN(pass_fragments('c', 'd', 4));
    CHECK_IN(pass_fragments('e', 'f', 4));
    here.pump.unpassed_bytes += PUMP_UNPASSED_BYTES - 128 * FRAGMENT;
    CHECK_IN(send_large('g', 1, 128));
    CHECK_IN(peer_reads_frames(read_by_peer.frames + 128));
    CHECK_IN(pass_fragments('h', 'i', 16));
    CHECK_IN(stop());
}

static unsigned writes;

static bw_status_t count_write(bw_link_t *link, const struct iovec *iov, int count, size_t *taken_p)
{
    writes++;
    return here.real_ops->write(link, iov, count, taken_p);
}

/* Over a socket, a fragment waits for the next ones until 512 KB are queued or a flush is
 * requested. */
static void fragments_go_together(void)
{
    CHECK_IN(start_distribution(64 * RING));
    if (here.pump.is_deferred && here.real_ops->write) {
        here.ops.write = count_write;
        writes = 0;
        CHECK_IN(send_large('a', 1, 7));
        CHECK_EQ(writes, 0);
        CHECK(here.pump.is_unflushed); /* the driver requests a flush */
        CHECK(pump_flush(&here.pump));
        CHECK(writes > 0);
        CHECK_IN(peer_reads_frames(7));
        writes = 0;
        CHECK_IN(send_large('a', 1, 8));
        CHECK(writes > 0);
        CHECK_IN(peer_reads_frames(15));
        writes = 0;
        CHECK_IN(send_large('a', 1, 2));
        CHECK_IN(send_small('b', 2)); /* sends the fragments along with it */
        CHECK(writes > 0);
        CHECK_IN(peer_reads_frames(18));
        CHECK_EQ(read_by_peer.tags[16], 'b'); /* ahead of the continuation */
        CHECK_EQ(pump_queued(&here.pump), 0);
    }
    CHECK_IN(stop());
}

static int has_room; /* number of pieces for which there is room */

static bw_status_t write_some(bw_link_t *link, const struct iovec *iov, int count, size_t *taken_p)
{
    count = count < has_room ? count : has_room;
    has_room -= count;
    *taken_p = 0;
    return count > 0 ? here.real_ops->write(link, iov, count, taken_p) : BW_AGAIN;
}

/* A few small signals do not cause any sender to be suspended, whichever frame comes first among
 * those that are sent together over a socket. */
static void few_small_signals_beside_fragments_suspend_nobody(void)
{
    CHECK_IN(start_distribution(64 * RING));
    if (here.pump.is_deferred && here.real_ops->write) {
        CHECK(send_tagged('a', 69, 1, 3, FRAGMENT));
        CHECK(send_tagged('a', 70, 1, 2, FRAGMENT));
        CHECK_IN(peer_reads_frames(2));
        CHECK(send_tagged('a', 70, 1, 1, FRAGMENT));
        here.ops.write = write_some;
        has_room = 0;
        CHECK_IN(send_small('b', 2)); /* b a */
        CHECK_EQ(here.pump.scheduler.counts.frames, 0);
        CHECK(!shim.busy);
        CHECK_IN(send_small('c', 2));
        CHECK_IN(send_large('d', 3, 1));
        CHECK_IN(send_small('e', 2));
        has_room = 6; /* b a */
        CHECK_EQ(wake_pump(), WAKE_ASLEEP);
        CHECK(pump_queued(&here.pump) < 2 * FRAGMENT); /* c d e */
        CHECK_EQ(here.pump.scheduler.counts.frames, 0);
        CHECK(!shim.busy);
        here.ops.write = here.real_ops->write;
        CHECK_IN(peer_reads_frames(7));
        CHECK_EQ(pump_queued(&here.pump), 0);
    }
    CHECK_IN(stop());
}

static void what_a_sender_says_next_follows_its_fragments(void)
{
    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_large('a', 1, 100));
    CHECK_IN(send_small('b', 1));
    CHECK_IN(send_large('c', 1, 3));
    CHECK_IN(send_small('d', 1));
    CHECK_IN(peer_reads_frames(105));
    for (unsigned i = 0; i < 105; i++)
        CHECK_EQ(read_by_peer.tags[i], i < 100 ? 'a' : i == 100 ? 'b' : i < 104 ? 'c' : 'd');
    CHECK_IN(stop());
}

/* The longer message has already sent one fragment of five. */
static void a_shorter_message_passes_a_longer_one(void)
{
    unsigned first = 0, last = 170;

    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_large('a', 1, 150));
    CHECK_IN(send_large('b', 2, 20));
    CHECK_IN(peer_reads_frames(170));
    while (first < 170 && read_by_peer.tags[first] != 'b')
        first++;
    while (last > 0 && read_by_peer.tags[last - 1] != 'b')
        last--;
    CHECK(last - first >= 20);
    CHECK(last - first <= 20 + 20 / (BW_TURNS_PASSING_BYTES / FRAGMENT) + 1);
    CHECK_IN(stop());
}

static void a_sender_that_fills_the_link_is_named(void)
{
    bw_sender_change_t change;
    bool is_held = false;

    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_large('a', 5, 200));
    CHECK(!pump_next_change(&here.pump, &change)); /* one message never counts, however large */
    CHECK_IN(send_large('b', 5, 20));
    CHECK(pump_next_change(&here.pump, &change));
    CHECK_EQ(change.state, BW_SENDER_ASKED);
    CHECK_EQ(change.pid, sequence_of(5));
    CHECK(!pump_next_change(&here.pump, &change));
    CHECK(shim.busy); /* until it is known whether the VM suspends the sender */
    CHECK(pump_answer(&here.pump, change.key, BW_ANSWER_SUSPENDED, &is_held));
    CHECK(is_held);
    CHECK(!pump_next_change(&here.pump, &change));
    CHECK(!shim.busy); /* the other senders continue */
    CHECK_IN(peer_reads_frames(220));
    CHECK(pump_next_change(&here.pump, &change));
    CHECK_EQ(change.state, BW_SENDER_FREE);
    CHECK_EQ(change.pid, sequence_of(5));
    CHECK(!pump_next_change(&here.pump, &change));
    CHECK_IN(stop());
}

/* A sender that the VM does not suspend keeps the port busy only while the scheduler asks about
 * it. */
static void who_is_not_suspended_sends_on(void)
{
    bw_sender_change_t change;
    bool is_held = true;

    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_large('a', 5, 200));
    CHECK_IN(send_large('b', 5, 20));
    CHECK(pump_next_change(&here.pump, &change));
    CHECK(pump_answer(&here.pump, change.key, BW_ANSWER_NOT_SUSPENDED, &is_held));
    CHECK(!is_held);
    CHECK(!shim.busy);
    CHECK_IN(peer_reads_frames(220));
    CHECK(!shim.busy);
    CHECK_IN(stop());
}

/* While the port is busy, the VM suspends a sender unless that sender has asked it not to. The port
 * is no longer busy once the peer reads again. */
static void a_peer_that_takes_nothing_makes_the_port_busy(void)
{
    bw_sender_change_t change;
    bool again = false, is_held = false;

    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_large('a', 5, 10));
    CHECK(!pump_begins_watch(&here.pump));
    CHECK_IN(send_large('a', 5, 190));
    CHECK(pump_begins_watch(&here.pump));
    CHECK(!pump_begins_watch(&here.pump));
    CHECK_IN(send_large('b', 5, 20));
    CHECK(pump_next_change(&here.pump, &change));
    CHECK(pump_answer(&here.pump, change.key, BW_ANSWER_SUSPENDED, &is_held));
    for (int watches = 0; watches < 20 && !shim.busy; watches++) {
        CHECK(pump_watch(&here.pump, &again));
        CHECK(again);
        (void)poll(NULL, 0, 1); /* lets bytes that a socket has accepted arrive */
    }
    CHECK(shim.busy);
    CHECK(pump_next_change(&here.pump, &change));
    CHECK_EQ(change.state, BW_SENDER_FREE);
    CHECK_IN(peer_reads_frames(60));
    CHECK(!shim.busy);
    CHECK_IN(peer_reads_frames(220));
    CHECK(pump_watch(&here.pump, &again));
    CHECK(!again);
    CHECK_IN(stop());
}

/* If all senders together have more than 64 MB queued, the port is busy until a quarter of that has
 * been sent. */
static void all_that_waits_is_bounded(void)
{
    uint32_t process = 1;

    CHECK_IN(start_distribution(RING));
    for (; !shim.busy && process < 200; process++)
        CHECK_IN(send_large('a', process, 16));
    CHECK(shim.busy);
    CHECK(pump_queued(&here.pump) > BW_SCHEDULER_ALL_BYTES);
    CHECK(pump_queued(&here.pump) < BW_SCHEDULER_ALL_BYTES + 17 * FRAGMENT);
    CHECK_IN(peer_reads_frames((process - 1) * 16));
    CHECK_IN(room_comes());
    CHECK_IN(stop());
}

/* The VM closes the port once its queue is empty. */
static void a_port_that_closes_sends_all(void)
{
    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_large('a', 1, 150));
    CHECK_IN(send_small('b', 2));
    CHECK(shim.len > 0);
    pump_finish(&here.pump);
    CHECK(shim.len > 0);
    CHECK_IN(peer_reads_frames(151));
    for (int ms = 0; ms < ARRIVES_MS && shim.len > 0; ms++) {
        if (!pump_is_quiet())
            CHECK_EQ(wake_pump(), WAKE_ASLEEP);
        (void)poll(NULL, 0, 1);
    }
    CHECK_EQ(shim.len, 0);
    CHECK_IN(stop());
}

static void a_port_with_nothing_to_say_closes_at_once(void)
{
    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_small('a', 1));
    pump_finish(&here.pump);
    CHECK_EQ(shim.len, 0);
    CHECK_IN(peer_reads_frames(1));
    CHECK_IN(stop());
}

static void a_port_that_gives_up_frees_all(void)
{
    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_large('a', 1, 150));
    CHECK_IN(send_large('b', 2, 50));
    pump_finish(&here.pump);
    pump_drop(&here.pump);
    CHECK_EQ(shim.len, 0);
    CHECK_EQ(shim.pieces, 0);
    CHECK_EQ(pump_queued(&here.pump), 0);
    CHECK_IN(stop());
}

static void without_memory_the_link_fails(void)
{
    CHECK_IN(start_distribution(RING));
    CHECK_IN(send_large('a', 1, 150));
    shim.is_out_of_memory = true;
    CHECK(!send_tagged('b', 68, 2, 0, SMALL));
    CHECK(strcmp(here.pump.reason, "enomem") == 0);
    CHECK_IN(stop());
}

static const check_case_t cases[] = {
    {"a_small_signal_passes_fragments", a_small_signal_passes_fragments},
    {"fragments_go_together", fragments_go_together},
    {"few_small_signals_beside_fragments_suspend_nobody",
     few_small_signals_beside_fragments_suspend_nobody},
    {"what_a_sender_says_next_follows_its_fragments",
     what_a_sender_says_next_follows_its_fragments},
    {"a_shorter_message_passes_a_longer_one", a_shorter_message_passes_a_longer_one},
    {"who_is_not_suspended_sends_on", who_is_not_suspended_sends_on},
    {"a_peer_that_takes_nothing_makes_the_port_busy",
     a_peer_that_takes_nothing_makes_the_port_busy},
    {"a_sender_that_fills_the_link_is_named", a_sender_that_fills_the_link_is_named},
    {"all_that_waits_is_bounded", all_that_waits_is_bounded},
    {"a_port_that_closes_sends_all", a_port_that_closes_sends_all},
    {"a_port_with_nothing_to_say_closes_at_once", a_port_with_nothing_to_say_closes_at_once},
    {"a_port_that_gives_up_frees_all", a_port_that_gives_up_frees_all},
    {"without_memory_the_link_fails", without_memory_the_link_fails},
};

CARRIERS_MAIN(cases)
