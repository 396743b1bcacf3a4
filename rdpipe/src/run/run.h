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

/* The options that rdpipe and rdcp have in common, for getopt_long. */
#define RD_SETTINGS_LETTERS "o:F:i:J:"
#define RD_SETTINGS_OPTIONS                                                                        \
    RD_SENDER_OPTIONS, {"port", 1, NULL, RD_OPTION_PORT}, {"address", 1, NULL, RD_OPTION_ADDRESS}, \
    {                                                                                              \
        "remote-path", 1, NULL, RD_OPTION_REMOTE_PATH                                              \
    }

/* The help lines of these options, and of those that every command has. */
#define RD_SETTINGS_HELP                                                                           \
    "  --progress            reports progress, even without a terminal, and a summary\n"           \
    "  -q, --quiet           reports no progress, only errors\n"                                   \
    "  --json                prints a line of JSON on standard error at the end, more with "       \
    "--progress\n"                                                                                 \
    "  --rate SIZE           limits each hop, in bytes per second, 1K to 1024G (no limit)\n"       \
    "  --carrier NAME        shm, rdma, tcp, or auto (the best that each hop has)\n"               \
    "  --block SIZE          bytes sent at a time, 4K to 8M (256K)\n"                              \
    "  --no-checksum         omits the crc32c checksum\n"                                          \
    "  --encrypt             TLS 1.3 on hops between hosts\n"                                      \
    "  --zstd[=LEVEL]        compresses the data, level 1 to 19 (3)\n"                             \
    "  --streams N|auto      TCP connections of a hop over tcp, 1 to 64 (auto)\n"                  \
    "  --congestion NAME     their congestion control (the kernel's default)\n"                    \
    "  --port FIRST[-LAST]   ports that hops listen on (any; closed when all streams are "         \
    "connected)\n"                                                                                 \
    "  --address HOST=ADDR   hops to HOST use this address of it (HOST empty: this host)\n"        \
    "  --remote-path DIR     directory of the commands on the hosts\n"                             \
    "  -o OPTION, -F FILE, -i FILE, -J HOST   are passed to ssh; RDPIPE_SSH names another ssh\n"   \
    "  -h, --help, --version\n"

/* Stores one of these options, or one that is passed to ssh. Returns false if it is neither. */
bool rd_settings_option(rd_settings_t *settings, int option, const char *value);

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
