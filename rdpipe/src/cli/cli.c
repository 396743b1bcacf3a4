/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "hop/bundle.h"
#include "stream/compress.h"
#include "progress.h"
#include "hop/socket.h"

static void fill_standard_descriptors(void)
{
    static const int modes[] = {O_RDONLY, O_RDONLY, O_WRONLY};

    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", modes[fd]) != fd)
            exit(RD_EXIT_OWN); /* no message, because standard error may be closed */
}

void rd_cli_init(rd_cli_t *cli, const char *name)
{
    fill_standard_descriptors();
    (void)signal(SIGCHLD, SIG_DFL);
    *cli = (rd_cli_t){
        .name = name,
        .terms = {.carriers = RD_CARRIERS_ALL, .block = RD_BLOCK_BYTES, .flags = RD_FLAG_CRC},
        .key_fd = -1};
}

/* Decodes the UTF-8 character at `at`. Returns its length, or 0 if it is not valid. */
static size_t letter_at(const unsigned char *at, uint32_t *letter_p)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t len = *at < 0x80 ? 1 : *at >> 5 == 6 ? 2 : *at >> 4 == 14 ? 3 : *at >> 3 == 30 ? 4 : 0;
    uint32_t letter = len == 1 ? *at : *at & (0x7Fu >> len);

    for (size_t i = 1; i < len; i++) {
        if (at[i] >> 6 != 2)
            return 0;
        letter = letter << 6 | (at[i] & 0x3Fu);
    }
    if (len == 0 || letter < least[len] || letter > 0x10FFFF || letter >> 11 == 0xD800 >> 11)
        return 0;
    *letter_p = letter;
    return len;
}

static bool is_control(uint32_t letter)
{
    return letter < 0x20 || (letter >= 0x7F && letter < 0xA0);
}

void rd_plain_text(FILE *to, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    while (*at) {
        uint32_t letter = 0;
        size_t len = letter_at(at, &letter);

        if (len > 0 && !is_control(letter)) {
            (void)fwrite(at, 1, len, to);
            at += len;
        } else {
            (void)fprintf(to, "\\x%02x", *at++);
        }
    }
}

void rd_say_plain(const char *name, const char *text)
{
    char *line = NULL;
    size_t bytes;
    FILE *to = open_memstream(&line, &bytes);

    if (!to)
        return;
    (void)fprintf(to, "%s%s: ", isatty(2) ? "\r\033[K" : "", name);
    rd_plain_text(to, text);
    (void)fputc('\n', to);
    if (fclose(to) == 0)
        (void)fputs(line, stderr);
    free(line);
}

static void say(const char *name, const char *form, va_list args)
{
    char text[1024];

    (void)vsnprintf(text, sizeof text, form, args);
    rd_say_plain(name, text);
}

void rd_say(const rd_cli_t *cli, const char *form, ...)
{
    va_list args;

    va_start(args, form);
    say(cli->name, form, args);
    va_end(args);
}

void rd_usage(const rd_cli_t *cli, const char *form, ...)
{
    va_list args;

    va_start(args, form);
    say(cli->name, form, args);
    va_end(args);
    (void)fprintf(stderr, "try '%s --help'\n", cli->name);
    exit(RD_EXIT_USAGE);
}

int rd_cli_printed(const rd_cli_t *cli)
{
    bool is_whole = !ferror(stdout);

    if (fflush(stdout) == 0 && is_whole)
        return 0;
    rd_say(cli, "standard output: %s", strerror(errno));
    return RD_EXIT_FAULT;
}

static uint32_t carrier_of(const rd_cli_t *cli, const char *value)
{
    if (strcmp(value, "auto") == 0)
        return RD_CARRIERS_ALL;
    if (strcmp(value, "shm") == 0)
        return RD_CARRIER_SHM;
    if (strcmp(value, "tcp") == 0)
        return RD_CARRIER_TCP;
    if (strcmp(value, "rdma") == 0)
        return RD_CARRIER_RDMA;
    rd_usage(cli, "--carrier %s: expected auto, shm, rdma or tcp", value);
}

