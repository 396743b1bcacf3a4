/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SENDERS_H
#define BW_SENDERS_H

#include "erl_driver.h"

#include "pump.h"
#include "reply.h"

/*
 * What a port of the distribution tells its keeper about processes whose frames wait, and what the
 * keeper tells the port about them. apps/beamway/src/beamway_keeper.erl is the other side.
 *
 * The messages to the keeper are {hold, Pid} and {release, Pid} for senders that must wait or may
 * continue, {ask, Pid, Key, Patience} for a sender that must wait if the VM suspends it, and
 * `watch` when the keeper must begin to watch. Nothing is sent before there is a keeper.
 */
enum {
    COMMAND_WATCH = 12, /* -> 1 to watch again some 50 ms later, 0 to wait for `watch` */
    COMMAND_ANSWER,     /* key:64, 1 if the VM suspends that sender, 2 if it is gone, else 0 -> 1 to
                           hold it */
    COMMAND_CLASSES,    /* for each of some processes: class:8, serial:32 and number:32 of its pid
                           -> */
    COMMAND_TRAFFIC = 29 /* first:8 -> for the processes of the next SENDERS_TOLD counters
                            (traffic.h), as many as are used: serial:32 and number:32 of its pid,
                            bytes that its counter has, bytes that it had before, bytes that wait */
};

#define SENDERS_TOLD 12 /* as many as fit in a reply */

typedef struct {
    bw_pump_t *pump;
    bool has_keeper;
    ErlDrvTermData keeper;
    ErlDrvTermData hold_atom, release_atom, ask_atom, watch_atom;
} senders_t;

void senders_init(senders_t *senders, bw_pump_t *pump);

/* senders_tell, once it is clear that there may be something to report. */
void senders_tell_all(senders_t *senders);

/* Must follow anything that adds frames or removes them. */
static inline void senders_tell(senders_t *senders)
{
    const bw_scheduler_t *scheduler = &senders->pump->scheduler;

    if (senders->has_keeper && (scheduler->changed || scheduler->counts.frames > 0))
        senders_tell_all(senders);
}

/* Runs one of the commands above; the reply already has its first byte. Returns false if it is a
 * badarg. *is_sound_p is false if the link is unusable, which can happen because a command may
 * send. */
bool senders_command(senders_t *senders, unsigned int command, const char *data, size_t len,
                     reply_t *reply, bool *is_sound_p);

#endif
