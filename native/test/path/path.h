/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PATH_H
#define BW_PATH_H

/*
 * One direction of a network path: a bounded queue in front of a line with a limited rate,
 * followed by a delay and then by loss. These functions are pure: the caller supplies the packets
 * and the time (ns, CLOCK_MONOTONIC).
 *
 * A packet waits until the line has sent everything before it, occupies the line for as long as
 * its bytes take at the given rate, and arrives after the delay. Packets that find the queue full
 * are dropped. Lost packets have still occupied the line, as on a path that loses packets after
 * its bottleneck. Packets are never reordered.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t rate_bits; /* bits per second */
    uint64_t delay_us;  /* one way */
    double loss;        /* per packet */
    uint64_t queue_bytes;
    uint64_t seed; /* equal seeds and packets give equal losses */
    uint64_t mtu;
    uint64_t offload; /* 1 if segments of a TCP stream travel together, as on a host with offload */
    const char *spaces[2]; /* network namespaces, as `ip netns` names them */
} path_settings_t;

typedef struct {
    uint64_t packets, bytes; /* that have arrived; bytes as counted on the line */
    uint64_t lost;           /* lost by chance */
    uint64_t dropped;        /* dropped at the full queue */
    uint64_t most_queued_bytes;
} path_counts_t;

typedef struct path path_t;

/* Parses `SPACE SPACE [--option number]...`. On failure, `why` names the argument and what was
 * expected. */
bool path_parse(path_settings_t *settings, int argc, char **argv, char *why, size_t why_size);

/* Opens one direction. The two directions of a path have different numbers, so they lose different
 * packets. Returns NULL if memory runs out. */
path_t *path_open(const path_settings_t *settings, unsigned int direction);
void path_close(path_t *path);

/* Accepts a packet that occupies the line for this many bytes. If it consists of several segments,
 * losing one of them loses them all. Returns false if it is lost or dropped. Times must not
 * decrease. */
bool path_offer(path_t *path, uint64_t now_ns, const void *packet, uint32_t size,
                uint32_t line_bytes, uint32_t segments);

/* Returns the time at which the next packet arrives; UINT64_MAX if none is in flight. */
uint64_t path_next(const path_t *path);

/* Returns the packet that has arrived by now, or NULL. The caller may use it until path_done(). */
const void *path_due(path_t *path, uint64_t now_ns, uint32_t *size);
void path_done(path_t *path);

const path_counts_t *path_counts(const path_t *path);

#endif
