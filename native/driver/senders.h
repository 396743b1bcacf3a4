/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SENDERS_H
#define BW_SENDERS_H

#include "erl_driver.h"

#include "pump.h"
#include "reply.h"

/*
 * The messages and commands that a distribution port and its keeper exchange about processes whose
 * frames are queued. The keeper is implemented in apps/beamway/src/beamway_keeper.erl.
 *
 * The messages to the keeper are {hold, Pid} and {release, Pid} for senders that must wait or may
 * continue, {ask, Pid, Key, Patience} for a sender that must wait if the VM suspends it, and
 * `watch` when the keeper must start watching the peer. None is sent before there is a keeper.
 */
enum {
    COMMAND_WATCH = 12, /* -> 1 to watch again about 50 ms later, 0 to wait for `watch` */
    COMMAND_ANSWER,  /* key:64, 1 if the VM suspends that sender, 2 if the sender has exited, else 0
                        -> 1 to hold the sender */
    COMMAND_CLASSES, /* for each process: class:8, serial:32 and number:32 of its pid -> */
    COMMAND_TRAFFIC = 29 /* first:8 -> for each counter in use (traffic.h) among the SENDERS_TOLD
                            from number `first` on: serial:32 and number:32 of the process's pid,
                            bytes counted, `before` of the counter, bytes queued */
};

#define SENDERS_TOLD 12 /* as many counters as fit in a reply */

typedef struct {
    bw_pump_t *pump;
    bool has_keeper;
    ErlDrvTermData keeper;
} senders_t;

/* The slow path of senders_tell, taken when there may be something to report. */
void senders_tell_all(senders_t *senders);

/* Must be called after anything that adds or removes frames. */
static inline void senders_tell(senders_t *senders)
{
    const bw_scheduler_t *scheduler = &senders->pump->scheduler;

    if (senders->has_keeper && (scheduler->changed || scheduler->counts.frames > 0))
        senders_tell_all(senders);
}

/* Runs one of the commands above; the first byte of the reply is already set. Returns false if the
 * caller must get a badarg. *is_sound_p is set to false if the link has become unusable, which can
 * happen because a command may send. */
bool senders_command(senders_t *senders, unsigned int command, const char *data, size_t len,
                     reply_t *reply, bool *is_sound_p);

#endif
