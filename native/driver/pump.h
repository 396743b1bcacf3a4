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
#include "queued_frames.h"
#include "session.h"
#include "traffic.h"
#include "vm_clock.h"

/*
 * Moves frames between the VM and a link in both directions. All calls need the port lock.
 *
 * Output: a frame is copied straight into the ring if it fits. Otherwise it is queued by reference,
 * and the scheduler lets small signals pass the fragments of large ones. While frames are queued,
 * the VM's queue holds one byte, so that the VM calls the driver before it closes the port.
 *
 * Input: a frame is copied once, into memory that the peer cannot write to, before the VM decodes
 * it. Small consecutive frames share one binary, while each larger frame gets its own. The largest
 * are copied while they arrive, into memory that grows with them.
 */
typedef struct {
    ErlDrvPort port;
    bw_link_t *link;    /* NULL until there is a link */
    uint64_t half_ring; /* when this many bytes are free, the port is no longer busy */
    uint64_t ring_bytes;
    bool busy; /* as last reported to the VM */

    bw_scheduler_t scheduler;    /* frames that wait for room */
    bw_pending_list_t under_way; /* frames to send next; the first may be partly sent */
    traffic_t traffic;
    bw_session_t session;    /* for packets, if both sides support sessions */
    bw_packing_t packing;    /* for compressed packets, if both sides support them */
    uint64_t first_bytes;    /* bytes of first fragments in the scheduler */
    uint64_t window;         /* fragments must wait while the ring holds at least this many bytes */
    uint64_t unpassed_bytes; /* bytes of fragments sent since a frame last passed one */
    uint64_t unflushed_bytes; /* committed since the last flush */
    bool has_token;           /* the VM's queue contains the driver's placeholder byte */
    uint64_t taken_at_watch;  /* bytes that the peer had taken at the last watch */
    int quiet_watches;        /* consecutive watches in which the peer took nothing */
    bool is_watched;
    bool is_stalled; /* many bytes are queued and the peer takes none, so the VM suspends senders */
    bool is_closing; /* the VM will close the port when its queue is empty */

    bw_joins_t joins;       /* signals that arrive in fragments */
    ErlDrvBinary *gathered; /* collects a frame that arrives in pieces, or NULL */
    int join;               /* index of its signal in `joins`; -1 if it is a whole frame */
    uint64_t gathered_from; /* the position of the frame's first byte in `gathered` */
    uint64_t gathered_len;  /* bytes of the frame so far */
    uint64_t gathered_end;  /* value of gathered_len when the frame is complete, without padding */
    uint64_t gathered_size; /* the same with padding */

    uint64_t frames_in, frames_out; /* including ticks */
    uint64_t bytes_read;            /* including headers and padding */
    uint64_t wakeups;               /* calls by the poller */

    int polls;          /* the events that the VM polls for, ERL_DRV_...; 0 if none */
    bool comes_back;    /* the port must call pump_wake soon, even without an event */
    bool is_faulty;     /* the link is wrapped in a fault (fault.h), whose `wants` is polled */
    bool is_packets;    /* frames are packets, in the format of stock Erlang nodes over TCP */
    bool is_deferred;   /* the link is deferred: committed bytes wait for pump_flush */
    bool is_unflushed;  /* there are gathered bytes that pump_flush has to send */
    bool input_drained; /* the last read left nothing, or only a partial frame */
    const char *reason; /* for PUMP_FAILED, unless the link itself failed */

    bool owes_ack;        /* an acknowledgement must be sent before the next frame or tick */
    bool tells_load;      /* the peer accepts this node's load */
    uint32_t load_told;   /* the number of the last sample sent to it */
    uint64_t peer_load;   /* the load that the peer last reported (load.h); 0 if none */
    int64_t peer_load_ms; /* when that report arrived */

    bw_spin_t spin;
    bool spinning; /* the poller is spinning, so the link is not armed for reading */
} bw_pump_t;

/* ---- pump_out.c: from the VM to the link ---- */

/* Sends one packet from the VM. ev->iov[0] is empty and reserved for the driver. Returns false if
 * the link is corrupt or the packet is larger than a frame may be. */
bool pump_send(bw_pump_t *pump, ErlIOVec *ev);

/* Sends a keepalive, unless something is queued or the ring is full: then bytes flow anyway. */
bool pump_tick(bw_pump_t *pump);

/* How many bytes may gather before they are sent without a flush. */
#define PUMP_GATHERED_BYTES ((uint64_t)64 * 1024)

/* Once this many bytes of fragments have been sent without being passed by other frames, more
 * fragments may be in the ring at the same time. */
#define PUMP_UNPASSED_BYTES ((uint64_t)256 * 1024 * 1024)

/* From now on, bytes that pump_send commits are not sent, and do not wake the peer, until
 * pump_flush, a tick, or the end of the link, or until many bytes have gathered. Returns false if
 * the link cannot do this. */
bool pump_defer(bw_pump_t *pump);

