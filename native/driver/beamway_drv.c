/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The port driver. A port is one link to one peer, and it becomes a distribution controller when it
 * is passed to erlang:setnode/3. Only apps/beamway/src/beamway_port.erl uses it, and documents the
 * commands. Every callback runs under the port lock; nothing here blocks or logs.
 */

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "erl_driver.h"

#include "../link/stripes.h"
#include "closing.h"
#include "codec.h"
#include "async_job.h"
#include "load.h"
#include "offers.h"
#include "port.h"
#include "pulse.h"
#include "stats.h"

#define ABI_VERSION 19  /* of the commands below; must match beamway_port.erl */
#define FLUSH_MS 1      /* the longest time that output waits for the keeper */
#define CHECK_MS 1000   /* delay before a search for idle memory; timeout of the last flush */
#define BUSY_MS 4096    /* this delay if the last search found that the link is in use */
#define SESSION_MS 512  /* delay before the session checks the bytes that were sent or read */
#define TRUST_MS 8192   /* at least this often, it checks although the peer has answered */
#define AGAIN_MS 200    /* this delay while the peer's kernel has not received all sent bytes */
#define IDLE_PART 2     /* an idle link tests its path after resume_ms divided by this */
#define TOGETHER_MS 256 /* idle links do so at multiples of this, to share a wake-up */

/* Commands and their replies (reply.h). */
enum {
    COMMAND_VERSION = 1,  /* -> version:32 */
    COMMAND_ACTIVATE = 5, /* poll_us:64, sender_bytes:64 -> ; the caller gets `look` when it must
                             look. The VM queues sender_bytes before it suspends senders */
    COMMAND_TICK,         /* -> */
    COMMAND_STATS,        /* -> the numbers in stats.h, 64 bits each */
    COMMAND_RECEIVE,      /* -> 1 if nothing more will ever arrive, bytes_in:64 */
    COMMAND_PACKETS,      /* bytes already read from the connection -> ; switches to packets */
    COMMAND_LOOK,         /* -> 1 to look again, 0 to wait for `look` */
    COMMAND_FLUSH, /* -> ; the caller becomes the keeper: it gets `flush` when it must flush again,
                      and the messages in senders.h */
    COMMAND_OFFER = 19, /* -> number:64 ; needs a link that is not active: another port will use the
                           link, unless this one is closed first */
    COMMAND_LOAD = 30,  /* cpu_percent:8, run_queue:32, next_ms:32 -> ; a load sample of this node
                           (load.h) and a pulse (pulse.h). The next one will come in next_ms, unless
                           this port is closed first */
    COMMAND_TELL_LOAD,  /* -> ; before ACTIVATE: the peer accepts this node's load */
    COMMAND_CODEC = 36, /* path of a shared object -> ; applies to all ports */
    COMMAND_COMPRESS    /* is_always:8, percent:8 -> ; after SESSION: the peer accepts compressed
                           packets (packing.h). Needs CODEC */
};

static unsigned long ms_until(int64_t at_ms)
{
    int64_t now = bw_now_ms();

    return at_ms > now ? (unsigned long)(at_ms - now) : 0;
}

static bool is_past(int64_t at_ms)
{
    return at_ms != NEVER && ms_until(at_ms) == 0;
}

static int64_t earlier(int64_t one_ms, int64_t other_ms)
{
    return one_ms < other_ms ? one_ms : other_ms;
}

/* Sets the port's timer. A flush is always due before anything else. */
static void set_timer(bw_port_t *self)
{
    int64_t at_ms = earlier(self->fault_at_ms, earlier(self->session_at_ms, self->check_at_ms));

    if (self->timer_is_to_read || self->flush_ms != NO_FLUSH || self->pump.is_closing)
        return;
    if (at_ms != NEVER)
        driver_set_timer(self->pump.port, ms_until(at_ms));
    else
        driver_cancel_timer(self->pump.port);
}

static void set_check(bw_port_t *self, unsigned long ms)
{
    self->check_at_ms = bw_now_ms() + (int64_t)ms;
    set_timer(self);
}

/* If the timer is already set because the port must read at once, its expiry will also flush. */
static void set_flush(bw_port_t *self, unsigned long ms)
{
    if (self->flush_ms <= ms)
        return;
    self->flush_ms = ms;
    if (!self->timer_is_to_read)
        driver_set_timer(self->pump.port, ms);
}

