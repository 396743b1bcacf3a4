/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_DRIVER_SHIM_H
#define BW_DRIVER_SHIM_H

/*
 * Stubs for the few VM functions that the pump calls (native/driver/pump.h), so that it can run
 * without a VM in fuzz targets and in pump_test. There is only one port. Frames that the pump
 * delivers to "the VM" are passed to shim_deliver, which the program defines; the queue is a single
 * contiguous buffer.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "erl_driver.h"

/* Called for each frame that has arrived: `len` bytes at `at`. */
static void shim_deliver(const uint8_t *at, uint64_t len);

/* Allocations of larger binaries fail, as if memory were low. shim.largest can lower this limit. */
#define SHIM_BINARY_MAX ((ErlDrvSizeT)64 << 20)

static struct {
    char *bytes;
    size_t len;
    SysIOVec iov;
    bool busy;
    int binaries, pieces; /* allocated and not yet freed */
    bool is_out_of_memory;
    ErlDrvSizeT largest;   /* size of the largest binary allowed; 0: SHIM_BINARY_MAX */
    bool refuses;          /* the next signal passed to the VM cannot be decoded */
    ErlDrvSInt most_given; /* size of the largest binary delivered */
    char head[8];          /* head of the last binary delivered */
    size_t head_len;
} shim;

static bool shim_refuses(ErlDrvSizeT size)
{
    return size > (shim.largest > 0 ? shim.largest : SHIM_BINARY_MAX);
}

ErlDrvBinary *driver_alloc_binary(ErlDrvSizeT size)
{
    ErlDrvBinary *binary;

    if (shim_refuses(size))
        return NULL;
    binary = malloc(sizeof *binary + (size_t)size);
    if (binary) {
        binary->orig_size = (ErlDrvSInt)size;
        shim.binaries++;
    }
    return binary;
}

ErlDrvBinary *driver_realloc_binary(ErlDrvBinary *binary, ErlDrvSizeT size)
{
    ErlDrvBinary *larger =
        shim_refuses(size) ? NULL : realloc(binary, sizeof *binary + (size_t)size);

    if (larger)
        larger->orig_size = (ErlDrvSInt)size;
    return larger;
}

/* The VM keeps references to the binaries that it passes in. */
ErlDrvSInt driver_binary_inc_refc(ErlDrvBinary *binary)
{
    (void)binary;
    return ++shim.binaries;
}

ErlDrvSInt driver_binary_get_refc(ErlDrvBinary *binary)
{
    (void)binary;
    return shim.binaries;
}

void driver_free_binary(ErlDrvBinary *binary)
{
    shim.binaries--;
    free(binary);
}

void *driver_alloc(ErlDrvSizeT size)
{
    if (shim.is_out_of_memory)
        return NULL;
    shim.pieces++;
    return malloc((size_t)size);
}

void driver_free(void *at)
{
    shim.pieces -= at != NULL;
    free(at);
}

int driver_output(ErlDrvPort port, char *buf, ErlDrvSizeT len)
{
    (void)port;
    shim.head_len = 0;
    shim_deliver((const uint8_t *)buf, len);
    return 0;
}

int driver_output_binary(ErlDrvPort port, char *head, ErlDrvSizeT head_len, ErlDrvBinary *binary,
                         ErlDrvSizeT offset, ErlDrvSizeT len)
{
    (void)port;
    shim.head_len = head_len < sizeof shim.head ? (size_t)head_len : sizeof shim.head;
    if (head)
        memcpy(shim.head, head, shim.head_len);
    if (offset + len > (ErlDrvSizeT)binary->orig_size)
        abort();
    if (shim.refuses)
        return -1;
    if (shim.most_given < binary->orig_size)
        shim.most_given = binary->orig_size;
    shim_deliver((const uint8_t *)binary->orig_bytes + offset, len);
    return 0;
}

SysIOVec *driver_peekq(ErlDrvPort port, int *count_p)
{
    (void)port;
    shim.iov.iov_base = shim.bytes;
    shim.iov.iov_len = shim.len;
    *count_p = shim.len > 0;
    return &shim.iov;
}

ErlDrvSizeT driver_sizeq(ErlDrvPort port)
{
    (void)port;
    return shim.len;
}

ErlDrvSizeT driver_deq(ErlDrvPort port, ErlDrvSizeT len)
{
    (void)port;
    if (len > shim.len)
        abort();
    memmove(shim.bytes, shim.bytes + len, shim.len - (size_t)len);
    shim.len -= (size_t)len;
    return shim.len;
}

int driver_enq(ErlDrvPort port, char *buf, ErlDrvSizeT len)
{
    char *bytes;

    (void)port;
    if (len == 0)
        return 0;
    bytes = realloc(shim.bytes, shim.len + (size_t)len);
    if (!bytes)
        return -1;
    memcpy(bytes + shim.len, buf, (size_t)len);
    shim.bytes = bytes;
    shim.len += (size_t)len;
    return 0;
}

int driver_enqv(ErlDrvPort port, ErlIOVec *ev, ErlDrvSizeT skip)
{
    for (int i = 0; i < ev->vsize; i++) {
        ErlDrvSizeT len = (ErlDrvSizeT)ev->iov[i].iov_len, off = skip < len ? skip : len;

        skip -= off;
        if (driver_enq(port, (char *)ev->iov[i].iov_base + off, len - off) < 0)
            return -1;
    }
    return 0;
}

#ifndef SHIM_POLLS /* otherwise the program defines its own */
int driver_select(ErlDrvPort port, ErlDrvEvent event, int mode, int on)
{
    (void)port, (void)event, (void)mode, (void)on;
    return -1;
}
#endif

void set_busy_port(ErlDrvPort port, int on)
{
    (void)port;
    shim.busy = on;
}

ErlDrvTime erl_drv_monotonic_time(ErlDrvTimeUnit unit)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return ((ErlDrvTime)now.tv_sec * 1000000 + now.tv_nsec / 1000) /
           (unit == ERL_DRV_USEC ? 1 : 1000);
}

#endif
