/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TCP_H
#define BW_TCP_H

#include "../link.h"

/*
 * The tcp carrier: a connected stream socket behind the table of link.h.
 *
 * Both rings are memory of this process alone, mapped twice in a row like the others. What is
 * committed goes to the kernel at once, as far as it takes it; the rest goes when the socket has
 * room. What the socket has is read into the ring when the user looks. Nothing is said of a byte's
 * arrival but that the peer's kernel has it (`unreleased` of the figures).
 *
 * The peer's end of the stream, if everything before it has been released, is an orderly end
 * (is_finished). A process that is killed ends its stream like one that closes.
 *
 * The user polls the link's descriptor of the socket, level-triggered, for what the link `wants`:
 * so what nobody has asked for does not wake him again and again.
 */

extern const bw_carrier_t bw_tcp_carrier;

/* Where (`at` of an order), to listen as to connect: the descriptor of the connected socket, in
 * network order. Both give a linked link at once; a token is not needed. */
#define BW_TCP_PLACE_BYTES 4

/*
 * Makes a link of the connected stream socket that `socket` names; the link has a descriptor of
 * its own for it, and the caller may close his (nothing is shut down by that). From now on nobody
 * else may read or write the connection. `ring_bytes` is a valid ring size.
 */
bw_status_t bw_tcp_adopt(int socket, uint64_t ring_bytes, bw_link_t **link_p, bw_error_t *error_p);

#endif
