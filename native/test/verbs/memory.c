/* SPDX-License-Identifier: Apache-2.0 */

/* Protection domains and registered memory. */

#include "inside.h"

#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

region_t *fake_region_of(const struct ibv_pd *pd, uint32_t key, uint64_t at, uint64_t len,
                         int access)
{
    region_t *region = fake.regions[(key >> 8) % (sizeof fake.regions / sizeof *fake.regions)];

    if (!region || region->mr.rkey != key || region->mr.pd != pd ||
        (region->access & access) != access || at < (uintptr_t)region->mr.addr ||
        len > region->mr.length || at - (uintptr_t)region->mr.addr > region->mr.length - len)
        return NULL;
    return region;
}

/* ---- libibverbs ---- */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    domain_t *domain = make(sizeof *domain);

    domain->pd.context = context;
    lock();
    ((device_t *)context)->users++;
    unlock(0);
    return &domain->pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    lock();
    if (((domain_t *)pd)->users > 0)
        return unlock(EBUSY);
    fake_forget_user(pd->context);
    free(pd);
    return unlock(0);
}

/* Performs the checks that the kernel performs before it locks memory. */
static bool may_lock(uint64_t bytes)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    struct rlimit limit;

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    return limit.rlim_cur == RLIM_INFINITY || fake.locked + bytes <= limit.rlim_cur ||
           (syscall(SYS_capget, &header, data) == 0 && (data[0].effective & (1u << CAP_IPC_LOCK)));
}

static bool is_mapped(void *at, size_t len)
{
    uintptr_t from = (uintptr_t)at & ~(uintptr_t)4095;

    return madvise(pointer(from), len + ((uintptr_t)at - from), MADV_NORMAL) == 0;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t len, int access)
{
    size_t most = sizeof fake.regions / sizeof *fake.regions, index = 0;
    region_t *region;

    lock();
    while (index < most && fake.regions[index])
        index++;
    errno = index == most || !may_lock(len)                                            ? ENOMEM
            : (access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE) ? EINVAL
            : !is_mapped(at, len)                                                      ? EFAULT
                                                                                       : 0;
    if (errno != 0) {
        unlock(0);
        return NULL;
    }
    region = fake.regions[index] = make(sizeof *region);
    region->access = access;
    region->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = at, .length = len};
    region->mr.lkey = region->mr.rkey = (uint32_t)index << 8 | (++fake.regions_made & 255);
    fake.locked += len;
    ((domain_t *)pd)->users++;
    fake.holder->objects++;
    unlock(0);
    return &region->mr;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t len, uint64_t iova,
                                       unsigned int access)
{
    (void)iova;
    return ibv_reg_mr(pd, at, len, (int)access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    lock();
    fake.locked -= mr->length;
    fake.regions[mr->lkey >> 8] = NULL;
    ((domain_t *)mr->pd)->users--;
    fake.holder->objects--;
    free(mr);
    return unlock(0);
}
