/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_RUN_STATE_H
#define RD_RUN_STATE_H

#include "guard.h"
#include "stream/output.h"
#include "cli/progress.h"
#include "route.h"
#include "run.h"
#include "status.h"

/*
 * A running pipeline, as its parts see it: run.c drives it, run_tell.c starts the agents and sends
 * them instructions, run_hear.c processes their messages, and run_show.c displays the pipeline to
 * the user and to other programs. All of them run on the same thread. Every error is recorded as a
 * fault, and the user is shown the first fault that is not a consequence of another.
 */

/* The agent of one segment. */
typedef struct {
    rd_channel_t channel;
    char *ssh; /* its SSH_CONNECTION */
    bool is_started, has_hello, has_port, is_ready, has_said_bye, is_lost;
    uint16_t port;
    rd_key_t key; /* for the incoming hop */
    char address[RD_ADDRESS_BYTES];
    char carrier[16], why[160]; /* for the incoming hop */
    uint64_t bytes, shown;      /* received over the incoming hop */
    int status;                 /* exit status of its command; 0 if it has none */
    bool has_status;            /* its command has exited */
    size_t under_way;           /* bytes of its output that are not written yet */
    bool is_dropped;            /* it was dropped because it was too slow for the others */
    bool is_unread;             /* not all of its output was read */
} rd_peer_t;

typedef struct {
    const rd_chain_t *chain;
    const rd_settings_t *settings;
    rd_peer_t of[RD_NODES_MAX];
    rd_guard_t guard;
    rd_output_t output; /* the output of receivers' commands */
    char directory[64]; /* directory for the masters' sockets, or "" if none */
    int sockets;        /* an inotify descriptor that reports new sockets there, or -1 if none */
    int signals, got_signal;
    bool are_told, have_ports, are_started, is_faulty;
    size_t faulty_at; /* the segment where `fault` happened */
    rd_why_t fault;
    uint64_t size;    /* size of the stream, or 0 if unknown */
    rd_speed_t speed; /* of the stream; for a copy, of its content */
    int64_t started_ms, ended_ms, give_up_ms, show_ms;
    int64_t commands_until_ms; /* commands that clean up after a signal may run until then */
} rd_run_t;

static inline size_t rd_run_count(const rd_run_t *run)
{
    return run->chain->count;
}

static inline const char *rd_run_name(const rd_run_t *run, size_t i)
{
    const char *host = run->chain->of[i].host;

    return *host ? host : "this host";
}

/* Records that segment i has failed. The pipeline then shuts down. */
void rd_run_fault(rd_run_t *run, size_t i, rd_cause_t cause, const char *text);

/* Records that rdpipe itself has failed. The pipeline is then stopped immediately. */
void rd_run_fault_here(rd_run_t *run, const char *text);

/* ---- run_tell.c ---- */

/* Starts the agents that can be started now. The first agent on each host is started immediately,
 * and the others once the host's connection is up, so this is called repeatedly. */
void rd_run_connect(rd_run_t *run);

/* Call this when all agents have sent their hello. Tells each what to do and where to listen. */
void rd_run_tell_segments(rd_run_t *run);

/* Call this when all agents listen. Tells each where to connect. */
void rd_run_tell_next(rd_run_t *run);

/* Call this when all hops are connected. */
void rd_run_tell_start(rd_run_t *run);

void rd_run_tell_signal(rd_run_t *run, int sig);

/* Confirms to an agent that this many bytes of its output are written. */
void rd_run_tell_taken(rd_run_t *run, size_t i, size_t bytes);

/* Tells the agents that the output's reader has closed. */
void rd_run_tell_quit(rd_run_t *run);

/* ---- run_hear.c ---- */

void rd_run_listen(rd_run_t *run, size_t i);

/* Writes as much of the receivers' output as is possible now. */
void rd_run_write(rd_run_t *run);

/* Call this when the agent's ssh has exited and is reaped. */
void rd_run_take_loss(rd_run_t *run, size_t i);

/* ---- run_show.c ---- */

/* Shows the progress from time to time, if the user wants to see it. */
void rd_run_show(rd_run_t *run);

/* Writes the status file, through which other programs can see this pipeline. */
void rd_run_publish(const rd_run_t *run, rd_status_t *status);

void rd_run_report(const rd_run_t *run, int status);

#endif
