/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_SESSION_PAIR_H
#define BW_TEST_SESSION_PAIR_H

/*
 * Two ports of the complete driver, in the VM of vm.h, whose link outlives its connections. The
 * connections pass through a relay that forwards random amounts and may be cut at any moment, even
 * within a frame. What each port sends must arrive at the other exactly once, completely and in
 * order.
 */
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

static bool all_are_small; /* frames of at most 308 bytes */

/* ---- sent and expected bytes ---- */

typedef struct {
    uint64_t sent, come;                 /* numbers of frames */
    uint64_t signals_sent, signals_come; /* numbers of fragmented signals */
    uint64_t fragment; /* number of the last signal's next fragment; counts down */
    bool is_wrong;
} way_t;

static way_t ways[2]; /* from one, from other */

static inline uint32_t length_of(uint64_t number)
{
    uint64_t mixed = (number + 1) * 0x9E3779B97F4A7C15ull;
    uint32_t kind = (uint32_t)(mixed >> 60), size = (uint32_t)(mixed >> 20);

    if (all_are_small)
        kind = 4;
    return 9 + (kind == 0 ? size % FRAME_MAX_BYTES : kind < 4 ? size % 6000 : size % 300);
}

static inline uint8_t byte_of(uint64_t number, uint32_t at)
{
    return (uint8_t)(number * 7 + at * 31 + (at >> 8));
}

static inline void send_next(int side)
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

static inline uint64_t payload_from(uint64_t fragment)
{
    return fragment == FRAGMENTS
               ? 0
               : SIGNAL_FIRST_BYTES + (FRAGMENTS - 1 - fragment) * BW_FRAGMENT_BYTES;
}

static const uint64_t signal_bytes =
    SIGNAL_FIRST_BYTES + (FRAGMENTS - 2) * BW_FRAGMENT_BYTES + SIGNAL_LAST_BYTES;

/* Sends the next fragment of the current signal, or the first fragment of a new signal. */
static inline void send_fragment(int side)
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
static inline void deliver_signal(way_t *way, const uint8_t *at, uint64_t len)
{
    uint64_t number = ++way->signals_come;
    bool fits = len == signal_bytes + 3 && at[1] == BW_DIST_HEADER_WHOLE && at[2] == 0;

    for (uint32_t i = 0; fits && i < signal_bytes; i++)
        fits = at[3 + i] == byte_of(number, i);
    way->is_wrong |= !fits;
}

static inline void deliver(ErlDrvPort port, const uint8_t *at, uint64_t len)
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

static inline void forget_relays(void)
{
    for (int i = 0; i < RELAYS; i++)
        relays[i] = (relay_t){.ends = {-1, -1}};
}

