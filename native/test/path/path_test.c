/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the path emulator's decisions, at times that the test supplies. beamway_path_SUITE measures
 * the whole program.
 */
#include "path.h"
#include "../check.h"

#include <stdlib.h>

enum { US = 1000, SIZE = 1250, SMALL = 20, MANY = 20000 };

static const path_settings_t gigabit = {
    .rate_bits = 1000000000, .delay_us = 500, .queue_bytes = 100 * SIZE, .seed = 1, .mtu = 1500};
static uint8_t packet[9000];

static bool offer(path_t *path, uint64_t now_ns, uint32_t size)
{
    return path_offer(path, now_ns, packet, size, size, 1);
}

/* Takes the next packet at the moment at which it arrives. */
static uint64_t take(path_t *path, uint32_t *size)
{
    uint64_t when = path_next(path);
    const void *got = path_due(path, when, size);

    if (!got || path_due(path, when - 1, size))
        return 0;
    path_done(path);
    return when;
}

/* ---- arguments ---- */

static void words(void)
{
    char *argv[] = {"emulator", "a",       "b",    "--rate",    "5000", "--delay",
                    "7",        "--loss",  "0.25", "--seed",    "9",    "--mtu",
                    "9000",     "--queue", "9000", "--offload", "1"};
    path_settings_t settings;
    char why[300];

    CHECK(path_parse(&settings, sizeof argv / sizeof *argv, argv, why, sizeof why));
    CHECK_EQ(settings.rate_bits, 5000);
    CHECK_EQ(settings.delay_us, 7);
    CHECK(settings.loss == 0.25);
    CHECK_EQ(settings.seed, 9);
    CHECK_EQ(settings.mtu, 9000);
    CHECK_EQ(settings.queue_bytes, 9000);
    CHECK_EQ(settings.offload, 1);
    CHECK(strcmp(settings.spaces[1], "b") == 0);
}

static void wrong_words(void)
{
    static const struct {
        const char *words[4]; /* given after the two namespaces */
        const char *why;
    } wrong[] = {
        {{"--rate", "fast"}, "--rate fast: expected bits per second from 1000 to 100000000000"},
        {{"--rate", "999"}, "--rate 999: expected bits"},
        {{"--rate", "1e9"}, "--rate 1e9: expected bits"},
        {{"--rate"}, "--rate without a value: expected bits"},
        {{"--delay", "-1"}, "--delay -1: expected microseconds"},
        {{"--delay", "99999999999999999999"}, "--delay 99999999999999999999: expected"},
        {{"--loss", "1.5"}, "--loss 1.5: expected a probability from 0 to 1"},
        {{"--loss", "nan"}, "--loss nan: expected a probability"},
        {{"--loss", "0.1%"}, "--loss 0.1%: expected a probability"},
        {{"--loss", ""}, "--loss : expected a probability"},
        {{"--mtu", "100"}, "--mtu 100: expected bytes from 576 to 65535"},
        {{"--queue", "1500", "--mtu", "9000"},
         "--queue 1500: expected at least the MTU, which is 9000"},
        {{"--offload", "2"}, "--offload 2: expected 0 or 1"},
        {{"--burst", "1"}, "--burst: there is no such option"},
    };
    path_settings_t settings;
    char why[300];

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *argv[7] = {"emulator", "a", "b"};
        int argc = 3;

        for (; argc < 7 && wrong[i].words[argc - 3]; argc++)
            argv[argc] = (char *)wrong[i].words[argc - 3];
        CHECK(!path_parse(&settings, argc, argv, why, sizeof why));
        if (strncmp(why, wrong[i].why, strlen(wrong[i].why)) != 0)
            printf("    said: %s\n", why);
        CHECK(strncmp(why, wrong[i].why, strlen(wrong[i].why)) == 0);
    }
}

static void wrong_spaces(void)
{
    char *same[] = {"emulator", "a", "a"}, *none[] = {"emulator"},
         *path[] = {"emulator", "a", "../b"};
    path_settings_t settings;
    char why[300];

    CHECK(!path_parse(&settings, 3, same, why, sizeof why));
    CHECK(strcmp(why, "second a: expected another namespace than the first") == 0);
    CHECK(!path_parse(&settings, 1, none, why, sizeof why));
    CHECK(strcmp(why, "first without a value: expected the name of a network namespace") == 0);
    CHECK(!path_parse(&settings, 3, path, why, sizeof why));
    CHECK(strcmp(why, "second ../b: expected the name of a network namespace") == 0);
}

/* ---- the line ---- */

/* A packet of 1250 bytes occupies a line of 1 Gbit/s for 10 us. */
static void rate_and_delay(void)
{
    path_t *path = path_open(&gigabit, 0);
    uint32_t size;

    for (int i = 0; i < 100; i++)
        CHECK(offer(path, 7 * US, SIZE));
    for (int i = 1; i <= 100; i++) {
        CHECK_EQ(take(path, &size), (uint64_t)(7 + 10 * i + 500) * US);
        CHECK_EQ(size, SIZE);
    }
    CHECK_EQ(path_next(path), UINT64_MAX);
    /* A line that was idle does not accumulate unused capacity. */
    CHECK(offer(path, 5000 * US, SIZE));
    CHECK_EQ(take(path, &size), (uint64_t)(5000 + 10 + 500) * US);
    CHECK_EQ(path_counts(path)->packets, 101);
    CHECK_EQ(path_counts(path)->bytes, 101 * SIZE);
    path_close(path);
}

