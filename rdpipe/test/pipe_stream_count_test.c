/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how many streams `--streams auto` uses: individual decisions, and their effect on paths
 * that are simulated by a formula. */
#include "chance.h"
#include "check.h"

#include "hop/stream_count.h"

#define MS 200
#define RTT_US 50000
#define SEGMENT 1448.0
#define RATE 100 /* bytes per ms */

/* ---- individual decisions ---- */

#define PERIOD(rate)                                                                               \
    .ms = MS, .acked = (uint64_t)(rate)*MS, .sent = 1000, .rtt_us = RTT_US, .busy_us = 1000,       \
    .least_rtt_us = RTT_US, .is_hungry = true
#define QUEUED .rtt_us = RTT_US + RTT_US / 8 + 1
#define UNQUEUED .rtt_us = RTT_US + RTT_US / 8
#define USE(number) .use = (number), .holds = 8
#define TRIAL USE(8), .fewer = 4, .before = RATE

/* A later initializer of the same member is meant to replace that of PERIOD. */
#pragma GCC diagnostic ignored "-Woverride-init"
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#endif

static const struct {
    const char *what;
    rd_stream_count_t from;
    rd_period_t period;
    unsigned use;
} decisions[] = {
    {"a loss", {USE(4)}, {PERIOD(RATE), .resent = 1, .live = 64}, 8},
    {"a loss with nearly a queue", {USE(4)}, {PERIOD(RATE), .resent = 1, .live = 64, UNQUEUED}, 8},
    {"a loss and a queue", {USE(4)}, {PERIOD(RATE), .resent = 1, .live = 64, QUEUED}, 4},
    {"an old loss", {USE(16), .lossy = 2}, {PERIOD(RATE), .live = 64}, 32},
    {"a loss long ago", {USE(16), .lossy = 1}, {PERIOD(RATE), .live = 64}, 16},
    {"full buffers", {USE(16)}, {PERIOD(RATE), .limited_us = 250, .live = 64}, 32},
    {"rarely full buffers", {USE(16)}, {PERIOD(RATE), .limited_us = 249, .live = 64}, 16},
    {"full buffers and a queue",
     {USE(16)},
     {PERIOD(RATE), .limited_us = 250, .live = 64, QUEUED},
     16},
    {"no visible reason", {USE(4)}, {PERIOD(RATE), .live = 64}, 8},
    {"no visible reason for so many", {USE(16)}, {PERIOD(RATE), .live = 64}, 16},
    {"few streams", {USE(4)}, {PERIOD(RATE), .resent = 1, .live = 6}, 6},
    {"one stream", {USE(4)}, {PERIOD(RATE), .resent = 1, .live = 1}, 4},
    {"all streams", {USE(64)}, {PERIOD(RATE), .resent = 1, .live = 64}, 64},
    {"nothing to send", {USE(4)}, {PERIOD(RATE), .resent = 1, .live = 64, .is_hungry = false}, 4},
    {"nothing arrived", {USE(4)}, {PERIOD(0), .resent = 1, .live = 64}, 4},
    {"no time", {USE(4)}, {PERIOD(RATE), .resent = 1, .live = 64, .ms = 0}, 4},
    {"a hold", {USE(4), .hold = 1}, {PERIOD(RATE), .resent = 1, .live = 64}, 4},
    {"a near path",
     {USE(4)},
     {PERIOD(RATE), .resent = 1, .live = 64, .least_rtt_us = 100, .rtt_us = 1100},
     8},
    {"a queue on a near path",
     {USE(4)},
     {PERIOD(RATE), .resent = 1, .live = 64, .least_rtt_us = 100, .rtt_us = 1101},
     4},
    {"a gain", {TRIAL}, {PERIOD(1.1 * RATE + 1), .live = 64}, 16},
    {"a gain, and then a queue", {TRIAL}, {PERIOD(1.1 * RATE + 1), .live = 64, QUEUED}, 8},
    {"no gain yet", {TRIAL}, {PERIOD(RATE), .live = 64}, 8},
    {"a late gain", {TRIAL, .was_poor = true}, {PERIOD(1.1 * RATE + 1), .live = 64}, 16},
    {"no gain", {TRIAL, .was_poor = true}, {PERIOD(RATE), .live = 64}, 4},
    {"no fall",
     {TRIAL, .was_poor = true, .is_for_loss = true},
     {PERIOD(RATE), .resent = 5, .live = 64},
     16},
    {"no fall, and a queue",
     {TRIAL, .was_poor = true, .is_for_loss = true},
     {PERIOD(RATE), .resent = 5, .live = 64, QUEUED},
     8},
    {"a fall",
     {TRIAL, .was_poor = true, .is_for_loss = true},
     {PERIOD(0.94 * RATE), .resent = 5, .live = 64},
     4},
    {"many losses",
     {TRIAL, .was_poor = true, .is_for_loss = true},
     {PERIOD(RATE), .resent = 6, .live = 64},
     4},
    {"many losses that pay",
     {TRIAL, .is_for_loss = true},
     {PERIOD(1.1 * RATE + 1), .resent = 50, .live = 64},
     16},
};

