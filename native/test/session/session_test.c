/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests a link that outlives its connections, under random network faults. Two ports of the whole
 * driver, in the VM of vm.h, are connected through a relay that forwards random amounts and is cut
 * at any moment, even within a frame. What each port sends must arrive at the other exactly once,
 * completely and in order, and a port must not retain more than its limit.
 *
 * SESSION_SEEDS in the environment is the number of fault schedules; the default is 300.
 */
#define _GNU_SOURCE
#include "../../driver/codec.h"
#include "../../driver/dist_frame.h"
#include "../../driver/join.h"
#include "../../driver/session.h"
#include "../../driver/packing.h"
#include "../../link/frame.h"
#include "../../link/session/strands.h"
#include "../../link/stripes.h"
#include "../../link/zstd/zstd.h"
#include "../chance.h"
#include "../driver/port_pair.h"

#include <fcntl.h>
#include <stdlib.h>

#define KEPT_BYTES ((uint64_t)1 << 20) /* the session's limit on retained bytes */
#define SMALL_LIMIT ((uint64_t)64 * 1024)
#define FRAME_MAX_BYTES 150000
#define RESUME_MS 10000

static unsigned seeds = 300;
static bool all_are_small; /* frames of at most 308 bytes */

/* ---- sent and expected bytes ---- */

typedef struct {
    uint64_t sent, come;                 /* numbers of frames */
    uint64_t signals_sent, signals_come; /* numbers of fragmented signals */
    uint64_t fragment; /* number of the last signal's next fragment; counts down */
    bool is_wrong;
} way_t;

static way_t ways[2]; /* from one, from other */

static uint32_t length_of(uint64_t number)
{
    uint64_t mixed = (number + 1) * 0x9E3779B97F4A7C15ull;
    uint32_t kind = (uint32_t)(mixed >> 60), size = (uint32_t)(mixed >> 20);

    if (all_are_small)
        kind = 4;
    return 9 + (kind == 0 ? size % FRAME_MAX_BYTES : kind < 4 ? size % 6000 : size % 300);
}

static uint8_t byte_of(uint64_t number, uint32_t at)
{
    return (uint8_t)(number * 7 + at * 31 + (at >> 8));
}

static void send_next(int side)
{
    static uint8_t bytes[FRAME_MAX_BYTES + 16];
    uint64_t number = ways[side].sent++;
    uint32_t len = length_of(number);

    bytes[0] = 7; /* not a distribution signal, which the scheduler would parse */
    (void)bw_put(bytes + 1, number, 8);
    for (uint32_t i = 9; i < len; i++)
        bytes[i] = byte_of(number, i);
    vm_send(side == 0 ? one : other, bytes, len);
}

/* ---- signals in fragments ---- */

#define FRAGMENTS 4
#define SIGNAL_FIRST_BYTES 3000 /* payload bytes in the first fragment */
#define SIGNAL_LAST_BYTES 7000

static uint64_t payload_from(uint64_t fragment)
{
    return fragment == FRAGMENTS
               ? 0
               : SIGNAL_FIRST_BYTES + (FRAGMENTS - 1 - fragment) * BW_FRAGMENT_BYTES;
}

static const uint64_t signal_bytes =
    SIGNAL_FIRST_BYTES + (FRAGMENTS - 2) * BW_FRAGMENT_BYTES + SIGNAL_LAST_BYTES;

/* Sends the next fragment of the current signal, or the first fragment of a new signal. */
static void send_fragment(int side)
{
    static uint8_t bytes[BW_FRAGMENT_HEAD_BYTES + 1 + BW_FRAGMENT_BYTES];
    way_t *way = &ways[side];
    bool is_first = way->fragment == 0;
    uint64_t from, to;
    uint8_t *at = bytes;

    if (is_first) {
        way->signals_sent++;
        way->fragment = FRAGMENTS;
    }
    *at++ = BW_DIST_VERSION;
    *at++ = is_first ? BW_DIST_HEADER_FIRST : BW_DIST_HEADER_REST;
    at = bw_put(at, way->signals_sent, 8);
    at = bw_put(at, way->fragment, 8);
    if (is_first)
        *at++ = 0; /* no atoms */
    from = payload_from(way->fragment);
    way->fragment--;
    to = way->fragment == 0 ? signal_bytes : payload_from(way->fragment);
    for (; from < to; from++)
        *at++ = byte_of(way->signals_sent, (uint32_t)from);
    vm_send(side == 0 ? one : other, bytes, (size_t)(at - bytes));
}

/* All fragments of a signal arrive as one frame. */
static void deliver_signal(way_t *way, const uint8_t *at, uint64_t len)
{
    uint64_t number = ++way->signals_come;
    bool fits = len == signal_bytes + 3 && at[1] == BW_DIST_HEADER_WHOLE && at[2] == 0;

    for (uint32_t i = 0; fits && i < signal_bytes; i++)
        fits = at[3 + i] == byte_of(number, i);
    way->is_wrong |= !fits;
}

