/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_ESTABLISH_H
#define BW_ESTABLISH_H

#include "erl_driver.h"

#include "../link/carriers.h"
#include "async_job.h"
#include "reply.h"

/*
 * The driver commands that set up the link of a port, which are the same for every carrier. The
 * carrier's header documents `where`.
 *
 * USE must be a port's first command; if the carrier is a shared object, USE gives the path of that
 * object. LISTEN and CONNECT start setting up a link. From then on their caller gets the message
 * `{link, Port}` whenever STEP may have something new to report, unless the carrier is immediate. A
 * port has one link. If it is lost before ACTIVATE, the port fails after ACTIVATE.
 */
enum {
    COMMAND_USE = 20, /* kind, 0, path of the shared object or nothing -> */
    COMMAND_LISTEN,   /* max_ring_bytes:64, where -> */
    COMMAND_CONNECT,  /* ring_bytes:64, token:16/binary, timeout_ms:32, where -> */
    COMMAND_STEP,     /* -> 0: working
                            1: listening, token:16/binary, length:8, address, length:8, device,
                               why no peer has been accepted, as text
                            2: linked, device
                            3: failed, reason as text */
    COMMAND_PROBE,    /* ring_bytes:64 -> */
    COMMAND_SAY,      /* bytes -> ; SAY, HEAR and LEAVE are allowed from `linked` to ACTIVATE */
    COMMAND_HEAR,  /* count:32, at most HEAR_BYTES -> that many bytes, or nothing if they have not
                      arrived yet: the caller then gets {link, Port} when it should try again */
    COMMAND_LEAVE, /* -> ; leaves the connection intact; the caller must then close the port */
    COMMAND_DERIVE /* salt_len:8, salt, password -> key */
};

#define HEAR_BYTES 256

typedef struct {
    ErlDrvPort port;
    const bw_carrier_t *carrier; /* NULL until USE */
    bw_link_t *link;             /* owned here from LISTEN or CONNECT until it is linked */
    ErlDrvTermData caller;       /* gets {link, Port} */
    bool is_selected; /* the VM knows the link's descriptor; also valid once it is linked */
    bool is_heard;    /* the caller of HEAR is waiting */
} establish_t;

/* These commands run under the port lock. Except for probe and derive, they need a port without a
 * link. They return false if the caller violated their contract; it then gets a badarg. */
bool establish_use(establish_t *establish, const char *data, size_t len, reply_t *reply);
bool establish_listen(establish_t *establish, const char *data, size_t len, reply_t *reply);
bool establish_connect(establish_t *establish, const char *data, size_t len, reply_t *reply);
bool establish_probe(const establish_t *establish, const char *data, size_t len, reply_t *reply);
bool establish_derive(establish_t *establish, const char *data, size_t len, reply_t *reply);
/* Sets *link_p once there is a link. Its descriptor is not polled until ACTIVATE. */
bool establish_step(establish_t *establish, reply_t *reply, bw_link_t **link_p);

/* Completes a command of the async thread. This may replace the reply in the job with an error. */
void establish_done(establish_t *establish, job_t *job);

/* Commands for a port whose link is not active, for the distribution handshake. */
bool establish_say(bw_link_t *link, const char *data, size_t len, reply_t *reply);
bool establish_hear(establish_t *establish, bw_link_t *link, uint64_t count, reply_t *reply);

/* Tells the caller that the VM's poller has found the descriptor readable. The descriptor is then
 * not polled until the next STEP or HEAR. `linked` is the port's link, or NULL. */
void establish_tell(establish_t *establish, bw_link_t *linked);

/* Aborts the setup if there is no link yet. `establish` must not be used afterwards, because
 * stop_select may close the descriptor within this call. */
void establish_close(establish_t *establish);

#endif