/* If rounds follow each other closely, the next one would only set the timer again. */
static void cancel_flush(bw_port_t *self)
{
    if (self->flush_ms == NO_FLUSH || !self->rounds.is_apart || self->pump.is_unflushed ||
        self->pump.is_closing)
        return;
    self->flush_ms = NO_FLUSH;
    set_timer(self);
}

static int64_t idle_ms(const bw_port_t *self)
{
    int64_t part = self->resume_ms / IDLE_PART;

    return part > AGAIN_MS ? part : AGAIN_MS;
}

/* Returns whether sent bytes may not have arrived, or read bytes should be acknowledged. */
static bool has_news(const bw_port_t *self)
{
    uint64_t untold = pump_untold(&self->pump);

    return self->pump.session.out.next != self->out_at_session ||
           untold >= BW_SESSION_ACK_ALONE_BYTES || (untold > 0 && !self->pump.owes_ack);
}

/* Sets the timer if there is news. An idle link is also tested from time to time. Otherwise this
 * side would not notice that the path is lost until the VM's next tick, and by then the peer, which
 * may be unable to connect, would have given up on the link. The path counts as lost once TCP has
 * sent the same bytes twice, which takes 600 ms, so there is no hurry to look. */
static void check_session_in(bw_port_t *self, int64_t news_ms)
{
    bool is_due = self->session_at_ms != NEVER, is_news;
    int64_t ms;

    if (!self->pump.session.is_on || (is_due && !self->session_is_idle) ||
        !pump_is_attached(&self->pump))
        return;
    is_news = has_news(self);
    if (is_due && !is_news)
        return;
    self->session_is_idle = !is_news;
    ms = is_news ? news_ms : idle_ms(self);
    self->session_at_ms = bw_now_ms() + ms;
    if (ms >= 2 * TOGETHER_MS)
        self->session_at_ms += TOGETHER_MS - self->session_at_ms % TOGETHER_MS;
    set_timer(self);
}

/* Returns whether the peer has read everything that was sent. A link over several connections has
 * acknowledgements of its own, which only a check repeats. */
static bool is_answered(const bw_port_t *self)
{
    const bw_pump_t *pump = &self->pump;

    return pump->session.out.arrived == pump->session.out.sent && !self->is_silent &&
           self->connections == 0 && pump_untold(pump) < BW_SESSION_ACK_ALONE_BYTES;
}

/* A link with a few calls per second would be checked twice a second on both sides, and each check
 * wakes its node. So on such a link each frame carries an acknowledgement, and an answer takes the
 * place of the check. */
static void check_session(bw_port_t *self)
{
    if (self->is_sparse && self->pump.session.is_on && pump_is_attached(&self->pump)) {
        self->pump.owes_ack = pump_untold(&self->pump) > 0;
        if (self->session_at_ms != NEVER && !self->session_is_idle && is_answered(self) &&
            bw_now_ms() - self->checked_ms < TRUST_MS) {
            self->out_at_session = self->pump.session.out.next;
            self->session_at_ms = NEVER;
        }
    }
    check_session_in(self, SESSION_MS);
}

static void look_at_fault_later(bw_port_t *self)
{
    uint64_t due_us = self->pump.is_faulty ? bw_fault_due_us(self->pump.link) : UINT64_MAX;
    bool was_due = self->fault_at_ms != NEVER, is_due = due_us != UINT64_MAX;

    self->fault_at_ms = is_due ? bw_now_ms() + (int64_t)(due_us / 1000) + 1 : NEVER;
    if (is_due || was_due)
        set_timer(self);
}

/* Searches for idle memory after a while, if the link can have any. */
static void check_in(bw_port_t *self, unsigned long ms)
{
    const bw_carrier_t *ops = self->pump.link->ops;
    bw_link_stats_t stats;

    if (self->check_at_ms != NEVER || (ops->has_spare && !ops->has_spare(self->pump.link)))
        return;
    ops->stats(self->pump.link, &stats);
    self->out_at_check = stats.bytes_out;
    set_check(self, ms);
}

static void check_later(bw_port_t *self)
{
    check_in(self, CHECK_MS);
}

