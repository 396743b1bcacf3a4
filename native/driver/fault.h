/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAULT_H
#define BW_FAULT_H

#include "../link/link.h"
#include "fault_way.h"

/*
 * A link that behaves as over a bad network, for tests of programs: it stands before a link, and
 * holds the bytes of each direction until it is their turn. Nothing is lost and the order stays, as
 * with a stream over a bad path. What it holds is bounded: on the way out by a buffer as large as
 * the link's ring, on the way in by that ring itself. Then the writer waits, as for a slow network.
 *
 * It has no timer: after each use the user asks for when the next bytes may go on
 * (bw_fault_due_us), and then looks at the link again, as if its descriptor had become readable.
 */

/* A link that stands before `inner`, which is linked, and belongs to it from now on: closing it
 * closes both. On an error `inner` is as it was. */
bw_status_t bw_fault_before(bw_link_t *inner, const bw_fault_t *fault, bw_link_t **link_p,
                            bw_error_t *error_p);

bool bw_is_faulty(const bw_link_t *link);

/* The link behind a fault; of one that has none it is the link itself. */
bw_link_t *bw_fault_behind(bw_link_t *link);

/* Another fault from now on, or none: what is held goes on as the new one says. */
void bw_fault_change(bw_link_t *link, const bw_fault_t *fault);

/* In how many microseconds the link is to be looked at again; UINT64_MAX: not for its sake. */
uint64_t bw_fault_due_us(const bw_link_t *link);

/* ---- a socket ---- */

typedef enum {
    BW_SOCKET_PASS,  /* what comes is taken again */
    BW_SOCKET_DROP,  /* the system drops every packet that comes, as if the path had lost it */
    BW_SOCKET_RESET, /* the connection dies now: both ends hear of a reset */
    BW_SOCKET_FAULTS /* how many */
} bw_socket_fault_t;

/* For TCP sockets. BW_SYSTEM: the system cannot. */
bw_status_t bw_fault_socket(int socket, bw_socket_fault_t fault, bw_error_t *error_p);

#endif
