/* SPDX-License-Identifier: Apache-2.0 */
/* rdrecv: receives the stream of one rdsend and writes it to standard output. */
#include <getopt.h>
#include <unistd.h>

#include "cli/cli.h"
#include "hop/socket.h"

static void refuse(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    rd_usage(cli, "--%s%s%s: rdsend decides this for both sides; give rdsend the option",
             option->name, value ? "=" : "", value ? value : "");
}

static const rd_option_t options[] = {
    {RD_OPTION_KEY_FILE},
    {RD_OPTION_KEY_FD},
    {"bind", 0, "ADDRESS", "listens only there (default: on all addresses)", RD_OPTION_TEXT(bind)},
    {RD_OPTION_CARRIER("allows only shm, rdma or tcp (auto: all)")},
    {RD_OPTION_STREAMS("limits the number of TCP connections, 1 to 64 (auto: 64)")},
    {"wait", 0, "SECONDS", "limits the wait for the sender (300)", RD_OPTION_SECONDS(wait_s)},
    {RD_OPTION_BUFFER("memory before the output, 1M to 1024G (none)")},
    {RD_OPTION_START("starts to write at this fill level, until it is empty (0)")},
    {"resume", 0, "FILE",
     "continues after a cut: FILE records the progress; the output is a file: >>OUT",
     RD_OPTION_TEXT(resume)},
    {RD_OPTION_ENCRYPT("TLS 1.3, unless both are on one host")},
    {RD_OPTION_VERBOSE("reports the carrier, the reason and the throughput")},
    {"block", 0, "[]", NULL, .take = refuse},
    {"no-checksum", 0, "[]", NULL, .take = refuse},
    {"zstd", 0, "[]", NULL, .take = refuse},
    {"rate", 0, "[]", NULL, .take = refuse},
    {"congestion", 0, "[]", NULL, .take = refuse},
    {.name = NULL}};

static const rd_command_t rdrecv = {
    .usage =
        "usage: rdrecv [OPTION]... PORT\n"
        "Waits for one `rdsend HOST PORT` with the key, and writes its input to standard output.\n"
        "With PORT 0 it takes any free port and names it on standard error.\n"
        "Both have the same key of at least 16 bytes: from a file, a descriptor or RDPIPE_KEY.\n",
    .end = "Exit status: 0 the stream is complete; 1 it is not; 2 usage error; 141 the reader "
           "closed its end.\n",
    .column = 20,
    .tables = {options, rd_common_options}};

/* The hop keeps a duplicate of the listener until all additional streams have joined. */
static bool let_in(const rd_cli_t *cli, const char *host, uint16_t port, const rd_key_t *key,
                   rd_hop_t *hop_p, rd_why_t *why)
{
    int64_t deadline = rd_now_ms() + (int64_t)cli->wait_s * 1000;
    uint16_t taken;
    unsigned turned_away = 0;
    int listener;
    bool done;

    (void)host;
    if (!rd_listen(cli->bind, port, port, &listener, &taken, why))
        return false;
    if (port == 0 || cli->verbose)
        rd_say(cli, "port %u", taken);
    done = rd_hop_accept(listener, key, &cli->terms, -1, deadline, &turned_away, hop_p, why);
    close(listener);
    if (turned_away > 0)
        rd_say(cli, "turned away %u who did not have the key", turned_away);
    return done;
}

static rd_resume_t resume;

static void receive_all(rd_transfer_t *transfer, rd_stream_t *stream)
{
    rd_end_t output = rd_end_of(1, true);

    transfer->resume = resume.file ? &resume : NULL;
    rd_drain(transfer, stream, &output, NULL);
}

int main(int argc, char **argv)
{
    rd_cli_t cli;
    rd_why_t why;

    rd_cli_init(&cli, "rdrecv");
    cli.wait_s = 300;
    rd_cli_options(&cli, argc, argv, &rdrecv);
    rd_cli_check(&cli);
    if (argc - optind != 1)
        rd_usage(&cli, "expected PORT, got %d arguments", argc - optind);
    if (cli.resume && !rd_resume_take(&resume, cli.resume, 1, &why))
        rd_usage(&cli, "%s", why.text);
    return rd_cli_carry(&cli, NULL, rd_cli_port(&cli, argv[optind], true), let_in, receive_all);
}
