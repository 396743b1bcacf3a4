/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_RUN_H
#define RD_RUN_H

#include "channel.h"
#include "cli/cli.h"
#include "pipeline.h"

/*
 * Runs a pipeline: starts an agent for each segment, sends each one its neighbour's address, starts
 * all segments at the same time, and waits. The segments form a chain of nodes, and the local
 * standard input and output are ordinary nodes in it.
 */

#define RD_NODES_MAX (RD_SEGMENTS_MAX + 2)
#define RD_ADDRESSES_MAX 32

typedef struct {
    const char *host;
    const char *text;
    rd_work_t work;
    bool is_receiver;
} rd_node_t;

typedef struct {
    rd_node_t of[RD_NODES_MAX];
    size_t count;
} rd_chain_t;

typedef struct {
    rd_cli_t cli;
    rd_ssh_t ssh;
    bool is_copy; /* the pipeline is a copy by rdcp: list, have, pack, unpack */
    const char *addresses[RD_ADDRESSES_MAX]; /* HOST=ADDRESS */
    size_t address_count;
    uint16_t port_first, port_last;
} rd_settings_t;

/* The options that rdpipe and rdcp have in common, whose structures begin with rd_settings_t. */
extern const rd_option_t rd_settings_options[];

/* Exits by raising this signal, so that the shell sees which signal it was. */
int rd_end_by(int sig);

/* Translates the exit status of a copy's pipeline to that of the copy. Prints an error if rdcp was
 * not found. */
int rd_copy_status(const rd_cli_t *cli, int status);

/* Builds the chain from the segments and the local ends. */
void rd_chain_of(const rd_pipeline_t *pipeline, rd_chain_t *chain_p);

/* Prints to standard output what would be done. Returns the exit status. */
int rd_plan(const rd_chain_t *chain, const rd_settings_t *settings);

/* Runs the pipeline. Returns the exit status, or -N if signal N has ended it. */
int rd_run(const rd_chain_t *chain, const rd_settings_t *settings);

#endif
