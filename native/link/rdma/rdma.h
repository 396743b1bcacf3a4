/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RDMA_H
#define BW_RDMA_H

#include <string.h>

#include "../bytes.h"
#include "../link.h"

/*
 * The RDMA carrier. It is a separate shared object (carriers.h), which is the only code that needs
 * libibverbs and librdmacm; this header needs neither. The first call in a process looks for
 * devices and starts a thread. That thread makes all calls that may block (opening devices,
 * registering memory, creating and destroying queue pairs); the user's thread only posts work and
 * polls completions.
 *
 * Addresses (`at` of an order), in bytes:
 * - listen: an address, first port:16, last port:16. The address belongs to an RDMA device or, if
 *   its ip is 0, covers all addresses of its family (with IPv6, of both families); its port is
 *   ignored. The listener uses a port in the given range (0, 0 means any). Listeners at the same
 *   address in one process share a port. The first peer with the token is accepted.
 * - connect: from address (family 0 means any), to address.
 * The report's address is the port: BW_RDMA_PORT_BYTES in network order.
 */
typedef struct {
    uint8_t family; /* 4 or 6, or 0 if none */
    uint8_t ip[16]; /* network order; IPv4 uses the first four */
    uint32_t scope; /* interface number of a link-local IPv6 address, else 0 */
    uint16_t port;  /* of the connection manager, host order */
} bw_rdma_address_t;

#define BW_RDMA_ADDRESS_BYTES 23
#define BW_RDMA_PORT_BYTES 2
#define BW_RDMA_LISTEN_BYTES (BW_RDMA_ADDRESS_BYTES + 2 + 2)
#define BW_RDMA_CONNECT_BYTES (2 * BW_RDMA_ADDRESS_BYTES)

/* Writes an address in the format of an order: family:8, ip:16 bytes, scope:32, port:16. */
static inline uint8_t *bw_rdma_put_address(uint8_t *at, const bw_rdma_address_t *address)
{
    at = bw_put(at, address->family, 1);
    memcpy(at, address->ip, sizeof address->ip);
    return bw_put(bw_put(at + sizeof address->ip, address->scope, 4), address->port, 2);
}

/* The default size of each ring. */
#define BW_RDMA_RING_BYTES ((uint64_t)4 * 1024 * 1024)

/*
 * The link. In addition to link.h:
 *
 * - Rings have the same size in both directions and are locked in memory (RLIMIT_MEMLOCK) for as
 *   long as the link exists.
 * - arm_write: if more than half the ring is requested, the notification may not come until the
 *   peer closes.
 * - A link that fails (device removed, port down, connection lost, protocol violation by the peer)
 *   makes its descriptor readable. peek returns what had already arrived, then BW_SYSTEM or
 *   BW_CORRUPT, and `reason` gives the cause. reserve returns BW_AGAIN from then on.
 * - After close, the committed bytes are sent in the background, for at most a second.
 * - trim does nothing.
 */

#endif
