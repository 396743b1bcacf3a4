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
 * the others, and the callbacks). Everything here runs under the port lock.
 *
 * A command returns false if its caller broke the rules, which is a badarg. The reply already has
 * its first byte.
 */
enum {
    COMMAND_SESSION = 15, /* limit:64, resume_ms:32 -> ; after PACKETS: the link outlives its
                             connections, and may be without one for resume_ms. The keeper gets
                             {lost, Reason} when one is gone, `silent` when the peer's kernel no
                             longer answers, and `flows` when it answers again */
    COMMAND_DETACH,       /* epoch:64 -> bytes_in:64 ; gives up the connection, if there is one: the
                             next one has that number, which is higher than any before */
    COMMAND_ATTACH, /* number:64 of an offer, bytes that the peer has read:64, bytes already read
                       from the connection -> ; the next connection */
};
enum {
    COMMAND_SPREAD = 32, /* as ATTACH ; the connection is the first of several (stripes.h). The
                            keeper gets `thin` when one of them is lost while others remain */
    COMMAND_JOIN,        /* number:64 of an offer, epoch:64, bytes already read from the connection
                            -> ; one more of them, under the number of the first. Or nothing ->
                            connections:32, 0 unless the link has SPREAD, the shortest recent
                            round trip in us:64 */
    COMMAND_FAULT,       /* delay_ms:32, jitter_ms:32, rate:64, holds_in:8, holds_out:8 -> ; of a
                            link (fault.h), once it is active, and of its later connections */
    COMMAND_SOCKET_FAULT /* socket:32, bw_socket_fault_t:8 -> ; of any port */
};

typedef struct {
    bw_pump_t pump;
    establish_t establish; /* until there is a link: how the port gets one */
    bool active;           /* the link is read */
    /* The port has one timer, which is for the first of these that holds. */
    bool timer_is_to_read;  /* at once: for the pump, or for unread bytes of a cut link */
    bool timer_is_to_flush; /* flush_ms after it was set */
    bool check_is_due;      /* at check_at_ms: for idle memory */
    unsigned long flush_ms;
    int64_t check_at_ms;
    bool session_is_due;  /* at session_at_ms: to tell the peer how far this side has read */
    bool session_is_idle; /* the peer knows that, so only the path is tested */
    int64_t session_at_ms;
    uint64_t out_at_session; /* bytes that had gone out */
    uint64_t epoch;          /* the number of the connection */
    uint64_t losses;         /* of connections */
    unsigned connections;    /* of several, as last reported to the keeper */
    bool is_silent;          /* the keeper has been told `silent` */
    bw_fault_t fault;        /* of the link and of those that come after it */
    bool fault_is_due;       /* at fault_at_ms: bytes that a fault has held may pass */
    int64_t fault_at_ms;
    int64_t resume_ms;   /* the peer gives the link up after this time without a connection */
    uint64_t offer;      /* number of the offer of its link to another port, or 0 */
    uint32_t stops;      /* of this process, as far as the port knows (pulse.h) */
    senders_t senders;   /* includes the keeper, which also gets the atoms `flush` and `look` */
    bool is_flush_asked; /* and the keeper has not come yet */
    uint64_t asked_us;   /* when it was */
    late_t keeper_late;  /* how late the keeper came */
    ErlDrvTermData flush_atom;
    bw_rounds_t rounds;
    uint64_t out_at_check;  /* bytes written when the check was set */
    uint64_t queued_before; /* bytes when the wait of is_closing was set */
} bw_port_t;

/* ---- beamway_drv.c ---- */

/* Must follow anything that may have moved bytes. It may end the port, so the caller must not touch
 * `self` afterwards. */
void port_settle(bw_port_t *self, wake_result_t result);

/* Closes the link of the current connection, but not the port. */
void port_detach(bw_port_t *self);

/* ---- port_session.c: a link that outlives its connections ---- */

bool port_session(bw_port_t *self, uint64_t limit, uint64_t resume_ms);

/* The command DETACH. */
bool port_give_up(bw_port_t *self, uint64_t epoch, reply_t *reply);

/* The commands ATTACH and SPREAD. As with port_settle, the caller must not touch `self`
 * afterwards. */
bool port_attach(bw_port_t *self, unsigned command, const char *data, size_t len, reply_t *reply);

/* ---- port_stripes.c: a link over several connections ---- */

/* The command JOIN. As with port_settle, the caller must not touch `self` afterwards. */
bool port_join(bw_port_t *self, const char *data, size_t len, reply_t *reply);

/* Takes the link of an offer, for ATTACH, SPREAD and JOIN. `data` begins with the number of the
 * offer, and from its 17th byte on it has the bytes that were already read from the connection. */
bw_status_t port_take_offer(const char *data, size_t len, bw_link_t **link_p, bw_error_t *error_p);

/* ---- port_fault.c ---- */

/* Puts the port's fault, if it has one, before the link. */
bw_status_t port_begin_fault(bw_port_t *self, bw_error_t *error_p);

/* The command FAULT. As with port_settle, the caller must not touch `self` afterwards. */
bool port_fault(bw_port_t *self, const char *data, size_t len, reply_t *reply);

bool port_socket_fault(const char *data, size_t len, reply_t *reply);

#endif
