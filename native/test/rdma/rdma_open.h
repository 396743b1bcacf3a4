/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_RDMA_OPEN_H
#define BW_TEST_RDMA_OPEN_H

/* Connects the two ends of an rdma link in one process over the fake verbs, and counts the
 * descriptors that rdma leaves open. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

#include "../rings.h"

#include "../../link/carriers.h"
#include "../../link/rdma/rdma.h"
#include "../verbs/fake_verbs.h"

/* These functions are missing if the program runs over real verbs. */
#pragma weak fake_verbs_remove
#pragma weak fake_verbs_add
#pragma weak fake_verbs_set_port
#pragma weak fake_verbs_held

bw_carrier_fn bw_carrier;

static const bw_carrier_t *rdma;

static inline bw_status_t listen_at(const bw_rdma_address_t *at, uint16_t first, uint16_t last,
                                    uint64_t max_ring_bytes, bw_link_t **link_p,
                                    bw_error_t *error_p)
{
    uint8_t place[BW_RDMA_LISTEN_BYTES];

    bw_put(bw_put(bw_rdma_put_address(place, at), first, 2), last, 2);
    return rdma->listen(
        &(bw_order_t){.at = place, .at_len = sizeof place, .ring_bytes = max_ring_bytes}, link_p,
        error_p);
}

static inline bw_status_t connect_to(const bw_rdma_address_t *to,
                                     const uint8_t token[BW_TOKEN_BYTES], uint64_t ring_bytes,
                                     uint32_t timeout_ms, bw_link_t **link_p, bw_error_t *error_p)
{
    uint8_t place[BW_RDMA_CONNECT_BYTES];
    bw_order_t order = {
        .at = place, .at_len = sizeof place, .ring_bytes = ring_bytes, .timeout_ms = timeout_ms};

    bw_rdma_put_address(bw_rdma_put_address(place, &(bw_rdma_address_t){0}), to);
    memcpy(order.token, token, sizeof order.token);
    return rdma->connect(&order, link_p, error_p);
}

static inline uint16_t port_of(const bw_report_t *report)
{
    return (uint16_t)bw_number(report->address, BW_RDMA_PORT_BYTES);
}

/* Writes the addresses in the format of carriers.h: any port of the fake device; the listener
 * reports the actual one. */
static inline size_t put_fake_listener(uint8_t *at)
{
    bw_rdma_address_t any = {.family = 4};

    (void)inet_pton(AF_INET, FAKE_VERBS_IPV4, any.ip);
    return (size_t)(bw_put(bw_rdma_put_address(at, &any), 0, 4) - at);
}

static inline size_t put_fake_peer(uint8_t *at, const uint8_t *told)
{
    bw_rdma_address_t to = {.family = 4, .port = (uint16_t)bw_number(told, BW_RDMA_PORT_BYTES)};

    (void)inet_pton(AF_INET, FAKE_VERBS_IPV4, to.ip);
    return (size_t)(bw_rdma_put_address(bw_rdma_put_address(at, &(bw_rdma_address_t){0}), &to) -
                    at);
}

/* Returns the number of open descriptors, or -1. It first waits until the carrier's thread has
 * closed those of finished connections; the thread keeps one eventfd open for itself. */
static inline int descriptors_at_rest(void)
{
    int events = 2;

    for (int ms = 0; events > 1 && ms < 10000; ms++) {
        events = 0;
        for (int fd = 3; fd < 128; fd++) {
            char path[32], target[64] = {0};

            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            events += readlink(path, target, sizeof target - 1) > 0 && strstr(target, "eventfd");
        }
        (void)poll(NULL, 0, events > 1);
    }
    return events > 1 ? -1 : open_descriptors();
}

#endif
