/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes everything that is read from a peer's rings: the driver's own pump reads frames and writes
 * some over a real shm link, while a second thread changes the shared memory as the input demands.
 *
 * Input: 2 bytes (little endian) n, the n bytes that the ring holds at the start, then steps of the
 * second thread, 10 bytes each: what to change, where, a value. They are repeated as long as the
 * pump runs. This checks that no access is outside the rings (they end at an unmapped page), that
 * no delivered frame is longer than a frame may be or can still be changed by the peer, that no
 * binary is leaked, and that every call returns.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "../test/driver/driver_shim.h"

#include "../driver/pump.h"
#include "../link/frame.h"
#include "../test/rings.h"
#include "input.h"

#define RING BW_RING_MIN_BYTES
#define HEADERS_BYTES 65536 /* the page before the data */

static struct {
    const uint8_t *steps;
    size_t count;
    bw_ring_shared_t *headers; /* as mapped by the peer */
    uint8_t *data;             /* data of the ring that the pump reads, as mapped by the peer */
    const uint8_t *own_data;   /* the same as mapped by the pump, twice in a row */
    _Atomic uint32_t job, done, stop;
} attack;

static volatile uint64_t delivered_sum;

static void shim_deliver(const uint8_t *at, uint64_t len)
{
    uintptr_t offset = (uintptr_t)at - (uintptr_t)attack.own_data;

    if (len == 0 || len > BW_FRAME_MAX_BYTES)
        abort();
    /* not in the mapping, because the VM reads it more than once */
    if (offset + HEADERS_BYTES < HEADERS_BYTES + 4 * RING)
        abort();
    /* reads both ends, so that a wrong length is noticed */
    delivered_sum += at[0] + at[len - 1];
}

/* Makes one change to the shared memory, with any alignment and any value. */
static void change(const uint8_t *step)
{
    uint64_t value;
    bw_ring_shared_t *in = &attack.headers[0], *out = &attack.headers[1];

    memcpy(&value, step + 2, sizeof value);
    switch (step[0] % 8) {
    case 0:
        atomic_store(&in->head, value);
        break;
    case 1: /* like a producer, in small steps */
        atomic_fetch_add(&in->head, value % 4096);
        break;
    case 2:
        atomic_store(&out->tail, value);
        break;
    case 3: /* like a consumer */
        atomic_store(&out->tail, atomic_load(&out->head));
        break;
    case 4:
        atomic_store(&in->reader_armed, (uint32_t)value);
        break;
    case 5:
        atomic_store(&in->writer_wants, (uint32_t)value);
        break;
    default: /* arbitrary bytes, mostly near the start of the ring */
        for (int i = 0; i < 8; i++)
            ((volatile uint8_t *)attack.data)[(step[1] * 8u + (uint32_t)i) % RING] =
                (uint8_t)(value >> 8 * i);
    }
}

static void *attacker(void *arg)
{
    (void)arg;
    for (uint32_t job = 1;; job++) {
        while (atomic_load(&attack.job) != job)
            sched_yield();
        do
            for (size_t i = 0; i < attack.count; i++)
                change(attack.steps + 10 * i);
        while (atomic_load(&attack.stop) != job);
        atomic_store(&attack.done, job);
    }
    return NULL;
}

static void send_one(bw_pump_t *pump, size_t len)
{
    static char payload[3 * RING];
    SysIOVec iov[2] = {{.iov_base = NULL}, {.iov_base = payload, .iov_len = len}};
    ErlIOVec ev = {.vsize = 2, .size = (ErlDrvSizeT)len, .iov = iov};

    if (!pump->busy)
        (void)pump_send(pump, &ev);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    static uint32_t job;
    size_t n = size < 2 ? 0 : (size_t)(input[0] | input[1] << 8);
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};
    bw_span_t span = {0};
    bw_pump_t pump = {0};
    pthread_t thread;

    if (size < 2 || n > size - 2 || n > RING)
        return 0;
    if (job == 0 && pthread_create(&thread, NULL, attacker, NULL) != 0)
        abort();
    if (!open_link(RING, &joined, &accepted, &error))
        abort();
    /* the attacker has the joined end; its outgoing ring directly follows the headers */
    if (joined->ops->reserve(joined, 1, &span) != BW_OK)
        abort();
    attack.data = span.base;
    attack.headers = (bw_ring_shared_t *)(void *)((uintptr_t)span.base - HEADERS_BYTES);
    memcpy(span.base, input + 2, n);
    if (n > 0)
        joined->ops->commit(joined, n);
    if (accepted->ops->reserve(accepted, 1, &span) != BW_OK)
        abort();
    attack.own_data = span.base - 2 * RING; /* the incoming ring precedes the outgoing one */
    attack.steps = input + 2 + n;
    attack.count = (size - 2 - n) / 10;

    pump_start(&pump, accepted);
    atomic_store(&attack.job, ++job);
    for (int i = 0; i < 6; i++) {
        if (i % 3 == 1)
            send_one(&pump, i == 1 ? 100 : 2 * RING);
        if (!pump_tick(&pump) || pump_wake(&pump) == WAKE_FAILED)
            break;
        accepted->ops->trim(accepted);
    }
    atomic_store(&attack.stop, job);
    while (atomic_load(&attack.done) != job)
        sched_yield();
    pump_reset(&pump);
    pump_drop(&pump);
    if (shim.binaries != 0)
        abort();
    free(shim.bytes);
    memset(&shim, 0, sizeof shim);
    accepted->ops->close(accepted, NULL);
    joined->ops->close(joined, NULL);
    return 0;
}
