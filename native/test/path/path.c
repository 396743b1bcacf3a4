/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NS_PER_US = 1000, LARGEST_PACKET = 65600, SMALLEST_PACKET = 20 };

/* The record before each packet in the ring. If the size is 0, the rest of the ring is unused. */
typedef struct {
    uint64_t arrival_ns;
    uint32_t size, line_bytes;
} record_t;

struct path {
    path_settings_t settings;
    path_counts_t counts;
    uint64_t random;
    uint64_t free_ns;       /* when the line will have sent everything that it has accepted */
    uint64_t free_fraction; /* of a ns, in units of 1 / rate_bits */
    uint8_t *ring;
    size_t room, head, tail, used;
};

/* ---- arguments ---- */

typedef struct {
    const char *name;
    size_t offset;
    double least, most;
    const char *expected;
} option_t;

#define WHOLE(name, field, least, most, expected)                                                  \
    {                                                                                              \
        name, offsetof(path_settings_t, field), least, most, expected                              \
    }

static const option_t options[] = {
    WHOLE("--rate", rate_bits, 1e3, 1e11, "bits per second from 1000 to 100000000000"),
    WHOLE("--delay", delay_us, 0, 1e7, "microseconds, one way, from 0 to 10000000"),
    WHOLE("--queue", queue_bytes, 1500, 1e9, "bytes from 1500 to 1000000000"),
    WHOLE("--seed", seed, 0, 1e18, "a number from 0 to 10^18"),
    WHOLE("--mtu", mtu, 576, 65535, "bytes from 576 to 65535"),
    WHOLE("--offload", offload, 0, 1, "0 or 1"),
};
static const char loss_expected[] = "a probability from 0 to 1";

static bool refuse(char *why, size_t size, const char *name, const char *value,
                   const char *expected)
{
    snprintf(why, size, "%s %s: expected %s", name, value ? value : "without a value", expected);
    return false;
}

static bool read_whole(const char *text, double least, double most, uint64_t *number)
{
    char *end;

    errno = 0;
    if (!text || text[0] < '0' || text[0] > '9')
        return false;
    *number = strtoull(text, &end, 10);
    return errno == 0 && *end == '\0' && (double)*number >= least && (double)*number <= most;
}

static bool read_share(const char *text, double *share)
{
    char *end;

    if (!text || !strchr("0123456789.", text[0]) || text[0] == '\0')
        return false;
    *share = strtod(text, &end);
    return *end == '\0' && isfinite(*share) && *share >= 0 && *share <= 1;
}

static bool parse_option(path_settings_t *settings, const char *name, const char *value, char *why,
                         size_t size)
{
    uint64_t number;

    if (strcmp(name, "--loss") == 0)
        return read_share(value, &settings->loss) || refuse(why, size, name, value, loss_expected);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (strcmp(name, options[i].name) != 0)
            continue;
        if (!read_whole(value, options[i].least, options[i].most, &number))
            return refuse(why, size, name, value, options[i].expected);
        memcpy((char *)settings + options[i].offset, &number, sizeof number);
        return true;
    }
    snprintf(why, size, "%s: there is no such option", name);
    return false;
}

bool path_parse(path_settings_t *settings, int argc, char **argv, char *why, size_t why_size)
{
    *settings = (path_settings_t){.rate_bits = 1000000000, .queue_bytes = 262144, .mtu = 1500};
    for (int i = 0; i < 2; i++) {
        if (argc <= 1 + i || argv[1 + i][0] == '-' || argv[1 + i][0] == '\0' ||
            strchr(argv[1 + i], '/'))
            return refuse(why, why_size, i ? "second" : "first", argc > 1 + i ? argv[1 + i] : NULL,
                          "the name of a network namespace");
        settings->spaces[i] = argv[1 + i];
    }
    for (int i = 3; i < argc; i += 2)
        if (!parse_option(settings, argv[i], i + 1 < argc ? argv[i + 1] : NULL, why, why_size))
            return false;
    if (strcmp(settings->spaces[0], settings->spaces[1]) == 0)
        return refuse(why, why_size, "second", settings->spaces[1],
                      "another namespace than the first");
    if (settings->queue_bytes < settings->mtu) {
        snprintf(why, why_size, "--queue %llu: expected at least the MTU, which is %llu",
                 (unsigned long long)settings->queue_bytes, (unsigned long long)settings->mtu);
        return false;
    }
    return true;
}

/* ---- random losses ---- */

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool is_lost(path_t *path, uint32_t segments)
{
    bool is_one = false;

    for (uint32_t i = 0; i < segments; i++)
        is_one |= (double)(next_random(&path->random) >> 11) * 0x1p-53 < path->settings.loss;
    return is_one;
}

/* ---- the line ---- */

