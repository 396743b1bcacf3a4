/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SHM_INSIDE_H
#define BW_SHM_INSIDE_H

#include "shm.h"

/*
 * Inside the shm carrier: the memory and the eventfds of a link, and the link over them. connect.c
 * passes them from one process to the other.
 */

extern const bw_carrier_t bw_shm_carrier;

/* For the table; it is in connect.c. */
bw_status_t bw_shm_probe(uint64_t ring_bytes, bw_error_t *error_p);

/* This many peers and one more can be queued at a listener, because channels of all nodes on a host
 * may come at once. */
#define BW_SHM_BACKLOG 256

/* Connects to a listener, and checks that its process has our effective user. */
bw_status_t bw_shm_reach(const uint8_t *address, size_t address_len, int *fd_p,
                         bw_error_t *error_p);

/* Whether the process at the other end of a unix socket has our effective user. */
bool bw_shm_same_user(int fd);

#define BW_SHM_DESCRIPTORS 3 /* of one message, at most */

/* Sends a message over a unix socket without blocking, with copies of `count` descriptors. On
 * false, errno is set. */
bool bw_shm_send(int fd, const void *bytes, size_t len, const int *fds, size_t count);

/* Receives a message of `len` bytes, with flags of recvmsg. BW_OK: its descriptors, at most `most`,
 * are the caller's. BW_AGAIN: none is queued. BW_REFUSED: the peer has closed. BW_LIMIT: it has
 * descriptors, but this process can open none. BW_CORRUPT: its length differs, or it has more
 * descriptors; they are closed, and fds holds -1. */
bw_status_t bw_shm_receive(int fd, void *bytes, size_t len, int flags, int *fds, size_t most,
                           size_t *count_p);

/* Makes sealed memory for two rings of `ring_bytes` (a valid size). */
bw_status_t bw_shm_make_memory(uint64_t ring_bytes, int *fd_p, bw_error_t *error_p);

/* True if a descriptor that came from the peer is such memory. */
bool bw_shm_is_memory(int fd, uint64_t ring_bytes);

bw_status_t bw_shm_make_event(int *fd_p, bw_error_t *error_p);

/* True if a descriptor that came from the peer is an eventfd that cannot block. */
bool bw_shm_is_event(int fd);

typedef enum { BW_SHM_MAKER, BW_SHM_TAKER } bw_shm_side_t;

/*
 * Maps the memory and makes one side's link; the maker empties the rings. `process` is a pidfd of
 * the peer, or -1. On success the link owns it and both eventfds; the memory's descriptor stays the
 * caller's, who can close it.
 */
bw_status_t bw_shm_attach(bw_shm_side_t side, int memory, uint64_t ring_bytes, int event,
                          int peer_event, int process, bw_link_t **link_p, bw_error_t *error_p);

#endif
