/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RDMA_CONNECTION_H
#define BW_RDMA_CONNECTION_H

#include <pthread.h>

#include "verbs.h"

/*
 * A connection and the link that it becomes: one object with two owners. The user's thread creates
 * it, moves the bytes and closes it; the service thread creates and destroys its device objects and
 * frees it. `lock` protects the shared fields, and neither thread holds it across a call that may
 * block.
 */

typedef struct bw_rdma_listener bw_rdma_listener_t;
typedef struct bw_rdma_device bw_rdma_device_t;

/* Something that the service thread polls. `ready` is called when its descriptor is readable. */
typedef struct bw_rdma_source bw_rdma_source_t;
struct bw_rdma_source {
    void (*ready)(bw_rdma_source_t *source);
};

/* The user's request; never modified. */
typedef struct {
    bool listens;
    bw_rdma_address_t from, to; /* from.family may be 0 for any; a listener only sets `from` */
    uint16_t port_first, port_last;
    uint64_t ring_bytes; /* requested size; for a listener the maximum */
    uint32_t timeout_ms;
    uint8_t token[BW_TOKEN_BYTES];
} bw_rdma_order_t;

typedef struct bw_rdma_connection bw_rdma_connection_t;

struct bw_rdma_connection {
    bw_link_t link; /* must be first, so that a bw_link_t pointer is a pointer to this */
    bw_rdma_order_t order;

    pthread_mutex_t lock; /* protects everything up to the next comment of this kind */
    int epoll; /* polled by the user; contains the completion channel and the event; -1 if closed */
    int event;
    bool rung; /* the event has been signalled and not yet read */
    bw_report_t report;
    bool is_live; /* the user may use verbs; while false, only the service thread may */
    bw_rdma_verbs_t verbs;
    bw_rdma_memory_t memory;
    bw_rdma_flow_t flow;
    uint64_t peeked; /* flow.rx_head at the last peek */
    bool rcq_is_armed, scq_is_armed;
    bool is_deferred;   /* commit leaves posting to flush */
    bw_status_t status; /* BW_OK until the link fails */
    const char *reason;
    uint64_t events, posts, stalls;

    /* used by the service thread only */
    bw_rdma_connection_t *next;
    struct rdma_cm_id *id;
    bw_rdma_listener_t *listener; /* the listener, while no peer has connected yet */
    bw_rdma_device_t *device;
    int64_t deadline_ms; /* 0 if none */
    bool is_leaving;     /* the user has closed it */
    bw_rdma_source_t leaving;

    /* protected by the service's lock */
    bw_rdma_connection_t *next_request;
    bool is_requested, is_started, is_left;
};

/* The caller of bw_rdma_ring, fail, progress, poll_received, post, arm_sent, arm and take_events
 * holds the lock. For all but bw_rdma_ring and bw_rdma_fail it has also checked is_live. */

/* Makes the user's descriptor readable. */
void bw_rdma_ring(bw_rdma_connection_t *connection);

/* Marks the link as failed. `reason` is a literal and a valid atom; only the first one is kept. */
void bw_rdma_fail(bw_rdma_connection_t *connection, bw_status_t status, const char *reason);

/* Processes messages and completions, and posts whatever can be sent. */
void bw_rdma_progress(bw_rdma_connection_t *connection);

/* Handles completed receives and returns how many there were: at most as many as there are slots,
 * so that a fast peer cannot occupy this thread. This also works on a failed link, because earlier
 * messages must still be read, possibly including the one that ends the stream. */
unsigned bw_rdma_poll_received(bw_rdma_connection_t *connection);

/* Posts everything that can be sent now. If something has to wait, the completion queues are armed,
 * and it is sent when their event arrives, whether or not the user has armed the link. */
void bw_rdma_post(bw_rdma_connection_t *connection);

/* Requests an event when a message that was posted has been completed. */
void bw_rdma_arm_sent(bw_rdma_connection_t *connection);

/* Requests an event from both completion queues. Returns true if nothing has arrived since. */
bool bw_rdma_arm(bw_rdma_connection_t *connection);

/* Reads the completion channel's events. */
void bw_rdma_take_events(bw_rdma_connection_t *connection);

extern const bw_carrier_t bw_rdma_carrier;

/* Functions for this table, which are in api.c. */
bw_status_t bw_rdma_listen(const bw_order_t *wanted, bw_link_t **link_p, bw_error_t *error_p);
bw_status_t bw_rdma_connect(const bw_order_t *wanted, bw_link_t **link_p, bw_error_t *error_p);
void bw_rdma_close(bw_link_t *link, bw_leftover_t *left_p);

#endif
