/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RDMA_H
#define BW_RDMA_H

#include "../link.h"

/*
 * The RDMA carrier, and how two processes meet for it. It is in a shared object of its own, which
 * is the only code that needs libibverbs and librdmacm; this header needs neither.
 *
 * One side listens and tells the other, over a channel that is already authenticated, the address,
 * the port and a 128-bit token. The other connects. Both then have a connection that becomes a
 * link.
 *
 * Nothing here blocks. Whatever in verbs and in the connection manager may block (opening devices,
 * registering memory, making and destroying queue pairs) is done by one thread of the shared
 * object; the caller is told by `fd`. The caller's thread only posts work and polls completions.
 *
 * Calls on one connection, and on the link that it becomes, are made by one thread at a time. Calls
 * on different ones may be made at the same time.
 */

#define BW_RDMA_API_VERSION 2
#define BW_RDMA_SYMBOL "bw_rdma_api" /* a bw_rdma_api_fn in the shared object */
#define BW_RDMA_TOKEN_BYTES 16
#define BW_RDMA_TEXT_BYTES 256
/* Of each way, if nobody says otherwise. */
#define BW_RDMA_RING_BYTES ((uint64_t)4 * 1024 * 1024)

typedef struct {
    uint8_t family; /* 4 or 6 */
    uint8_t ip[16]; /* network order; IPv4 uses the first four */
    uint32_t scope; /* interface number of a link-local IPv6 address, else 0 */
    uint16_t port;  /* of the connection manager, host order */
} bw_rdma_address_t;

typedef enum {
    BW_RDMA_WORKING,   /* nothing new: wait for `fd` */
    BW_RDMA_LISTENING, /* `port` and `token` can be told to the peer */
    BW_RDMA_LINKED,    /* both sides can use the link: take it */
    BW_RDMA_FAILED     /* `status` and `text` say why; only close may be called */
} bw_rdma_state_t;

typedef struct {
    bw_rdma_state_t state;
    uint16_t port;                      /* LISTENING */
    uint8_t token[BW_RDMA_TOKEN_BYTES]; /* LISTENING; secret: only for the peer */
    char device[64];                    /* LISTENING, LINKED: the RDMA device, "" if any may be */
    uint8_t device_port;                /* LISTENING, LINKED */
    bw_status_t status;                 /* FAILED: REFUSED, LIMIT or SYSTEM */
    char text[BW_RDMA_TEXT_BYTES];      /* FAILED: why, and what to do */
} bw_rdma_report_t;

typedef struct bw_rdma_connection bw_rdma_connection_t;

typedef struct {
    uint32_t version;
    /*
     * Listens on one address of an RDMA device, or, if `at->ip` is 0, on all of its family (of both
     * families with IPv6). `at->port` is not looked at: a port of
     * port_first..port_last is taken (0, 0: any); connections of one process at the same address
     * share one. Takes the first who has the token, and makes rings of the size that he asks for,
     * at most max_ring_bytes. BW_INVALID, BW_LIMIT, BW_SYSTEM; everything else is told by look.
     */
    bw_status_t (*listen)(const bw_rdma_address_t *at, uint16_t port_first, uint16_t port_last,
                          uint64_t max_ring_bytes, bw_rdma_connection_t **connection_p,
                          bw_error_t *error_p);
    /* Connects to a listening peer, with rings of `ring_bytes` (a valid ring size) each way.
     * `from` may be NULL. Fails after timeout_ms. */
    bw_status_t (*connect)(const bw_rdma_address_t *from, const bw_rdma_address_t *to,
                           const uint8_t token[BW_RDMA_TOKEN_BYTES], uint64_t ring_bytes,
                           uint32_t timeout_ms, bw_rdma_connection_t **connection_p,
                           bw_error_t *error_p);
    /* The descriptor to poll for reading. It stays the same when the connection becomes a link. */
    int (*fd)(const bw_rdma_connection_t *connection);
    /* Makes `fd` quiet and says how far it has come. */
    void (*look)(bw_rdma_connection_t *connection, bw_rdma_report_t *report_p);
    /* The link of a LINKED connection, which is gone then. */
    bw_link_t *(*take)(bw_rdma_connection_t *connection);
    /* Ends a connection in any state. If `fd_p` is not NULL, the polled descriptor is left to the
     * caller, who closes it when its poller lets go. */
    void (*close)(bw_rdma_connection_t *connection, int *fd_p);
} bw_rdma_api_t;

/*
 * The functions, or NULL and *error_p: no RDMA on this host, or a shared object of another version.
 * The first call of a process looks for devices and starts the thread, some milliseconds of work.
 * The shared object must never be unloaded after that (RTLD_NODELETE).
 */
typedef const bw_rdma_api_t *(*bw_rdma_api_fn)(uint32_t version, bw_error_t *error_p);

/*
 * The link. Beside what link.h says:
 * - Rings have the same size each way and are locked in memory (RLIMIT_MEMLOCK) while it lives.
 * - arm_write: of more room than half the ring the user hears at the latest when the peer closes.
 * - A link that fails (device gone, port down, connection lost, peer breaks the protocol) makes its
 *   descriptor readable; peek gives what had arrived before, then BW_SYSTEM or BW_CORRUPT, and
 *   `reason` says why. reserve gives BW_AGAIN from then on.
 * - close sends what was committed, for at most a second, in the background.
 * - trim does nothing.
 */

#endif
