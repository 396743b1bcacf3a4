/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TCP_H
#define BW_TCP_H

#include "../link.h"

/*
 * The tcp carrier: a connected stream socket with the table of link.h.
 *
 * Both rings are memory of this process alone, mapped twice in a row like the others. Committed
 * bytes go to the kernel at once as far as it takes them, and the rest when the socket has room.
 * The socket's bytes are read into the ring when the user looks. Of the arrival of a byte it is
 * only known that the peer's kernel has it (`unreleased` of the statistics).
 *
 * The end of the peer's stream is an orderly end if everything before it has been released
 * (is_finished). A process that is killed ends its stream like one that closes it.
 *
 * The user polls the link's descriptor of the socket, level-triggered, for the events that the link
 * `wants`, so bytes for which nobody has asked do not wake it again and again.
 */

extern const bw_carrier_t bw_tcp_carrier;

/* The place (`at` of an order) both to listen and to connect: the descriptor of the connected
 * socket in network order. Both return a linked link at once and need no token. */
#define BW_TCP_PLACE_BYTES 4

/*
 * Makes a link of the connected stream socket that `socket` names. The link has a descriptor of its
 * own for it, so the caller may close its descriptor, which shuts nothing down. From now on nobody
 * else may read or write on the connection. `ring_bytes` is a valid ring size.
 */
bw_status_t bw_tcp_adopt(int socket, uint64_t ring_bytes, bw_link_t **link_p, bw_error_t *error_p);

#endif