/* A cut link is read until nothing is left, because the VM may not report an event for it. A timer
 * of 0 fires within the same execution of the port unless the time slice is used up, so this uses
 * it up to let other ports run. */
static void come_back(bw_port_t *self)
{
    bool is_cut = !self->pump.is_closing && pump_is_cut(&self->pump);

    if (!self->active || self->timer_is_to_read || !(self->pump.comes_back || is_cut))
        return;
    self->timer_is_to_read = true;
    driver_set_timer(self->pump.port, 0);
    (void)erl_drv_consume_timeslice(self->pump.port, 100);
}

/* ---- commands ---- */

static bool is_corrupt(const bw_link_t *link)
{
    return link->ops->is_corrupt && link->ops->is_corrupt(link);
}

/* If frames are packets, the reason is the one that OTP's own port would give, whatever the system
 * reports. TLS failures keep their own names. */
static const char *reason_of_link(bw_port_t *self)
{
    const char *reason = self->pump.link->ops->reason(self->pump.link);

    if (!reason || !self->pump.is_packets || strncmp(reason, "beamway_tls_", 12) == 0 ||
        is_corrupt(self->pump.link))
        return reason;
    return "connection_closed";
}

void port_detach(bw_port_t *self)
{
    bw_link_t *link = self->pump.link;

    if (!pump_is_attached(&self->pump))
        return;
    pump_detach(&self->pump);
    close_link(self->pump.port, link, self->active);
    self->timer_is_to_read = self->is_silent = false;
    self->session_at_ms = self->fault_at_ms = NEVER;
    set_timer(self);
}

static void tell_keeper(bw_port_t *self, const char *what, const char *reason)
{
    ErlDrvTermData message[] = {
        ERL_DRV_ATOM,  driver_mk_atom((char *)(uintptr_t)what),
        ERL_DRV_ATOM,  driver_mk_atom((char *)(uintptr_t)(reason ? reason : "")),
        ERL_DRV_TUPLE, 2};

    (void)erl_drv_send_term(driver_mk_port(self->pump.port), self->senders.keeper, message,
                            reason ? 6 : 2);
}

/* Reports the loss of one connection of a link that still has others. */
static void count_connections(bw_port_t *self)
{
    unsigned count = self->pump.link ? bw_stripes_count(bw_fault_behind(self->pump.link)) : 0;

    if (count > 0 && count < self->connections) {
        tell_keeper(self, "thin", NULL);
        self->session_is_idle = false;
        self->session_at_ms = bw_now_ms() + AGAIN_MS; /* is_silent resends a lost acknowledgement */
        set_timer(self);
    }
    self->connections = count;
}

/* Returns whether the link survives the loss of its connection. */
static bool outlives(const bw_port_t *self)
{
    return self->pump.session.is_on && self->active && !self->pump.is_closing &&
           self->senders.has_keeper && pump_is_attached(&self->pump);
}

static void lose(bw_port_t *self, const char *reason)
{
    const bw_link_t *link = self->pump.link;

    if (link->ops->has_hung_up && link->ops->has_hung_up(link))
        reason = "connection_finished";
    self->losses++;
    port_detach(self);
    tell_keeper(self, "lost", reason);
}

/* The peer may have given up on the link while this process was stopped. Only a new connection can
 * show that, so nothing more is read from this one. Must be called before anything that reads. */
static bool was_stopped(bw_port_t *self)
{
    if (!outlives(self) || bw_pulse_missed(&self->stops) < self->resume_ms / 2)
        return false;
    lose(self, "stopped");
    return true;
}

/* drv_stop runs within this call, so the caller must not touch `self` again, unless the link has
 * only lost its connection. The port's owner is linked to the port, so it exits as well. */
static void fail(bw_port_t *self)
{
    const char *reason = self->pump.reason ? self->pump.reason : reason_of_link(self);

    if (reason && !self->pump.reason && !is_corrupt(self->pump.link) && outlives(self))
        lose(self, reason);
    else
        driver_failure_atom(self->pump.port, (char *)(reason ? reason : "beamway_link_corrupt"));
}

static bool command_step(bw_port_t *self, reply_t *reply)
{
    bw_link_t *link = NULL;

    if (!establish_step(&self->establish, reply, &link))
        return false;
    if (link)
        pump_start(&self->pump, link);
    return true;
}