static void each_decision(void)
{
    for (size_t i = 0; i < sizeof decisions / sizeof *decisions; i++) {
        rd_stream_count_t count = decisions[i].from;
        unsigned use = rd_stream_count_step(&count, &decisions[i].period);

        if (use != decisions[i].use)
            (void)printf("     %s:\n", decisions[i].what);
        CHECK_EQ(use, decisions[i].use);
        CHECK_EQ(count.use, use);
    }
}

/* After each failure the next trial comes later, up to a limit. */
static void a_failure_holds(void)
{
    static const unsigned holds[] = {8, 16, 32, 64, 64, 64};
    rd_stream_count_t count = rd_stream_count_of(4);
    rd_period_t period = {PERIOD(RATE), .live = 64};

    CHECK_EQ(rd_stream_count_step(&count, &period), 8);
    for (size_t i = 0; i < sizeof holds / sizeof *holds; i++) {
        CHECK_EQ(rd_stream_count_step(&count, &period), 8);
        for (unsigned held = 0; held < holds[i]; held++)
            CHECK_EQ(rd_stream_count_step(&count, &period), 4);
        CHECK_EQ(rd_stream_count_step(&count, &period), 8);
    }
}

/* On a path that loses one packet in 100,000, most periods have no loss. */
static void a_loss_is_remembered(void)
{
    for (unsigned hold = 31; hold <= 32; hold++) {
        rd_stream_count_t count = {USE(16), .hold = hold};
        rd_period_t period = {PERIOD(RATE), .resent = 1, .live = 64};

        CHECK_EQ(rd_stream_count_step(&count, &period), 16);
        period.resent = 0;
        for (unsigned held = 1; held < hold; held++)
            CHECK_EQ(rd_stream_count_step(&count, &period), 16);
        CHECK_EQ(rd_stream_count_step(&count, &period), hold < 32 ? 32 : 16);
    }
}

static void counters_are_added(void)
{
    rd_period_t period = {.ms = MS};
    rd_tcp_t before = {
        .acked = 1000, .sent = UINT32_MAX, .resent = UINT32_MAX - 1, .busy_us = 5, .limited_us = 3};
    rd_tcp_t now = {.acked = 1 << 20,
                    .sent = 9,
                    .resent = 1,
                    .rtt_us = 60,
                    .least_rtt_us = 50,
                    .busy_us = 25,
                    .limited_us = 13};
    rd_tcp_t idle = {.rtt_us = 10, .least_rtt_us = 40}, fresh = {.sent = 1}, none = {0};

    rd_period_add(&period, &none, &none);
    CHECK_EQ(period.rtt_us, 0);
    CHECK_EQ(period.least_rtt_us, 0);
    rd_period_add(&period, &before, &now);
    rd_period_add(&period, &none, &idle);  /* it sent nothing, so its RTT is outdated */
    rd_period_add(&period, &none, &fresh); /* the kernel has not measured an RTT yet */
    CHECK_EQ(period.acked, (1 << 20) - 1000);
    CHECK_EQ(period.sent, 11);
    CHECK_EQ(period.resent, 3);
    CHECK_EQ(period.busy_us, 20);
    CHECK_EQ(period.limited_us, 10);
    CHECK_EQ(period.rtt_us, 60);
    CHECK_EQ(period.least_rtt_us, 40);
}

