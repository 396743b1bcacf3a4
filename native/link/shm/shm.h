/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SHM_H
#define BW_SHM_H

#include "../link.h"

/*
 * The shared-memory carrier, and how two processes on the same host connect through it.
 *
 * One side opens a listener (a listening unix socket with a random name) and sends the other its
 * address and a 128-bit token, over a channel that is already authenticated. The other side creates
 * the memory and both eventfds, connects, checks who is listening, and immediately sends the token
 * and the descriptors. When the first side accepts the connection, this message is already queued
 * there, so no call here blocks and none has to be retried.
 *
 * Addresses (`at` of an order): to listen, a directory for the socket, or nothing for an abstract
 * name (visible in the same network namespace); to connect, the address in the listener's report.
 * If the calls below are used directly, a listener may accept several peers.
 *
 * Both sides check that the other runs as the same effective user (SO_PEERCRED). Nothing has a name
 * in a file system unless `dir` is given, so a killed process leaves nothing behind.
 */

typedef struct {
    int fd;                          /* -1 if closed */
    uint8_t token[BW_TOKEN_BYTES];   /* secret: only for the peer */
    size_t address_len;              /* bytes of address */
    uint8_t address[BW_ADDRESS_MAX]; /* as in sun_path: a leading 0 means the abstract name space */
} bw_shm_listener_t;

/* Opens a listener. If `dir` is NULL, its name is abstract; otherwise it is a socket file in that
 * directory, for containers that share it, which bw_shm_listener_close removes. On error nothing is
 * left open and listener_p->fd is -1. */
bw_status_t bw_shm_listen(const char *dir, bw_shm_listener_t *listener_p, bw_error_t *error_p);

/* Closes the listener. Has no effect on a closed one. */
void bw_shm_listener_close(bw_shm_listener_t *listener);

/* Creates rings of `ring_bytes` in each direction (a valid ring size) and passes them to the
 * process listening at `address`. BW_OK sets *link_p. BW_REFUSED means that no process listens
 * there, or that the listener belongs to another user. The others are BW_LIMIT and BW_SYSTEM. */
bw_status_t bw_shm_connect(const uint8_t *address, size_t address_len,
                           const uint8_t token[BW_TOKEN_BYTES], uint64_t ring_bytes,
                           bw_link_t **link_p, bw_error_t *error_p);

/* Accepts the link of a peer that has connected. Rejects peers with larger rings, without the token
 * or of another user; *error_p gives the reason for the last rejection if no valid peer has
 * connected. Does not close the listener. */
bw_status_t bw_shm_accept(bw_shm_listener_t *listener, uint64_t max_ring_bytes, bw_link_t **link_p,
                          bw_error_t *error_p);

#endif
