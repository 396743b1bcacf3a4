/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAULT_H
#define BW_FAULT_H

#include "../link/link.h"
#include "fault_way.h"

/*
 * A link that behaves as if it ran over a bad network, so that users can test their programs. It
 * wraps another link and holds the bytes in each direction until they are due. Like a stream over a
 * bad path, it loses nothing and preserves the order. It holds a limited number of bytes: output in
 * a buffer as large as the link's ring, and input in that ring itself. When they are full, the
 * writer waits, as it would on a slow network.
 *
 * The link has no timer. After each use, its user calls bw_fault_due_us to find out when the next
 * bytes are due, and at that time checks the link again, as if its descriptor had become readable.
 */

/* Wraps `inner`, which must be linked. The new link owns `inner`, so closing it closes both. On
 * error, `inner` is unchanged and still belongs to the caller. */
bw_status_t bw_fault_before(bw_link_t *inner, const bw_fault_t *fault, bw_link_t **link_p,
                            bw_error_t *error_p);

bool bw_is_faulty(const bw_link_t *link);

/* Returns the wrapped link, or the link itself if it is not faulty. */
bw_link_t *bw_fault_behind(bw_link_t *link);

/* Replaces the fault, also for bytes that are already being held; an all-zero fault removes it. */
void bw_fault_change(bw_link_t *link, const bw_fault_t *fault);

/* Returns in how many microseconds the link must be checked again, or UINT64_MAX if never. */
uint64_t bw_fault_due_us(const bw_link_t *link);

/* ---- a socket ---- */

typedef enum {
    BW_SOCKET_PASS,  /* packets are received again */
    BW_SOCKET_DROP,  /* the system drops every incoming packet, as if the path had lost it */
    BW_SOCKET_RESET, /* the connection is reset, and both ends notice */
    BW_SOCKET_FAULTS
} bw_socket_fault_t;

/* Works on TCP sockets only. Returns BW_SYSTEM if the system does not support it. */
bw_status_t bw_fault_socket(int socket, bw_socket_fault_t fault, bw_error_t *error_p);

#endif
