/* SPDX-License-Identifier: Apache-2.0
 *
 * A link that outlives its connections, under random faults of the network: two ports of the whole
 * driver in the VM of vm.h, joined through a relay that passes on what it likes and is cut at any
 * moment, within a frame as well. What each port sends must arrive at the other once, in order and
 * whole, and no more may be kept than was allowed.
 *
 * SESSION_SEEDS of the environment: how many schedules of faults; default 300.
 */
#define _GNU_SOURCE
#include "port_pair.h"

#include <fcntl.h>
#include <stdlib.h>

#define KEPT_BYTES ((uint64_t)1 << 20) /* the session's limit */
#define FRAME_MAX_BYTES 150000

static unsigned seeds = 300;

/* ---- chance ---- */

static uint64_t chance;

static uint32_t any(uint32_t below)
{
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((chance >> 33) % below);
}

/* ---- what is sent, and what must come ---- */

typedef struct {
    uint64_t sent, come; /* frames */
    bool is_wrong;
} way_t;

static way_t ways[2]; /* from one, from other */

static uint32_t length_of(uint64_t number)
{
    uint64_t mixed = (number + 1) * 0x9E3779B97F4A7C15ull;
    uint32_t kind = (uint32_t)(mixed >> 60), size = (uint32_t)(mixed >> 20);

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

    bytes[0] = 7; /* no signal of the distribution that the scheduler would read */
    (void)bw_put(bytes + 1, number, 8);
    for (uint32_t i = 9; i < len; i++)
        bytes[i] = byte_of(number, i);
    vm_send(side == 0 ? one : other, bytes, len);
}

static void deliver(ErlDrvPort port, const uint8_t *at, uint64_t len)
{
    way_t *way = &ways[port == one ? 1 : 0];
    uint64_t number = way->come++;
    bool fits = len == length_of(number) && at[0] == 7 && bw_number(at + 1, 8) == number;

    for (uint32_t i = 9; fits && i < len; i++)
        fits = at[i] == byte_of(number, i);
    way->is_wrong |= !fits;
}

/* ---- the network ---- */

/* For each way: the end that the sender's socket leads to, and the receiver's. */
static int relay[2] = {-1, -1};
static bool is_clogged[2];
static uint64_t epoch;

