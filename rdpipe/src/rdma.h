/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_RDMA_H
#define RD_RDMA_H

#include "link.h"
#include "rdma/rdma.h"
#include "text.h"

/*
 * How the two sides of a hop get a link over RDMA. They have proved themselves over a TCP
 * connection; the consumer listens with the connection manager at the address at which that
 * connection has reached it, the producer connects to it.
 *
 * The carrier is the shared object lib/rdpipe/beamway_rdma.so beside the folder of the commands,
 * loaded when a hop may be rdma and this host has a device. One thread calls these.
 */
typedef struct {
    const bw_rdma_api_t *api;
    bw_rdma_connection_t *connection; /* NULL: none */
    bw_rdma_report_t report;          /* of the last look, with the name of the device */
} rd_rdma_t;

/* Listens. rdma_p->report has the port and the token for the producer. */
bool rd_rdma_listen(rd_rdma_t *rdma_p, int socket, int stop, int64_t deadline, rd_why_t *why);

/* Connects to a consumer that listens at the address of the other end of `socket`. */
bool rd_rdma_connect(rd_rdma_t *rdma_p, int socket, uint16_t port,
                     const uint8_t token[BW_RDMA_TOKEN_BYTES], uint64_t ring_bytes, int stop,
                     int64_t deadline, rd_why_t *why);

/* Waits until both sides have the link. The connection is gone then. */
bool rd_rdma_take(rd_rdma_t *rdma, int stop, int64_t deadline, bw_link_t **link_p, rd_why_t *why);

void rd_rdma_close(rd_rdma_t *rdma);

#endif