/* If a peer closes its end cleanly, the ring's doorbell reports that before the socket is closed.
 * The reason is the same as for a closed socket. */
void port_settle(bw_port_t *self, wake_result_t result)
{
    if (result == WAKE_FAILED)
        fail(self);
    else if (result == WAKE_FINISHED && outlives(self))
        lose(self, "connection_closed");
    else if (result == WAKE_FINISHED)
        driver_failure_atom(self->pump.port, "connection_closed");
    else {
        senders_tell(&self->senders);
        count_connections(self);
        check_session(self);
        if (self->pump.is_faulty)
            look_at_fault_later(self);
        come_back(self);
    }
}

static bool command_activate(bw_port_t *self, uint64_t poll_us, uint64_t sender_bytes)
{
    bw_error_t error = {0};

    if (!self->pump.link || self->active)
        return false;
    (void)port_begin_fault(self, &error); /* if out of memory, the link works without the fault */
    if (self->pump.scheduler.sender_bytes < sender_bytes)
        self->pump.scheduler.sender_bytes = sender_bytes;
    bw_spin_init(&self->pump.spin, (uint32_t)poll_us);
    self->senders.keeper = driver_caller(self->pump.port);
    self->active = pump_begin_polling(&self->pump);
    come_back(self);
    return self->active;
}

static bool command_packets(bw_port_t *self, const char *data, size_t len, reply_t *reply)
{
    bw_link_t *link = self->pump.link;
    bw_error_t error = {0};
    bw_status_t status = BW_OK;

    if (!link || !link->ops->put_back || self->active)
        return false;
    if (len > 0)
        status = link->ops->put_back(link, data, len, &error);
    reply_status(reply, status, &error);
    if (status == BW_OK)
        pump_be_packets(&self->pump);
    return true;
}

static bool command_load(bw_port_t *self, const char *data)
{
    bw_load_sample(bw_number(data, 1), bw_number(data + 1, 4));
    bw_pulse((uint32_t)bw_number(data + 5, 4));
    self->gives_pulse = true;
    return true;
}

/* If frames are packets, only a session guarantees that the peer understands words (frame.h). */
static bool command_tell_load(bw_port_t *self)
{
    if (!self->pump.link || self->active || (self->pump.is_packets && !self->pump.session.is_on))
        return false;
    self->pump.tells_load = true;
    return true;
}

static bool command_compress(bw_port_t *self, const char *data)
{
    const bw_codec_t *codec = bw_codec_loaded();
    bw_link_stats_t stats;

    if (!codec || !self->pump.session.is_on || self->active)
        return false;
    bw_packing_begin(&self->pump.packing, codec, data[0], (uint8_t)data[1]);
    /* The handshake has measured the round trip. */
    self->pump.link->ops->stats(self->pump.link, &stats);
    bw_packing_path_is(&self->pump.packing, stats.least_rtt_us);
    return true;
}

/* The descriptor moves with the link, so this port stops polling it but must not close it. */
static bool command_offer(bw_port_t *self, reply_t *reply)
{
    bw_link_t *link = self->pump.link;

    if (!link || self->active || !link->ops->wants)
        return false;
    if (self->establish.is_selected)
        driver_select(self->pump.port, (ErlDrvEvent)(intptr_t)link->ops->fd(link),
                      ERL_DRV_READ | ERL_DRV_WRITE | ERL_DRV_USE_NO_CALLBACK, 0);
    self->establish.is_selected = false;
    self->offer = bw_offer(link);
    if (self->offer == 0) {
        reply_reason(reply, "no memory to hand a link over");
        return true;
    }
    self->pump.link = NULL;
    reply_number(reply, self->offer, 8);
    return true;
}

static bool command_idle_link(bw_port_t *self, unsigned int command, const char *data, size_t len,
                              reply_t *reply)
{
    bw_link_t *link = self->pump.link;

    if (!link || self->active)
        return false;
    if (command == COMMAND_SAY)
        return len > 0 && establish_say(link, data, len, reply);
    if (command == COMMAND_HEAR)
        return len == 4 && establish_hear(&self->establish, link, bw_number(data, 4), reply);
    if (!link->ops->leave)
        return false;
    link->ops->leave(link);
    return true;
}

