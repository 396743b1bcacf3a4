/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_RDMA_OPEN_H
#define BW_TEST_RDMA_OPEN_H

/* Both ends of an rdma link in one process, over the fake verbs, and what of rdma is left. */
#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>

#include "rings.h"

#include "../link/rdma/rdma.h"
#include "verbs/fake_verbs.h"

/* What is not there over real verbs. */
#pragma weak fake_verbs_remove
#pragma weak fake_verbs_add
#pragma weak fake_verbs_set_port
#pragma weak fake_verbs_held

const bw_rdma_api_t *bw_rdma_api(uint32_t version, bw_error_t *error_p);

static inline bool rdma_reaches(const bw_rdma_api_t *rdma, bw_rdma_connection_t *connection,
                                bw_rdma_state_t state, bw_rdma_report_t *report_p)
{
    struct pollfd poller = {.fd = rdma->fd(connection), .events = POLLIN};

    do
        rdma->look(connection, report_p);
    while (report_p->state != state && report_p->state != BW_RDMA_FAILED &&
           poll(&poller, 1, 10000) == 1);
    if (report_p->state != state)
        printf("    no rdma link: %s\n", report_p->text);
    return report_p->state == state;
}

static inline bool open_rdma_link(uint64_t ring_bytes, bw_link_t **one_p, bw_link_t **other_p,
                                  bw_error_t *error_p)
{
    const bw_rdma_api_t *rdma = bw_rdma_api(BW_RDMA_API_VERSION, error_p);
    bw_rdma_connection_t *caller = NULL, *listener = NULL;
    bw_rdma_address_t at = {.family = 4};
    bw_rdma_report_t report = {0};
    bool done = rdma && inet_pton(AF_INET, FAKE_VERBS_IPV4, at.ip) == 1 &&
                rdma->listen(&at, 0, 0, ring_bytes, &listener, error_p) == BW_OK &&
                rdma_reaches(rdma, listener, BW_RDMA_LISTENING, &report);

    at.port = report.port;
    done = done &&
           rdma->connect(NULL, &at, report.token, ring_bytes, 10000, &caller, error_p) == BW_OK &&
           rdma_reaches(rdma, caller, BW_RDMA_LINKED, &report) &&
           rdma_reaches(rdma, listener, BW_RDMA_LINKED, &report);
    if (done) {
        *one_p = rdma->take(caller);
        *other_p = rdma->take(listener);
        return true;
    }
    if (caller)
        rdma->close(caller, NULL);
    if (listener)
        rdma->close(listener, NULL);
    return false;
}

/* The carrier's thread closes what a connection leaves in its own time; then one eventfd is left,
 * its own. The descriptors that are open then, or -1. */
static inline int descriptors_at_rest(void)
{
    int bells = 2;

    for (int ms = 0; bells > 1 && ms < 10000; ms++) {
        bells = 0;
        for (int fd = 3; fd < 128; fd++) {
            char path[32], target[64] = {0};

            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            bells += readlink(path, target, sizeof target - 1) > 0 && strstr(target, "eventfd");
        }
        (void)poll(NULL, 0, bells > 1);
    }
    return bells > 1 ? -1 : open_descriptors();
}

#endif
