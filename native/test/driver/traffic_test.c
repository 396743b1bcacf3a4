/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the search for the processes that have sent the most, with fewer counters than senders and
 * by sampling. */
#include "../check.h"

#include "../../driver/traffic.h"

static const traffic_sender_t *of(const traffic_t *traffic, uint64_t pid)
{
    for (int i = 0; i < TRAFFIC_SENDERS; i++)
        if (traffic->senders[i].pid == pid && traffic->senders[i].bytes > 0)
            return &traffic->senders[i];
    return NULL;
}

static void each_has_what_it_sent(void)
{
    traffic_t traffic = {0};

    for (uint64_t pid = 1; pid <= TRAFFIC_SENDERS; pid++)
        for (uint64_t i = 0; i < pid; i++)
            traffic_count(&traffic, pid, 10);
    for (uint64_t pid = 1; pid <= TRAFFIC_SENDERS; pid++) {
        CHECK(of(&traffic, pid) && of(&traffic, pid)->bytes == 10 * pid);
        CHECK(of(&traffic, pid)->before == 0);
    }
}

/* A thousand processes that send a little do not hide three that send a lot. */
static void the_large_ones_stay(void)
{
    traffic_t traffic = {0};

    for (uint64_t i = 0; i < 100000; i++) {
        traffic_count(&traffic, 100 + i % 1000, 64);
        if (i % 10 == 0)
            for (uint64_t pid = 1; pid <= 3; pid++)
                traffic_count(&traffic, pid, 10000);
    }
    for (uint64_t pid = 1; pid <= 3; pid++) {
        const traffic_sender_t *sender = of(&traffic, pid);

        CHECK(sender && sender->bytes >= 10000ull * 10000);
        CHECK(sender->bytes - sender->before <= 10000ull * 10000);
    }
}

static void one_stands_for_many(void)
{
    traffic_t traffic = {0};
    uint64_t told = 0, bytes = 0, samples = 0;

    for (int i = 0; i < 100000; i++) {
        uint64_t stands_for = traffic_sample(&traffic, 100);

        told += stands_for;
        samples += stands_for > 0;
        bytes += 100;
    }
    CHECK(told + traffic.unsampled == bytes);
    CHECK(samples > bytes / (2 * TRAFFIC_SAMPLE_BYTES) &&
          samples < 2 * bytes / TRAFFIC_SAMPLE_BYTES);
}

/* The second sender always sends the last tenth of every 16 KB, which a fixed sampling interval
 * would miss. */
static void who_takes_turns_is_found(void)
{
    traffic_t traffic = {0};
    uint64_t found[2] = {0};

    for (int round = 0; round < 20000; round++)
        for (int i = 0; i < 160; i++)
            found[i >= 144] += traffic_sample(&traffic, TRAFFIC_SAMPLE_BYTES / 160);
    CHECK(found[1] > (found[0] + found[1]) / 14 && found[1] < (found[0] + found[1]) / 7);
}

static const check_case_t cases[] = {
    {"each_has_what_it_sent", each_has_what_it_sent},
    {"the_large_ones_stay", the_large_ones_stay},
    {"one_stands_for_many", one_stands_for_many},
    {"who_takes_turns_is_found", who_takes_turns_is_found},
};

CHECK_MAIN(cases)
