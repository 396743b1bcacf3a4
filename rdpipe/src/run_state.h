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
 * A pipeline that runs, as its parts see it: run.c drives it, run_tell.c starts the agents and
 * tells them what to do, run_hear.c takes what they say, run_show.c shows it to people and other
 * programs. One thread calls all of these. What goes wrong is a fault, and the first of them that
 * is no consequence is what the user reads.
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

/* The pipeline. */
typedef struct {
    const rd_chain_t *chain;
    const rd_settings_t *settings;
    rd_peer_t of[RD_NODES_MAX];
    rd_guard_t guard;
    rd_output_t output; /* what receivers' commands print */
    char directory[64]; /* of the masters' sockets, "" if there is none */
    int sockets;        /* tells when one is made there; -1: nothing does */
    int signals, got_signal;
    bool are_told, have_ports, are_started, is_faulty;
    size_t faulty_at; /* the segment that `fault` is of */
    rd_why_t fault;
    uint64_t size;    /* of what comes first, 0: unknown */
    rd_speed_t speed; /* of what comes first; of a copy, of its content */
    int64_t began_ms, started_ms, ended_ms, give_up_ms, show_ms;
    int64_t commands_until_ms; /* commands that clean up after a signal may run until then */
} rd_run_t;

static inline size_t rd_run_count(const rd_run_t *run)
{
    return run->chain->count;
}

/* The host of a segment, as a user reads it. */
static inline const char *rd_run_name(const rd_run_t *run, size_t i)
{
    const char *host = run->chain->of[i].host;

    return *host ? host : "this host";
}

/* Segment i cannot go on, or has not. The pipeline winds up. */
void rd_run_fault(rd_run_t *run, size_t i, rd_cause_t cause, const char *text);

/* rdpipe itself cannot go on: it ends at once. */
void rd_run_fault_here(rd_run_t *run, const char *text);

/* ---- run_tell.c ---- */

/* Starts the agents that can be: the first of each host, and the others of a host when its
 * connection stands. Called again and again. */
void rd_run_connect(rd_run_t *run);

/* All have said hello: what each has to do, and where it listens. */
void rd_run_tell_segments(rd_run_t *run);

/* All listen: where each connects to. */
void rd_run_tell_next(rd_run_t *run);

/* All hops stand. */
void rd_run_tell_start(rd_run_t *run);

void rd_run_tell_signal(rd_run_t *run, int sig);

/* So many bytes of its output are written. */
void rd_run_tell_taken(rd_run_t *run, size_t i, size_t bytes);

/* Nobody reads the output any more. */
void rd_run_tell_quit(rd_run_t *run);

/* ---- run_hear.c ---- */

/* Takes the lines that have come. */
void rd_run_listen(rd_run_t *run, size_t i);

/* Writes of the receivers' output what can be written now. */
void rd_run_write(rd_run_t *run);

/* Its ssh has ended and is reaped. */
void rd_run_take_loss(rd_run_t *run, size_t i);

/* ---- run_show.c ---- */

/* How far it is, now and then, if anybody wants to see it. */
void rd_run_show(rd_run_t *run);

/* The status file, from which others see the pipelines of this host. */
void rd_run_publish(const rd_run_t *run, rd_status_t *status);

/* What is said at the end. */
void rd_run_report(const rd_run_t *run, int status);

#endif
