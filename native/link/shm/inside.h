/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SHM_INSIDE_H
#define BW_SHM_INSIDE_H

#include "shm.h"

/*
 * Inside the shm carrier: the memory and the eventfds of a link, and the link over them.
 * connect.c gets them from one process to the other.
 */

extern const bw_carrier_t bw_shm_carrier;

/* For the table: connect.c. */
bw_status_t bw_shm_probe(uint64_t ring_bytes, bw_error_t *error_p);

/* So many wait at a listener, and one more: channels of all nodes of a host may come at once. */
#define BW_SHM_BACKLOG 256

/* Connects to a listener; whoever listens has our effective user. */
bw_status_t bw_shm_reach(const uint8_t *address, size_t address_len, int *fd_p,
                         bw_error_t *error_p);

/* Whether the process at the other end of a unix socket has our effective user. */
bool bw_shm_same_user(int fd);

#define BW_SHM_DESCRIPTORS 3 /* of one message, at most */

/* Sends a message over a unix socket, at once, with copies of `count` descriptors. False: errno. */
bool bw_shm_send(int fd, const void *bytes, size_t len, const int *fds, size_t count);

/* Receives one of `len` bytes, with flags of recvmsg. BW_OK: its descriptors, at most `most`, are
 * the caller's. BW_AGAIN: none waits. BW_REFUSED: the end. BW_LIMIT: it has descriptors, and this
 * process can open none. BW_CORRUPT: it is not so long, or has more descriptors; they are closed,
 * and -1 in fds. */
bw_status_t bw_shm_receive(int fd, void *bytes, size_t len, int flags, int *fds, size_t most,
                           size_t *count_p);

/* Sealed memory for two rings of `ring_bytes` (a valid size). */
bw_status_t bw_shm_make_memory(uint64_t ring_bytes, int *fd_p, bw_error_t *error_p);

/* True if a descriptor that came from the peer is such memory. */
bool bw_shm_is_memory(int fd, uint64_t ring_bytes);

bw_status_t bw_shm_make_event(int *fd_p, bw_error_t *error_p);

/* True if a descriptor that came from the peer is an eventfd that cannot block. */
bool bw_shm_is_event(int fd);

typedef enum { BW_SHM_MAKER, BW_SHM_TAKER } bw_shm_side_t;

/*
 * Maps the memory and makes one side's link; the maker empties the rings. `process` is a pidfd of
 * the peer, -1 if there is none. On success the link owns it and both eventfds; the memory's
 * descriptor stays the caller's and is of no further use.
 */
bw_status_t bw_shm_attach(bw_shm_side_t side, int memory, uint64_t ring_bytes, int event,
                          int peer_event, int process, bw_link_t **link_p, bw_error_t *error_p);

#endif