/* 40 bytes at 7 Mbit/s take 45714 and two sevenths ns. After a second no time may have been lost to
 * rounding. */
static void fractions_are_kept(void)
{
    path_settings_t settings = gigabit;
    path_t *path;
    uint64_t when = 0;
    uint32_t size;

    settings.rate_bits = 7000000;
    settings.delay_us = 0;
    path = path_open(&settings, 0);
    CHECK(offer(path, 0, 40));
    for (int i = 1; i < 21875; i++) {
        CHECK(offer(path, when, 40));
        when = take(path, &size);
        CHECK(when != 0);
    }
    CHECK_EQ(take(path, &size), 1000000000);
    path_close(path);
}

static void queue_is_bounded(void)
{
    path_t *path = path_open(&gigabit, 0);

    for (int i = 0; i < 150; i++)
        CHECK_EQ(offer(path, 0, SIZE), i < 100);
    CHECK_EQ(path_counts(path)->dropped, 50);
    CHECK_EQ(path_counts(path)->most_queued_bytes, 100 * SIZE);
    /* The line has sent ten of them. */
    for (int i = 0; i < 20; i++)
        CHECK_EQ(offer(path, 100 * US, SIZE), i < 10);
    CHECK_EQ(path_counts(path)->dropped, 60);
    path_close(path);
}

/* The ring has room for every packet that the queue and the delay admit. */
static void small_packets_fit(void)
{
    path_t *path = path_open(&gigabit, 0);
    uint32_t size, count = 0;
    uint64_t now = 0;

    for (; path_next(path) > now; now += 160)
        for (; offer(path, now, SMALL); count++) {
        }
    CHECK(count * SMALL > gigabit.queue_bytes + 500 * 125 - 10 * SMALL);
    for (uint32_t i = 0; i < count; i++)
        CHECK(take(path, &size) != 0);
    path_close(path);
}

/* Compares random packets at random times with a plain list. */
static void order_and_content(void)
{
    static struct {
        uint64_t when;
        uint32_t size;
        uint8_t mark;
    } list[MANY];
    path_t *path = path_open(&gigabit, 0);
    uint64_t now = 0, line = 0;
    int in = 0, out = 0;

    srand(5);
    while (out < MANY) {
        now += (uint64_t)(rand() % 40) * US;
        while (in < MANY && rand() % 4) {
            uint32_t size = SMALL + (uint32_t)rand() % (sizeof packet - SMALL);

            memset(packet, in, size);
            if (!offer(path, now, size))
                break;
            line = (line > now ? line : now) + size * 8;
            list[in].when = line + 500 * US;
            list[in].size = size;
            list[in++].mark = packet[0];
        }
        while (out < in && path_next(path) <= now) {
            uint32_t size;
            const uint8_t *got = path_due(path, now, &size);

            CHECK(got != NULL);
            CHECK_EQ(path_next(path), list[out].when);
            CHECK_EQ(size, list[out].size);
            CHECK_EQ(got[0], list[out].mark);
            CHECK_EQ(got[size - 1], list[out].mark);
            out++;
            path_done(path);
        }
    }
    CHECK_EQ(path_next(path), UINT64_MAX);
    path_close(path);
}

/* ---- loss ---- */

static int lost(const path_settings_t *settings, unsigned int direction, uint32_t segments)
{
    path_t *path = path_open(settings, direction);
    int count;

    for (int i = 0; i < MANY; i++) {
        uint32_t size;

        if (path_offer(path, (uint64_t)i * 10 * US, packet, SIZE, SIZE, segments))
            take(path, &size);
    }
    count = (int)path_counts(path)->lost;
    path_close(path);
    return count;
}

/* The seeds are fixed, so the result is always the same; it may be up to five standard deviations
 * away from 2 %. */
static void loss_share(void)
{
    path_settings_t settings = gigabit;

    CHECK_EQ(lost(&settings, 0, 1), 0);
    settings.loss = 0.02;
    for (settings.seed = 0; settings.seed < 20; settings.seed++) {
        int count = lost(&settings, 0, 1);

        CHECK(count > 300 && count < 500);
        CHECK_EQ(lost(&settings, 0, 1), count);
    }
    settings.loss = 1;
    CHECK_EQ(lost(&settings, 0, 1), MANY);
}

static void directions_lose_differently(void)
{
    path_settings_t settings = gigabit;

    settings.loss = 0.02;
    CHECK(lost(&settings, 0, 1) != lost(&settings, 1, 1));
}

/* With 40 segments, the probability that one of them is lost is 1 - 0.999^40 = 3.9 %. */
static void one_lost_segment_is_all(void)
{
    path_settings_t settings = gigabit;
    int count;

    settings.loss = 0.001;
    count = lost(&settings, 0, 40);
    CHECK(count > 650 && count < 920);
}

static const check_case_t cases[] = {
    {"words", words},
    {"wrong_words", wrong_words},
    {"wrong_spaces", wrong_spaces},
    {"rate_and_delay", rate_and_delay},
    {"fractions_are_kept", fractions_are_kept},
    {"queue_is_bounded", queue_is_bounded},
    {"small_packets_fit", small_packets_fit},
    {"order_and_content", order_and_content},
    {"loss_share", loss_share},
    {"directions_lose_differently", directions_lose_differently},
    {"one_lost_segment_is_all", one_lost_segment_is_all},
};

CHECK_MAIN(cases)
