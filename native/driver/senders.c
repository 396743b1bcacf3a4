/* SPDX-License-Identifier: Apache-2.0 */
#include "senders.h"

#define CLASS_BYTES 9

static void tell(senders_t *self, ErlDrvTermData *message, int words)
{
    (void)erl_drv_send_term(driver_mk_port(self->pump->port), self->keeper, message, words);
}

static void tell_of_change(senders_t *self, const bw_sender_change_t *change)
{
    ErlDrvUInt64 key = change->key;
    ErlDrvTermData ask[] = {ERL_DRV_ATOM,   driver_mk_atom("ask"),
                            ERL_DRV_PID,    (ErlDrvTermData)change->pid,
                            ERL_DRV_UINT64, (ErlDrvTermData)&key,
                            ERL_DRV_UINT,   (ErlDrvTermData)change->patience,
                            ERL_DRV_TUPLE,  4};
    ErlDrvTermData other[] = {
        ERL_DRV_ATOM,  driver_mk_atom(change->state == BW_SENDER_HELD ? "hold" : "release"),
        ERL_DRV_PID,   (ErlDrvTermData)change->pid,
        ERL_DRV_TUPLE, 2};

    if (change->state == BW_SENDER_ASKED)
        tell(self, ask, sizeof ask / sizeof *ask);
    else
        tell(self, other, sizeof other / sizeof *other);
}

void senders_tell_all(senders_t *self)
{
    bw_sender_change_t change;

    while (pump_next_change(self->pump, &change))
        tell_of_change(self, &change);
    if (pump_begins_watch(self->pump))
        tell(self, (ErlDrvTermData[]){ERL_DRV_ATOM, driver_mk_atom("watch")}, 2);
}

static bool watch(senders_t *self, size_t len, reply_t *reply, bool *is_sound_p)
{
    bool again = false;

    if (len != 0)
        return false;
    *is_sound_p = pump_watch(self->pump, &again);
    reply_number(reply, again, 1);
    return true;
}

static bool answer(senders_t *self, const char *data, size_t len, reply_t *reply, bool *is_sound_p)
{
    bool is_held = false;

    if (len != 9 || (uint8_t)data[8] > BW_ANSWER_GONE)
        return false;
    *is_sound_p = pump_answer(self->pump, bw_number(data, 8), (bw_answer_t)data[8], &is_held);
    reply_number(reply, is_held, 1);
    return true;
}

/* If out of memory, a process remains in the normal class. */
static bool set_classes(senders_t *self, const char *data, size_t len)
{
    if (len % CLASS_BYTES != 0)
        return false;
    for (const char *at = data; at < data + len; at += CLASS_BYTES)
        if ((uint8_t)*at >= BW_CLASSES)
            return false;
    for (const char *at = data; at < data + len; at += CLASS_BYTES)
        (void)bw_scheduler_set_class(&self->pump->scheduler, bw_number(at + 1, 8), (bw_class_t)*at);
    return true;
}

static void tell_traffic(senders_t *self, int first, reply_t *reply)
{
    for (int i = first; i < TRAFFIC_SENDERS && i < first + SENDERS_TOLD; i++) {
        const traffic_sender_t *sender = &self->pump->traffic.senders[i];

        if (sender->bytes == 0)
            continue;
        reply_number(reply, sender->pid, 8);
        reply_number(reply, sender->bytes, 8);
        reply_number(reply, sender->before, 8);
        reply_number(reply, bw_scheduler_waiting(&self->pump->scheduler, sender->pid), 8);
    }
}

bool senders_command(senders_t *self, unsigned int command, const char *data, size_t len,
                     reply_t *reply, bool *is_sound_p)
{
    *is_sound_p = true;
    switch (command) {
    case COMMAND_WATCH:
        return watch(self, len, reply, is_sound_p);
    case COMMAND_ANSWER:
        return answer(self, data, len, reply, is_sound_p);
    case COMMAND_TRAFFIC:
        if (len == 1)
            tell_traffic(self, (int)bw_number(data, 1), reply);
        return len == 1;
    default:
        return set_classes(self, data, len);
    }
}
