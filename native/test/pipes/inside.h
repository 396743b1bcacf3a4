/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PIPES_INSIDE_H
#define BW_PIPES_INSIDE_H

#include "../../link/buffer.h"
#include "pipes.h"

/* Inside the pipes carrier: link.c moves bytes, connect.c makes links. A descriptor is -1 if it is
 * closed. */
typedef struct {
    bw_link_t link; /* first, so that a bw_link_t pointer is a pipes_link_t pointer */
    bw_buffer_t out, in;
    uint64_t peeked; /* in.head at the last peek */
    int reader, writer, event, epoll;
    bool is_cut;    /* written bytes are lost, or the stream has ended too early */
    bool has_ended; /* the pipe to us has no writer any more */
    uint64_t reads, writes, stalls, lost;
    int of_peer[2]; /* of a listener: the ends that its peer opens, until it has connected */
    uint8_t token[BW_TOKEN_BYTES];
    uint64_t max_ring_bytes;
} pipes_link_t;

bw_status_t bw_pipes_probe(uint64_t ring_bytes, bw_error_t *error_p);
bw_status_t bw_pipes_listen(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p);
bw_status_t bw_pipes_connect(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p);
void bw_pipes_step(bw_link_t *link, bw_report_t *report_p);

#endif
