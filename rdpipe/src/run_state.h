/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_RUN_STATE_H
#define RD_RUN_STATE_H

#include "guard.h"
#include "output.h"
#include "progress.h"
#include "route.h"
#include "run.h"
#include "status.h"

/*
 * A running pipeline, as its parts see it: run.c drives it, run_tell.c starts the agents and tells
 * them what to do, run_hear.c takes their messages, and run_show.c shows the pipeline to people and
 * other programs. One thread calls all of them. Whatever goes wrong is a fault, and the user reads
 * the first fault that is not a consequence of another.
 */

/* The agent of one segment. */
typedef struct {
    rd_channel_t channel;
    char *ssh; /* its SSH_CONNECTION */
    bool is_started, has_hello, has_port, is_ready, has_said_bye, is_lost;
    uint16_t port;
    rd_key_t key; /* of the hop that comes in */
    char address[RD_ADDRESS_BYTES];
    char carrier[16], why[160]; /* of the hop that comes in */
    uint64_t bytes, shown;      /* that came in */
    int status;                 /* of its command; 0 if it has none */
    bool has_status;            /* its command has ended */
    size_t under_way;           /* bytes of its output that are not written yet */
    bool is_dropped;            /* it was too slow for the others */
    bool is_unread;             /* nobody read all of its output */
} rd_peer_t;

typedef struct {
    const rd_chain_t *chain;
    const rd_settings_t *settings;
    rd_peer_t of[RD_NODES_MAX];
    rd_guard_t guard;
    rd_output_t output; /* what receivers' commands print */
    char directory[64]; /* of the masters' sockets; "": none */
    int sockets;        /* tells when a socket is created there; -1: nothing does */
    int signals, got_signal;
    bool are_told, have_ports, are_started, is_faulty;
    size_t faulty_at; /* the segment where `fault` happened */
    rd_why_t fault;
    uint64_t size;    /* of the stream; 0: unknown */
    rd_speed_t speed; /* of the stream; for a copy, of its content */
    int64_t began_ms, started_ms, ended_ms, give_up_ms, show_ms;
    int64_t commands_until_ms; /* commands that clean up after a signal may run until then */
} rd_run_t;

static inline size_t rd_run_count(const rd_run_t *run)
{
    return run->chain->count;
}

/* The name of a segment's host for the user. */
static inline const char *rd_run_name(const rd_run_t *run, size_t i)
{
    const char *host = run->chain->of[i].host;

    return *host ? host : "this host";
}

/* Segment i has failed. The pipeline winds up. */
void rd_run_fault(rd_run_t *run, size_t i, rd_cause_t cause, const char *text);

/* rdpipe itself has failed. The pipeline ends at once. */
void rd_run_fault_here(rd_run_t *run, const char *text);

/* ---- run_tell.c ---- */

/* Starts the agents that can be started: the first on each host, and the others on a host once its
 * connection is up. Called repeatedly. */
void rd_run_connect(rd_run_t *run);

/* Call this when all agents have said hello. Tells each what to do and where to listen. */
void rd_run_tell_segments(rd_run_t *run);

/* Call this when all agents listen. Tells each where to connect. */
void rd_run_tell_next(rd_run_t *run);

/* Call this when all hops are connected. */
void rd_run_tell_start(rd_run_t *run);

void rd_run_tell_signal(rd_run_t *run, int sig);

/* Tells an agent that this many bytes of its output are written. */
void rd_run_tell_taken(rd_run_t *run, size_t i, size_t bytes);

/* Tells the agents that nobody reads the output any more. */
void rd_run_tell_quit(rd_run_t *run);

/* ---- run_hear.c ---- */

/* Takes the messages that have arrived. */
void rd_run_listen(rd_run_t *run, size_t i);

/* Writes as much of the receivers' output as is possible now. */
void rd_run_write(rd_run_t *run);

/* Call this when the agent's ssh has ended and is reaped. */
void rd_run_take_loss(rd_run_t *run, size_t i);

/* ---- run_show.c ---- */

/* Shows the progress now and then, if the user wants to see it. */
void rd_run_show(rd_run_t *run);

/* Writes the status file, from which other programs see this pipeline. */
void rd_run_publish(const rd_run_t *run, rd_status_t *status);

void rd_run_report(const rd_run_t *run, int status);

#endif