static inline void pass(int from, int to)
{
    static uint8_t bytes[65536];
    size_t most = any(4) == 0 ? 1 + any(64) : 1 + any(sizeof bytes);
    ssize_t n = recv(from, bytes, most, MSG_DONTWAIT | MSG_PEEK);
    ssize_t done = n > 0 ? send(to, bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

    if (done > 0)
        (void)!recv(from, bytes, (size_t)done, MSG_DONTWAIT);
}

static inline void clog_all(bool on)
{
    for (int i = 0; i < RELAYS; i++)
        relays[i].is_clogged[0] = relays[i].is_clogged[1] = on;
}

static inline void pass_some(void)
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
static inline void cut_one(relay_t *relay)
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

static inline void cut(void)
{
    for (int i = 0; i < RELAYS; i++)
        cut_one(&relays[i]);
}

static inline void detach(ErlDrvPort port, uint64_t *position_p)
{
    words_t words = {.len = 0};
    vm_reply_t reply = {.len = 0};

    put_number(&words, epoch, 8);
    CHECK(port_does(port, COMMAND_DETACH, &words, &reply));
    CHECK_EQ(reply.len, 8);
    *position_p = bw_number(reply.bytes, 8);
}

static inline void connect_port(ErlDrvPort port, int socket)
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

/* Returns whether the port uses a new connection. A separate port sets up the link, and may close
 * before or after the link is used. */
static inline bool attaches(ErlDrvPort port, unsigned command, int socket, uint64_t number)
{
    ErlDrvPort maker = vm_open();
    words_t words = {.len = 0};
    vm_reply_t reply = {.len = 0};
    bool is_done;

    connect_port(maker, socket);
    is_done = port_does(maker, COMMAND_OFFER, NULL, &reply) && reply.len == 8;
    put_bytes(&words, reply.bytes, 8);
    put_number(&words, number, 8);
    is_done = is_done && port_does(port, command, &words, NULL);
    vm_close(maker);
    vm_forget(maker);
    return is_done;
}

static inline void attach(ErlDrvPort port, unsigned command, int socket, uint64_t number)
{
    CHECK(attaches(port, command, socket, number));
}

static inline void quiet(int fd)
{
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

/* Creates two connections, one on each side of a relay. */
static inline void connect_relay(relay_t *relay, int sockets[2])
{
    int buffer = any(2) == 0 && !has_small_buffers ? 0 : 8192;

    for (int side = 0; side < 2; side++) {
        CHECK(connect_sockets(buffer, &sockets[side], &relay->ends[side]));
        quiet(relay->ends[side]);
        relay->is_clogged[side] = false;
    }
}

static inline uint32_t connections_of(ErlDrvPort port)
{
    vm_reply_t reply = {.len = 0};

    return port_does(port, COMMAND_JOIN, NULL, &reply) ? (uint32_t)bw_number(reply.bytes, 4) : 0;
}

/* Adds a connection to a link that has several. */
static inline void join(void)
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

static inline void connect_again(void)
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

static inline void begin_compression(ErlDrvPort port)
{
#ifdef BW_TEST_ZSTD
    bw_codec_use(&bw_zstd_codec);
    CHECK(port_does(port, COMMAND_COMPRESS, &(words_t){.bytes = {1, 100}, .len = 2}, NULL));
#else
    (void)port;
#endif
}

static inline void begin(ErlDrvPort port, int socket)
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

static uint64_t heard_losses;
static bool is_looking[2];

/* The keeper flushes when asked to, and the poller looks. */
static inline void do_as_keepers(void)
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

static inline void step(void)
{
    do_as_keepers();
    pass_some();
    (void)vm_run(0);
    if (any(8) == 0)
        vm_skip((int)any(300));
    if (any(8) == 0)
        (void)port_samples_load(one, 7, 8);
}

static inline bool has_all(void)
{
    for (int way = 0; way < 2; way++)
        if (ways[way].come != ways[way].sent || ways[way].signals_come != ways[way].signals_sent)
            return false;
    return true;
}

static bool is_attached;

/* Cuts the connection once, after which the link has no connection for a while. */
static inline void break_it(void)
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
static inline void break_one(void)
{
    int left = 0;

    for (int i = 0; i < RELAYS; i++)
        left += relays[i].ends[0] >= 0;
    if (left > 1 && any(2) == 0)
        CHECK_IN(cut_one(&relays[any(RELAYS)]));
    else
        CHECK_IN(join());
}

static inline void start_linked(uint64_t kept_bytes)
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

static inline void arrive(void)
{
    for (int round = 0; round < PORT_ROUNDS && !has_all(); round++) {
        clog_all(false);
        CHECK_IN(step());
        (void)vm_run(round > 1000); /* gives the kernel's own timers time */
    }
    CHECK(has_all());
    CHECK(!ways[0].is_wrong && !ways[1].is_wrong);
}

static inline void run_schedule(uint32_t steps, uint64_t kept_bytes)
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
        CHECK(stat_of(port, STAT_kept_bytes) <
              kept_bytes + 2 * FRAME_MAX_BYTES + ((uint64_t)1 << 20));
    }
    CHECK_IN(arrive());
}

static inline void end_schedule(void)
{
    vm_deliver = NULL;
    poll_us = 0;
    spread = 0;
    compresses = all_are_small = false;
    CHECK_IN(cut());
    CHECK_IN(stop());
}

/* Starts an idle link that is spread over several connections. */
static inline void start_spread(unsigned connections)
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

#endif