/* ---- paths ---- */

/* Rates are in bytes per ms. */
typedef struct {
    const char *what;
    double line, each; /* the rate of the full line, and of a single stream */
    double loss;       /* independent of the rate */
    bool is_deep;      /* a full line has a queue that lengthens the round trip */
    bool drops;        /* a full line drops packets */
    bool is_limited;   /* the socket buffers limit the streams until the line is full */
    unsigned least, most;
} path_t;

static const path_t paths[] = {
    {"1 Gbit/s, loss 0.1 %", 125000, 1100, 1e-3, .is_deep = true, .least = 64, .most = 64},
    {"1 Gbit/s, loss 0.01 %", 125000, 3500, 1e-4, .is_deep = true, .least = 32, .most = 64},
    {"1 Gbit/s, loss 0.001 %", 125000, 18000, 1e-5, .is_deep = true, .least = 8, .most = 16},
    {"1 Gbit/s, no loss", 125000, 125000, .is_deep = true, .drops = true, .least = 4, .most = 4},
    {"100 Mbit/s, a short queue", 12500, 12500, .drops = true, .least = 4, .most = 16},
    {"10 Gbit/s, small buffers", 1250000, 40000, .is_deep = true, .is_limited = true, .least = 32,
     .most = 32},
    {"a slow start that ended early", 125000, 10000, .is_deep = true, .least = 8, .most = 16},
    {"a slow reader", 10000, 10000, .least = 4, .most = 4},
};

/* Returns what the kernel would report about a period in which `use` streams send. The rate varies
 * by a fifth, but only a little if the line is full. */
static rd_period_t period_on(const path_t *path, unsigned use)
{
    bool is_full = use * path->each >= path->line;
    double rate =
        is_full ? path->line * (98 + any(5)) / 100 : use * path->each * (80 + any(41)) / 100;
    double window = path->line * RTT_US / 1000 / SEGMENT / use, lost = path->loss;
    rd_period_t period = {PERIOD(rate), .live = 64, .sent = (uint64_t)(rate * MS / SEGMENT)};

    if (is_full && path->drops)
        lost += 1.5 / (window * window);
    lost *= (double)period.sent;
    period.resent = (uint64_t)(lost + any(1000) / 1000.0);
    if (is_full && path->is_deep)
        period.rtt_us = RTT_US * 13 / 10;
    if (!is_full && path->is_limited)
        period.limited_us = period.busy_us / 2;
    return period;
}

/* Each path is used for a minute. In the last 40 s there may be no more than a few trials. */
static void each_path_has_its_number(void)
{
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        for (unsigned seed = 1; seed <= 50; seed++) {
            rd_stream_count_t count = rd_stream_count_of(RD_STREAMS_FIRST);
            unsigned changes = 0, settled;

            chance = seed;
            for (unsigned at = 0; at < 60000 / MS; at++) {
                unsigned before = count.use;
                rd_period_t period = period_on(&paths[i], before);

                changes += rd_stream_count_step(&count, &period) != before && at >= 20000 / MS;
                CHECK(count.use >= RD_STREAMS_FIRST && count.use <= 64);
            }
            settled = count.fewer > 0 ? count.fewer : count.use;
            if (settled < paths[i].least || settled > paths[i].most || changes > 8)
                (void)printf("     %s, seed %u: %u streams\n", paths[i].what, seed, settled);
            CHECK(settled >= paths[i].least);
            CHECK(settled <= paths[i].most);
            CHECK(changes <= 8);
        }
    }
}

static const check_case_t cases[] = {
    {"each_decision", each_decision},
    {"a_failure_holds", a_failure_holds},
    {"a_loss_is_remembered", a_loss_is_remembered},
    {"counters_are_added", counters_are_added},
    {"each_path_has_its_number", each_path_has_its_number},
};

CHECK_MAIN(cases)