static void pass(int from, int to)
{
    static uint8_t bytes[65536];
    size_t most = any(4) == 0 ? 1 + any(64) : 1 + any(sizeof bytes);
    ssize_t n = recv(from, bytes, most, MSG_DONTWAIT | MSG_PEEK);
    ssize_t done = n > 0 ? send(to, bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

    if (done > 0)
        (void)!recv(from, bytes, (size_t)done, MSG_DONTWAIT);
}

static void pass_some(void)
{
    for (int way = 0; way < 2; way++) {
        if (any(200) == 0)
            is_clogged[way] = !is_clogged[way];
        if (relay[0] >= 0 && !is_clogged[way])
            pass(relay[way], relay[1 - way]);
    }
}

/* What is on its way is lost; each side may hear of it by a reset, or only that nothing follows. */
static void cut(void)
{
    struct linger hard = {.l_onoff = 1};

    for (int side = 0; side < 2; side++) {
        if (any(2) == 0)
            (void)setsockopt(relay[side], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(relay[side]);
        relay[side] = -1;
    }
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

/* Another port makes the link, and may end before or after it is used. */
static void attach(ErlDrvPort port, int socket, uint64_t position)
{
    ErlDrvPort maker = vm_open();
    words_t words = {.len = 0};
    vm_reply_t reply = {.len = 0};

    CHECK_IN(connect_port(maker, socket));
    CHECK(port_does(maker, COMMAND_OFFER, NULL, &reply));
    CHECK_EQ(reply.len, 8);
    put_bytes(&words, reply.bytes, 8);
    put_number(&words, position, 8);
    CHECK(port_does(port, COMMAND_ATTACH, &words, NULL));
    vm_close(maker);
    vm_forget(maker);
}

static void quiet(int fd)
{
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

/* Two connections, one on each side of the relay. */
static void connect_relay(int sockets[2])
{
    int buffer = any(2) == 0 ? 0 : 8192;

    for (int side = 0; side < 2; side++) {
        CHECK(connect_sockets(buffer, &sockets[side], &relay[side]));
        quiet(relay[side]);
        is_clogged[side] = false;
    }
}

static void connect_again(void)
{
    uint64_t positions[2];
    int sockets[2];

    epoch++;
    CHECK_IN(detach(one, &positions[0]));
    if (any(2) == 0)
        send_next((int)any(2));
    CHECK_IN(detach(other, &positions[1]));
    CHECK_IN(connect_relay(sockets));
    CHECK_IN(attach(one, sockets[0], positions[1]));
    for (uint32_t rounds = any(5); rounds > 0; rounds--)
        pass_some();
    CHECK_IN(attach(other, sockets[1], positions[0]));
}

static void begin(ErlDrvPort port, int socket)
{
    words_t words = {.len = 0};

    CHECK_IN(connect_port(port, socket));
    CHECK(port_does(port, COMMAND_PACKETS, NULL, NULL));
    put_number(&words, KEPT_BYTES, 8);
    put_number(&words, 10000, 4);
    CHECK(port_does(port, COMMAND_SESSION, &words, NULL));
    CHECK(port_does(port, COMMAND_FLUSH, NULL, NULL));
    CHECK(port_activates(port, 0));
}

/* ---- a schedule ---- */

static uint64_t stat_of(ErlDrvPort port, int index)
{
    vm_reply_t stats;

    return port_does(port, COMMAND_STATS, NULL, &stats) ? bw_number(stats.bytes + 8 * index, 8) : 0;
}

#define STAT_LOSSES 14
#define STAT_KEPT 15

static uint64_t heard_losses;

/* The flusher flushes when it is asked to. */
static void do_as_flushers(void)
{
    for (int side = 0; side < 2; side++) {
        ErlDrvPort port = side == 0 ? one : other;
        const char *term;

        while ((term = vm_heard(port))) {
            heard_losses += strncmp(term, "{lost,", 6) == 0;
            if (strcmp(term, "flush") == 0)
                (void)port_does(port, COMMAND_FLUSH, NULL, NULL);
        }
    }
}

static void step(void)
{
    do_as_flushers();
    pass_some();
    (void)vm_run(0);
    if (any(8) == 0)
        vm_skip((int)any(300));
}

static bool has_all(void)
{
    return ways[0].come == ways[0].sent && ways[1].come == ways[1].sent;
}

static bool is_attached;

/* One cut, after which the link is without a connection for a while. */
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

static void run_schedule(uint32_t steps)
{
    int sockets[2];

    memset(ways, 0, sizeof ways);
    epoch = 1;
    vm_deliver = deliver;
    CHECK_IN(start());
    CHECK_IN(connect_relay(sockets));
    CHECK_IN(begin(one, sockets[0]));
    CHECK_IN(begin(other, sockets[1]));
    for (uint32_t i = 0; i < steps; i++) {
        int side = (int)any(2);
        ErlDrvPort port = side == 0 ? one : other;

        if (any(3) == 0 && !vm_is_busy(port))
            CHECK_IN(send_next(side));
        if (any(60) == 0)
            CHECK_IN(break_it());
        CHECK_IN(step());
        CHECK(!vm_reason(one) && !vm_reason(other));
        CHECK(!ways[0].is_wrong && !ways[1].is_wrong);
        CHECK(stat_of(port, STAT_KEPT) < KEPT_BYTES + 2 * FRAME_MAX_BYTES + ((uint64_t)1 << 20));
    }
    is_clogged[0] = is_clogged[1] = false;
    for (int round = 0; round < PORT_ROUNDS && !has_all(); round++) {
        is_clogged[0] = is_clogged[1] = false;
        CHECK_IN(step());
        (void)vm_run(round > 1000); /* the kernel's own timers */
    }
    CHECK(has_all());
    CHECK(!ways[0].is_wrong && !ways[1].is_wrong);
}

static void end_schedule(void)
{
    vm_deliver = NULL;
    close(relay[0]);
    close(relay[1]);
    CHECK_IN(stop());
}

static void nothing_is_lost_doubled_or_reordered(void)
{
    for (unsigned seed = 1; seed <= seeds; seed++) {
        chance = seed;
        run_schedule(200 + any(200));
        if (check_failed)
            printf("    seed %u\n", seed);
        CHECK_IN(end_schedule());
    }
}

static const check_case_t cases[] = {
    {"nothing_is_lost_doubled_or_reordered", nothing_is_lost_doubled_or_reordered},
};

int main(int argc, char **argv)
{
    const char *count = getenv("SESSION_SEEDS");

    if (count)
        seeds = (unsigned)strtoul(count, NULL, 10);
    run_over(bw_carrier_named("tcp"));
    return check_run(cases, sizeof cases / sizeof *cases, argc, argv);
}