static bool flush(bw_port_t *self)
{
    if (self->pump.is_unflushed)
        bw_round_ends(&self->rounds, self->pump.frames_out, self->pump.frames_in, bw_now_us());
    return pump_flush(&self->pump);
}

static void settle_sent(bw_port_t *self, bool is_sound)
{
    port_settle(self, is_sound ? WAKE_ASLEEP : WAKE_FAILED);
}

static bool command_flush(bw_port_t *self)
{
    bool is_sound;

    if (!self->pump.link)
        return false;
    (void)pump_defer(&self->pump);
    self->senders.keeper = driver_caller(self->pump.port);
    self->senders.has_keeper = true;
    if (self->is_flush_asked)
        late_note(&self->keeper_late, self->asked_us, bw_now_us());
    self->is_flush_asked = false;
    is_sound = flush(self);
    if (is_sound)
        cancel_flush(self);
    settle_sent(self, is_sound);
    return true;
}

static bool command_senders(bw_port_t *self, unsigned int command, const char *data, size_t len,
                            reply_t *reply)
{
    bool is_sound;

    if (!self->pump.link || !senders_command(&self->senders, command, data, len, reply, &is_sound))
        return false;
    settle_sent(self, is_sound);
    return true;
}

#define OF_LINK(name) stats.name,
#define OF_PORT(name, value) value,

static void command_stats(bw_port_t *self, reply_t *reply)
{
    bw_link_stats_t stats = {0};

    if (self->pump.link)
        self->pump.link->ops->stats(self->pump.link, &stats);
    if (self->pump.session.is_on) { /* total over all connections */
        stats.bytes_in = self->pump.bytes_read;
        stats.bytes_out = self->pump.session.out.next;
        stats.ring_bytes = self->pump.ring_bytes;
    }
    const uint64_t numbers[] = {BW_LINK_NUMBERS(OF_LINK) BW_PORT_NUMBERS(OF_PORT)};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        reply_number(reply, numbers[i], 8);
}

static bool command_look(bw_port_t *self, reply_t *reply)
{
    wake_result_t result;

    if (was_stopped(self)) {
        reply_number(reply, 0, 1);
        return true;
    }
    result = flush(self) ? pump_look(&self->pump) : WAKE_FAILED;
    reply_number(reply, result == WAKE_LOOKING, 1);
    port_settle(self, result);
    return true;
}

static bool command_receive(bw_port_t *self, reply_t *reply)
{
    bw_link_t *link = self->pump.link;
    pump_result_t result;
    bw_link_stats_t stats;
    bool is_orphan, finished;

    if (!self->active)
        return false;
    /* This must be checked before the last read. */
    is_orphan = link->ops->is_orphan && link->ops->is_orphan(link);
    result = pump_receive(&self->pump);
    finished = result != PUMP_MORE && (is_orphan || link->ops->is_finished(link));
    link->ops->stats(link, &stats);
    /* 2: the peer's process has exited. */
    reply_number(reply, finished && is_orphan ? 2 : finished, 1);
    reply_number(reply, stats.bytes_in, 8);
    if (result == PUMP_FAILED)
        fail(self);
    return true;
}