/* Switches to packets, the format that every Erlang node understands. Also defers. */
void pump_be_packets(bw_pump_t *pump);

/* Sends the gathered bytes. Returns false in the same cases as pump_send. */
bool pump_flush(bw_pump_t *pump);

/* ---- a link that outlives its connections (session.h); its frames are packets ---- */

/* Begins the session; must be called before the first frame. At most `limit` bytes are retained. */
void pump_begin_session(bw_pump_t *pump, uint64_t limit);

/* Returns how many bytes have been read but not yet acknowledged to the peer. */
static inline uint64_t pump_untold(const bw_pump_t *pump)
{
    return pump->session.is_on ? pump->bytes_read - pump->session.told : 0;
}

/* Called when the link is idle: gives memory back. Returns false in the same cases as pump_send. */
bool pump_rest(bw_pump_t *pump);

/* Tells the peer how far this side has read. Returns false in the same cases as pump_send. */
bool pump_acknowledge(bw_pump_t *pump);

/* Tells the peer that this side is closing the link, if the message can be sent immediately. */
void pump_say_end(bw_pump_t *pump);

/* Detaches the pump from a connection that is lost; the caller closes its link. From now on, frames
 * are queued until the next connection. */
void pump_detach(bw_pump_t *pump);

bool pump_is_attached(const bw_pump_t *pump);

/* Continues over the next connection, on which the peer has reported that it has read up to
 * `position`. Returns false if that is impossible; the caller then still owns `link`. */
bool pump_attach(bw_pump_t *pump, bw_link_t *link, uint64_t position);

/* Continues over the same connection with `faulty`, which wraps the link in a fault (fault.h). */
void pump_replace(bw_pump_t *pump, bw_link_t *faulty);

/* Returns how many bytes are queued because there is no room for them. */
uint64_t pump_queued(const bw_pump_t *pump);

/* See bw_scheduler_next_change. */
static inline bool pump_next_change(bw_pump_t *pump, bw_sender_change_t *change)
{
    return pump->scheduler.changed && bw_scheduler_next_change(&pump->scheduler, change);
}

/* Returns true if so many bytes are queued that the peer must be watched from now on: the caller
 * must call pump_watch about 50 ms later. */
bool pump_begins_watch(bw_pump_t *pump);

/* Checks whether the peer has taken anything since the last watch. If it has not, several times in
 * a row, the port is busy and no sender is held until it does. Sets *again_p to whether the caller
 * must watch again. Returns false in the same cases as pump_send. */
bool pump_watch(bw_pump_t *pump, bool *again_p);

/* See bw_scheduler_answer. Returns false in the same cases as pump_send. */
bool pump_answer(bw_pump_t *pump, uint64_t key, bw_answer_t answer, bool *is_held_p);

/* Called when the port closes: sends as much as can be sent now. The VM's queue becomes empty once
 * everything has been sent, which may be later. */
void pump_finish(bw_pump_t *pump);

/* Frees the queued frames and empties the VM's queue. */
void pump_drop(bw_pump_t *pump);

/* ---- pump_in.c: from the link to the VM ---- */

typedef enum {
    PUMP_IDLE,  /* everything available has been read */
    PUMP_MORE,  /* the budget of this call is used up */
    PUMP_FAILED /* the link is unusable, so the port must fail */
} pump_result_t;

/* Reads up to the budget of one call and gives the frames to the VM. */
pump_result_t pump_receive(bw_pump_t *pump);

/* Frees everything that belongs to a partly received frame. */
void pump_reset(bw_pump_t *pump);

/* ---- pump_wake.c: when to read, when to spin and when to sleep ---- */

void pump_start(bw_pump_t *pump, bw_link_t *link);

typedef enum {
    WAKE_ASLEEP,   /* armed, or the pump asks to be called again */
    WAKE_LOOKING,  /* not armed: the poller must call pump_look until it returns something else */
    WAKE_FINISHED, /* everything has been read, and the peer has closed its end */
    WAKE_FAILED    /* the link is unusable */
} wake_result_t;

/* Called when the link's descriptor is readable, or when the pump has asked for this call
 * (`comes_back`). Moves frames in both directions. */
wake_result_t pump_wake(bw_pump_t *pump);

/* Called when the poller reports that the connection accepts bytes again. */
wake_result_t pump_has_room(bw_pump_t *pump);

/* Returns whether a write has found that the connection is lost. ERTS loses the event for it if it
 * occurs while the port reads on a scheduler that polls (erl_check_io.c). */
static inline bool pump_is_cut(const bw_pump_t *pump)
{
    const bw_link_t *link = pump->link;

    return link && link->ops->is_cut && link->ops->is_cut(link);
}

/* Checks the ring once on behalf of the spinning poller. */
wake_result_t pump_look(bw_pump_t *pump);

/* ---- pump_poll.c: what the VM polls for ---- */

/* Makes the VM poll the link from now on. Returns false if that fails. */
bool pump_begin_polling(bw_pump_t *pump);

#endif
