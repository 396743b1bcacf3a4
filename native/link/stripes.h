/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_STRIPES_H
#define BW_STRIPES_H

#include "link.h"

/*
 * A link over several connections, each of which is a link over a socket (socket_link.h). Output
 * goes over whichever of them takes it (session/strands.h), and arrives in order. The link lives as
 * long as one connection does. Both sides must make it over the same first connection, over whose
 * own stream nothing has been sent.
 *
 * Its descriptor is an epoll of the connections. It cannot `reserve`: only `write` sends. Written
 * bytes may still wait here, at most a chunk for each connection, so that the writer can let small
 * frames pass large ones.
 */

/* How much may be on its way in each direction. A power of two. */
#define BW_STRIPES_RING_BYTES ((uint64_t)16 * 1024 * 1024)

/* Makes a link over a first connection, which it then owns, unless this fails. */
bw_status_t bw_stripes_make(bw_link_t *first, bw_link_t **link_p, bw_error_t *error_p);

/* Adds a connection, which the link then owns. Fails if the link already has as many as possible,
 * or is not over several connections; then the connection remains the caller's. */
bw_status_t bw_stripes_add(bw_link_t *link, bw_link_t *connection, bw_error_t *error_p);

/* Returns how many connections the link has, or 0 if it is not made for several. */
unsigned bw_stripes_count(const bw_link_t *link);

#endif