void rd_cli_option(rd_cli_t *cli, int option, const char *value)
{
    uint64_t number = 0;

    switch (option) {
    case RD_OPTION_CARRIER:
        cli->terms.carriers = carrier_of(cli, value);
        break;
    case RD_OPTION_BLOCK:
        if (!rd_size(value, RD_BLOCK_MIN, RD_BLOCK_MAX, &number))
            rd_usage(cli, "--block %s: expected 4K to 8M", value);
        cli->terms.block = (uint32_t)number;
        break;
    case RD_OPTION_NO_CHECKSUM:
        cli->terms.flags &= (uint8_t)~RD_FLAG_CRC;
        break;
    case RD_OPTION_ENCRYPT:
        cli->terms.flags |= RD_TERM_TLS;
        break;
    case RD_OPTION_ZSTD:
        if (!rd_zstd_version())
            rd_usage(cli, "--zstd: " RD_NO_ZSTD);
        number = RD_ZSTD_LEVEL;
        if (value && !rd_number(value, 1, RD_ZSTD_LEVEL_MAX, &number))
            rd_usage(cli, "--zstd=%s: expected a level from 1 to %d", value, RD_ZSTD_LEVEL_MAX);
        cli->terms.zstd = (int)number;
        break;
    case RD_OPTION_STREAMS:
        if (strcmp(value, "auto") != 0 && !rd_number(value, 1, RD_STREAMS_MAX, &number))
            rd_usage(cli, "--streams %s: expected auto or 1 to %u", value, RD_STREAMS_MAX);
        cli->terms.streams = (unsigned)number;
        break;
    case RD_OPTION_CONGESTION:
        if (!rd_congestion_is_name(value))
            rd_usage(cli, "--congestion %s: expected a name such as cubic or bbr", value);
        cli->terms.congestion = value;
        break;
    case RD_OPTION_JSON:
        cli->json = true;
        break;
    case RD_OPTION_BUFFER:
        if (!rd_size(value, RD_BUFFER_MIN, RD_BUFFER_MAX, &cli->buffer))
            rd_usage(cli, "--buffer %s: expected 1M to 1024G", value);
        break;
    case RD_OPTION_DROP:
        if (!rd_number(value, 1, 86400, &cli->drop_s))
            rd_usage(cli, "--drop-slow %s: expected seconds, 1 to 86400", value);
        break;
    case RD_OPTION_START:
        if (!rd_number(value, 0, 100, &number))
            rd_usage(cli, "--start %s: expected a level in percent, 0 to 100", value);
        cli->start = (unsigned)number;
        break;
    case RD_OPTION_RESUME:
        cli->resume = value;
        break;
    case RD_OPTION_PROGRESS:
        cli->progress = true;
        break;
    case 'q':
        cli->quiet = true;
        break;
    case RD_OPTION_RATE:
        if (!rd_size(value, RD_RATE_MIN, RD_RATE_MAX, &cli->rate))
            rd_usage(cli, "--rate %s: expected bytes per second, 1K to 1024G", value);
        break;
    case RD_OPTION_KEY_FILE:
        cli->key_file = value;
        break;
    case RD_OPTION_KEY_FD:
        if (!rd_number(value, 0, 1 << 20, &number))
            rd_usage(cli, "--key-fd %s: expected the number of an open descriptor", value);
        cli->key_fd = (int)number;
        break;
    case RD_OPTION_WAIT:
        if (!rd_number(value, 1, 86400, &cli->wait_s))
            rd_usage(cli, "--wait %s: expected seconds, 1 to 86400", value);
        break;
    case RD_OPTION_BIND:
        cli->bind = value;
        break;
    case 'v':
        cli->verbose = true;
        break;
    case RD_OPTION_VERSION:
        (void)printf("%s %s\n", cli->name, RD_VERSION);
        exit(rd_cli_printed(cli));
    default:
        (void)fprintf(stderr, "try '%s --help'\n", cli->name);
        exit(RD_EXIT_USAGE);
    }
}

void rd_cli_options(rd_cli_t *cli, int argc, char **argv, const struct option *options,
                    const char *help)
{
    int option;

    while ((option = getopt_long(argc, argv, "vqh", options, NULL)) >= 0) {
        if (option == 'h') {
            (void)fputs(help, stdout);
            exit(rd_cli_printed(cli));
        }
        if (option == RD_OPTION_OF_SENDER)
            rd_usage(cli, "%s: rdsend decides this for both sides; give rdsend the option",
                     argv[optind - 1]);
        rd_cli_option(cli, option, optarg);
    }
    rd_cli_check(cli);
}

void rd_cli_check(const rd_cli_t *cli)
{
    if (cli->start > 0 && cli->buffer == 0)
        rd_usage(cli, "--start needs --buffer SIZE, because it is a fill level of the buffer");
    if (cli->buffer > 0 && cli->resume)
        rd_usage(cli, "--buffer and --resume cannot be used together: recorded data must be on the "
                      "disk, not in a buffer");
    if (cli->quiet && cli->progress)
        rd_usage(cli, "--quiet and --progress cannot be used together");
    if (cli->terms.flags & RD_TERM_TLS && cli->terms.carriers == RD_CARRIER_RDMA)
        rd_usage(cli, "--encrypt needs tcp; --carrier rdma sends plain data");
}

static bool read_key(const rd_cli_t *cli, rd_key_t *key_p, rd_why_t *why)
{
    if (cli->key_file)
        return rd_key_of_file(cli->key_file, key_p, why);
    if (cli->key_fd >= 0) {
        bool done = rd_key_of_fd(cli->key_fd, key_p, why);

        fill_standard_descriptors(); /* reading the key may have closed a standard descriptor */
        return done;
    }
    return rd_key_of_environment(key_p, why);
}

uint16_t rd_cli_port(const rd_cli_t *cli, const char *text, bool any)
{
    uint64_t port;

    if (!rd_number(text, any ? 0 : 1, 65535, &port))
        rd_usage(cli, "port %s: expected a number from %d to 65535", text, any ? 0 : 1);
    return (uint16_t)port;
}

