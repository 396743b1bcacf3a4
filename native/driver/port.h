/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PORT_H
#define BW_PORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "erl_driver.h"

#include "establish.h"
#include "fault.h"
#include "late.h"
#include "pump.h"
#include "reply.h"
#include "rounds.h"
#include "senders.h"

/*
 * A port of the driver, and those of its commands that have files of their own (beamway_drv.c has
 * the others, and the callbacks). All of it runs under the port lock.
 *
 * A command returns false if its caller broke the rules, which is a badarg. The reply has its first
 * byte.
 */
enum {
    COMMAND_SESSION = 15, /* limit:64, resume_ms:32 -> ; after PACKETS: the link outlives its
                             connections, and may be without one for so long. The keeper gets
                             {lost, Reason} when one is gone, and `silent` and `flows` when the
                             peer's kernel answers no more, and again */
    COMMAND_DETACH, /* epoch:64 -> bytes_in:64 ; the connection is given up, if there is one: the
                       next one has that number, which is higher than any before */
    COMMAND_ATTACH, /* number:64 of an offer, bytes that the peer has read:64, what was read of the
                       connection before -> ; the next connection */
};
enum {
    COMMAND_SPREAD = 32, /* as ATTACH ; the connection is the first of several (stripes.h). The
                            keeper gets `thin` when one of them is lost and others are left */
    COMMAND_JOIN,        /* number:64 of an offer, epoch:64, what was read of the connection before
                            -> ; one more of them, under the number of the first. Or nothing ->
                            connections:32, 0 unless the link has SPREAD, the shortest round trip
                            of late in us:64 */
    COMMAND_FAULT,       /* delay_ms:32, jitter_ms:32, rate:64, holds_in:8, holds_out:8 -> ; of a
                            link (fault.h), once it is active, and of its later connections */
    COMMAND_SOCKET_FAULT /* socket:32, bw_socket_fault_t:8 -> ; of any port */
};

typedef struct {
    bw_pump_t pump;
    establish_t establish; /* until there is a link: how it comes to be */
    bool active;           /* the link is read */
    /* The port has one timer. It is for the first of these that holds. */
    bool timer_is_to_read;  /* at once: the pump comes back, or the link is cut and has a rest */
    bool timer_is_to_flush; /* flush_ms after it was set */
    bool check_is_due;      /* at check_at_ms: for idle memory */
    unsigned long flush_ms;
    int64_t check_at_ms;
    bool session_is_due;  /* at session_at_ms: to tell the peer how far this side is */
    bool session_is_idle; /* which it knows: only the path is tried */
    int64_t session_at_ms;
    uint64_t out_at_session; /* bytes that had gone out */
    uint64_t epoch;          /* the number of the connection */
    uint64_t losses;         /* of connections */
    unsigned connections;    /* of several, as the keeper knows */
    bool is_silent;          /* the keeper has been told */
    bw_fault_t fault;        /* of the link and of those that come after it */
    bool fault_is_due;       /* at fault_at_ms: what a fault has held goes on */
    int64_t fault_at_ms;
    int64_t resume_ms;   /* the peer gives the link up after so long without a connection */
    uint64_t offer;      /* of its link to another port, or 0 */
    uint32_t stops;      /* of this process, as far as the port knows (pulse.h) */
    senders_t senders;   /* and the keeper, which also gets the atoms `flush` and `look` */
    bool is_flush_asked; /* and the keeper has not come yet */
    uint64_t asked_us;   /* when it was */
    late_t keeper_late;  /* how late it came */
    ErlDrvTermData flush_atom;
    bw_rounds_t rounds;
    uint64_t out_at_check;  /* bytes written when the check was set */
    uint64_t queued_before; /* bytes when the wait of is_closing was set */
} bw_port_t;

/* ---- beamway_drv.c ---- */

/* After whatever may have moved something. It may end the port: the caller must not touch `self`
 * again. */
void port_settle(bw_port_t *self, wake_result_t result);

/* Closes the link of a connection. */
void port_detach(bw_port_t *self);

/* ---- port_session.c: a link that outlives its connections ---- */

bool port_session(bw_port_t *self, uint64_t limit, uint64_t resume_ms);

/* DETACH. */
bool port_give_up(bw_port_t *self, uint64_t epoch, reply_t *reply);

/* ATTACH and SPREAD; as port_settle: last. */
bool port_attach(bw_port_t *self, unsigned command, const char *data, size_t len, reply_t *reply);

/* ---- port_stripes.c: a link over several connections ---- */

/* As port_settle: last. */
bool port_join(bw_port_t *self, const char *data, size_t len, reply_t *reply);

/* Takes the link of an offer, for ATTACH, SPREAD and JOIN: `data` begins with its number; from the
 * 17th byte on it has what was read of it. */
bw_status_t port_take_offer(const char *data, size_t len, bw_link_t **link_p, bw_error_t *error_p);

/* ---- port_fault.c ---- */

/* The link of the port gets its fault. */
bw_status_t port_begin_fault(bw_port_t *self, bw_error_t *error_p);

/* As port_settle: last. */
bool port_fault(bw_port_t *self, const char *data, size_t len, reply_t *reply);

bool port_socket_fault(const char *data, size_t len, reply_t *reply);

#endif
