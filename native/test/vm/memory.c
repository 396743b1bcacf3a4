/* SPDX-License-Identifier: Apache-2.0 */
#include "inside.h"

#define BINARY_MAX ((ErlDrvSizeT)64 << 20) /* larger allocations fail, as if memory were low */

void (*vm_deliver)(ErlDrvPort port, const uint8_t *at, uint64_t len);
int vm_allocations_left = -1;

/* A binary as the driver knows it, and the VM's own data about it. */
typedef struct {
    int refs;
    ErlDrvBinary binary; /* last member */
} kept_t;

/* A binary that was delivered, kept until the next round. */
typedef struct given {
    struct given *next;
    kept_t *kept;
    const uint8_t *at;
    uint64_t len, sum;
} given_t;

static struct {
    int pieces, binaries;
    given_t *given;
} held;

static bool may_allocate(void)
{
    return vm_allocations_left < 0 || (vm_allocations_left > 0 && vm_allocations_left-- > 0);
}

void *driver_alloc(ErlDrvSizeT size)
{
    void *at = may_allocate() ? malloc(size) : NULL;

    vm_lock();
    held.pieces += at != NULL;
    vm_unlock();
    return at;
}

void driver_free(void *at)
{
    vm_lock();
    held.pieces -= at != NULL;
    vm_unlock();
    free(at);
}

static kept_t *kept_of(ErlDrvBinary *binary)
{
    return (kept_t *)((char *)binary - offsetof(kept_t, binary));
}

ErlDrvBinary *driver_alloc_binary(ErlDrvSizeT size)
{
    kept_t *kept = size <= BINARY_MAX && may_allocate() ? malloc(sizeof *kept + size) : NULL;

    if (!kept)
        return NULL;
    kept->refs = 1;
    kept->binary.orig_size = (ErlDrvSInt)size;
    vm_lock();
    held.binaries++;
    vm_unlock();
    return &kept->binary;
}

static size_t least(ErlDrvSizeT left, ErlDrvSInt right)
{
    return (size_t)left < (size_t)right ? (size_t)left : (size_t)right;
}

/* Always moves the binary, as the real call may. */
ErlDrvBinary *driver_realloc_binary(ErlDrvBinary *binary, ErlDrvSizeT size)
{
    ErlDrvBinary *larger = driver_alloc_binary(size);

    if (!larger)
        return NULL;
    if (kept_of(binary)->refs != 1)
        broken("a binary that others hold becomes larger");
    memcpy(larger->orig_bytes, binary->orig_bytes, (size_t)least(size, binary->orig_size));
    driver_free_binary(binary);
    return larger;
}

static void let_go(kept_t *kept)
{
    int refs;

    vm_lock();
    refs = --kept->refs;
    held.binaries -= refs == 0;
    vm_unlock();
    if (refs == 0)
        free(kept);
}

void driver_free_binary(ErlDrvBinary *binary)
{
    let_go(kept_of(binary));
}

ErlDrvSInt driver_binary_inc_refc(ErlDrvBinary *binary)
{
    ErlDrvSInt refs;

    vm_lock();
    refs = ++kept_of(binary)->refs;
    vm_unlock();
    return refs;
}

ErlDrvSInt driver_binary_get_refc(ErlDrvBinary *binary)
{
    ErlDrvSInt refs;

    vm_lock();
    refs = kept_of(binary)->refs;
    vm_unlock();
    return refs;
}

static uint64_t sum_of(const uint8_t *at, uint64_t len)
{
    uint64_t sum = len;

    for (uint64_t i = 0; i < len; i++)
        sum = sum * 31 + at[i];
    return sum;
}

static void deliver(ErlDrvPort port, const uint8_t *at, uint64_t len)
{
    if (!port->is_open)
        broken("a port that has stopped gives something");
    port->frames++;
    port->bytes += len;
    if (vm_deliver)
        vm_deliver(port, at, len);
}

int driver_output(ErlDrvPort port, char *at, ErlDrvSizeT len)
{
    deliver(port, (const uint8_t *)at, len);
    return 0;
}

/* The owner reads the binary later, so the driver must be done with these bytes. */
int driver_output_binary(ErlDrvPort port, char *head, ErlDrvSizeT head_len, ErlDrvBinary *binary,
                         ErlDrvSizeT offset, ErlDrvSizeT len)
{
    given_t *given = make(sizeof *given);

    (void)head, (void)head_len;
    if (offset + len > (ErlDrvSizeT)binary->orig_size)
        broken("more is given than a binary has");
    *given = (given_t){
        .kept = kept_of(binary), .at = (const uint8_t *)binary->orig_bytes + offset, .len = len};
    deliver(port, given->at, len);
    given->sum = sum_of(given->at, len);
    vm_lock();
    given->kept->refs++;
    given->next = held.given;
    held.given = given;
    vm_unlock();
    return 0;
}

void vm_read_given(void)
{
    given_t *given, *next;

    vm_lock();
    given = held.given;
    held.given = NULL;
    vm_unlock();
    for (; given; given = next) {
        next = given->next;
        if (sum_of(given->at, given->len) != given->sum)
            broken("a binary has changed after it was given");
        let_go(given->kept);
        free(given);
    }
}

void vm_count_memory(int *pieces_p, int *binaries_p)
{
    *pieces_p = held.pieces;
    *binaries_p = held.binaries;
}
