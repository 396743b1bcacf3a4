/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_VM_CLOCK_H
#define BW_VM_CLOCK_H

#include <stdint.h>

#include "erl_driver.h"

/* Return the current time on the VM's monotonic clock. Only scheduler threads may call
 * them; on others they fail. */
static inline int64_t bw_now_ms(void)
{
    return erl_drv_monotonic_time(ERL_DRV_MSEC);
}

static inline uint64_t bw_now_us(void)
{
    return (uint64_t)erl_drv_monotonic_time(ERL_DRV_USEC);
}

#endif