/* The ring has room for the queue and the packets in flight, even if all of them are small. */
path_t *path_open(const path_settings_t *settings, unsigned int direction)
{
    double bytes = (double)settings->queue_bytes +
                   (double)settings->rate_bits / 8e6 * (double)settings->delay_us;
    double records = 1 + (double)(sizeof(record_t) + sizeof(uint64_t)) / SMALLEST_PACKET;
    path_t *path = calloc(1, sizeof *path);

    if (!path)
        return NULL;
    path->settings = *settings;
    path->random = settings->seed + direction;
    /* Consecutive seeds must not give consecutive sequences. */
    path->random = next_random(&path->random);
    path->room = ((size_t)(bytes * records) + 2 * LARGEST_PACKET) & ~(size_t)7;
    path->ring = malloc(path->room);
    if (!path->ring) {
        free(path);
        return NULL;
    }
    return path;
}

void path_close(path_t *path)
{
    if (path)
        free(path->ring);
    free(path);
}

static size_t record_room(uint32_t size)
{
    return (sizeof(record_t) + size + 7) & ~(size_t)7;
}

static bool put(path_t *path, const record_t *record, const void *packet)
{
    size_t room = record_room(record->size);
    size_t rest = path->room - path->tail;
    const record_t skip = {0};

    if (room > rest) { /* records are not split, so the next one begins at the start */
        if (path->used + rest + room > path->room)
            return false;
        if (rest >= sizeof skip)
            memcpy(path->ring + path->tail, &skip, sizeof skip);
        path->used += rest;
        path->tail = 0;
    }
    if (path->used + room > path->room)
        return false;
    memcpy(path->ring + path->tail, record, sizeof *record);
    memcpy(path->ring + path->tail + sizeof *record, packet, record->size);
    path->tail = (path->tail + room) % path->room;
    path->used += room;
    return true;
}

/* Returns how many bytes are on the line or waiting for it. */
static uint64_t queued_bytes(const path_t *path, uint64_t now_ns)
{
    if (path->free_ns <= now_ns)
        return 0;
    return (uint64_t)((double)(path->free_ns - now_ns) * (double)path->settings.rate_bits / 8e9);
}

/* Adds the time for which the bytes occupy the line. The result is exact over any number of
 * packets, because the division's remainder is kept. */
static void occupy(path_t *path, uint64_t now_ns, uint64_t bytes)
{
    uint64_t work = bytes * 8 * 1000000000;

    if (path->free_ns <= now_ns) {
        path->free_ns = now_ns;
        path->free_fraction = 0;
    }
    work += path->free_fraction;
    path->free_ns += work / path->settings.rate_bits;
    path->free_fraction = work % path->settings.rate_bits;
}

bool path_offer(path_t *path, uint64_t now_ns, const void *packet, uint32_t size,
                uint32_t line_bytes, uint32_t segments)
{
    uint64_t queued = queued_bytes(path, now_ns) + line_bytes;
    record_t record = {.size = size, .line_bytes = line_bytes};

    if (queued > path->settings.queue_bytes) {
        path->counts.dropped++;
        return false;
    }
    occupy(path, now_ns, line_bytes);
    if (queued > path->counts.most_queued_bytes)
        path->counts.most_queued_bytes = queued;
    if (is_lost(path, segments)) {
        path->counts.lost++;
        return false;
    }
    record.arrival_ns = path->free_ns + path->settings.delay_us * NS_PER_US;
    if (!put(path, &record, packet)) {
        path->counts.dropped++;
        return false;
    }
    return true;
}

/* Finds the first record and its position. */
static bool first(const path_t *path, record_t *record, size_t *at)
{
    if (path->used == 0)
        return false;
    *at = path->head;
    if (path->room - *at < sizeof *record) {
        *at = 0;
    } else {
        memcpy(record, path->ring + *at, sizeof *record);
        if (record->size != 0)
            return true;
        *at = 0;
    }
    memcpy(record, path->ring, sizeof *record);
    return true;
}

uint64_t path_next(const path_t *path)
{
    record_t record;
    size_t at;

    return first(path, &record, &at) ? record.arrival_ns : UINT64_MAX;
}

const void *path_due(path_t *path, uint64_t now_ns, uint32_t *size)
{
    record_t record;
    size_t at;

    if (!first(path, &record, &at) || record.arrival_ns > now_ns)
        return NULL;
    *size = record.size;
    return path->ring + at + sizeof record;
}

void path_done(path_t *path)
{
    record_t record;
    size_t at;

    if (!first(path, &record, &at))
        return;
    if (at != path->head)
        path->used -= path->room - path->head;
    path->used -= record_room(record.size);
    path->head = (at + record_room(record.size)) % path->room;
    path->counts.packets++;
    path->counts.bytes += record.line_bytes;
}

const path_counts_t *path_counts(const path_t *path)
{
    return &path->counts;
}
