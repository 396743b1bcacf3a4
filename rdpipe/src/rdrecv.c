/* SPDX-License-Identifier: Apache-2.0 */
/* rdrecv: receives the stream of one rdsend and writes it to standard output. */
#include <getopt.h>
#include <unistd.h>

#include "cli/cli.h"
#include "hop/socket.h"

static const char help[] =
    "usage: rdrecv [OPTION]... PORT\n"
    "Waits for one `rdsend HOST PORT` with the key, and writes its input to standard output.\n"
    "With PORT 0 it takes any free port and names it on standard error.\n"
    "Both have the same key of at least 16 bytes: from a file, a descriptor or RDPIPE_KEY.\n"
    "  --key-file FILE   reads the key from a file that only you can read\n"
    "  --key-fd N        reads the key from an open descriptor\n"
    "  --bind ADDRESS    listens only there (default: on all addresses)\n"
    "  --carrier NAME    allows only shm, rdma or tcp (auto: all)\n"
    "  --streams N|auto  limits the number of TCP connections, 1 to 64 (auto: 64)\n"
    "  --wait SECONDS    limits the wait for the sender (300)\n"
    "  --buffer SIZE     memory before the output, 1M to 1024G (none)\n"
    "  --start PERCENT   starts to write at this fill level, until it is empty (0)\n"
    "  --resume FILE     continues after a cut: FILE records the progress; the output is a file: "
    ">>OUT\n"
    "  --encrypt         TLS 1.3, unless both are on one host\n"
    "  -v, --verbose     reports the carrier, the reason and the throughput\n"
    "  --progress        reports progress, even without a terminal, and a summary\n"
    "  -q, --quiet       reports no progress, only errors\n"
    "  --json            prints a line of JSON on standard error at the end, more with --progress\n"
    "  -h, --help, --version\n"
    "Exit status: 0 the stream is complete; 1 it is not; 2 usage error; 141 the reader "
    "closed its end.\n";

static const struct option options[] = {RD_STREAM_OPTIONS,
                                        {"key-file", 1, NULL, RD_OPTION_KEY_FILE},
                                        {"key-fd", 1, NULL, RD_OPTION_KEY_FD},
                                        {"wait", 1, NULL, RD_OPTION_WAIT},
                                        {"bind", 1, NULL, RD_OPTION_BIND},
                                        {"resume", 1, NULL, RD_OPTION_RESUME},
                                        {"buffer", 1, NULL, RD_OPTION_BUFFER},
                                        {"start", 1, NULL, RD_OPTION_START},
                                        {"block", 2, NULL, RD_OPTION_OF_SENDER},
                                        {"no-checksum", 2, NULL, RD_OPTION_OF_SENDER},
                                        {"zstd", 2, NULL, RD_OPTION_OF_SENDER},
                                        {"rate", 2, NULL, RD_OPTION_OF_SENDER},
                                        {"congestion", 2, NULL, RD_OPTION_OF_SENDER},
                                        {NULL, 0, NULL, 0}};

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
    rd_cli_options(&cli, argc, argv, options, help);
    if (argc - optind != 1)
        rd_usage(&cli, "expected PORT, got %d arguments", argc - optind);
    if (cli.resume && !rd_resume_take(&resume, cli.resume, 1, &why))
        rd_usage(&cli, "%s", why.text);
    return rd_cli_carry(&cli, NULL, rd_cli_port(&cli, argv[optind], true), let_in, receive_all);
}
