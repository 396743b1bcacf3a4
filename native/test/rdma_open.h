/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_RDMA_OPEN_H
#define BW_TEST_RDMA_OPEN_H

/* Both ends of an rdma link in one process, over the fake verbs, and what of rdma is left. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

#include "rings.h"

#include "../link/carriers.h"
#include "../link/rdma/rdma.h"
#include "verbs/fake_verbs.h"

/* What is not there over real verbs. */
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

static inline bool rdma_reaches(bw_link_t *link, bw_state_t state, bw_report_t *report_p)
{
    struct pollfd poller = {.fd = link->ops->fd(link), .events = POLLIN};

    do
        link->ops->step(link, report_p);
    while (report_p->state != state && report_p->state != BW_FAILED &&
           poll(&poller, 1, 10000) == 1);
    if (report_p->state != state)
        printf("    no rdma link: %s\n", report_p->text);
    return report_p->state == state;
}

static inline bool open_rdma_link(uint64_t ring_bytes, bw_link_t **one_p, bw_link_t **other_p,
                                  bw_error_t *error_p)
{
    bw_link_t *caller = NULL, *listener = NULL;
    bw_rdma_address_t at = {.family = 4};
    bw_report_t report = {0};
    bool done;

    rdma = bw_carrier(BW_CARRIER_VERSION, error_p);
    done = rdma && inet_pton(AF_INET, FAKE_VERBS_IPV4, at.ip) == 1 &&
           listen_at(&at, 0, 0, ring_bytes, &listener, error_p) == BW_OK &&
           rdma_reaches(listener, BW_LISTENING, &report);
    at.port = port_of(&report);
    done = done && connect_to(&at, report.token, ring_bytes, 10000, &caller, error_p) == BW_OK &&
           rdma_reaches(caller, BW_LINKED, &report) && rdma_reaches(listener, BW_LINKED, &report);
    if (done) {
        *one_p = caller;
        *other_p = listener;
        return true;
    }
    if (caller)
        caller->ops->close(caller, NULL);
    if (listener)
        listener->ops->close(listener, NULL);
    return false;
}

/* The carrier's thread closes what a connection leaves in its own time; then one eventfd is left,
 * its own. The descriptors that are open then, or -1. */
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
