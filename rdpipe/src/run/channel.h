/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CHANNEL_H
#define RD_CHANNEL_H

#include <sys/types.h>

#include "control.h"
#include "guard.h"

/*
 * The channel from rdpipe to one agent, either over ssh or to a fork of itself for the local host.
 *
 * A host that is named more than once has a single ssh connection: the first channel to it is the
 * master, and the others wait until its socket exists and then share it. The socket is in a
 * directory that the guard removes.
 */

#define RD_SSH_OPTIONS_MAX 64

typedef struct {
    const char *options[RD_SSH_OPTIONS_MAX]; /* the user's options in ssh's format */
    size_t count;
    /* The directory that contains the commands on the remote host, or NULL to use the PATH. */
    const char *remote_path;
} rd_ssh_t;

typedef struct {
    pid_t pid; /* the process ID of ssh or of the agent, or 0 if not started */
    int to;    /* -1 if closed */
    rd_lines_t from;
    const char *host; /* "" for the local host */
    bool is_reaped;
    int status; /* the exit status of ssh or of the agent, once it is reaped */
} rd_channel_t;

typedef enum { RD_SHARE_NO, RD_SHARE_MASTER, RD_SHARE_USE } rd_share_t;

/* `needs` has a bit for each standard stream (input, output) that an agent on the local host uses.
 * `socket` is the path of the master's socket, if the connection is shared. */
bool rd_channel_start(rd_channel_t *channel_p, const char *host, unsigned needs,
                      const rd_ssh_t *ssh, rd_share_t share, const char *socket, rd_why_t *why);
/* Closes the channel. The agent takes that to mean that rdpipe has exited. */
void rd_channel_close(rd_channel_t *channel);
/* Reaps the channel's process. Returns true if it has exited. */
bool rd_channel_reap(rd_channel_t *channel);

/* Returns whether the agent that sent this hello has our protocol. If not, *why is set. */
bool rd_channel_agrees(const char *hello, rd_why_t *why);

/* Writes the text, quoted so that a shell reads it as a single word. */
void rd_quote(FILE *to, const char *text);

/* Prints the command that starts an agent on `host`, with ssh's arguments quoted, for a plan. */
void rd_channel_show(FILE *to, const char *host, const rd_ssh_t *ssh);

#endif
