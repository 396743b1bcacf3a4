/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_MEET_H
#define BW_MEET_H

#include "../link/rdma.h"

/*
 * How a port gets an rdma link: the driver's commands for it. apps/beamway/src/beamway_port.erl is
 * their only user. A reply is a 0 byte and the result, or a 1 byte and the reason as text.
 *
 * An address is family:8 (4, 6, or 0 for none), ip:16/binary (an IPv4 address and 12 zeros),
 * scope:32, port:16.
 *
 * LOAD comes first on each port. LISTEN and CONNECT answer at once; from then on the caller of them
 * gets the message `{rdma, Port}` whenever STATUS may have something new to tell. A port has one
 * meeting. When STATUS has answered `linked`, the port has its link: everything goes on as over
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

#define MEET_ADDRESS_BYTES 23

#endif
