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
 * Moves frames between the VM and a link in both directions. All calls are made under the port
 * lock.
 *
 * Out: a frame goes straight into the ring if it fits. Otherwise it waits by reference, and the
 * scheduler lets small signals pass the fragments of large ones. Meanwhile the VM's queue holds a
 * byte, so that the VM asks before it closes the port.
 *
 * In: a frame is copied once, out of the peer's reach, before the VM decodes it. Small consecutive
 * frames go into one binary and others each into their own. The largest are copied while they
 * arrive, into memory that grows as they do.
 */
typedef struct {
    ErlDrvPort port;
    bw_link_t *link;    /* NULL until a link is made */
    uint64_t half_ring; /* bytes of room at which the port is not busy any more */
    uint64_t ring_bytes;
    bool busy; /* what we last told the VM */

    bw_scheduler_t scheduler;    /* frames that wait for room */
    bw_pending_list_t under_way; /* frames that go next; a part of the first may be out */
    traffic_t traffic;
    bw_session_t session;     /* of packets, if both sides have it */
    bw_packing_t packing;     /* compressed packets, if both sides have it */
    uint64_t first_bytes;     /* of first fragments in the scheduler */
    uint64_t window;          /* bytes in the ring at which fragments wait above it, at least */
    uint64_t unpassed_bytes;  /* of fragments since another frame passed some */
    uint64_t unflushed_bytes; /* committed since the last flush */
    bool has_token;           /* a byte of this driver is in the VM's queue */
    uint64_t taken_at_watch;  /* bytes that the peer had taken at the last watch */
    int quiet_watches;        /* watches in a row that found no more of them */
    bool is_watched;
    bool is_stalled; /* much waits and the peer takes nothing: the VM holds senders */
    bool is_closing; /* the VM closes the port when its queue is empty */

    bw_joins_t joins;       /* signals that arrive in fragments */
    ErlDrvBinary *gathered; /* where a frame that arrives in pieces is gathered, or NULL */
    int join;               /* index in `joins` of its signal; -1: it is a whole frame */
    uint64_t gathered_from; /* the position of the frame's first byte in `gathered` */
    uint64_t gathered_len;  /* bytes of the frame so far */
    uint64_t gathered_end;  /* gathered_len when it is complete, without padding */
    uint64_t gathered_size; /* and with padding */

    uint64_t frames_in, frames_out; /* ticks included */
    uint64_t bytes_read;            /* with headers and padding */
    uint64_t wakeups;               /* calls by the poller */

    int polls;        /* what the VM polls the link's descriptor for, ERL_DRV_...; 0: for nothing */
    bool comes_back;  /* the port must call pump_wake soon, whatever the poller says */
    bool is_faulty;   /* a fault wraps the link (fault.h), which is polled for what it wants */
    bool is_packets;  /* frames are packets, as every Erlang node sends them over TCP */
    bool is_deferred; /* the link is deferred: what is committed waits for pump_flush */
    bool is_unflushed;  /* something has gathered that pump_flush has to send */
    bool input_drained; /* the last read has left nothing, or half a frame */
    const char *reason; /* of PUMP_FAILED, unless it was the link that failed */

    bool tells_load;      /* the peer accepts this node's load */
    uint32_t load_told;   /* the number of the sample that it was sent last */
    uint64_t peer_load;   /* the peer's own load, as it last reported it (load.h); 0: not yet */
    int64_t peer_load_ms; /* and when that came */

    bw_spin_t spin;
    bool spinning; /* the poller looks, so the link is not armed for reading */
} bw_pump_t;

/* The VM's clock, which is monotonic. */
static inline int64_t bw_now_ms(void)
{
    return erl_drv_monotonic_time(ERL_DRV_MSEC);
}

static inline uint64_t bw_now_us(void)
{
    return (uint64_t)erl_drv_monotonic_time(ERL_DRV_USEC);
}

/* ---- pump_out.c: from the VM to the link ---- */

/* Sends one packet of the VM. ev->iov[0] is empty and reserved for the driver. Returns false if the
 * link is corrupt or the packet is larger than a frame may be. */
bool pump_send(bw_pump_t *pump, ErlIOVec *ev);

/* Sends a sign of life, unless something is queued or the ring is full, because then bytes flow
 * anyway. */
bool pump_tick(bw_pump_t *pump);

/* How much may gather before it is sent without being asked for. */
#define PUMP_GATHERED_BYTES ((uint64_t)64 * 1024)

/* After this many bytes of fragments that nothing has passed, more of them may be in the ring. */
#define PUMP_UNPASSED_BYTES ((uint64_t)256 * 1024 * 1024)

/* From now on what pump_send commits goes out, or wakes the peer, only with pump_flush, with a
 * tick, when much has gathered, or when the link ends. Returns false if the link cannot do this. */
bool pump_defer(bw_pump_t *pump);

