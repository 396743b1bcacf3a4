/* SPDX-License-Identifier: Apache-2.0 */
#include "port.h"

#include "../link/stripes.h"
#include "pulse.h"

bool port_session(bw_port_t *self, uint64_t limit, uint64_t resume_ms)
{
    if (!self->pump.is_packets || self->active)
        return false;
    pump_begin_session(&self->pump, limit);
    self->resume_ms = (int64_t)resume_ms;
    (void)bw_pulse_missed(&self->stops);
    return true;
}

/* If the epoch is not higher than the current one, a later connection has already replaced the one
 * that the caller wants to drop. */
bool port_give_up(bw_port_t *self, uint64_t epoch, reply_t *reply)
{
    if (!self->pump.session.is_on || !self->active)
        return false;
    if (epoch <= self->epoch) {
        reply_reason(reply, "a later connection has been made");
        return true;
    }
    self->epoch = epoch;
    port_detach(self);
    reply_number(reply, self->pump.bytes_read, 8);
    return true;
}

/* Returns why the link cannot continue at `position`, up to which the peer claims to have read. */
static const char *why_not_at(const bw_outgoing_t *way, uint64_t position)
{
    if (position > way->sent)
        return "the peer claims to have read bytes that were never sent";
    if (position < way->arrived)
        return "the peer requests bytes that it has acknowledged";
    return "there is no memory for the bytes that wait";
}

static bw_status_t use_offer(bw_port_t *self, unsigned command, const char *data, size_t len,
                             bw_error_t *error_p)
{
    bw_link_t *link, *first;
    bw_status_t status = port_take_offer(data, len, &first, error_p);

    if (status != BW_OK)
        return status;
    link = first;
    if (command == COMMAND_SPREAD)
        status = bw_stripes_make(first, &link, error_p);
    if (status == BW_OK && !pump_attach(&self->pump, link, bw_number(data + 8, 8)))
        status = bw_fail(error_p, BW_REFUSED,
                         why_not_at(&self->pump.session.out, bw_number(data + 8, 8)), 0);
    if (status != BW_OK)
        link->ops->close(link, NULL);
    return status;
}

bool port_attach(bw_port_t *self, unsigned command, const char *data, size_t len, reply_t *reply)
{
    bw_error_t error = {0};
    bw_status_t status;

    if (len < 16 || !self->active || pump_is_attached(&self->pump) || !self->pump.link)
        return false;
    status = use_offer(self, command, data, len, &error);
    reply_status(reply, status, &error);
    if (status != BW_OK)
        return true;
    (void)port_begin_fault(self, &error); /* if out of memory, the link works without the fault */
    /* The resent bytes may end where the last check was, as if nothing had been sent. */
    self->out_at_session = self->pump.session.out.next;
    port_settle(self, pump_begin_polling(&self->pump) && pump_flush(&self->pump) ? WAKE_ASLEEP
                                                                                 : WAKE_FAILED);
    return true;
}
