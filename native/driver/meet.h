/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_MEET_H
#define BW_MEET_H

#include "erl_driver.h"

#include "../link/rdma/rdma.h"
#include "reply.h"

/*
 * How a port gets an rdma link: the driver's commands for it. apps/beamway/src/beamway_port.erl is
 * their only user. A reply is a 0 byte and the result, or a 1 byte and the reason as text.
 *
 * An address is family:8 (4, 6, or 0 for none), ip:16/binary (an IPv4 address and 12 zeros),
 * scope:32, port:16.
 *
 * LOAD comes first on each port. LISTEN and CONNECT answer at once; from then on the caller of them
 * gets the message `{rdma, Port}` whenever STATUS may have something new to tell. A port has one
 * connection. When STATUS has answered `linked`, the port has its link: everything goes on as over
 * shared memory (ACTIVATE, TICK, STATS, ...), and the link cannot be lost before ACTIVATE without
 * the port failing after it.
 */
enum {
    COMMAND_RDMA_LOAD = 20, /* path of the shared object -> */
    COMMAND_RDMA_LISTEN,    /* address, port_first:16, port_last:16, max_ring_bytes:64 -> */
    COMMAND_RDMA_CONNECT,   /* from address, to address, token:16/binary, ring_bytes:64,
                               timeout_ms:32 -> */
    COMMAND_RDMA_STATUS     /* -> 0: working
                                  1: listening, port:16, token:16/binary, device_port:8, device
                                  2: linked, device_port:8, device
                                  3: failed, reason as text */
};

typedef struct {
    ErlDrvPort port;
    const bw_rdma_api_t *api;         /* NULL until LOAD */
    bw_rdma_connection_t *connection; /* from LISTEN or CONNECT until it is a link */
    ErlDrvTermData caller;            /* gets {rdma, Port} */
    bool is_selected; /* its descriptor is known to the VM, also once it is the link's */
} meet_t;

/* The commands, under the port lock. False: the caller broke their rules, which is a badarg. */
bool meet_load(meet_t *meet, const char *data, size_t len, reply_t *reply);
bool meet_listen(meet_t *meet, const char *data, size_t len, reply_t *reply);
bool meet_connect(meet_t *meet, const char *data, size_t len, reply_t *reply);
/* *link_p is the link, once there is one; its descriptor is not polled until ACTIVATE. */
bool meet_status(meet_t *meet, reply_t *reply, bw_link_t **link_p);

/* The poller says that the descriptor is readable: tells the caller. Nothing is polled from then on
 * until the next STATUS. */
void meet_tell(meet_t *meet);

/* Ends a connection that has not become a link. */
void meet_close(meet_t *meet);

#endif