void rd_ignore_signals(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
}

void rd_amount(char text[32], double amount, const char *unit)
{
    static const char prefix[] = {' ', 'k', 'M', 'G', 'T', 'P'};
    size_t i = 0;

    while (amount >= 1000 && i + 1 < sizeof prefix) {
        amount /= 1000;
        i++;
    }
    if (i == 0)
        (void)snprintf(text, 32, "%.0f %s", amount, unit);
    else
        (void)snprintf(text, 32, "%.3f %c%s", amount, prefix[i], unit);
}

void rd_json_text(FILE *to, const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    (void)fputc('"', to);
    while (*at) {
        uint32_t letter = 0;
        size_t len = letter_at(at, &letter);

        if (len == 0)
            (void)fputs("\\ufffd", to);
        else if (is_control(letter))
            (void)fprintf(to, "\\u%04x", letter);
        else
            (void)fprintf(to, "%s%.*s", letter == '"' || letter == '\\' ? "\\" : "", (int)len, at);
        at += len > 0 ? len : 1;
    }
    (void)fputc('"', to);
}

static const char *outcome_name(rd_outcome_t outcome)
{
    return outcome == RD_TRANSFER_DONE   ? "done"
           : outcome == RD_TRANSFER_QUIT ? "reader_quit"
                                         : "fault";
}

/* Reports the outcome, and returns the exit status. */
static int verdict(const rd_cli_t *cli, const rd_transfer_t *transfer, const rd_hop_t *hop,
                   double seconds)
{
    uint64_t bytes = atomic_load(&transfer->bytes);
    double carried = (double)(bytes - atomic_load(&transfer->first));
    char rate[32], amount[32], over[32] = "";
    unsigned streams =
        hop->streams > 0 ? rd_bundle_used(hop->link) : strcmp(hop->carrier, "tcp") == 0;

    rd_amount(rate, seconds > 0 ? carried / seconds : 0, "B/s");
    rd_amount(amount, carried, "B");
    if (streams > 1)
        (void)snprintf(over, sizeof over, ", over %u streams", streams);
    if (transfer->outcome == RD_TRANSFER_FAULT)
        rd_say(cli, "%s", transfer->why.text);
    if (cli->verbose || (cli->progress && !cli->json))
        rd_say(cli, "%s in %.3f s, %s%s", amount, seconds, rate, over);
    if (cli->json) {
        (void)fprintf(stderr,
                      "{\"command\": \"%s\", \"event\": \"end\", \"outcome\": \"%s\", \"bytes\": "
                      "%llu, \"seconds\": "
                      "%.6f, \"carrier\": \"%s\", \"streams\": %u, \"reason\": ",
                      cli->name, outcome_name(transfer->outcome), (unsigned long long)bytes,
                      seconds, hop->carrier, streams);
        rd_json_text(stderr,
                     transfer->outcome == RD_TRANSFER_FAULT ? transfer->why.text : hop->why);
        (void)fprintf(stderr, "}\n");
    }
    return transfer->outcome == RD_TRANSFER_DONE   ? 0
           : transfer->outcome == RD_TRANSFER_QUIT ? RD_EXIT_QUIT
                                                   : RD_EXIT_FAULT;
}

static int carry(const rd_cli_t *cli, const rd_hop_t *hop, const char *peer, rd_move_t *move)
{
    rd_transfer_t transfer;
    rd_stream_t stream;
    rd_progress_t *progress;
    rd_why_t why;
    int64_t began = rd_now_ms();
    int status;

    if (cli->verbose)
        rd_say(cli, "%s (%s)", hop->carrier, hop->why);
    if (!rd_transfer_init(&transfer, &why)) {
        rd_say(cli, "%s", why.text);
        return RD_EXIT_FAULT;
    }
    rd_stream_open(&stream, hop, peer);
    transfer.rate = cli->rate;
    transfer.buffer = cli->buffer;
    transfer.start = cli->start;
    progress = rd_progress_start(cli, &transfer);
    move(&transfer, &stream);
    rd_progress_stop(progress);
    status = verdict(cli, &transfer, hop, (double)(rd_now_ms() - began) / 1000);
    rd_stream_close(&stream);
    rd_transfer_free(&transfer);
    return status;
}

int rd_cli_carry(const rd_cli_t *cli, const char *host, uint16_t port, rd_open_t *open,
                 rd_move_t *move)
{
    rd_key_t key;
    rd_hop_t hop;
    rd_why_t why;
    bool done;

    rd_ignore_signals();
    if (!read_key(cli, &key, &why))
        rd_usage(cli, "%s", why.text);
    done = open(cli, host, port, &key, &hop, &why);
    rd_key_wipe(&key);
    if (!done) {
        rd_say(cli, "%s", why.text);
        return RD_EXIT_FAULT;
    }
    return carry(cli, &hop, host ? host : "the sender", move);
}
