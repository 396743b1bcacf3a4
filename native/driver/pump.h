/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PUMP_H
#define BW_PUMP_H

#include <stdbool.h>
#include <stdint.h>

#include "erl_driver.h"

#include "../link/link.h"
#include "../link/spin.h"
#include "join.h"
#include "packing.h"
#include "pending.h"
#include "session.h"
#include "traffic.h"

/*
 * Moves frames between the VM and a link, both ways. All calls are made under the port lock.
 *
 * Out: a frame goes straight into the ring if it fits. What does not fit waits by reference, and
 * the scheduler lets small signals pass the fragments of large ones; the VM's queue holds a byte
 * then, so that the VM asks before it closes the port. In: a frame is copied once, out of the
 * peer's reach, before the VM decodes it: small ones that stand together into one binary, others
 * each into its own, the largest while they arrive; its memory grows as they do.
 */
typedef struct {
    ErlDrvPort port;
    bw_link_t *link;    /* NULL until a link is made */
    uint64_t half_ring; /* bytes of room at which the port is not busy any more */
    uint64_t ring_bytes;
    bool busy; /* what we last told the VM */

    bw_scheduler_t scheduler;    /* frames that wait for room */
    bw_pending_list_t under_way; /* those that go next; a part of the first may be out */
    traffic_t traffic;
    bw_session_t session;     /* of packets, if both sides have it */
    bw_packing_t packing;     /* of those that are compressed, if both sides have it */
    uint64_t first_bytes;     /* of first fragments in the scheduler */
    uint64_t window;          /* bytes in the ring at which fragments wait above it, at least */
    uint64_t unpassed_bytes;  /* of fragments since another frame passed some */
    uint64_t unflushed_bytes; /* committed since the last flush */
    bool has_token;           /* a byte of ours is in the VM's queue */
    uint64_t taken_at_watch;  /* bytes that the peer had taken at the last watch */
    int quiet_watches;        /* that have found no more of them */
    bool is_watched;
    bool is_stalled; /* much waits and the peer takes nothing: senders are the VM's */
    bool is_closing; /* the VM closes the port when that queue is empty */

    bw_joins_t joins;       /* signals that come in in fragments */
    ErlDrvBinary *gathered; /* where a frame goes that is arriving in pieces, or NULL */
    int join;               /* which of `joins` that is, -1: the frame is all of it */
    uint64_t gathered_from; /* the place of the frame's first byte in it */
    uint64_t gathered_len;  /* bytes of the frame so far */
    uint64_t gathered_end;  /* when it is all there, without the padding */
    uint64_t gathered_size; /* and with it */

    uint64_t frames_in, frames_out; /* ticks included */
    uint64_t bytes_read;            /* with headers and padding */
    uint64_t wakeups;               /* times that the poller called us */

    int polls;        /* what the VM polls the link's descriptor for, ERL_DRV_...; 0: not at all */
    bool comes_back;  /* the port shall call pump_wake soon, whatever the poller says */
    bool is_faulty;   /* the link has a fault before it (fault.h): it is polled for what it wants */
    bool is_packets;  /* frames are packets, as every Erlang node sends them over TCP */
    bool is_deferred; /* the link is: what is committed waits for pump_flush */
    bool is_unflushed;  /* something has gathered that pump_flush has yet to send */
    bool input_drained; /* the last reading has left nothing, or half a frame */
    const char *reason; /* of PUMP_FAILED, if it is not the link that failed */

    bool tells_load;      /* the peer takes this node's load */
    uint32_t load_told;   /* the number of the sample that it was told last */
    uint64_t peer_load;   /* what the peer has said of its own (load.h), 0: nothing yet */
    int64_t peer_load_ms; /* and when that came */

    bw_spin_t spin;
    bool spinning; /* the poller looks: the link is not armed for reading */
} bw_pump_t;

/* The VM's clock, which does not go back. */
static inline int64_t bw_now_ms(void)
{
    return erl_drv_monotonic_time(ERL_DRV_MSEC);
}

static inline uint64_t bw_now_us(void)
{
    return (uint64_t)erl_drv_monotonic_time(ERL_DRV_USEC);
}

/* ---- pump_out.c: from the VM to the link ---- */

/* One packet from the VM. ev->iov[0] is empty and reserved for us. False: the link is corrupt, or
 * the packet is larger than a frame may be. */
bool pump_send(bw_pump_t *pump, ErlIOVec *ev);

/* One sign of life, unless something is queued or the ring is full: then bytes flow anyway. */
bool pump_tick(bw_pump_t *pump);

/* What gathers at most before it is sent, whoever asks for it. */
#define PUMP_GATHERED_BYTES ((uint64_t)64 * 1024)

/* Of fragments that nothing has passed: then more of them may be in the ring. */
#define PUMP_UNPASSED_BYTES ((uint64_t)256 * 1024 * 1024)

