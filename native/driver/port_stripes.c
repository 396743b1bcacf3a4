/* SPDX-License-Identifier: Apache-2.0 */
#include "port.h"

#include "../link/stripes.h"
#include "offers.h"

bw_status_t port_take_offer(const char *data, size_t len, bw_link_t **link_p, bw_error_t *error_p)
{
    bw_link_t *link = bw_offer_take(bw_number(data, 8));
    bw_status_t status = BW_OK;

    if (!link)
        return bw_fail(error_p, BW_INVALID, "the link that was offered is gone", 0);
    if (len > 16)
        status = link->ops->put_back(link, data + 16, len - 16, error_p);
    if (status == BW_OK)
        *link_p = link;
    else
        link->ops->close(link, NULL);
    return status;
}

static void reply_paths(const bw_port_t *self, reply_t *reply)
{
    bw_link_stats_t stats = {0};
    bool is_attached = pump_is_attached(&self->pump);

    if (is_attached)
        self->pump.link->ops->stats(self->pump.link, &stats);
    reply_number(reply, bw_stripes_count(bw_fault_behind(self->pump.link)), 4);
    reply_number(reply, stats.least_rtt_us, 8);
}

bool port_join(bw_port_t *self, const char *data, size_t len, reply_t *reply)
{
    bw_error_t error = {0};
    bw_link_t *link;
    bw_status_t status;

    if (!self->active || (len != 0 && len < 16))
        return false;
    if (len == 0) {
        reply_paths(self, reply);
        return true;
    }
    status = port_take_offer(data, len, &link, &error);
    if (status == BW_OK) {
        if (bw_number(data + 8, 8) == self->epoch && pump_is_attached(&self->pump))
            status = bw_stripes_add(bw_fault_behind(self->pump.link), link, &error);
        else
            status = bw_fail(&error, BW_REFUSED, "a later connection has been made", 0);
        if (status != BW_OK)
            link->ops->close(link, NULL);
    }
    reply_status(reply, status, &error);
    if (status == BW_OK)
        port_settle(self, WAKE_ASLEEP);
    return true;
}
