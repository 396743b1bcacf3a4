/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RDMA_WIRE_H
#define BW_RDMA_WIRE_H

#include <assert.h>

#include "../ring.h"
#include "rdma.h"

/*
 * What the two ends of an rdma link send each other: first a hello, in the private data of the
 * connection manager, and then messages in receive slots. It does not depend on verbs.
 */

/* A receive slot: a message followed by up to BW_RDMA_INLINE_BYTES of the stream. */
#define BW_RDMA_SLOT_BYTES 512u
#define BW_RDMA_INLINE_BYTES (BW_RDMA_SLOT_BYTES - (uint32_t)sizeof(bw_rdma_message_t))
#define BW_RDMA_SLOTS 64u
#define BW_RDMA_SLOTS_MIN 8u
#define BW_RDMA_SLOTS_MAX 4096u

typedef struct {
    uint8_t token[BW_TOKEN_BYTES]; /* all zeros in the reply */
    uint64_t ring_address;         /* the only place where the other side may write */
    uint64_t ring_bytes;           /* in each direction */
    uint32_t ring_key;
    uint16_t slots; /* number of slots posted; each is posted again as soon as it has been used */
} bw_rdma_hello_t;

/* InfiniBand carries 56 bytes of private data in a request. */
#define BW_RDMA_HELLO_BYTES 48u

void bw_rdma_hello_put(const bw_rdma_hello_t *hello, uint8_t at[BW_RDMA_HELLO_BYTES]);

/* Checks everything except the token; `len` may be larger. Returns BW_OK or BW_REFUSED. */
bw_status_t bw_rdma_hello_get(const uint8_t *at, size_t len, bw_rdma_hello_t *hello_p,
                              bw_error_t *error_p);

#define BW_RDMA_FINISHED 1u /* nothing more will be written */
#define BW_RDMA_TELL 2u     /* acknowledge this soon, because the sender is waiting for it */
#define BW_RDMA_FLAGS (BW_RDMA_FINISHED | BW_RDMA_TELL)

/* The fields are in the byte order of both hosts, since a hello from a host with a different byte
 * order is rejected. Each message uses one slot. All numbers count from the start of the link. */
typedef struct {
    uint64_t head;     /* bytes written to the receiver's ring, including those in this slot */
    uint64_t tail;     /* bytes that the sender has freed in its own ring */
    uint32_t received; /* messages that the sender has received; their slots are posted again */
    uint16_t len;      /* bytes of the stream in this slot; 0 if they are already in the ring */
    uint16_t flags;
} bw_rdma_message_t;

static_assert(sizeof(bw_rdma_message_t) == 24, "the layout is part of the protocol");

#endif
