/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_STRIPES_H
#define BW_STRIPES_H

#include "link.h"

/*
 * A link over several connections, each of which is a link over a socket (socket_link.h): what is
 * written goes over whichever of them takes something (session/strands.h), and comes in order.
 * While one connection lives so does the link. Both sides make their stripes over the same first
 * connection, whose own stream has nothing before it.
 *
 * Its descriptor is an epoll of theirs. It has no way by `reserve`: only `write` sends. What has
 * been written may still wait here, at most a chunk for each connection, so that whoever writes can
 * let small things pass large ones.
 */

/* Of each direction: so much may be on its way. A power of two. */
#define BW_STRIPES_RING_BYTES ((uint64_t)16 * 1024 * 1024)

/* Over a first connection, which belongs to the link then, unless this fails. */
bw_status_t bw_stripes_make(bw_link_t *first, bw_link_t **link_p, bw_error_t *error_p);

/* Adds a connection, which belongs to the link then, unless this fails: there are as many as can
 * be, or the link is no such link. */
bw_status_t bw_stripes_add(bw_link_t *link, bw_link_t *connection, bw_error_t *error_p);

/* How many connections the link has; 0: it is no such link. */
unsigned bw_stripes_count(const bw_link_t *link);

#endif
