/* SPDX-License-Identifier: Apache-2.0 */
#include "detached_link.h"
#include "pump_inside.h"

bool pump_is_attached(const bw_pump_t *pump)
{
    return pump->link && pump->link != &bw_detached_link;
}

static void change_polling(bw_pump_t *pump, int mode, int on)
{
    ErlDrvEvent event = (ErlDrvEvent)(intptr_t)pump->link->ops->fd(pump->link);

    if (mode != 0 && driver_select(pump->port, event, mode, on) == 0)
        pump->polls ^= mode;
}

/* A connection is polled for input even if it is not armed, but not while the poller is spinning,
 * or while a fault leaves bytes in it, which would make the poller call again and again. */
void pump_poll(bw_pump_t *pump)
{
    const bw_carrier_t *ops = pump->link->ops;
    int wanted = ERL_DRV_USE | ERL_DRV_READ;
    short wants;

    if (pump->polls == 0)
        return;
    wants = ops->wants ? ops->wants(pump->link) : POLLIN;
    if (ops->wants && (pump->spinning || (pump->is_faulty && !(wants & POLLIN))))
        wanted &= ~ERL_DRV_READ;
    if (wants & POLLOUT)
        wanted |= ERL_DRV_WRITE;
    change_polling(pump, wanted & ~pump->polls, 1);
    change_polling(pump, pump->polls & ~wanted, 0);
}

/* Nothing is armed yet, so the port must be called again to check for input. */
bool pump_begin_polling(bw_pump_t *pump)
{
    change_polling(pump, ERL_DRV_USE | ERL_DRV_READ, 1);
    pump_come_back(pump);
    return pump->polls != 0;
}