static void deliver(ErlDrvPort port, const uint8_t *at, uint64_t len)
{
    way_t *way = &ways[port == one ? 1 : 0];
    uint64_t number;
    bool fits;

    if (at[0] == BW_DIST_VERSION) {
        deliver_signal(way, at, len);
        return;
    }
    number = way->come++;
    fits = len == length_of(number) && at[0] == 7 && bw_number(at + 1, 8) == number;

    for (uint32_t i = 9; fits && i < len; i++)
        fits = at[i] == byte_of(number, i);
    way->is_wrong |= !fits;
}

/* ---- the network ---- */

/* The relay's two ends of each connection, one per side. There is one connection unless the link is
 * spread over several. */
typedef struct {
    int ends[2]; /* -1 if cut */
    bool is_clogged[2];
} relay_t;

#define RELAYS 4
static relay_t relays[RELAYS];
static bool has_small_buffers; /* small kernel buffers, for the whole case */
static unsigned spread;        /* number of connections that the link should use */
static uint64_t epoch;

static void forget_relays(void)
{
    for (int i = 0; i < RELAYS; i++)
        relays[i] = (relay_t){.ends = {-1, -1}};
}

static void pass(int from, int to)
{
    static uint8_t bytes[65536];
    size_t most = any(4) == 0 ? 1 + any(64) : 1 + any(sizeof bytes);
    ssize_t n = recv(from, bytes, most, MSG_DONTWAIT | MSG_PEEK);
    ssize_t done = n > 0 ? send(to, bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

    if (done > 0)
        (void)!recv(from, bytes, (size_t)done, MSG_DONTWAIT);
}

static void clog_all(bool on)
{
    for (int i = 0; i < RELAYS; i++)
        relays[i].is_clogged[0] = relays[i].is_clogged[1] = on;
}

static void pass_some(void)
{
    for (int i = 0; i < RELAYS; i++)
        for (int way = 0; way < 2; way++) {
            relay_t *relay = &relays[i];

            if (any(200) == 0)
                relay->is_clogged[way] = !relay->is_clogged[way];
            if (relay->ends[0] >= 0 && !relay->is_clogged[way])
                pass(relay->ends[way], relay->ends[1 - way]);
        }
}

/* Bytes in flight are lost. Each side may learn of the cut through a reset, or only because nothing
 * more arrives. */
static void cut_one(relay_t *relay)
{
    struct linger hard = {.l_onoff = 1};

    for (int side = 0; side < 2; side++) {
        if (relay->ends[side] >= 0 && any(2) == 0)
            (void)setsockopt(relay->ends[side], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        if (relay->ends[side] >= 0)
            close(relay->ends[side]);
        relay->ends[side] = -1;
    }
}

static void cut(void)
{
    for (int i = 0; i < RELAYS; i++)
        cut_one(&relays[i]);
}

static void detach(ErlDrvPort port, uint64_t *position_p)
{
    words_t words = {.len = 0};
    vm_reply_t reply = {.len = 0};

    put_number(&words, epoch, 8);
    CHECK(port_does(port, COMMAND_DETACH, &words, &reply));
    CHECK_EQ(reply.len, 8);
    *position_p = bw_number(reply.bytes, 8);
}

static void connect_port(ErlDrvPort port, int socket)
{
    words_t words = {.len = 0};
    vm_reply_t reply;

    CHECK(port_uses(port, "tcp"));
    put_number(&words, (uint64_t)256 * 1024, 8);
    for (int i = 0; i < BW_TOKEN_BYTES; i++)
        put_number(&words, 0, 1);
    put_number(&words, 1, 4);
    put_number(&words, (uint64_t)socket, 4);
    CHECK(port_does(port, COMMAND_CONNECT, &words, NULL));
    CHECK(port_steps_to(port, BW_LINKED, &reply));
    close(socket);
}

/* A separate port sets up the link, and may close before or after the link is used. */
static void attach(ErlDrvPort port, unsigned command, int socket, uint64_t position)
{
    ErlDrvPort maker = vm_open();
    words_t words = {.len = 0};
    vm_reply_t reply = {.len = 0};

    CHECK_IN(connect_port(maker, socket));
    CHECK(port_does(maker, COMMAND_OFFER, NULL, &reply));
    CHECK_EQ(reply.len, 8);
    put_bytes(&words, reply.bytes, 8);
    put_number(&words, position, 8);
    CHECK(port_does(port, command, &words, NULL));
    vm_close(maker);
    vm_forget(maker);
}

static void quiet(int fd)
{
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

/* Creates two connections, one on each side of a relay. */
static void connect_relay(relay_t *relay, int sockets[2])
{
    int buffer = any(2) == 0 && !has_small_buffers ? 0 : 8192;

    for (int side = 0; side < 2; side++) {
        CHECK(connect_sockets(buffer, &sockets[side], &relay->ends[side]));
        quiet(relay->ends[side]);
        relay->is_clogged[side] = false;
    }
}

static uint32_t connections_of(ErlDrvPort port)
{
    vm_reply_t reply = {.len = 0};

    return port_does(port, COMMAND_JOIN, NULL, &reply) ? (uint32_t)bw_number(reply.bytes, 4) : 0;
}

/* Adds a connection to a link that has several. */
static void join(void)
{
    int sockets[2], i = 0;

    while (i < RELAYS && relays[i].ends[0] >= 0)
        i++;
    if (i == RELAYS || connections_of(one) >= BW_STRIPES_MAX ||
        connections_of(other) >= BW_STRIPES_MAX)
        return;
    CHECK_IN(connect_relay(&relays[i], sockets));
    CHECK_IN(attach(one, COMMAND_JOIN, sockets[0], epoch));
    for (uint32_t rounds = any(5); rounds > 0; rounds--)
        pass_some();
    CHECK_IN(attach(other, COMMAND_JOIN, sockets[1], epoch));
}

static bool has_spread;

static void connect_again(void)
{
    unsigned command = spread > 0 && any(4) > 0 ? COMMAND_SPREAD : COMMAND_ATTACH;
    uint64_t positions[2];
    int sockets[2];

    epoch++;
    CHECK_IN(detach(one, &positions[0]));
    if (any(2) == 0)
        send_next((int)any(2));
    CHECK_IN(detach(other, &positions[1]));
    CHECK_IN(connect_relay(&relays[0], sockets));
    CHECK_IN(attach(one, command, sockets[0], positions[1]));
    for (uint32_t rounds = any(5); rounds > 0; rounds--)
        pass_some();
    CHECK_IN(attach(other, command, sockets[1], positions[0]));
    has_spread = command == COMMAND_SPREAD;
    for (unsigned i = 1; has_spread && i < spread; i++)
        CHECK_IN(join());
}

static uint64_t limit, poll_us;
static bool compresses; /* on every path, and without a limit on CPU time */

static void begin_compression(ErlDrvPort port)
{
#ifdef BW_TEST_ZSTD
    bw_codec_use(&bw_zstd_codec);
    CHECK(port_does(port, COMMAND_COMPRESS, &(words_t){.bytes = {1, 100}, .len = 2}, NULL));
#else
    (void)port;
#endif
}

static void begin(ErlDrvPort port, int socket)
{
    words_t words = {.len = 0};

    CHECK_IN(connect_port(port, socket));
    CHECK(port_does(port, COMMAND_PACKETS, NULL, NULL));
    put_number(&words, limit, 8);
    put_number(&words, RESUME_MS, 4);
    CHECK(port_does(port, COMMAND_SESSION, &words, NULL));
    CHECK(port_does(port, COMMAND_TELL_LOAD, NULL, NULL));
    if (compresses)
        CHECK_IN(begin_compression(port));
    CHECK(port_does(port, COMMAND_FLUSH, NULL, NULL));
    CHECK(port_activates(port, poll_us));
}

/* ---- a schedule ---- */

static uint64_t stat_of(ErlDrvPort port, int index)
{
    vm_reply_t stats;

    return port_does(port, COMMAND_STATS, NULL, &stats) ? bw_number(stats.bytes + 8 * index, 8) : 0;
}

#define STAT_LOSSES 14
#define STAT_KEPT 15
/* Index of the number of bytes before compression; the number after it comes next. */
#define STAT_BEFORE 25
#define STAT_AFTER 26

static uint64_t heard_losses;
static bool is_looking[2];

/* The keeper flushes when asked to, and the poller looks. */
static void do_as_keepers(void)
{
    for (int side = 0; side < 2; side++) {
        ErlDrvPort port = side == 0 ? one : other;
        const char *term;
        vm_reply_t reply;

        while ((term = vm_heard(port))) {
            heard_losses += strncmp(term, "{lost,", 6) == 0;
            if (strcmp(term, "flush") == 0)
                (void)port_does(port, COMMAND_FLUSH, NULL, NULL);
            is_looking[side] |= strcmp(term, "look") == 0;
        }
        if (is_looking[side])
            is_looking[side] = port_does(port, COMMAND_LOOK, NULL, &reply) && reply.bytes[0] == 1;
    }
}

static void step(void)
{
    do_as_keepers();
    pass_some();
    (void)vm_run(0);
    if (any(8) == 0)
        vm_skip((int)any(300));
    if (any(8) == 0)
        (void)port_samples_load(one, 7, 8);
}

static bool has_all(void)
{
    for (int way = 0; way < 2; way++)
        if (ways[way].come != ways[way].sent || ways[way].signals_come != ways[way].signals_sent)
            return false;
    return true;
}

static bool is_attached;

/* Cuts the connection once, after which the link has no connection for a while. */
static void break_it(void)
{
    CHECK_IN(cut());
    is_attached = false;
    for (uint32_t rounds = any(40); rounds > 0; rounds--) {
        CHECK_IN(step());
        if (any(4) == 0)
            CHECK_IN(send_next((int)any(2)));
    }
    CHECK_IN(connect_again());
    is_attached = true;
}

/* Cuts one of several connections, but never the last one, or adds one. */
static void break_one(void)
{
    int left = 0;

    for (int i = 0; i < RELAYS; i++)
        left += relays[i].ends[0] >= 0;
    if (left > 1 && any(2) == 0)
        CHECK_IN(cut_one(&relays[any(RELAYS)]));
    else
        CHECK_IN(join());
}

static void start_linked(uint64_t kept_bytes)
{
    int sockets[2];

    memset(ways, 0, sizeof ways);
    memset(is_looking, 0, sizeof is_looking);
    limit = kept_bytes;
    epoch = 1;
    vm_deliver = deliver;
    has_spread = false;
    CHECK_IN(start());
    CHECK_IN(connect_relay(&relays[0], sockets));
    CHECK_IN(begin(one, sockets[0]));
    CHECK_IN(begin(other, sockets[1]));
}

static void arrive(void)
{
    for (int round = 0; round < PORT_ROUNDS && !has_all(); round++) {
        clog_all(false);
        CHECK_IN(step());
        (void)vm_run(round > 1000); /* gives the kernel's own timers time */
    }
    CHECK(has_all());
    CHECK(!ways[0].is_wrong && !ways[1].is_wrong);
}

static void run_schedule(uint32_t steps, uint64_t kept_bytes)
{
    CHECK_IN(start_linked(kept_bytes));
    for (uint32_t i = 0; i < steps; i++) {
        int side = (int)any(2);
        ErlDrvPort port = side == 0 ? one : other;

        if (any(3) == 0 && !vm_is_busy(port))
            CHECK_IN(send_next(side));
        if (any(60) == 0)
            CHECK_IN(break_it());
        if (has_spread && any(30) == 0)
            CHECK_IN(break_one());
        CHECK_IN(step());
        CHECK(!vm_reason(one) && !vm_reason(other));
        CHECK(!ways[0].is_wrong && !ways[1].is_wrong);
        CHECK(stat_of(port, STAT_KEPT) < kept_bytes + 2 * FRAME_MAX_BYTES + ((uint64_t)1 << 20));
    }
    CHECK_IN(arrive());
}

static void end_schedule(void)
{
    vm_deliver = NULL;
    poll_us = 0;
    spread = 0;
    compresses = all_are_small = false;
    CHECK_IN(cut());
    CHECK_IN(stop());
}

/* Some of several connections are cut, join, or stop accepting data for a while; at times all are
 * cut. */
static void several_connections_are_one_link(void)
{
    uint64_t losses = 0;

    for (unsigned seed = 1; seed <= seeds / 3; seed++) {
        chance = seed;
        spread = 2 + any(RELAYS - 1);
        poll_us = seed % 2 == 0 ? 0 : 1000;
        run_schedule(300 + any(200), seed % 4 < 2 ? KEPT_BYTES : SMALL_LIMIT);
        if (check_failed)
            printf("    seed %u\n", seed);
        losses += stat_of(one, STAT_LOSSES);
        CHECK_IN(end_schedule());
    }
    CHECK(losses > seeds / 3);
}

/* Starts an idle link that is spread over several connections. */
static void start_spread(unsigned connections)
{
    chance = 1;
    spread = connections;
    CHECK_IN(start_linked(KEPT_BYTES));
    CHECK_IN(cut());
    while (!has_spread) {
        CHECK_IN(connect_again());
        if (!has_spread)
            CHECK_IN(cut());
    }
    CHECK_IN(send_next(0));
    CHECK_IN(arrive());
    CHECK_EQ(connections_of(one), connections);
    CHECK_EQ(connections_of(other), connections);
}

static bool has_heard(ErlDrvPort port, const char *word)
{
    const char *term;
    bool is_heard = false;

    while ((term = vm_heard(port)))
        is_heard |= strcmp(term, word) == 0;
    return is_heard;
}

static void one_of_several_is_lost(void)
{
    CHECK_IN(start_spread(RELAYS));
    (void)has_heard(one, "");
    (void)has_heard(other, "");
    for (uint64_t left = RELAYS - 1; left > 0; left--) {
        uint64_t losses[2] = {stat_of(one, STAT_LOSSES), stat_of(other, STAT_LOSSES)};

        for (int frames = 0; frames < 40; frames++)
            CHECK_IN(send_next(0));
        CHECK_IN(cut_one(&relays[left]));
        for (int round = 0; round < 20; round++)
            (void)vm_run(1);
        CHECK(has_heard(one, "thin"));
        CHECK(has_heard(other, "thin"));
        CHECK_IN(arrive());
        CHECK_EQ(connections_of(one), left);
        CHECK_EQ(connections_of(other), left);
        CHECK_EQ(stat_of(one, STAT_LOSSES), losses[0]);
        CHECK_EQ(stat_of(other, STAT_LOSSES), losses[1]);
    }
    CHECK_IN(end_schedule());
}

/* A closing port drops its connections once they have accepted everything. There are so few bytes
 * that the peer acknowledges none of them in the meantime, since an acknowledgement would reset the
 * connections. */
static void what_was_sent_goes_out_at_the_end(void)
{
    uint64_t bytes = 0;

    has_small_buffers = true;
    CHECK_IN(start_spread(2));
    clog_all(true);
    while (bytes + length_of(ways[0].sent) < BW_SESSION_ACK_BYTES - 65536) {
        bytes += length_of(ways[0].sent);
        CHECK_IN(send_next(0));
    }
    CHECK(port_does(one, COMMAND_FLUSH, NULL, NULL));
    vm_close(one);
    for (int round = 0; round < PORT_ROUNDS && ways[0].come < ways[0].sent; round++) {
        pass_some();
        clog_all(false);
        (void)vm_run(round > 1000); /* gives the kernel's own timers time */
    }
    CHECK(vm_reason(one));
    CHECK_EQ(ways[0].come, ways[0].sent);
    CHECK(!ways[0].is_wrong);
    has_small_buffers = false;
    CHECK_IN(end_schedule());
}

/* If one of several connections carries something that a correct peer never sends, the link fails
 * with a reason that names it. */
static void a_rogue_ends_the_link(void)
{
    static const uint8_t words[][BW_STRAND_HEADER] = {
        {9},                    /* no such word */
        {1, [4] = 1, [15] = 1}, /* a chunk at a distant position */
        {1, [7] = 1},           /* a chunk that is too large */
        {2, [23] = 1},          /* acknowledges bytes that were never sent */
        {3},                    /* an end */
    };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        CHECK_IN(start_spread(2));
        CHECK(send(relays[1].ends[0], words[i], BW_STRAND_HEADER, 0) == BW_STRAND_HEADER);
        for (int round = 0; round < 100 && !vm_reason(one); round++)
            (void)vm_run(1);
        CHECK(vm_reason(one) && strcmp(vm_reason(one), "beamway_session_corrupt") == 0);
        CHECK_IN(end_schedule());
    }
}

/* No more connections may join than there are places, and a connection that presents the number of
 * another epoch must be rejected. */
static void no_more_join_than_may(void)
{
    words_t words = {.len = 0};
    vm_reply_t reply = {.len = 0};
    int sockets[2];
    uint64_t now = epoch;

    CHECK_IN(start_spread(2));
    now = epoch;
    for (unsigned i = 2; i <= BW_STRIPES_MAX + 1; i++) {
        ErlDrvPort maker = vm_open();
        bool is_old = i == BW_STRIPES_MAX + 1;

        CHECK(connect_sockets(0, &sockets[0], &sockets[1]));
        CHECK_IN(connect_port(maker, sockets[0]));
        CHECK(port_does(maker, COMMAND_OFFER, NULL, &reply));
        words.len = 0;
        put_bytes(&words, reply.bytes, 8);
        put_number(&words, is_old ? now - 1 : now, 8);
        CHECK_EQ(port_does(one, COMMAND_JOIN, &words, NULL), i < BW_STRIPES_MAX);
        close(sockets[1]);
        vm_close(maker);
        vm_forget(maker);
        CHECK_EQ(connections_of(one), bw_least(i + 1, BW_STRIPES_MAX));
    }
    CHECK_IN(end_schedule());
}

static void nothing_is_lost_doubled_or_reordered(void)
{
    unsigned loads = 0;

    for (unsigned seed = 1; seed <= seeds; seed++) {
        chance = seed;
        poll_us = seed % 2 == 0 ? 0 : 1000;
        run_schedule(200 + any(200), seed % 4 < 2 ? KEPT_BYTES : SMALL_LIMIT);
        if (check_failed)
            printf("    seed %u\n", seed);
        loads += port_peer_load(other) == LOAD(7, 8);
        CHECK_IN(end_schedule());
    }
    CHECK(loads > seeds / 2);
}

/* The receiver has some fragments of a signal, and receives the others over another connection.
 * Sets *inside_p to the number of cuts that fell within a signal. */
static void send_fragments_across_cuts(unsigned *inside_p)
{
    CHECK_IN(start_linked(KEPT_BYTES));
    for (int steps = 0; steps < 200; steps++) {
        int side = (int)any(2);

        if (!vm_is_busy(side == 0 ? one : other))
            CHECK_IN(any(4) == 0 ? send_next(side) : send_fragment(side));
        if (any(40) == 0) {
            *inside_p += ways[0].fragment > 0;
            CHECK_IN(break_it());
        }
        CHECK_IN(step());
    }
    for (int side = 0; side < 2; side++)
        while (ways[side].fragment > 0)
            CHECK_IN(send_fragment(side));
    CHECK_IN(arrive());
    CHECK(ways[0].signals_come > 0 && ways[1].signals_come > 0);
}

static void fragments_are_joined_across_a_cut(void)
{
    unsigned inside = 0;

    for (unsigned seed = 1; seed <= seeds / 30 + 1; seed++) {
        chance = seed;
        compresses = seed % 2 == 0;
        send_fragments_across_cuts(&inside);
        if (check_failed)
            printf("    seed %u\n", seed);
        CHECK_IN(end_schedule());
    }
    CHECK(inside > seeds / 30);
}

/* ---- a session that is full ---- */

/* Returns whether the port retains as many bytes as it may and more are queued. */
static bool is_full(ErlDrvPort port)
{
    return stat_of(port, STAT_KEPT) >= SMALL_LIMIT && port_queued(port) > 0;
}

/* Fills one side while no bytes pass. */
static void fill(int side)
{
    ErlDrvPort port = side == 0 ? one : other;

    for (int frames = 0; frames < 10000 && !is_full(port); frames++) {
        CHECK_IN(send_next(side));
        do_as_keepers();
        (void)vm_run(0);
    }
    CHECK(is_full(port));
}

/* Each side waits for the other's acknowledgement, so it must be possible to send an
 * acknowledgement although the session is full. */
static void both_are_full(void)
{
    chance = 1;
    CHECK_IN(start_linked(SMALL_LIMIT));
    clog_all(true);
    CHECK_IN(fill(0));
    CHECK_IN(fill(1));
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

/* All the data has arrived, but its acknowledgement has not. The next connection delivers it. */
static void what_has_arrived_makes_room(void)
{
    chance = 1;
    CHECK_IN(start_linked(SMALL_LIMIT));
    clog_all(true);
    CHECK_IN(fill(0));
    clog_all(false);
    relays[0].is_clogged[1] = true;
    for (int round = 0; round < 1000; round++) {
        if (relays[0].ends[0] >= 0)
            pass(relays[0].ends[0], relays[0].ends[1]);
        (void)vm_run(0);
    }
    CHECK_IN(cut());
    CHECK_IN(connect_again());
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

static void pass_all(void)
{
    for (int round = 0; round < 1000; round++) {
        for (int way = 0; way < 2; way++)
            CHECK_IN(pass(relays[0].ends[way], relays[0].ends[1 - way]));
        (void)vm_run(0);
    }
}

/* A look finds the acknowledgement that makes room, and no event follows it. */
static void room_comes_during_a_look(void)
{
    const char *term = NULL;

    chance = 1;
    poll_us = 1000;
    CHECK_IN(start_linked(SMALL_LIMIT));
    for (int round = 0; round < 1000 && !(term && strcmp(term, "look") == 0); round++) {
        if (round % 4 == 0)
            CHECK_IN(send_next(1));
        CHECK(port_does(other, COMMAND_FLUSH, NULL, NULL));
        CHECK_IN(pass(relays[0].ends[1], relays[0].ends[0]));
        (void)vm_run(0);
        term = vm_heard(one);
    }
    CHECK(term && strcmp(term, "look") == 0);
    for (int frames = 0; frames < 10000 && !is_full(one); frames++) {
        CHECK_IN(send_next(0));
        CHECK(port_does(one, COMMAND_FLUSH, NULL, NULL));
    }
    CHECK(is_full(one));
    CHECK_IN(pass_all());
    vm_skip(2 * 256 + 256); /* all links of a node probe their paths at the same time */
    CHECK_IN(pass_all());
    CHECK_IN(look_until_it_sleeps(one));
    CHECK_EQ(port_queued(one), 0);
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

/* Returns whether the side has written bytes that the relay has not read. */
static bool has_written(int side)
{
    uint8_t byte;

    return recv(relays[0].ends[side], &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
}

/* Only a side that sends can notice that its path is down, so an idle side must send a probe. */
static void an_idle_link_tries_its_path(void)
{
    chance = 1;
    CHECK_IN(start_linked(KEPT_BYTES));
    CHECK_IN(send_next(0));
    for (int round = 0; round < 20; round++) {
        CHECK_IN(pass_all());
        vm_skip(200);
    }
    for (int half = 0; half < 3; half++) {
        CHECK(!has_written(0) && !has_written(1));
        vm_skip(RESUME_MS / 2 + 256); /* all links of a node probe their paths at the same time */
        (void)vm_run(0);
        CHECK(has_written(0) && has_written(1));
        for (int round = 0; round < 4; round++) {
            CHECK_IN(pass_all());
            vm_skip(200);
        }
        (void)vm_run(0);
    }
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

static bool nothing_is_written(void)
{
    (void)vm_run(0);
    return !has_written(0) && !has_written(1);
}

/* On a link with little traffic, acknowledgements are sent along with frames. Sent on its own, each
 * would cost both nodes a wake-up. */
static void acknowledgements_go_with_frames(void)
{
    chance = 1;
    all_are_small = true;
    CHECK_IN(start_linked(KEPT_BYTES));
    for (int round = 0; round < 40; round++) {
        for (int side = 0; side < 2; side++) {
            CHECK_IN(send_next(side));
            for (int tries = 0; tries < 1000 && !has_all(); tries++) {
                do_as_keepers();
                CHECK_IN(pass_all());
            }
        }
        vm_skip(100);
        CHECK(nothing_is_written());
        CHECK(stat_of(one, STAT_KEPT) < 5000 && stat_of(other, STAT_KEPT) < 5000);
    }
    CHECK_IN(end_schedule());
}

static size_t chunk_after(bw_session_t *session, size_t frames)
{
    for (size_t i = 0; i < frames && bw_session_gap(session, 1000); i++) {
        session->end += 1000;
        (void)bw_session_sent(session, 1000);
    }
    return session->chunk ? (size_t)session->chunk->orig_size : 0;
}

/* A node may have thousands of links that are rarely used. */
static void the_chunk_is_as_large_as_is_needed(void)
{
    bw_session_t session = {.is_on = true, .limit = KEPT_BYTES};

    CHECK_EQ(chunk_after(&session, 1), 1024);
    CHECK_EQ(chunk_after(&session, 1), 2048);
    CHECK_EQ(chunk_after(&session, 1000), BW_SESSION_CHUNK_BYTES);
    bw_session_rests(&session); /* the peer has not received it yet */
    CHECK(session.chunk);
    CHECK(bw_session_acknowledged(&session, session.out.next));
    CHECK_EQ(chunk_after(&session, 1), BW_SESSION_CHUNK_BYTES);
    CHECK(bw_session_acknowledged(&session, session.out.next));
    bw_session_rests(&session);
    CHECK(!session.chunk);
    for (int i = 0; i < 100; i++) { /* frames sent one at a time stay in the small chunk */
        CHECK_EQ(chunk_after(&session, 1), 1024);
        CHECK(bw_session_acknowledged(&session, session.out.next));
    }
    CHECK(bw_session_gap(&session, 100000));
    bw_session_free(&session);
    CHECK(vm_is_clean());
}

/* The largest frames are longer than the limit. */
static void frames_are_larger_than_the_limit(void)
{
    /* with small kernel buffers, and with normal ones */
    for (uint64_t seed = 1; seed < 9; seed++) {
        chance = seed;
        CHECK_IN(start_linked(FRAME_MAX_BYTES / 8));
        for (int frames = 0; frames < 60; frames++) {
            for (int round = 0; round < PORT_ROUNDS && vm_is_busy(one); round++)
                CHECK_IN(step());
            CHECK_IN(send_next(0));
        }
        CHECK_IN(arrive());
        CHECK_IN(end_schedule());
    }
}

#ifdef BW_TEST_ZSTD

/* Runs links like those of the cases above with compressed packets, over one connection and over
 * several. */
static void compressed_packets_outlive_connections(void)
{
    uint64_t losses = 0, before = 0, after = 0;

    for (unsigned seed = 1; seed <= seeds / 3; seed++) {
        chance = seed;
        compresses = true;
        spread = seed % 3 == 0 ? 2 + any(RELAYS - 1) : 0;
        poll_us = seed % 2 == 0 ? 0 : 1000;
        run_schedule(200 + any(200), seed % 4 < 2 ? KEPT_BYTES : SMALL_LIMIT);
        if (check_failed)
            printf("    seed %u\n", seed);
        losses += stat_of(one, STAT_LOSSES);
        before += stat_of(one, STAT_BEFORE);
        after += stat_of(one, STAT_AFTER);
        CHECK_EQ(stat_of(one, STAT_AFTER), stat_of(other, STAT_AFTER + 3));
        CHECK_EQ(stat_of(one, STAT_BEFORE), stat_of(other, STAT_BEFORE + 3));
        CHECK_IN(end_schedule());
    }
    CHECK(losses > seeds / 3);
    CHECK(before > (uint64_t)seeds * 10000);
    CHECK(after < before / 2);
}

/* The first packet after a rest is compressed without reference to earlier ones. */
static void a_link_that_rests_forgets(void)
{
    uint64_t before = 0;

    chance = 1;
    compresses = true;
    CHECK_IN(start_linked(KEPT_BYTES));
    for (int rests = 0; rests < 3; rests++) {
        for (int frames = 0; frames < 30; frames++)
            CHECK_IN(send_next(frames % 2));
        CHECK_IN(arrive());
        CHECK(stat_of(one, STAT_BEFORE) > before);
        before = stat_of(one, STAT_BEFORE);
        for (int seconds = 0; seconds < 2 * RESUME_MS / 1000; seconds++) {
            vm_skip(1000);
            CHECK_IN(pass_all());
        }
    }
    CHECK_IN(end_schedule());
}

/* ---- a malicious peer ---- */

/* The peer's bytes: the header word of a unit, then its bytes. */
typedef struct {
    const char *name;
    uint64_t before, after;
    const char *bytes;
    size_t len;
} lie_t;

#define FRAME "\x28\xB5\x2F\xFD"
#define WINDOW_17 FRAME "\x00\x38"
#define RAW_8 "\x40\x00\x00" /* a block of 8 uncompressed bytes */

static const lie_t lies[] = {
    {"too large", BW_UNIT_MAX_BYTES + 1, 100, "", 0},
    {"of nothing", 0, 100, "", 0},
    {"of no bytes", 100, 0, "", 0},
    {"larger than before", 100, 5000, "", 0},
    {"garbage", 100, 4, "abcd", 4},
    {"a window of 256 MB", 100, 6, FRAME "\x00\x90", 6},
    {"a bomb", 100, 10, WINDOW_17 "\x02\x00\x10\x00", 10}, /* 128 KB of zeros */
    {"less than it says", 9, 17, WINDOW_17 RAW_8 "\0\0\0\4abcd", 17},
    {"half a packet", 8, 17, WINDOW_17 RAW_8 "\0\0\0\5abcd", 17},
    {"half a large packet", 8, 17, WINDOW_17 RAW_8 "\0\1\0\0abcd", 17},
    {"no packet", 8, 17,
     WINDOW_17 RAW_8 "\xFF\xFF\xFF\x04"
                     "abcd",
     17},
    {"an end", 8, 17, WINDOW_17 "\x41\x00\x00\0\0\0\4abcd", 17},
};

static const char *reason_of(const lie_t *lie)
{
    uint8_t word[BW_WORD_BYTES];

    bw_word_put(word, BW_FRAME_UNIT, lie->before << 32 | lie->after);
    (void)!send(relays[0].ends[0], word, sizeof word, 0);
    (void)!send(relays[0].ends[0], lie->bytes, lie->len, 0);
    for (int round = 0; round < 100 && !vm_reason(one); round++)
        (void)vm_run(1);
    return vm_reason(one) ? vm_reason(one) : "none";
}

static void a_lie_ends_the_link(void)
{
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const char *reason;

        chance = 1;
        compresses = true;
        CHECK_IN(start_linked(KEPT_BYTES));
        reason = reason_of(&lies[i]);
        if (strcmp(reason, "beamway_compression_corrupt") != 0)
            printf("    %s: %s\n", lies[i].name, reason);
        CHECK(strcmp(reason, "beamway_compression_corrupt") == 0);
        CHECK_IN(end_schedule());
    }
}

/* A side that has not agreed to compression rejects compressed packets. */
static void nobody_compresses_unasked(void)
{
    chance = 1;
    CHECK_IN(start_linked(KEPT_BYTES));
    CHECK(strcmp(reason_of(&(lie_t){"", 8, 17, WINDOW_17 RAW_8 "\0\0\0\4abcd", 17}),
                 "beamway_compression_corrupt") == 0);
    CHECK_IN(end_schedule());
}

#endif

/* ---- memory ---- */

static bool both_live(void)
{
    return !vm_reason(one) && !vm_reason(other);
}

/* Occasionally makes the next allocation fail. */
static void step_with_little(void)
{
    int side = (int)any(2);

    vm_allocations_left = any(20) == 0 ? (int)any(6) : -1;
    if (any(3) == 0 && !vm_is_busy(side == 0 ? one : other))
        CHECK_IN(send_next(side));
    if (both_live())
        CHECK_IN(step());
    vm_allocations_left = -1;
}

/* The link may fail, but bytes that arrive are correct, and nothing is leaked. */
static void memory_is_short(void)
{
    for (unsigned seed = 1; seed <= seeds; seed++) {
        chance = seed;
        compresses = seed % 3 == 0;
        CHECK_IN(start_linked(seed % 2 == 0 ? KEPT_BYTES : SMALL_LIMIT));
        for (int steps = 0; steps < 200 && both_live(); steps++) {
            CHECK_IN(step_with_little());
            if (both_live() && any(40) == 0)
                CHECK_IN(break_it());
            CHECK(!ways[0].is_wrong && !ways[1].is_wrong);
        }
        CHECK_IN(end_schedule());
        if (check_failed)
            printf("    seed %u\n", seed);
    }
}

static const check_case_t cases[] = {
    {"both_are_full", both_are_full},
    {"what_has_arrived_makes_room", what_has_arrived_makes_room},
    {"room_comes_during_a_look", room_comes_during_a_look},
    {"frames_are_larger_than_the_limit", frames_are_larger_than_the_limit},
    {"an_idle_link_tries_its_path", an_idle_link_tries_its_path},
    {"acknowledgements_go_with_frames", acknowledgements_go_with_frames},
    {"the_chunk_is_as_large_as_is_needed", the_chunk_is_as_large_as_is_needed},
    {"fragments_are_joined_across_a_cut", fragments_are_joined_across_a_cut},
    {"memory_is_short", memory_is_short},
#ifdef BW_TEST_ZSTD
    {"compressed_packets_outlive_connections", compressed_packets_outlive_connections},
    {"a_link_that_rests_forgets", a_link_that_rests_forgets},
    {"a_lie_ends_the_link", a_lie_ends_the_link},
    {"nobody_compresses_unasked", nobody_compresses_unasked},
#endif
    {"one_of_several_is_lost", one_of_several_is_lost},
    {"what_was_sent_goes_out_at_the_end", what_was_sent_goes_out_at_the_end},
    {"a_rogue_ends_the_link", a_rogue_ends_the_link},
    {"no_more_join_than_may", no_more_join_than_may},
    {"several_connections_are_one_link", several_connections_are_one_link},
    {"nothing_is_lost_doubled_or_reordered", nothing_is_lost_doubled_or_reordered},
};

int main(int argc, char **argv)
{
    const char *count = getenv("SESSION_SEEDS");

    if (count)
        seeds = (unsigned)strtoul(count, NULL, 10);
    forget_relays();
    run_over(bw_carrier_named("tcp"));
    return check_run(cases, sizeof cases / sizeof *cases, argc, argv);
}
