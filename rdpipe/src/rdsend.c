/* SPDX-License-Identifier: Apache-2.0 */
/* rdsend: standard input to the rdrecv of another host. */
#include <getopt.h>

#include "cli.h"
#include "socket.h"

#define CONNECT_MS 30000

static const char help[] =
    "usage: rdsend [OPTION]... HOST PORT\n"
    "Sends standard input to `rdrecv PORT` on HOST, which may be started later.\n"
    "Both have the same key of at least 16 bytes: from a file, a descriptor or RDPIPE_KEY.\n"
    "  --key-file FILE   the key; nobody else may read the file\n"
    "  --key-fd N        the key from an open descriptor\n"
    "  --carrier NAME    shm, rdma, tcp, or auto (the best that both sides have)\n"
    "  --block SIZE      bytes sent at a time, 4K to 8M (256K)\n"
    "  --no-checksum     no crc32c of what is sent\n"
    "  --encrypt         TLS 1.3, unless both are on one host\n"
    "  --zstd[=LEVEL]    compresses on the way, level 1 to 19 (3)\n"
    "  --streams N|auto  TCP connections, 1 to 16 (auto: one, more on a long path)\n"
    "  --congestion NAME congestion control of the kernel for them (its default)\n"
    "  --resume FILE     goes on after a cut: FILE notes the input, which is a file; rdrecv has it "
    "too\n"
    "  --rate SIZE       bytes a second at most, 1K to 1024G (as many as go)\n"
    "  --wait SECONDS    tries so long to reach rdrecv (10)\n"
    "  -v, --verbose     says which carrier and why, and how fast it was\n"
    "  --progress        says how far it is, also where no terminal is, and a summary\n"
    "  -q, --quiet       shows nothing of how far it is\n"
    "  --json            a line of JSON on standard error at the end; with --progress others\n"
    "  -h, --help, --version\n"
    "Exit status: 0 everything was taken; 1 it was not; 2 called wrongly; 141 the reader wanted no "
    "more.\n";

static const struct option options[] = {RD_STREAM_OPTIONS,
                                        {"key-file", 1, NULL, RD_OPTION_KEY_FILE},
                                        {"key-fd", 1, NULL, RD_OPTION_KEY_FD},
                                        {"wait", 1, NULL, RD_OPTION_WAIT},
                                        {"congestion", 1, NULL, RD_OPTION_CONGESTION},
                                        {"zstd", 2, NULL, RD_OPTION_ZSTD},
                                        {"rate", 1, NULL, RD_OPTION_RATE},
                                        {"resume", 1, NULL, RD_OPTION_RESUME},
                                        {NULL, 0, NULL, 0}};

static bool reach(const rd_cli_t *cli, const char *host, uint16_t port, const rd_key_t *key,
                  rd_hop_t *hop_p, rd_why_t *why)
{
    int64_t patient_until = rd_now_ms() + (int64_t)cli->wait_s * 1000;
    char peer[300];
    rd_there_t there = {.host = host,
                        .port = port,
                        .peer = peer,
                        .attempt_ms = CONNECT_MS,
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
    atomic_store(&transfer->status, 0); /* whose output it is, nobody tells us */
    rd_feed(transfer, stream, &input);
}

int main(int argc, char **argv)
{
    rd_cli_t cli;
    const char *host;
    rd_why_t why;

    rd_cli_init(&cli, "rdsend");
    cli.wait_s = 10;
    rd_cli_options(&cli, argc, argv, options, help);
    if (argc - optind != 2)
        rd_usage(&cli, "expected HOST and PORT, got %d arguments", argc - optind);
    host = argv[optind];
    if (cli.resume && !rd_resume_send(&resume, cli.resume, 0, &why))
        rd_usage(&cli, "%s", why.text);
    return rd_cli_carry(&cli, host, rd_cli_port(&cli, argv[optind + 1], false), reach, send_all);
}
