/* SPDX-License-Identifier: Apache-2.0 */
#include "port.h"

#include <string.h>

bw_status_t port_begin_fault(bw_port_t *self, bw_error_t *error_p)
{
    static const bw_fault_t none;
    bw_link_t *link = self->pump.link;
    bw_status_t status;

    if (bw_is_faulty(link)) {
        bw_fault_change(link, &self->fault);
        return BW_OK;
    }
    if (!pump_is_attached(&self->pump) || memcmp(&self->fault, &none, sizeof none) == 0)
        return BW_OK;
    status = bw_fault_before(link, &self->fault, &link, error_p);
    if (status == BW_OK)
        pump_replace(&self->pump, link);
    return status;
}

bool port_fault(bw_port_t *self, const char *data, size_t len, reply_t *reply)
{
    bw_error_t error = {0};
    bw_status_t status;

    if (len != 18 || !self->pump.link)
        return false;
    memset(&self->fault, 0, sizeof self->fault);
    self->fault.delay_ms = (uint32_t)bw_number(data, 4);
    self->fault.jitter_ms = (uint32_t)bw_number(data + 4, 4);
    self->fault.rate = bw_number(data + 8, 8);
    self->fault.holds_in = data[16];
    self->fault.holds_out = data[17];
    status = self->active ? port_begin_fault(self, &error) : BW_OK;
    reply_status(reply, status, &error);
    if (status == BW_OK && self->pump.is_faulty)
        port_settle(self, pump_wake(&self->pump));
    return true;
}

bool port_socket_fault(const char *data, size_t len, reply_t *reply)
{
    bw_error_t error = {0};

    if (len != 5 || (uint8_t)data[4] >= BW_SOCKET_FAULTS)
        return false;
    reply_status(reply,
                 bw_fault_socket((int)bw_number(data, 4), (bw_socket_fault_t)data[4], &error),
                 &error);
    return true;
}
