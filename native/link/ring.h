/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RING_H
#define BW_RING_H

#include <assert.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "status.h"

/*
 * A byte ring with one producer and one consumer, in memory that both can see.
 *
 * This module does not use the VM, sockets or clocks: it moves positions and decides whether the
 * peer's doorbell must be rung, which is then up to the carrier.
 *
 * Positions are 64-bit counts of bytes that only grow and may wrap. A position's place in the data
 * is its remainder by the size, a power of two. `head - tail` bytes can be read.
 *
 * The data must be mapped twice in a row (`data[i]` and `data[i + size]` are the same byte), so
 * that every span is contiguous.
 *
 * The peer can change everything in bw_ring_shared_t at any time, to any value. So each field is
 * read once into a local, checked there, and then used. A value that no correct peer writes gives
 * BW_CORRUPT.
 *
 * Wake-ups: each of the four accesses marked (D) is sequentially consistent. So of "I publish, then
 * look whether you sleep" and "I say that I sleep, then look for what is published" at least one
 * sees the other. native/test/spin/doorbell.pml checks this.
 */

/* `alignas` keeps what one side writes often out of the cache line that the other side polls. */
typedef struct {
    /* written by the producer (D) */
    alignas(64) _Atomic uint64_t head;
    /* written by the consumer (D) */
    alignas(64) _Atomic uint64_t tail;
    /* 1: set by the consumer before it sleeps, cleared by the producer that wakes it (D) */
    alignas(64) _Atomic uint32_t reader_armed;
    /* bytes of room for which the stalled producer waits, 0: none; cleared by the consumer (D) */
    alignas(64) _Atomic uint32_t writer_wants;
    /* 1: the producer has written its last byte; set before it unmaps the ring */
    alignas(64) _Atomic uint32_t closed;
} bw_ring_shared_t;

static_assert(sizeof(bw_ring_shared_t) == 320, "the layout is part of the protocol");
static_assert(offsetof(bw_ring_shared_t, tail) == 64, "the layout is part of the protocol");
static_assert(offsetof(bw_ring_shared_t, reader_armed) == 128,
              "the layout is part of the protocol");
static_assert(offsetof(bw_ring_shared_t, writer_wants) == 192,
              "the layout is part of the protocol");
static_assert(offsetof(bw_ring_shared_t, closed) == 256, "the layout is part of the protocol");

#define BW_RING_MIN_BYTES ((uint64_t)64 * 1024)
#define BW_RING_MAX_BYTES ((uint64_t)1024 * 1024 * 1024)

typedef struct {
    uint8_t *base;
    size_t len;
} bw_span_t;

/* The producer's end. All calls on one bw_tx_t are made by one thread at a time (in the driver:
 * under the port lock). */
typedef struct {
    bw_ring_shared_t *shared;
    uint8_t *data;
    uint64_t size;
    uint64_t head; /* ours: the shared one is only a copy for the peer */
    uint64_t tail; /* the last valid one that the peer published */
} bw_tx_t;

/* The consumer's end, under the same rule. */
typedef struct {
    bw_ring_shared_t *shared;
    const uint8_t *data;
    uint64_t size;
    uint64_t tail; /* ours */
    uint64_t head; /* the last valid one that the peer published */
} bw_rx_t;

/* A size is valid if it is a power of two from BW_RING_MIN_BYTES to BW_RING_MAX_BYTES. */
bool bw_ring_size_is_valid(uint64_t size);

/* Makes the ring empty at position `start` (0 outside tests). One side must call it before any
 * other function. */
void bw_ring_init(bw_ring_shared_t *shared, uint64_t start);

/* Attach an end to an empty ring. `data` is mapped twice in a row, `size` is valid, and `start` is
 * the position that was given to bw_ring_init. */
void bw_tx_attach(bw_tx_t *tx, bw_ring_shared_t *shared, uint8_t *data, uint64_t size,
                  uint64_t start);
void bw_rx_attach(bw_rx_t *rx, bw_ring_shared_t *shared, const uint8_t *data, uint64_t size,
                  uint64_t start);

/*
 * Returns the free bytes at head. Reads the peer's tail only if fewer than `want` bytes are known
 * to be free. Returns BW_OK with span_p->len > 0 (perhaps less than `want`), BW_AGAIN if the ring
 * is full, or BW_CORRUPT. The span is valid until the next bw_tx_publish.
 */
bw_status_t bw_tx_reserve(bw_tx_t *tx, size_t want, bw_span_t *span_p);

/* Publishes the first n bytes of the reserved span (n <= its length). One bw_tx_alert must follow
 * after any number of these calls. */
void bw_tx_publish(bw_tx_t *tx, size_t n);

/* Returns true if the consumer sleeps and must be rung. */
bool bw_tx_alert(bw_tx_t *tx);

/* Returns whether the consumer sleeps, so that bw_tx_alert would return true. */
bool bw_tx_is_awaited(const bw_tx_t *tx);

/*
 * Asks for one doorbell when at least `room` bytes (1 to size) are free. Returns BW_OK if it is
 * armed and the doorbell will come, BW_AGAIN if there is enough room already and nothing is armed,
 * or BW_CORRUPT.
 */
bw_status_t bw_tx_arm(bw_tx_t *tx, size_t room);

/* Returns true if the consumer has released everything, false also on a corrupt tail. */
bool bw_tx_is_drained(bw_tx_t *tx);

/* Announces that nothing more will be committed. Returns true if the consumer must be rung. */
bool bw_tx_close(bw_tx_t *tx);

/* Returns the readable bytes at tail: BW_OK, BW_AGAIN (none) or BW_CORRUPT. The span is valid until
 * it is released. */
bw_status_t bw_rx_peek(bw_rx_t *rx, bw_span_t *span_p);

/* Frees the first n bytes of the peeked span (n <= its length). Returns true if the producer must
 * be rung. */
bool bw_rx_release(bw_rx_t *rx, size_t n);

/* Returns true if the producer will commit no more and everything that it committed has been
 * released. A producer that was killed never announces that. Called after arming this misses
 * nothing: either it returns true now, or the producer's close rings. */
bool bw_rx_is_finished(bw_rx_t *rx);

/* Asks for one doorbell when there is more to read than the last peek gave (half a frame may be
 * left unreleased). Returns BW_OK if it is armed, BW_AGAIN if there is already more and nothing is
 * armed, or BW_CORRUPT. */
bw_status_t bw_rx_arm(bw_rx_t *rx);

#endif
