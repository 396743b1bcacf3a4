/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TCP_H
#define BW_TCP_H

#include "../link.h"

/*
 * The tcp carrier: implements the table in link.h for a connected stream socket.
 *
 * Both rings are private to this process. Committed bytes are passed to the kernel immediately as
 * far as it accepts them, and the rest when the socket has room. Bytes are read from the socket
 * into the ring when the user peeks. Whether the peer's process has read a byte is not known, only
 * whether its kernel has received it (`unreleased` in the statistics).
 *
 * The link counts as cleanly closed (is_finished) once the peer's stream has ended and everything
 * before the end has been released. A killed process ends its stream in the same way.
 *
 * The link has its own descriptor for the socket. The user polls it, level-triggered, for the
 * events that the link `wants`, so that bytes for which the link is not armed do not wake the user
 * again and again.
 */

extern const bw_carrier_t bw_tcp_carrier;

/* The address (`at` of an order), both to listen and to connect: the descriptor of the connected
 * socket in network order. Both return a link that is already BW_LINKED and need no token. */
#define BW_TCP_PLACE_BYTES 4

/* Creates a link from the connected stream socket `socket`. The link duplicates the descriptor, so
 * the caller may close its own without shutting down the connection. From now on, only the link may
 * read from or write to the connection. `ring_bytes` is a valid ring size. */
bw_status_t bw_tcp_adopt(int socket, uint64_t ring_bytes, bw_link_t **link_p, bw_error_t *error_p);

#endif
