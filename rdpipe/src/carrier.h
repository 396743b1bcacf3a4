/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CARRIER_H
#define RD_CARRIER_H

#include "link.h"
#include "text.h"

/*
 * How the two sides of a hop get a link over one of the carriers (native/link). They have proved
 * themselves over a TCP connection, `socket` here: the consumer listens, the producer connects to
 * what the consumer's listener says. What a carrier wants to know beside that, it takes from the
 * connection: rdma the addresses of its ends, tcp the socket itself.
 *
 * The carrier for rdma is the shared object lib/rdpipe/beamway_rdma.so beside the folder of the
 * commands, loaded when a hop may be rdma and this host has a device. One thread calls these; each
 * waits until `deadline` at most, or until `stop` is readable. False: *why says why, and nothing is
 * open.
 */

enum { RD_CARRIER_SHM = 1, RD_CARRIER_RDMA = 2, RD_CARRIER_TCP = 4 };
#define RD_CARRIERS_ALL ((uint32_t)(RD_CARRIER_SHM | RD_CARRIER_RDMA | RD_CARRIER_TCP))

/* Those that are tried before the connection itself becomes the link, the best first. */
#define RD_CARRIERS_TRIED 2
extern const uint32_t rd_carriers_tried[RD_CARRIERS_TRIED];

/* Is the carrier for rdma compiled in? */
bool rd_carrier_has_rdma(void);

/* A link that is not linked yet. */
typedef struct {
    bw_link_t *link;    /* NULL: none */
    bw_report_t report; /* of the last step */
} rd_attempt_t;

/* The report has the address and the token for the producer. */
bool rd_carrier_listen(uint32_t carrier, int socket, int stop, int64_t deadline,
                       rd_attempt_t *attempt_p, rd_why_t *why);

/* Connects to a listener of that address, and waits until both sides have the link, which is
 * *link_p. `device` is its device, "" if there is none in particular. */
bool rd_carrier_connect(uint32_t carrier, int socket, const uint8_t *address, size_t address_len,
                        const uint8_t token[BW_TOKEN_BYTES], uint64_t ring_bytes, int stop,
                        int64_t deadline, bw_link_t **link_p, char device[BW_DEVICE_BYTES],
                        rd_why_t *why);

/* Waits until the producer has come to a listener: the attempt is gone then, and *link_p is linked.
 * On failure the attempt stays the caller's. */
bool rd_carrier_accept(rd_attempt_t *attempt, int stop, int64_t deadline, bw_link_t **link_p,
                       rd_why_t *why);

/* Ends an attempt; safe without one. */
void rd_carrier_end(rd_attempt_t *attempt);

#endif
