/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how many bytes may be in flight over a path with an endless queue: as many as fill the
 * path, and few more, also when the path becomes slower, faster or longer. */
#include "../check.h"

#include "../../link/session/flight.h"

#define MS 1000ull
#define S (1000 * MS)
#define MB 1000000ull

/* A path. What is on it beyond rate * rtt waits in its queue, like the bytes of others. The peer's
 * kernel acknowledges every ACK_BYTES at once. Its program acknowledges every NEWS_BYTES, `late_ms`
 * after they have arrived. */
#define LATE_MS 64
#define ACK_BYTES 24000
#define NEWS_BYTES 65536
typedef struct {
    uint64_t rate, rtt_us; /* bytes per second; without a queue */
    uint64_t others;
    unsigned late_ms;
    uint64_t now_us, on_path, sent, known, delivered, acknowledged;
    uint64_t late[LATE_MS]; /* what had arrived in each of the last milliseconds */
    uint64_t smoothed_us;
    bw_flight_t flight;
} path_t;

static uint64_t product(const path_t *path)
{
    return path->rate * path->rtt_us / S;
}

static uint64_t rtt_now(const path_t *path)
{
    return bw_greatest(path->rtt_us, (path->on_path + path->others) * S / path->rate);
}

/* One millisecond, in which up to `wanted` bytes are sent. */
static void step(path_t *path, uint64_t wanted)
{
    uint64_t in_flight = path->sent - path->acknowledged;
    uint64_t room = path->flight.limit > in_flight ? path->flight.limit - in_flight : 0;
    uint64_t sent = wanted < room ? wanted : room;
    uint64_t ms = path->now_us / MS, arrives, known;

    path->flight.is_full |= sent < wanted;
    path->flight.has_waited |= sent < wanted;
    path->sent += sent;
    path->on_path += sent;
    arrives = path->on_path * MS / rtt_now(path);
    arrives = arrives > 0 ? arrives : path->on_path;
    path->on_path -= arrives;
    path->delivered += arrives;
    for (uint64_t acks = 1 + arrives / ACK_BYTES; arrives > 0 && acks > 0; acks--)
        path->smoothed_us = (7 * path->smoothed_us + rtt_now(path)) / 8;
    path->late[ms % LATE_MS] = arrives;
    path->known += path->late[(ms + LATE_MS - path->late_ms) % LATE_MS];
    known = path->known;
    if (known - path->acknowledged >= NEWS_BYTES)
        path->acknowledged = known;
    path->now_us += MS;
    if (bw_flight_is_due(&path->flight, path->now_us))
        bw_flight_sample(&path->flight, path->now_us, path->delivered, path->smoothed_us,
                         path->sent - path->on_path - path->acknowledged);
    CHECK(path->flight.at_us == 0 || path->flight.limit >= BW_FLIGHT_DRAIN_BYTES);
}

/* Returns how many bytes have arrived within `ms`. */
static uint64_t run(path_t *path, uint64_t ms, uint64_t wanted)
{
    uint64_t before = path->delivered;

    while (ms-- > 0)
        step(path, wanted);
    return path->delivered - before;
}

static path_t made(uint64_t rate, uint64_t rtt_us)
{
    path_t path = {.rate = rate, .rtt_us = rtt_us, .now_us = S, .smoothed_us = rtt_us};

    run(&path, 5, 1);
    return path;
}

/* Sends as much as is permitted for a second, and checks that this fills the path but does not make
 * the round trip much longer than BW_FLIGHT_PERCENT of the shortest (or of 5 ms, on a short path).
 */
static void check_second(path_t *path)
{
    uint64_t most =
        path->rate / 100 * (BW_FLIGHT_PERCENT + 20) * bw_greatest(path->rtt_us, 5 * MS) / S;

    CHECK(run(path, 1000, 100 * MB) >= path->rate / 100 * 96);
    CHECK(path->on_path <= bw_greatest(most, BW_FLIGHT_LEAST_BYTES));
}

static void a_path_is_filled_but_not_its_queue(void)
{
    static const uint64_t rates[] = {2 * MB, 12 * MB, 125 * MB, 1250 * MB};
    static const uint64_t rtts[] = {MS, 5 * MS, 20 * MS, 50 * MS, 300 * MS};

    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        for (size_t j = 0; j < sizeof rtts / sizeof *rtts; j++) {
            path_t path = made(rates[i], rtts[j]);

            run(&path, 20 * rtts[j] / MS + 20, 100 * MB);
            check_second(&path);
        }
}