/* Returns false if the caller violated the contract of the command; it then gets a badarg. */
static bool run_command(bw_port_t *self, unsigned int command, const char *data, size_t len,
                        reply_t *reply)
{
    bool is_sound;

    reply_number(reply, 0, 1);
    switch (command) {
    case COMMAND_VERSION:
        reply_number(reply, ABI_VERSION, 4);
        return true;
    case COMMAND_ACTIVATE:
        return len == 16 && command_activate(self, bw_number(data, 8), bw_number(data + 8, 8));
    case COMMAND_TICK:
        if (!self->pump.link)
            return false;
        is_sound = pump_tick(&self->pump);
        if (is_sound)
            check_later(self);
        settle_sent(self, is_sound);
        return true;
    case COMMAND_SESSION:
        return len == 12 && port_session(self, bw_number(data, 8), bw_number(data + 8, 4));
    case COMMAND_OFFER:
        return len == 0 && command_offer(self, reply);
    case COMMAND_LOAD:
        return len == 9 && command_load(self, data);
    case COMMAND_TELL_LOAD:
        return len == 0 && command_tell_load(self);
    case COMMAND_FAULT:
        return port_fault(self, data, len, reply);
    case COMMAND_SOCKET_FAULT:
        return port_socket_fault(data, len, reply);
    case COMMAND_CODEC:
        return codec_load(self->pump.port, data, len, reply);
    case COMMAND_COMPRESS:
        return len == 2 && command_compress(self, data);
    case COMMAND_DETACH:
        return len == 8 && port_give_up(self, bw_number(data, 8), reply);
    case COMMAND_ATTACH:
    case COMMAND_SPREAD:
        return port_attach(self, command, data, len, reply);
    case COMMAND_JOIN:
        return port_join(self, data, len, reply);
    case COMMAND_STATS:
        command_stats(self, reply);
        return true;
    case COMMAND_RECEIVE:
        return command_receive(self, reply);
    case COMMAND_PACKETS:
        return command_packets(self, data, len, reply);
    case COMMAND_FLUSH:
        return command_flush(self);
    case COMMAND_WATCH:
    case COMMAND_ANSWER:
    case COMMAND_CLASSES:
    case COMMAND_TRAFFIC:
        return command_senders(self, command, data, len, reply);
    case COMMAND_LOOK:
        return self->active && command_look(self, reply);
    case COMMAND_USE:
        return !self->pump.link && establish_use(&self->establish, data, len, reply);
    case COMMAND_LISTEN:
        return !self->pump.link && establish_listen(&self->establish, data, len, reply);
    case COMMAND_CONNECT:
        return !self->pump.link && establish_connect(&self->establish, data, len, reply);
    case COMMAND_STEP:
        return len == 0 && command_step(self, reply);
    case COMMAND_PROBE:
        return establish_probe(&self->establish, data, len, reply);
    case COMMAND_SAY:
    case COMMAND_HEAR:
    case COMMAND_LEAVE:
        return command_idle_link(self, command, data, len, reply);
    case COMMAND_DERIVE:
        return establish_derive(&self->establish, data, len, reply);
    default:
        return false;
    }
}

/* ---- callbacks ---- */

static ErlDrvData drv_start(ErlDrvPort port, char *command)
{
    bw_port_t *self = driver_alloc(sizeof *self);

    (void)command;
    if (!self)
        return ERL_DRV_ERROR_GENERAL;
    *self = (bw_port_t){
        .pump.port = port,
        .establish.port = port,
        .senders.pump = &self->pump,
        .flush_ms = NO_FLUSH,
        .check_at_ms = NEVER,
        .session_at_ms = NEVER,
        .checked_ms = bw_now_ms() - TRUST_MS, /* so the first check takes place */
        .fault_at_ms = NEVER,
        .flush_atom = driver_mk_atom("flush"),
    };
    set_port_control_flags(port, PORT_CONTROL_FLAG_BINARY);
    return (ErlDrvData)self;
}

static void drv_stop(ErlDrvData data)
{
    bw_port_t *self = (bw_port_t *)data;

    driver_cancel_timer(self->pump.port);
    if (self->gives_pulse)
        bw_pulse_end();
    pump_say_end(&self->pump);
    pump_reset(&self->pump);
    pump_drop(&self->pump);
    establish_close(&self->establish);
    if (self->offer != 0)
        self->pump.link = bw_offer_take(self->offer);
    if (pump_is_attached(&self->pump))
        close_link(self->pump.port, self->pump.link, self->active || self->establish.is_selected);
    driver_free(self);
}

static void drv_stop_select(ErlDrvEvent event, void *reserved)
{
    (void)reserved;
    close((int)(intptr_t)event);
}

/* The keeper is a process, so other processes that are about to send do so before it runs; the
 * timer is for a keeper that busy processes delay. A lone caller that sends one frame at a time
 * sends no more, so this flushes immediately. While the poller is spinning, its next look sends the
 * frames, since it runs after the senders. Otherwise, a lone caller's frames are sent with a timer
 * of 0, which fires once the VM has no more frames for this port. */
