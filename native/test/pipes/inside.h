/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PIPES_INSIDE_H
#define BW_PIPES_INSIDE_H

#include "../../link/buffer.h"
#include "pipes.h"

/* Internals of the pipes carrier: link.c moves bytes, connect.c sets up links. Closed descriptors
 * are -1. */
typedef struct {
    bw_link_t link; /* first member, so that a bw_link_t pointer is a pipes_link_t pointer */
    bw_buffer_t out, in;
    uint64_t peeked; /* in.head at the last peek */
    int reader, writer, event, epoll;
    bool is_cut;    /* written bytes were lost, or the stream ended prematurely */
    bool has_ended; /* no process has the pipe to us open for writing any more */
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
