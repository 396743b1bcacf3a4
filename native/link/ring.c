/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

bool bw_ring_size_is_valid(uint64_t size)
{
    return size >= BW_RING_MIN_BYTES && size <= BW_RING_MAX_BYTES && (size & (size - 1)) == 0;
}

void bw_ring_init(bw_ring_shared_t *shared, uint64_t start)
{
    atomic_store(&shared->head, start);
    atomic_store(&shared->tail, start);
    atomic_store(&shared->reader_armed, 0);
    atomic_store(&shared->writer_wants, 0);
    atomic_store(&shared->closed, 0);
}

void bw_tx_attach(bw_tx_t *tx, bw_ring_shared_t *shared, uint8_t *data, uint64_t size,
                  uint64_t start)
{
    *tx = (bw_tx_t){.shared = shared, .data = data, .size = size, .head = start, .tail = start};
}

void bw_rx_attach(bw_rx_t *rx, bw_ring_shared_t *shared, const uint8_t *data, uint64_t size,
                  uint64_t start)
{
    *rx = (bw_rx_t){.shared = shared, .data = data, .size = size, .tail = start, .head = start};
}

/* Accepts the peer's tail if it is between the last known one and our head, because the tail cannot
 * go backward, and the consumer cannot free bytes that were never written. */
static bool tx_refresh(bw_tx_t *tx)
{
    uint64_t tail = atomic_load(&tx->shared->tail);

    if (tail - tx->tail > tx->head - tx->tail)
        return false;
    tx->tail = tail;
    return true;
}

static uint64_t tx_free(const bw_tx_t *tx)
{
    return tx->size - (tx->head - tx->tail);
}

bw_status_t bw_tx_reserve(bw_tx_t *tx, size_t want, bw_span_t *span_p)
{
    if (tx_free(tx) < want && !tx_refresh(tx))
        return BW_CORRUPT;
    if (tx_free(tx) == 0)
        return BW_AGAIN;
    span_p->base = tx->data + (tx->head & (tx->size - 1));
    span_p->len = tx_free(tx);
    return BW_OK;
}

bool bw_tx_is_awaited(const bw_tx_t *tx)
{
    return atomic_load(&tx->shared->reader_armed) != 0;
}

bool bw_tx_alert(bw_tx_t *tx)
{
    return bw_tx_is_awaited(tx) && atomic_exchange(&tx->shared->reader_armed, 0) != 0;
}

void bw_tx_publish(bw_tx_t *tx, size_t n)
{
    tx->head += n;
    atomic_store(&tx->shared->head, tx->head);
}

bw_status_t bw_tx_arm(bw_tx_t *tx, size_t room)
{
    atomic_store(&tx->shared->writer_wants, (uint32_t)room);
    if (!tx_refresh(tx))
        return BW_CORRUPT;
    if (tx_free(tx) < room)
        return BW_OK;
    /* The consumer may already have answered, which only causes an unnecessary doorbell. */
    atomic_store(&tx->shared->writer_wants, 0);
    return BW_AGAIN;
}

bool bw_tx_is_drained(bw_tx_t *tx)
{
    return tx_refresh(tx) && tx->tail == tx->head;
}

bool bw_tx_close(bw_tx_t *tx)
{
    atomic_store(&tx->shared->closed, 1);
    return bw_tx_alert(tx);
}

/* Accepts the peer's head if it is between the last known one and that of a full ring. */
static bool rx_refresh(bw_rx_t *rx)
{
    uint64_t head = atomic_load(&rx->shared->head);

    if (head - rx->tail > rx->size || head - rx->tail < rx->head - rx->tail)
        return false;
    rx->head = head;
    return true;
}

bw_status_t bw_rx_peek(bw_rx_t *rx, bw_span_t *span_p)
{
    if (!rx_refresh(rx))
        return BW_CORRUPT;
    if (rx->head == rx->tail)
        return BW_AGAIN;
    span_p->base = (uint8_t *)rx->data + (rx->tail & (rx->size - 1));
    span_p->len = rx->head - rx->tail;
    return BW_OK;
}

bool bw_rx_release(bw_rx_t *rx, size_t n)
{
    uint32_t wants;

    rx->tail += n;
    atomic_store(&rx->shared->tail, rx->tail);
    wants = atomic_load(&rx->shared->writer_wants);
    /* Our copy of head may be stale, so there may be less room than it seems. The only effect is
     * that the doorbell is rung too early, after which the producer arms again. */
    return wants != 0 && rx->size - (rx->head - rx->tail) >= wants &&
           atomic_exchange(&rx->shared->writer_wants, 0) != 0;
}

bool bw_rx_is_finished(bw_rx_t *rx)
{
    /* `closed` must be read first, so that everything that was committed before it is seen. */
    return atomic_load(&rx->shared->closed) != 0 && rx_refresh(rx) && rx->head == rx->tail;
}

bw_status_t bw_rx_arm(bw_rx_t *rx)
{
    uint64_t seen = rx->head;

    atomic_store(&rx->shared->reader_armed, 1);
    if (!rx_refresh(rx))
        return BW_CORRUPT;
    if (rx->head == seen)
        return BW_OK;
    atomic_store(&rx->shared->reader_armed, 0);
    return BW_AGAIN;
}
