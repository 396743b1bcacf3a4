/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CHANNEL_H
#define RD_CHANNEL_H

#include <sys/types.h>

#include "control.h"
#include "guard.h"

/*
 * The way from rdpipe to one agent: over ssh, or to a fork of itself on this host.
 *
 * A host that is named more than once has one ssh connection: the first channel to it is the
 * master, the others wait until its socket is there and share it. Its socket is in a directory that
 * the guard removes.
 */

#define RD_SSH_OPTIONS_MAX 64

typedef struct {
    const char *options[RD_SSH_OPTIONS_MAX]; /* of the user, as ssh takes them */
    size_t count;
    const char *remote_path; /* where the commands are there, NULL: on the PATH */
} rd_ssh_t;

typedef struct {
    pid_t pid; /* of ssh or of the agent, 0: not started */
    int to;    /* -1: closed */
    rd_lines_t from;
    const char *host; /* "" for this host */
    bool is_reaped;
    int status; /* of ssh or the agent, once it is reaped */
} rd_channel_t;

typedef enum { RD_SHARE_NO, RD_SHARE_MASTER, RD_SHARE_USE } rd_share_t;

/* `needs`: the bits of the standard streams, input and output, that an agent of this host uses.
 * `socket` is the master's path, if it is shared. */
bool rd_channel_start(rd_channel_t *channel_p, const char *host, unsigned needs,
                      const rd_ssh_t *ssh, rd_share_t share, const char *socket, rd_why_t *why);
/* The agent takes this as the end of rdpipe. */
void rd_channel_close(rd_channel_t *channel);
/* True if its process has ended. */
bool rd_channel_reap(rd_channel_t *channel);

/* The words that start an agent on `host`, for a plan: what ssh is called with, quoted. */
void rd_channel_show(FILE *to, const char *host, const rd_ssh_t *ssh);

#endif
