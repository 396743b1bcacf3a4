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
 * A byte ring with one producer and one consumer, in shared memory.
 *
 * This module does not use the VM, sockets or clocks: it moves positions and decides whether the
 * peer's doorbell must be rung, which the carrier then does.
 *
 * Positions are 64-bit byte counts that only increase and may wrap around. The offset of a position
 * in the data is the position modulo the size, which is a power of two. `head - tail` bytes can be
 * read.
 *
 * The data must be mapped twice in a row (`data[i]` and `data[i + size]` are the same byte), so
 * that every span is contiguous.
 *
 * The peer can change everything in bw_ring_shared_t at any time, to any value. So each field is
 * read once into a local, checked there, and then used. A value that a correct peer never writes
 * results in BW_CORRUPT.
 *
 * Wake-ups: all accesses to the fields marked (D) are sequentially consistent. One side publishes
 * and then checks whether the other is asleep, while the other announces that it is going to sleep
 * and then checks for published bytes. So at least one of the two sees the other's write, and no
 * wake-up is lost. native/test/spin/doorbell.pml verifies this.
 */

/* `alignas` separates fields that one side writes often from those that the other side polls. */
typedef struct {
    /* written by the producer (D) */
    alignas(64) _Atomic uint64_t head;
    /* written by the consumer (D) */
    alignas(64) _Atomic uint64_t tail;
    /* set to 1 by the consumer before it sleeps, cleared by the producer that wakes it (D) */
    alignas(64) _Atomic uint32_t reader_armed;
    /* how many free bytes a stalled producer waits for, or 0; cleared by the consumer (D) */
    alignas(64) _Atomic uint32_t writer_wants;
    /* 1 if the producer has written its last byte; set before it unmaps the ring */
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

/* The producer's end. One thread at a time calls it (in the driver: under the port lock). */
typedef struct {
    bw_ring_shared_t *shared;
    uint8_t *data;
    uint64_t size;
    uint64_t head; /* authoritative; the shared one is only a copy for the peer */
    uint64_t tail; /* the last valid tail that the peer published */
} bw_tx_t;

/* The consumer's end, to which the same restriction applies. */
typedef struct {
    bw_ring_shared_t *shared;
    const uint8_t *data;
    uint64_t size;
    uint64_t tail; /* authoritative */
    uint64_t head; /* the last valid head that the peer published */
} bw_rx_t;

/* A size is valid if it is a power of two from BW_RING_MIN_BYTES to BW_RING_MAX_BYTES. */
bool bw_ring_size_is_valid(uint64_t size);

/* Initializes an empty ring at position `start` (0 outside tests). One side must call this before
 * any other function is used. */
void bw_ring_init(bw_ring_shared_t *shared, uint64_t start);

/* Attach one end to an empty ring. `data` is mapped twice in a row, `size` is valid, and `start` is
 * the position that was given to bw_ring_init. */
void bw_tx_attach(bw_tx_t *tx, bw_ring_shared_t *shared, uint8_t *data, uint64_t size,
                  uint64_t start);
void bw_rx_attach(bw_rx_t *rx, bw_ring_shared_t *shared, const uint8_t *data, uint64_t size,
                  uint64_t start);

/* Returns the free bytes at head. Reads the peer's tail only if fewer than `want` bytes are known
 * to be free. Returns BW_OK with span_p->len > 0 (perhaps less than `want`), BW_AGAIN if the ring
 * is full, or BW_CORRUPT. The span is valid until the next bw_tx_publish. */
bw_status_t bw_tx_reserve(bw_tx_t *tx, size_t want, bw_span_t *span_p);

/* Publishes the first n bytes of the reserved span (n <= its length). One bw_tx_alert must follow
 * after any number of these calls. */
void bw_tx_publish(bw_tx_t *tx, size_t n);

/* Returns true if the consumer is asleep, so its doorbell must be rung. */
bool bw_tx_alert(bw_tx_t *tx);

/* Returns whether the consumer is asleep, in which case bw_tx_alert would return true. */
bool bw_tx_is_awaited(const bw_tx_t *tx);

/* Asks the consumer to ring the doorbell once when at least `room` bytes (1 to size) are free.
 * Returns BW_OK, BW_AGAIN if they already are (nothing is armed then), or BW_CORRUPT. */
bw_status_t bw_tx_arm(bw_tx_t *tx, size_t room);

/* Returns true if the consumer has released everything and the tail is valid. */
bool bw_tx_is_drained(bw_tx_t *tx);

/* Announces the end of the bytes. Returns true if the consumer's doorbell must be rung. */
bool bw_tx_close(bw_tx_t *tx);

/* Returns the readable bytes at tail, valid until released, or BW_AGAIN (none) or BW_CORRUPT. */
bw_status_t bw_rx_peek(bw_rx_t *rx, bw_span_t *span_p);

/* Frees the first n peeked bytes. Returns true if the producer's doorbell must be rung. */
bool bw_rx_release(bw_rx_t *rx, size_t n);

/* Returns true if the producer has announced that it will not commit anything more, and everything
 * that it committed has been released. A producer that was killed never announces this. After
 * arming, either this returns true or the producer's close will ring the doorbell. */
bool bw_rx_is_finished(bw_rx_t *rx);

/* Asks the producer to ring the doorbell once when there is more to read than the last peek
 * returned (a partial frame may be left unreleased). Returns BW_OK if the doorbell will be rung,
 * BW_AGAIN if there is already more to read (nothing is armed then), or BW_CORRUPT. */
bw_status_t bw_rx_arm(bw_rx_t *rx);

#endif