static bool flush_soon(bw_port_t *self)
{
    ErlDrvTermData message[] = {ERL_DRV_ATOM, self->flush_atom};

    if (!self->pump.is_unflushed)
        return true;
    if (!self->is_flush_asked) {
        self->asked_us = bw_now_us();
        self->is_sparse = bw_rounds_were_quiet(&self->rounds, self->asked_us);
        bw_rounds_forget(&self->rounds, self->asked_us);
    }
    if (!self->senders.has_keeper || bw_rounds_are_single(&self->rounds))
        return flush(self);
    if (self->pump.spinning) {
        set_flush(self, FLUSH_MS);
        return true;
    }
    if (!self->is_flush_asked && bw_rounds_are_lone(&self->rounds)) {
        set_flush(self, 0);
        return true;
    }
    if (!self->is_flush_asked)
        self->is_flush_asked = erl_drv_send_term(driver_mk_port(self->pump.port),
                                                 self->senders.keeper, message, 2) > 0;
    set_flush(self, FLUSH_MS);
    return self->is_flush_asked || flush(self);
}

static void drv_outputv(ErlDrvData data, ErlIOVec *ev)
{
    bw_port_t *self = (bw_port_t *)data;

    if (!self->pump.link)
        return;
    if (!pump_send(&self->pump, ev) || !flush_soon(self)) {
        fail(self);
        return;
    }
    check_later(self);
    port_settle(self, WAKE_ASLEEP);
}

static void ask_for_looks(bw_port_t *self)
{
    ErlDrvTermData look[] = {ERL_DRV_ATOM, driver_mk_atom("look")};

    /* The result can be ignored: the keeper is linked to the port's owner, the connection process,
     * and exits only together with it or because the port is closed. */
    (void)erl_drv_send_term(driver_mk_port(self->pump.port), self->senders.keeper, look, 2);
}

static void drv_ready_input(ErlDrvData data, ErlDrvEvent event)
{
    bw_port_t *self = (bw_port_t *)data;
    wake_result_t result;

    (void)event;
    if (!self->active) {
        establish_tell(&self->establish, self->pump.link);
        return;
    }
    if (was_stopped(self))
        return;
    result = pump_wake(&self->pump);
    if (result == WAKE_LOOKING)
        ask_for_looks(self);
    port_settle(self, result);
}

/* Called only for connections whose own descriptor is polled. */
static void drv_ready_output(ErlDrvData data, ErlDrvEvent event)
{
    bw_port_t *self = (bw_port_t *)data;

    (void)event;
    if (self->active)
        port_settle(self, pump_has_room(&self->pump));
    else
        establish_tell(&self->establish, self->pump.link);
}

static ErlDrvSSizeT drv_control(ErlDrvData data, unsigned int command, char *buf, ErlDrvSizeT len,
                                char **rbuf, ErlDrvSizeT rlen)
{
    bw_port_t *self = (bw_port_t *)data;
    reply_t reply = {0};

    if (!run_command(self, command, buf, len, &reply))
        return -1;
    if (reply.len > rlen) {
        ErlDrvBinary *bin = driver_alloc_binary((ErlDrvSizeT)reply.len);

        if (!bin)
            return -1;
        memcpy(bin->orig_bytes, reply.bytes, reply.len);
        *rbuf = (char *)bin;
    } else {
        memcpy(*rbuf, reply.bytes, reply.len);
    }
    return (ErlDrvSSizeT)reply.len;
}

/* While the peer reads, it gets the queued bytes; if it accepts nothing, it has CHECK_MS to start.
 * The VM closes the port when its queue is empty. */
static void close_later(bw_port_t *self)
{
    self->queued_before = pump_queued(&self->pump);
    if (!self->timer_is_to_read)
        driver_set_timer(self->pump.port, CHECK_MS);
}

static void drv_flush(ErlDrvData data)
{
    bw_port_t *self = (bw_port_t *)data;

    pump_finish(&self->pump);
    if (!pump_is_attached(&self->pump)) /* no connection is left to send the queued bytes */
        pump_drop(&self->pump);
    close_later(self);
    come_back(self);
}

/* If the peer has accepted nothing since, empties the queue, so that the VM closes the port. */
static void closing_timeout(bw_port_t *self)
{
    if (pump_queued(&self->pump) < self->queued_before) {
        close_later(self);
        return;
    }
    pump_drop(&self->pump);
    driver_deq(self->pump.port, driver_sizeq(self->pump.port));
}

