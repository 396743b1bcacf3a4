/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAULT_H
#define BW_FAULT_H

#include "../link/link.h"
#include "fault_way.h"

/*
 * A link that behaves as if it ran over a bad network, for tests of programs. It wraps another link
 * and holds the bytes of each direction until they are due. It loses nothing and keeps the order,
 * as a stream over a bad path does. What it holds is bounded, for output by a buffer as large as
 * the link's ring, for input by that ring itself; beyond that the writer waits, as it would for a
 * slow network.
 *
 * It has no timer: after each use the user asks when the next bytes are due (bw_fault_due_us), and
 * then looks at the link again, as if its descriptor had become readable.
 */

/* Wraps `inner`, which must be linked. The new link owns `inner`, so closing it closes both. On an
 * error `inner` is unchanged and remains the caller's. */
bw_status_t bw_fault_before(bw_link_t *inner, const bw_fault_t *fault, bw_link_t **link_p,
                            bw_error_t *error_p);

bool bw_is_faulty(const bw_link_t *link);

/* Returns the wrapped link, or the link itself if it is not faulty. */
bw_link_t *bw_fault_behind(bw_link_t *link);

/* Replaces the fault, also for the bytes that are being held; an empty fault removes it. */
void bw_fault_change(bw_link_t *link, const bw_fault_t *fault);

/* Returns in how many microseconds the link must be looked at again, or UINT64_MAX if the fault
 * gives no cause to. */
uint64_t bw_fault_due_us(const bw_link_t *link);

/* ---- a socket ---- */

typedef enum {
    BW_SOCKET_PASS,  /* packets are received again */
    BW_SOCKET_DROP,  /* the system drops every incoming packet, as if the path had lost it */
    BW_SOCKET_RESET, /* the connection is reset, and both ends notice */
    BW_SOCKET_FAULTS
} bw_socket_fault_t;

/* For TCP sockets. Returns BW_SYSTEM if the system cannot do it. */
bw_status_t bw_fault_socket(int socket, bw_socket_fault_t fault, bw_error_t *error_p);

#endif
