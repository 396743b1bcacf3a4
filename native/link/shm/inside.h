/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SHM_INSIDE_H
#define BW_SHM_INSIDE_H

#include "shm.h"

/*
 * Internals of the shm carrier. memory.c creates the memory and the eventfds of a link, and the
 * link itself; connect.c passes them from one process to the other; carrier.c has the function
 * table, and the other two files call it only through that table.
 */

extern const bw_carrier_t bw_shm_carrier;

typedef struct {
    bw_link_t link; /* first member, so that a bw_link_t pointer is a bw_shm_link_t pointer */
    bw_tx_t tx;
    bw_rx_t rx;
    uint8_t *map;
    size_t map_bytes;
    int event;      /* ours: polled, and cleared before we arm */
    int peer_event; /* written to wake the peer */
    int process;    /* pidfd of the peer, or -1 if none */
    uint64_t doorbells_in, doorbells_out, stalls;
    bool is_deferred;    /* commit leaves the doorbell to flush */
    uint64_t trimmed_at; /* outgoing position up to which memory was given back */
    bw_shm_listener_t
        listener; /* listens until the peer has connected; fd is -1 if there is none */
    uint64_t max_ring_bytes;
} bw_shm_link_t;

/* Returns a link with nothing open yet, or NULL if out of memory. */
bw_shm_link_t *bw_shm_new_link(void);

bw_status_t bw_shm_probe(uint64_t ring_bytes, bw_error_t *error_p);

/* The backlog of a listener, which can queue one peer more than this. It is large because the
 * channels of all nodes on a host may connect at once. */
#define BW_SHM_BACKLOG 256

/* Connects to a listener, and checks that the listening process runs as our effective user. */
bw_status_t bw_shm_reach(const uint8_t *address, size_t address_len, int *fd_p,
                         bw_error_t *error_p);

/* Returns whether the process at the other end of a unix socket runs as our effective user. */
bool bw_shm_same_user(int fd);

#define BW_SHM_DESCRIPTORS 3 /* maximum per message */

/* Sends bytes and copies of `count` descriptors, without blocking. Returns false with errno set. */
bool bw_shm_send(int fd, const void *bytes, size_t len, const int *fds, size_t count);

/* Receives a message of `len` bytes, with flags for recvmsg. BW_OK: the caller owns its
 * descriptors, at most `most`. BW_AGAIN: no message is queued. BW_REFUSED: the peer has closed the
 * socket. BW_LIMIT: the message has descriptors, but this process cannot open any. BW_CORRUPT: the
 * length differs, or there are too many descriptors; they are closed, and fds holds -1. */
bw_status_t bw_shm_receive(int fd, void *bytes, size_t len, int flags, int *fds, size_t most,
                           size_t *count_p);

/* Creates sealed memory for two rings of `ring_bytes` (a valid size). */
bw_status_t bw_shm_make_memory(uint64_t ring_bytes, int *fd_p, bw_error_t *error_p);

/* Returns true if a descriptor received from the peer is such memory. */
bool bw_shm_is_memory(int fd, uint64_t ring_bytes);

bw_status_t bw_shm_make_event(int *fd_p, bw_error_t *error_p);

/* Returns true if a descriptor received from the peer is an eventfd that cannot block. */
bool bw_shm_is_event(int fd);

typedef enum { BW_SHM_MAKER, BW_SHM_TAKER } bw_shm_side_t;

/* Maps the memory and creates one side's link; the creator of the memory initializes the rings as
 * empty. `process` is a pidfd of the peer, or -1. On success the link owns it and both eventfds;
 * the caller still owns the memory's descriptor and may close it. */
bw_status_t bw_shm_attach(bw_shm_side_t side, int memory, uint64_t ring_bytes, int event,
                          int peer_event, int process, bw_link_t **link_p, bw_error_t *error_p);

#endif
