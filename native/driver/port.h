/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PORT_H
#define BW_PORT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "erl_driver.h"

#include "establish.h"
#include "fault.h"
#include "late.h"
#include "lone_caller.h"
#include "pump.h"
#include "reply.h"
#include "senders.h"

/*
 * The state of a driver port, and the commands that are implemented in their own files. The
 * other commands and the callbacks are in beamway_drv.c. Everything here runs under the port lock.
 *
 * A command returns false if the caller violated its contract; the caller then gets a badarg. The
 * first byte of the reply is already set when the command is called.
 */
enum {
    COMMAND_SESSION = 15, /* limit:64, resume_ms:32 -> ; after PACKETS: the link outlives its
                             connections, and may be without one for resume_ms. The keeper gets
                             {lost, Reason} when a connection is lost, `silent` when the peer's
                             kernel no longer answers, and `flows` when it answers again */
    COMMAND_DETACH, /* epoch:64 -> bytes_in:64 ; drops the current connection, if any. `epoch` is
                       the number of the next connection, higher than all previous ones */
    COMMAND_ATTACH, /* number:64 of an offer, bytes that the peer has read:64, bytes already read
                       from the connection -> ; continues the link over the next connection */
};
enum {
    COMMAND_SPREAD = 32, /* same as ATTACH ; the connection is the first of several (stripes.h). The
                            keeper gets `thin` when one of them is lost while others remain */
    COMMAND_JOIN,  /* number:64 of an offer, epoch:64, bytes already read from the connection -> ;
                      adds a connection, with the same epoch as the first. Or no arguments ->
                      connections:32 (0 unless SPREAD), the shortest recent round trip in us:64 */
    COMMAND_FAULT, /* delay_ms:32, jitter_ms:32, rate:64, holds_in:8, holds_out:8 -> ; sets a fault
                      (fault.h) for the link once it is active, and for its later connections */
    COMMAND_SOCKET_FAULT /* socket:32, bw_socket_fault_t:8 -> ; allowed on any port */
};

#define NEVER INT64_MAX
#define NO_FLUSH ULONG_MAX

typedef struct {
    bw_pump_t pump;
    establish_t establish; /* connection setup, used until there is a link */
    bool active;           /* the link is being read */
    /* The port has only one timer. It serves the first of these conditions that is true. */
    bool timer_is_to_read;  /* fires at once, for the pump or for unread bytes on a cut link */
    unsigned long flush_ms; /* how long after being set it fires to flush, or NO_FLUSH */
    int64_t check_at_ms;    /* check for idle memory; this and the other times may be NEVER */
    int64_t session_at_ms;  /* report to the peer how far this side has read */
    int64_t fault_at_ms;    /* bytes delayed by a fault may pass */
    int64_t checked_ms;     /* when the session was last checked */
    bool is_sparse;         /* the link was quiet before the last frame was sent */
    bool session_is_idle;   /* nothing is left to report, so the report only tests the path */

    uint64_t out_at_session; /* output position when everything was last found acknowledged */
    uint64_t epoch;          /* the number of the connection */
    uint64_t losses;         /* how many connections have been lost */
    unsigned connections;    /* how many connections there are, as last reported to the keeper */
    bool is_silent;          /* `silent` has been sent to the keeper */
    bw_fault_t fault;        /* applies to the current link and to later ones */

    int64_t resume_ms;   /* how long the peer keeps a link that has no connection */
    uint64_t offer;      /* number under which its link is offered to another port, or 0 */
    uint32_t stops;      /* how many stops of this process the port has noticed (pulse.h) */
    bool gives_pulse;    /* the owner of this port is the process that calls bw_pulse */
    senders_t senders;   /* includes the keeper, which also gets the messages `flush` and `look` */
    bool is_flush_asked; /* the keeper has been asked to flush but has not done so yet */
    uint64_t asked_us;   /* when it was asked */
    late_t keeper_late;  /* how long the keeper takes to respond */
    ErlDrvTermData flush_atom;
    bw_rounds_t rounds;
    uint64_t out_at_check;  /* bytes written when the check was scheduled */
    uint64_t queued_before; /* bytes queued when the closing timer was set */
} bw_port_t;

/* ---- beamway_drv.c ---- */

/* Must be called after anything that may have moved bytes. It may close the port, so the caller
 * must not touch `self` afterwards. */
void port_settle(bw_port_t *self, wake_result_t result);

/* Closes the link of the current connection, but not the port. */
void port_detach(bw_port_t *self);

/* ---- port_session.c: a link that outlives its connections ---- */

bool port_session(bw_port_t *self, uint64_t limit, uint64_t resume_ms);

/* Implements DETACH. */
bool port_give_up(bw_port_t *self, uint64_t epoch, reply_t *reply);

/* Implements ATTACH and SPREAD. As after port_settle, `self` may be gone. */
bool port_attach(bw_port_t *self, unsigned command, const char *data, size_t len, reply_t *reply);

/* ---- port_stripes.c: a link over several connections ---- */

/* Implements JOIN. As after port_settle, `self` may be gone. */
bool port_join(bw_port_t *self, const char *data, size_t len, reply_t *reply);

/* Takes an offered link, for ATTACH, SPREAD and JOIN. `data` begins with the number of the offer;
 * the bytes that were already read from the connection start at offset 16. */
bw_status_t port_take_offer(const char *data, size_t len, bw_link_t **link_p, bw_error_t *error_p);

/* ---- port_fault.c ---- */

/* Wraps the link in the port's fault, if there is one. */
bw_status_t port_begin_fault(bw_port_t *self, bw_error_t *error_p);

/* Implements FAULT. As after port_settle, `self` may be gone. */
bool port_fault(bw_port_t *self, const char *data, size_t len, reply_t *reply);

bool port_socket_fault(const char *data, size_t len, reply_t *reply);

#endif