/* What pump_send commits goes out, or wakes the peer, by pump_flush from now on, and without it
 * when much has gathered, with a tick and with the link's end. False: the link cannot. */
bool pump_defer(bw_pump_t *pump);

/* The same, and the peer is any Erlang node: frames are packets. */
void pump_be_packets(bw_pump_t *pump);

/* False: as of pump_send. */
bool pump_flush(bw_pump_t *pump);

/* ---- a link that outlives its connections (session.h); its frames are packets ---- */

/* From now on, before the first frame. At most `limit` bytes are kept. */
void pump_begin_session(bw_pump_t *pump, uint64_t limit);

/* Bytes that the peer has yet to hear of. */
static inline uint64_t pump_untold(const bw_pump_t *pump)
{
    return pump->session.is_on ? pump->bytes_read - pump->session.told : 0;
}

/* The link is idle: gives back memory. False: as of pump_send. */
bool pump_rest(bw_pump_t *pump);

/* Tells the peer how far this side has read. False: as of pump_send. */
bool pump_acknowledge(bw_pump_t *pump);

/* Tells the peer that this side ends the link, if that goes at once. */
void pump_say_end(bw_pump_t *pump);

/* The connection is gone; its link is closed. Frames wait from now on, for the next one. */
void pump_detach(bw_pump_t *pump);

/* Whether there is a connection. */
bool pump_is_attached(const bw_pump_t *pump);

/* The next connection; the peer has read so far. False: it cannot have; `link` is the caller's. */
bool pump_attach(bw_pump_t *pump, bw_link_t *link, uint64_t position);

/* The same connection, behind another link, which has a fault (fault.h). */
void pump_replace(bw_pump_t *pump, bw_link_t *faulty);

/* Bytes that wait for room. */
uint64_t pump_queued(const bw_pump_t *pump);

/* A sender whose state is not the one that was told last. False: there is no news. */
static inline bool pump_next_change(bw_pump_t *pump, bw_sender_change_t *change)
{
    return pump->scheduler.changed && bw_scheduler_next_change(&pump->scheduler, change);
}

/* So much waits that the peer shall be watched from now on: call pump_watch some 50 ms later. */
bool pump_begins_watch(bw_pump_t *pump);

/* Looks whether the peer has taken anything since the last watch. If it has not for some of them
 * the port is busy and nobody is held until it does. *again_p: watch again. False: as of pump_send.
 */
bool pump_watch(bw_pump_t *pump, bool *again_p);

/* Whether the VM suspends a sender that was asked about. False: as of pump_send. */
bool pump_answer(bw_pump_t *pump, uint64_t key, bw_answer_t answer, bool *is_held_p);

/* The port closes: sends what it can now. The VM's queue is empty when all is
 * out, then or later. */
void pump_finish(bw_pump_t *pump);

/* Frees what waits, and empties the VM's queue. */
void pump_drop(bw_pump_t *pump);

/* ---- pump_in.c: from the link to the VM ---- */

typedef enum {
    PUMP_IDLE,  /* everything there is has been read */
    PUMP_MORE,  /* the budget of this call is used up */
    PUMP_FAILED /* the link is of no use any more: fail the port */
} pump_result_t;

/* Reads up to the budget of one call and gives the frames to the VM. */
pump_result_t pump_receive(bw_pump_t *pump);

/* Frees what a half-received frame holds. */
void pump_reset(bw_pump_t *pump);

/* ---- pump_wake.c: when to read, to look and to sleep ---- */

/* The pump has a link from now on. */
void pump_start(bw_pump_t *pump, bw_link_t *link);

typedef enum {
    WAKE_ASLEEP,   /* armed, or the pump asks to be called again */
    WAKE_LOOKING,  /* not armed: the poller must call pump_look until it says otherwise */
    WAKE_FINISHED, /* everything has been read, and the peer has closed its end */
    WAKE_FAILED    /* the link is of no use any more */
} wake_result_t;

/* The link's descriptor is readable, or the pump has asked for it (`comes_back`): moves both ways.
 */
wake_result_t pump_wake(bw_pump_t *pump);

/* The poller says that the connection has room. */
wake_result_t pump_has_room(bw_pump_t *pump);

/* The VM polls the link from now on. False: it cannot. */
bool pump_begin_polling(bw_pump_t *pump);

/* A write has found that the connection is gone. ERTS may miss its event: one that comes while the
 * port reads, by a scheduler that polls, is lost (erl_check_io.c). */
static inline bool pump_is_cut(const bw_pump_t *pump)
{
    const bw_link_t *link = pump->link;

    return link && link->ops->is_cut && link->ops->is_cut(link);
}

/* The poller looks once. */
wake_result_t pump_look(bw_pump_t *pump);

#endif
