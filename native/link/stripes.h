/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_STRIPES_H
#define BW_STRIPES_H

#include "link.h"

/*
 * A link over several connections, each of which is a link over a socket (socket_link.h). Output is
 * sent over any connection that has room (session/strands.h), and the receiver puts it back in
 * order. The link survives as long as at least one connection does. Both sides must create it over
 * the same first connection, on which nothing has been sent yet.
 *
 * Its descriptor is an epoll instance that contains the connections. It does not support `reserve`:
 * bytes can only be sent with `write`. At most one chunk per connection is buffered here after a
 * write, so that the writer can still let small frames pass large ones.
 */

/* The maximum number of bytes in flight in each direction. A power of two. */
#define BW_STRIPES_RING_BYTES ((uint64_t)16 * 1024 * 1024)

/* The maximum number of connections of a link. */
#define BW_STRIPES_MAX 16u

/* Creates a link over a first connection. On success, the link owns that connection. */
bw_status_t bw_stripes_make(bw_link_t *first, bw_link_t **link_p, bw_error_t *error_p);

/* Adds a connection, which the link then owns. Fails if the link already has the maximum number of
 * connections, or was not created by bw_stripes_make; the caller then still owns the connection. */
bw_status_t bw_stripes_add(bw_link_t *link, bw_link_t *connection, bw_error_t *error_p);

/* Returns how many connections the link has, or 0 if it was not created by bw_stripes_make. */
unsigned bw_stripes_count(const bw_link_t *link);

#endif
