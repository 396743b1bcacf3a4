/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"

#include <assert.h>
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

const rd_option_t rd_common_options[] = {
    {"progress", 0, NULL, "reports progress, even without a terminal, and a summary",
     .set = RD_SET_FLAG, .at = offsetof(rd_cli_t, progress)},
    {"quiet", 'q', NULL, "reports no progress, only errors", .set = RD_SET_FLAG,
     .at = offsetof(rd_cli_t, quiet)},
    {"json", 0, NULL, "prints a line of JSON on standard error at the end, more with --progress",
     .set = RD_SET_FLAG, .at = offsetof(rd_cli_t, json)},
    {.name = NULL}};

/* Checks an option's value and stores it. */
static void take(rd_cli_t *cli, const rd_option_t *option, const char *value)
{
    void *to = (char *)cli + option->at;
    uint64_t number = 0;
    bool is_valid = true;

    if (option->set == RD_SET_SIZE || option->set == RD_SET_BLOCK)
        is_valid = rd_size(value, option->min, option->max, &number);
    else if (option->set == RD_SET_NUMBER || option->set == RD_SET_INT)
        is_valid = rd_number(value, option->min, option->max, &number);
    if (!is_valid)
        rd_usage(cli, "--%s %s: expected %s", option->name, value, option->expected);
    if (option->take) {
        option->take(cli, option, value);
        return;
    }
    switch (option->set) {
    case RD_SET_FLAG:
        *(bool *)to = true;
        break;
    case RD_SET_TEXT:
        *(const char **)to = value;
        break;
    case RD_SET_NUMBER:
    case RD_SET_SIZE:
        *(uint64_t *)to = number;
        break;
    case RD_SET_INT:
        *(int *)to = (int)number;
        break;
    case RD_SET_BLOCK:
        *(uint32_t *)to = (uint32_t)number;
        break;
    case RD_SET_CARRIER:
        cli->terms.carriers = carrier_of(cli, value);
        break;
    case RD_SET_NO_CHECKSUM:
        cli->terms.flags &= (uint8_t)~RD_FLAG_CRC;
        break;
    case RD_SET_ENCRYPT:
        cli->terms.flags |= RD_TERM_TLS;
        break;
    case RD_SET_ZSTD:
        if (!rd_zstd_version())
            rd_usage(cli, "--zstd: " RD_NO_ZSTD);
        number = RD_ZSTD_LEVEL;
        if (value && !rd_number(value, 1, RD_ZSTD_LEVEL_MAX, &number))
            rd_usage(cli, "--zstd=%s: expected a level from 1 to %d", value, RD_ZSTD_LEVEL_MAX);
        cli->terms.zstd = (int)number;
        break;
    case RD_SET_STREAMS:
        if (strcmp(value, "auto") != 0 && !rd_number(value, 1, RD_STREAMS_MAX, &number))
            rd_usage(cli, "--streams %s: expected auto or 1 to %u", value, RD_STREAMS_MAX);
        cli->terms.streams = (unsigned)number;
        break;
    case RD_SET_CONGESTION:
        if (!rd_congestion_is_name(value))
            rd_usage(cli, "--congestion %s: expected a name such as cubic or bbr", value);
        cli->terms.congestion = value;
        break;
    }
}

/* Prints an option's line of the help text. */
static void show(const rd_option_t *option, int column)
{
    bool has_name = option->name[0] != '-';
    const char *value = option->value ? option->value : "";
    char head[80], letter[8] = "";
    int len;

    if (option->letter && has_name)
        (void)snprintf(letter, sizeof letter, "-%c, ", option->letter);
    len = snprintf(head, sizeof head, "  %s%s%s%s%s", letter, has_name ? "--" : "", option->name,
                   *value && *value != '[' ? " " : "", value);
    (void)printf("%s%*s%s\n", head, len + 2 > column ? 3 : column - len, "", option->help);
}

/* Returns whether a table row says where its value is stored. No option is stored at offset 0,
 * which is that of the command's name. */
static bool says_where(const rd_option_t *option)
{
    return option->take || option->set >= RD_SET_CARRIER || (option->set > 0 && option->at > 0);
}

void rd_cli_options(rd_cli_t *cli, int argc, char **argv, const rd_command_t *command)
{
    enum { MOST = 64, VERSION = 256, FIRST }; /* above all letters */
    const rd_option_t *options[MOST];
    struct option names[MOST] = {{"help", 0, NULL, 'h'}, {"version", 0, NULL, VERSION}};
    char letters[2 * MOST] = "+h"; /* "+": the first argument ends the options */
    const char *accepted = command->is_ordered ? letters : letters + 1;
    size_t tables = sizeof command->tables / sizeof *command->tables;
    size_t count = 0, named = 2, lettered = 2;
    int is;

    for (size_t i = 0; i < tables && command->tables[i]; i++)
        for (const rd_option_t *option = command->tables[i]; option->name; option++) {
            int has_value = !option->value ? 0 : *option->value == '[' ? 2 : 1;

            /* The last element of `names` and the last byte of `letters` end them. */
            assert(count < MOST && named < MOST - 1 && lettered + 2 < sizeof letters);
            assert(says_where(option));
            if (option->name[0] != '-')
                names[named++] = (struct option){option->name, has_value, NULL, FIRST + (int)count};
            if (option->letter)
                letters[lettered++] = option->letter;
            if (option->letter && has_value)
                letters[lettered++] = ':';
            options[count++] = option;
        }
    while ((is = getopt_long(argc, argv, accepted, names, NULL)) >= 0) {
        size_t at = 0;

        while (at < count && options[at]->letter != is && FIRST + (int)at != is)
            at++;
        if (at < count) {
            take(cli, options[at], optarg);
        } else if (is == 'h') {
            (void)fputs(command->usage, stdout);
            for (size_t i = 0; i < count; i++)
                if (options[i]->help)
                    show(options[i], command->column);
            (void)printf("  -h, --help, --version\n%s", command->end);
            exit(rd_cli_printed(cli));
        } else if (is == VERSION) {
            (void)printf("%s %s\n", cli->name, RD_VERSION);
            exit(rd_cli_printed(cli));
        } else {
            (void)fprintf(stderr, "try '%s --help'\n", cli->name);
            exit(RD_EXIT_USAGE);
        }
    }
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

/* Reports the outcome, and returns the exit status. */
static int verdict(const rd_cli_t *cli, const rd_transfer_t *transfer, const rd_hop_t *hop,
                   double seconds)
{
    static const char *const names[] = {[RD_TRANSFER_DONE] = "done",
                                        [RD_TRANSFER_QUIT] = "reader_quit",
                                        [RD_TRANSFER_FAULT] = "fault",
                                        [RD_TRANSFER_RUNS] = "fault"};
    static const int statuses[] = {[RD_TRANSFER_DONE] = 0,
                                   [RD_TRANSFER_QUIT] = RD_EXIT_QUIT,
                                   [RD_TRANSFER_FAULT] = RD_EXIT_FAULT,
                                   [RD_TRANSFER_RUNS] = RD_EXIT_FAULT};
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
                      cli->name, names[transfer->outcome], (unsigned long long)bytes, seconds,
                      hop->carrier, streams);
        rd_json_text(stderr,
                     transfer->outcome == RD_TRANSFER_FAULT ? transfer->why.text : hop->why);
        (void)fprintf(stderr, "}\n");
    }
    return statuses[transfer->outcome];
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
