/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CARRIER_H
#define RD_CARRIER_H

#include "link.h"
#include "text.h"

/*
 * How the two sides of a hop set up a link over one of the carriers (native/link). Both have
 * already proved over a TCP connection (`socket` below) that they have the key. The consumer
 * listens, and the producer connects to the address that the consumer's listener reports. A carrier
 * that needs more than that gets it from the connection: rdma uses the addresses of both ends, and
 * tcp the socket itself.
 *
 * The carrier for rdma is the shared object lib/rdpipe/beamway_rdma.so next to the commands'
 * directory. It is loaded when a hop may use rdma and the local host has a device. All calls must
 * come from one thread. A call fails if it is still waiting at `deadline`, or when `stop` becomes
 * readable. If a call returns false, *why is set and nothing is open.
 */

enum { RD_CARRIER_SHM = 1, RD_CARRIER_RDMA = 2, RD_CARRIER_TCP = 4 };
#define RD_CARRIERS_ALL ((uint32_t)(RD_CARRIER_SHM | RD_CARRIER_RDMA | RD_CARRIER_TCP))

/* The carriers that are tried before the connection itself becomes the link, best first. */
#define RD_CARRIERS_TRIED 2
extern const uint32_t rd_carriers_tried[RD_CARRIERS_TRIED];

/* Returns whether the carrier for rdma is installed. */
bool rd_carrier_has_rdma(void);

/* A link that is not connected yet. */
typedef struct {
    bw_link_t *link;    /* NULL if none */
    bw_report_t report; /* report on the last step */
} rd_attempt_t;

/* Opens a listener. Afterwards the report holds the address and the token for the producer. */
bool rd_carrier_listen(uint32_t carrier, int socket, int stop, int64_t deadline,
                       rd_attempt_t *attempt_p, rd_why_t *why);

/* Connects to a listener at that address, waits until both sides have the link, and sets *link_p to
 * it. `device` receives the name of the link's device, or "" if it does not use one. */
bool rd_carrier_connect(uint32_t carrier, int socket, const uint8_t *address, size_t address_len,
                        const uint8_t token[BW_TOKEN_BYTES], uint64_t ring_bytes, int stop,
                        int64_t deadline, bw_link_t **link_p, char device[BW_DEVICE_BYTES],
                        rd_why_t *why);

/* Waits until the producer has connected to the listener. *link_p is then connected, and the
 * attempt must not be used any more. On failure the caller still owns the attempt. */
bool rd_carrier_accept(rd_attempt_t *attempt, int stop, int64_t deadline, bw_link_t **link_p,
                       rd_why_t *why);

/* Does nothing if the attempt is not open. */
void rd_carrier_end(rd_attempt_t *attempt);

#endif