static void a_slower_and_a_faster_path_are_noticed(void)
{
    path_t path = made(125 * MB, 20 * MS);

    run(&path, 1000, 100 * MB);
    path.rate /= 8;
    run(&path, 45000, 100 * MB);
    check_second(&path);
    path.rate *= 8;
    run(&path, 500, 100 * MB);
    check_second(&path);
}

static void a_longer_path_is_noticed(void)
{
    path_t path = made(125 * MB, 20 * MS);

    run(&path, 1000, 100 * MB);
    path.rtt_us = 80 * MS;
    run(&path, 15000, 100 * MB);
    check_second(&path);
}

/* The path was longer, or others had filled its queue. What the sender may have in flight now is a
 * queue of its own, which hides that. */
static void a_queue_does_not_count_as_distance(void)
{
    path_t path = made(125 * MB, 120 * MS);

    run(&path, 3000, 100 * MB);
    path.rtt_us = 20 * MS;
    CHECK(path.on_path > 4 * product(&path));
    run(&path, 15000, 100 * MB);
    check_second(&path);
}

/* The limit must not sink with the rate, and the rate with the limit. */
static void others_may_fill_the_queue(void)
{
    for (uint64_t products = 1; products <= 3; products++) {
        path_t path = made(125 * MB, 20 * MS);

        run(&path, 1000, 100 * MB);
        path.others = products * product(&path);
        for (int second = 0; second < 60; second++)
            CHECK(run(&path, 1000, 100 * MB) >= path.rate / 5);
    }
}

static void a_peer_may_acknowledge_late(void)
{
    path_t path = made(125 * MB, 5 * MS);

    path.late_ms = 40;
    run(&path, 2000, 100 * MB);
    CHECK(run(&path, 5000, 100 * MB) >= 5 * path.rate / 100 * 80);
    CHECK(path.flight.limit < 4 * path.rate / 25);
}

static void looking_for_the_distance_costs_little(void)
{
    path_t path = made(125 * MB, 50 * MS);

    run(&path, 2000, 100 * MB);
    CHECK(run(&path, 60000, 100 * MB) >= 60 * path.rate / 100 * 97);
}

/* Others may fill the queue in the meantime. */
static void a_rest_is_no_reason_to_forget(void)
{
    path_t path = made(125 * MB, 20 * MS);

    run(&path, 1000, 100 * MB);
    path.rtt_us = 40 * MS;
    run(&path, 5000, 100);
    path.rtt_us = 20 * MS;
    run(&path, 5000, 100);
    CHECK(run(&path, 300, 100 * MB) >= path.rate / 10 * 3 / 100 * 93);
}

/* In every eighth round trip the path nearly stops, for example because segments are lost. */
static void a_bad_moment_is_not_the_rule(void)
{
    path_t path = made(125 * MB, 20 * MS);
    uint64_t arrived = 0;

    run(&path, 1000, 100 * MB);
    for (int i = 0; i < 100; i++) {
        arrived += run(&path, 145, 100 * MB);
        path.rate /= 20;
        arrived += run(&path, 15, 100 * MB);
        path.rate *= 20;
        CHECK(path.flight.drain > 0 || path.flight.limit >= product(&path) * 3 / 2);
    }
    CHECK(arrived >= 16 * path.rate / 100 * 90);
}

static void a_lost_connection_takes_its_count_along(void)
{
    path_t path = made(125 * MB, 20 * MS);
    uint64_t limit;

    run(&path, 1000, 100 * MB);
    limit = path.flight.limit;
    path.delivered /= 2;
    run(&path, 40, 100 * MB);
    CHECK(path.flight.limit >= limit / 10 * 9 && path.flight.limit <= limit / 10 * 11);
    path.rate /= 8;
    run(&path, 45000, 100 * MB);
    check_second(&path);
}

static const check_case_t cases[] = {
    {"a_path_is_filled_but_not_its_queue", a_path_is_filled_but_not_its_queue},
    {"a_slower_and_a_faster_path_are_noticed", a_slower_and_a_faster_path_are_noticed},
    {"a_longer_path_is_noticed", a_longer_path_is_noticed},
    {"a_queue_does_not_count_as_distance", a_queue_does_not_count_as_distance},
    {"others_may_fill_the_queue", others_may_fill_the_queue},
    {"a_peer_may_acknowledge_late", a_peer_may_acknowledge_late},
    {"looking_for_the_distance_costs_little", looking_for_the_distance_costs_little},
    {"a_rest_is_no_reason_to_forget", a_rest_is_no_reason_to_forget},
    {"a_bad_moment_is_not_the_rule", a_bad_moment_is_not_the_rule},
    {"a_lost_connection_takes_its_count_along", a_lost_connection_takes_its_count_along},
};

CHECK_MAIN(cases)
