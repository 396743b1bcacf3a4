/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CLI_H
#define RD_CLI_H

#include "hop/hop.h"
#include "stream/transfer.h"

/*
 * What the commands have in common: options, messages, and exit statuses. Standard output carries
 * data only; messages go to standard error.
 */

#define RD_VERSION "0.3.0"

enum {
    RD_EXIT_FAULT = 1, /* the stream is incomplete */
    RD_EXIT_USAGE = 2,
    RD_EXIT_OWN = 125, /* in rdpipe: a host, a connection or an agent failed, not a command */
    RD_EXIT_QUIT = 141 /* the reader closed early; as after SIGPIPE */
};

typedef struct {
    const char *name;
    rd_terms_t terms;
    bool verbose, json, progress, quiet;
    uint64_t buffer;    /* size in bytes of the buffer before the output, or 0 if none */
    uint64_t drop_s;    /* seconds after which a stuck receiver is dropped, or 0 for never */
    unsigned start;     /* percentage of `buffer` at which writing begins */
    const char *resume; /* a file, or NULL if none */
    uint64_t rate;      /* maximum number of bytes per second, or 0 if unlimited */
    uint64_t wait_s;    /* how long to wait for the other side */
    const char *bind;
    const char *key_file;
    int key_fd; /* -1 if none */
} rd_cli_t;

#define RD_RATE_MIN 1024u
#define RD_RATE_MAX ((uint64_t)1 << 40)

/* Numbered above all letters. The options of a single command start at RD_OPTION_OWN. */
enum {
    RD_OPTION_CARRIER = 256,
    RD_OPTION_BLOCK,
    RD_OPTION_NO_CHECKSUM,
    RD_OPTION_JSON,
    RD_OPTION_ENCRYPT,
    RD_OPTION_ZSTD,
    RD_OPTION_STREAMS,
    RD_OPTION_CONGESTION,
    RD_OPTION_KEY_FILE,
    RD_OPTION_KEY_FD,
    RD_OPTION_WAIT,
    RD_OPTION_BIND,
    RD_OPTION_PORT,
    RD_OPTION_ADDRESS,
    RD_OPTION_REMOTE_PATH,
    RD_OPTION_RATE,
    RD_OPTION_PROGRESS,
    RD_OPTION_RESUME,
    RD_OPTION_BUFFER,
    RD_OPTION_START,
    RD_OPTION_DROP,
    RD_OPTION_VERSION,
    RD_OPTION_OF_SENDER, /* an option of the sender, which rdrecv rejects */
    RD_OPTION_OWN
};
/* The options of every command. */
#define RD_STREAM_OPTIONS                                                                          \
    {"carrier", 1, NULL, RD_OPTION_CARRIER}, {"encrypt", 0, NULL, RD_OPTION_ENCRYPT},              \
        {"streams", 1, NULL, RD_OPTION_STREAMS}, {"json", 0, NULL, RD_OPTION_JSON},                \
        {"progress", 0, NULL, RD_OPTION_PROGRESS}, {"quiet", 0, NULL, 'q'},                        \
        {"verbose", 0, NULL, 'v'}, {"help", 0, NULL, 'h'},                                         \
    {                                                                                              \
        "version", 0, NULL, RD_OPTION_VERSION                                                      \
    }

/* The options that the sender sets for both sides. */
#define RD_SENDER_OPTIONS                                                                          \
    {"block", 1, NULL, RD_OPTION_BLOCK}, {"no-checksum", 0, NULL, RD_OPTION_NO_CHECKSUM},          \
        {"zstd", 2, NULL, RD_OPTION_ZSTD}, {"rate", 1, NULL, RD_OPTION_RATE},                      \
    {                                                                                              \
        "congestion", 1, NULL, RD_OPTION_CONGESTION                                                \
    }

/* Every command must call this first. It reopens standard streams that are closed, so that none of
 * our other descriptors gets one of their numbers: a closed input then reads as empty, and writing
 * to a closed output is an error. It also resets SIGCHLD to its default, because a command that
 * inherits it as ignored cannot wait for its children. */
void rd_cli_init(rd_cli_t *cli, const char *name);

/* Flushes standard output. On failure, prints an error and returns RD_EXIT_FAULT. */
int rd_cli_printed(const rd_cli_t *cli);

struct option;
/* For rdsend and rdrecv. Exits on --help, and whenever rd_cli_option exits. */
void rd_cli_options(rd_cli_t *cli, int argc, char **argv, const struct option *options,
                    const char *help);

/* Stores the value of an option. Exits on --version, on a bad value, or on an unknown option. */
void rd_cli_option(rd_cli_t *cli, int option, const char *value);

/* Call this after the last option. Exits if any options contradict each other. */
void rd_cli_check(const rd_cli_t *cli);

/* Prints "prog: text" to standard error. */
__attribute__((format(printf, 2, 3))) void rd_say(const rd_cli_t *cli, const char *form, ...);

/* Prints text from an untrusted source. Control characters and invalid UTF-8 become \xNN, so that a
 * terminal shows them but does not obey them. */
void rd_plain_text(FILE *to, const char *text);

/* Prints "name: text" to standard error as plain text and with one write, because other processes
 * may write there at the same time. */
void rd_say_plain(const char *name, const char *text);

/* Like rd_say, but exits with RD_EXIT_USAGE. */
__attribute__((format(printf, 2, 3), noreturn)) void rd_usage(const rd_cli_t *cli, const char *form,
                                                              ...);

/* Parses a port from 1 (or 0, if `any`) to 65535. Exits if the text is not a valid port. */
uint16_t rd_cli_port(const rd_cli_t *cli, const char *text, bool any);

/* Ignores SIGPIPE and SIGXFSZ, which would kill us silently, so that the system calls fail with an
 * error instead. */
void rd_ignore_signals(void);

/* Formats an amount in decimal units, such as 1.234 GB/s or 12.3 MB. */
void rd_amount(char text[32], double amount, const char *unit);

/* The body of rdsend and rdrecv: opens a hop with the key that the options specify, transfers one
 * stream over it with `move`, which owns the local end, and returns the exit status. `host` is the
 * other side; if the other side connects to us, `host` is NULL, and messages call the other side
 * "the sender". Exits through rd_usage if the options specify no key. */
typedef bool rd_open_t(const rd_cli_t *cli, const char *host, uint16_t port, const rd_key_t *key,
                       rd_hop_t *hop_p, rd_why_t *why);
typedef void rd_move_t(rd_transfer_t *transfer, rd_stream_t *stream);
int rd_cli_carry(const rd_cli_t *cli, const char *host, uint16_t port, rd_open_t *open,
                 rd_move_t *move);

/* Prints `text` as a JSON string in quotes. Invalid UTF-8 becomes U+FFFD. */
void rd_json_text(FILE *to, const char *text);

#endif