/* Returns false if the link is unusable. */
static bool session_timeout(bw_port_t *self)
{
    const bw_carrier_t *ops = self->pump.link->ops;
    bw_link_stats_t stats;
    bool is_silent;

    self->session_at_ms = NEVER;
    self->checked_ms = bw_now_ms();
    if (self->session_is_idle && !pump_rest(&self->pump))
        return false;
    if ((self->session_is_idle || pump_untold(&self->pump) >= BW_SESSION_ACK_ALONE_BYTES) &&
        !pump_acknowledge(&self->pump))
        return false;
    self->pump.owes_ack = pump_untold(&self->pump) > 0;
    ops->stats(self->pump.link, &stats);
    bw_packing_path_is(&self->pump.packing, stats.least_rtt_us);
    is_silent = ops->is_silent && ops->is_silent(self->pump.link);
    if (is_silent != self->is_silent)
        tell_keeper(self, is_silent ? "silent" : "flows", NULL);
    self->is_silent = is_silent;
    if (stats.unreleased == 0 && !is_silent)
        self->out_at_session = self->pump.session.out.next;
    check_session_in(self,
                     self->out_at_session == self->pump.session.out.next ? SESSION_MS : AGAIN_MS);
    return true;
}

/* Gives memory back piece by piece if there has been no output since the check was scheduled. */
static void check_timeout(bw_port_t *self)
{
    bw_link_stats_t stats;

    self->pump.link->ops->stats(self->pump.link, &stats);
    if (stats.bytes_out != self->out_at_check || stats.fill_out != 0)
        check_in(self, BUSY_MS);
    else if (self->pump.link->ops->trim(self->pump.link))
        set_check(self, 1);
}

/* Returns false if the link is unusable. Flushing may delay a check, but not the session. */
static bool run_due(bw_port_t *self, bool is_early, bool is_to_flush)
{
    if (is_past(self->session_at_ms) || (!is_early && self->session_at_ms < self->check_at_ms)) {
        if (!session_timeout(self))
            return false;
    } else if (!is_early) {
        self->check_at_ms = NEVER;
        check_timeout(self);
    }
    return !is_to_flush || flush(self);
}

/* The timer must be set before calling port_settle, which may close the port. */
static void drv_timeout(ErlDrvData data)
{
    bw_port_t *self = (bw_port_t *)data;
    bool is_to_flush = self->flush_ms != NO_FLUSH;
    bool is_to_read = self->timer_is_to_read || is_past(self->fault_at_ms);
    wake_result_t result = WAKE_ASLEEP;

    self->timer_is_to_read = false;
    if (is_to_read && was_stopped(self))
        return;
    if (is_to_read)
        result = pump_wake(&self->pump);
    if (result == WAKE_LOOKING)
        ask_for_looks(self);
    if (self->pump.is_closing && !is_to_read) {
        closing_timeout(self);
        return;
    }
    if (self->pump.is_closing) {
        close_later(self);
    } else {
        self->flush_ms = NO_FLUSH;
        if (result != WAKE_FAILED && result != WAKE_FINISHED &&
            !run_due(self, is_to_read || is_to_flush, is_to_flush))
            result = WAKE_FAILED;
        set_timer(self);
    }
    port_settle(self, result);
}

static void drv_ready_async(ErlDrvData data, ErlDrvThreadData done)
{
    bw_port_t *self = (bw_port_t *)data;
    job_t *job = (job_t *)done;

    if (job->kind == ASYNC_CLOSING) {
        driver_free(job);
        return;
    }
    establish_done(&self->establish, job);
    job_end(self->pump.port, job);
}

static ErlDrvEntry entry = {
    .start = drv_start,
    .stop = drv_stop,
    .outputv = drv_outputv,
    .ready_input = drv_ready_input,
    .ready_output = drv_ready_output,
    .driver_name = "beamway_drv",
    .control = drv_control,
    .timeout = drv_timeout,
    .flush = drv_flush,
    .stop_select = drv_stop_select,
    .ready_async = drv_ready_async,
    .extended_marker = ERL_DRV_EXTENDED_MARKER,
    .major_version = ERL_DRV_EXTENDED_MAJOR_VERSION,
    .minor_version = ERL_DRV_EXTENDED_MINOR_VERSION,
    .driver_flags = ERL_DRV_FLAG_USE_PORT_LOCKING | ERL_DRV_FLAG_SOFT_BUSY,
};

__attribute__((visibility("default"))) DRIVER_INIT(beamway_drv)
{
    return &entry;
}
