/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "pump.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

bool rd_pump_init(rd_pump_t *pump, rd_why_t *why)
{
    *pump = (rd_pump_t){.outcome = RD_PUMP_RUNS};
    atomic_init(&pump->status, RD_STATUS_UNKNOWN);
    pump->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pump->wake < 0)
        return rd_because(why, "eventfd: %s", strerror(errno));
    return true;
}

void rd_pump_free(rd_pump_t *pump)
{
    if (pump->wake >= 0)
        close(pump->wake);
    pump->wake = -1;
}

void rd_pump_wake(rd_pump_t *pump)
{
    (void)eventfd_write(pump->wake, 1);
}
