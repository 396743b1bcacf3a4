/* SPDX-License-Identifier: Apache-2.0 */
/* rdsend: sends its standard input to rdrecv on another host. */
#include <getopt.h>

#include "cli/cli.h"
#include "hop/socket.h"

#define ATTEMPT_MS 30000
#define ANSWER_MS 5000 /* time for the answer to an attempt that begins just as --wait expires */

static const rd_option_t options[] = {
    {RD_OPTION_KEY_FILE},
    {RD_OPTION_KEY_FD},
    {RD_OPTION_CARRIER("shm, rdma, tcp, or auto (the best that both sides have)")},
    {RD_OPTION_BLOCK},
    {RD_OPTION_NO_CHECKSUM},
    {RD_OPTION_ENCRYPT("TLS 1.3, unless both are on one host")},
    {RD_OPTION_ZSTD},
    {RD_OPTION_STREAMS("TCP connections, 1 to 64 (auto: one, more on a long path)")},
    {RD_OPTION_CONGESTION},
    {"resume", 0, "FILE",
     "continues after a cut: FILE records the input, a file; rdrecv also needs it",
     RD_OPTION_TEXT(resume)},
    {RD_OPTION_RATE("limits the rate, in bytes per second, 1K to 1024G (no limit)")},
    {"wait", 0, "SECONDS", "limits the attempts to reach rdrecv (10)", RD_OPTION_SECONDS(wait_s)},
    {RD_OPTION_VERBOSE("reports the carrier, the reason and the throughput")},
    {.name = NULL}};

static const rd_command_t rdsend = {
    .usage =
        "usage: rdsend [OPTION]... HOST PORT\n"
        "Sends standard input to `rdrecv PORT` on HOST, which may be started later.\n"
        "Both have the same key of at least 16 bytes: from a file, a descriptor or RDPIPE_KEY.\n",
    .end = "Exit status: 0 the stream is complete; 1 it is not; 2 usage error; 141 the reader "
           "closed its end.\n",
    .column = 21,
    .tables = {options, rd_common_options}};

static bool reach(const rd_cli_t *cli, const char *host, uint16_t port, const rd_key_t *key,
                  rd_hop_t *hop_p, rd_why_t *why)
{
    int64_t patient_until = rd_now_ms() + (int64_t)cli->wait_s * 1000;
    char peer[300];
    rd_there_t there = {.host = host,
                        .port = port,
                        .peer = peer,
                        .attempt_ms = ATTEMPT_MS,
                        .connect_ms = ANSWER_MS,
                        .awaited_until = patient_until,
                        .patient_until = patient_until};

    (void)snprintf(peer, sizeof peer, "%.255s port %u", host, port);
    return rd_hop_reach(&there, key, &cli->terms, -1, hop_p, why);
}

static rd_resume_t resume;

static void send_all(rd_transfer_t *transfer, rd_stream_t *stream)
{
    rd_end_t input = rd_end_of(0, false);

    transfer->resume = resume.file ? &resume : NULL;
    rd_feed(transfer, stream, &input);
}

int main(int argc, char **argv)
{
    rd_cli_t cli;
    const char *host;
    rd_why_t why;

    rd_cli_init(&cli, "rdsend");
    cli.wait_s = 10;
    rd_cli_options(&cli, argc, argv, &rdsend);
    rd_cli_check(&cli);
    if (argc - optind != 2)
        rd_usage(&cli, "expected HOST and PORT, got %d arguments", argc - optind);
    host = argv[optind];
    if (cli.resume && !rd_resume_send(&resume, cli.resume, 0, &why))
        rd_usage(&cli, "%s", why.text);
    return rd_cli_carry(&cli, host, rd_cli_port(&cli, argv[optind + 1], false), reach, send_all);
}