/* Also defers, for a peer that is any Erlang node: frames are packets. */
void pump_be_packets(bw_pump_t *pump);

/* Sends the gathered bytes. Returns false in the same cases as pump_send. */
bool pump_flush(bw_pump_t *pump);

/* ---- a link that outlives its connections (session.h); its frames are packets ---- */

/* Begins the session, before the first frame. At most `limit` bytes are kept. */
void pump_begin_session(bw_pump_t *pump, uint64_t limit);

/* Returns how many bytes have been read without the peer having been told. */
static inline uint64_t pump_untold(const bw_pump_t *pump)
{
    return pump->session.is_on ? pump->bytes_read - pump->session.told : 0;
}

/* The link is idle, so this gives memory back. Returns false in the same cases as pump_send. */
bool pump_rest(bw_pump_t *pump);

/* Tells the peer how far this side has read. Returns false in the same cases as pump_send. */
bool pump_acknowledge(bw_pump_t *pump);

/* Tells the peer that this side ends the link, if that can be sent at once. */
void pump_say_end(bw_pump_t *pump);

/* The connection is gone, and the caller closes its link. From now on frames wait for the next
 * one. */
void pump_detach(bw_pump_t *pump);

bool pump_is_attached(const bw_pump_t *pump);

/* Takes the next connection, over which the peer has said that it has read up to `position`.
 * Returns false if it cannot have; then `link` remains the caller's. */
bool pump_attach(bw_pump_t *pump, bw_link_t *link, uint64_t position);

/* Continues the same connection through another link, which adds a fault (fault.h). */
void pump_replace(bw_pump_t *pump, bw_link_t *faulty);

/* Returns how many bytes wait for room. */
uint64_t pump_queued(const bw_pump_t *pump);

/* Returns the next sender whose state has changed since it was last reported, or false if none
 * has. */
static inline bool pump_next_change(bw_pump_t *pump, bw_sender_change_t *change)
{
    return pump->scheduler.changed && bw_scheduler_next_change(&pump->scheduler, change);
}

/* Returns true if enough waits that the peer must be watched from now on: call pump_watch about 50
 * ms later. */
bool pump_begins_watch(bw_pump_t *pump);

/* Checks whether the peer has taken anything since the last watch. If it has not for several
 * watches, the port is busy and nobody is held until it does. *again_p says whether to watch again.
 * Returns false in the same cases as pump_send. */
bool pump_watch(bw_pump_t *pump, bool *again_p);

/* Says whether the VM suspends a sender that was asked about. Returns false in the same cases as
 * pump_send. */
bool pump_answer(bw_pump_t *pump, uint64_t key, bw_answer_t answer, bool *is_held_p);

/* The port closes: sends what can be sent now. The VM's queue becomes empty as soon as everything
 * is out, which may be later. */
void pump_finish(bw_pump_t *pump);

/* Frees the frames that wait and empties the VM's queue. */
void pump_drop(bw_pump_t *pump);

/* ---- pump_in.c: from the link to the VM ---- */

typedef enum {
    PUMP_IDLE,  /* everything available has been read */
    PUMP_MORE,  /* the budget of this call is used up */
    PUMP_FAILED /* the link is unusable: fail the port */
} pump_result_t;

/* Reads up to the budget of one call and gives the frames to the VM. */
pump_result_t pump_receive(bw_pump_t *pump);

/* Frees what belongs to a half-received frame. */
void pump_reset(bw_pump_t *pump);

/* ---- pump_wake.c: when to read, to look and to sleep ---- */

/* Gives the pump its link. */
void pump_start(bw_pump_t *pump, bw_link_t *link);

typedef enum {
    WAKE_ASLEEP,   /* armed, or the pump asks to be called again */
    WAKE_LOOKING,  /* not armed: the poller must call pump_look until that returns otherwise */
    WAKE_FINISHED, /* everything has been read, and the peer has closed its end */
    WAKE_FAILED    /* the link is unusable */
} wake_result_t;

/* The link's descriptor is readable, or the pump has asked for this call (`comes_back`). Moves
 * frames in both directions. */
wake_result_t pump_wake(bw_pump_t *pump);

/* The poller has found that the connection has room. */
wake_result_t pump_has_room(bw_pump_t *pump);

/* Has the VM poll the link from now on. Returns false if it cannot. */
bool pump_begin_polling(bw_pump_t *pump);

/* Returns whether a write has found that the connection is gone. ERTS may miss the event for it:
 * one that comes while the port reads on a scheduler that polls is lost (erl_check_io.c). */
static inline bool pump_is_cut(const bw_pump_t *pump)
{
    const bw_link_t *link = pump->link;

    return link && link->ops->is_cut && link->ops->is_cut(link);
}

/* Lets the poller look once. */
wake_result_t pump_look(bw_pump_t *pump);

#endif
