/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CLI_H
#define RD_CLI_H

#include "hop.h"
#include "transfer.h"

/*
 * What the commands have in common: options, what they say, and how they end.
 * Data is on standard output alone; everything said is on standard error.
 */

#define RD_VERSION "0.2.0"

enum {
    RD_EXIT_FAULT = 1, /* the stream is not whole */
    RD_EXIT_USAGE = 2,
    RD_EXIT_OWN = 125, /* rdpipe: a host, a connection or an agent failed, not a command */
    RD_EXIT_QUIT = 141 /* the reader wanted no more: as a command that SIGPIPE ends */
};

typedef struct {
    const char *name; /* of the command */
    rd_terms_t terms;
    bool verbose, json, progress, quiet;
    uint64_t buffer;    /* bytes before the output; 0: none */
    uint64_t drop_s;    /* receivers that take nothing for so long are dropped; 0: never */
    unsigned start;     /* percent of it at which writing begins */
    const char *resume; /* a file, NULL: none */
    uint64_t rate;      /* bytes a second at most; 0: as many as there are */
    uint64_t wait_s;    /* for the other side */
    const char *bind;
    const char *key_file;
    int key_fd; /* -1: none */
} rd_cli_t;

#define RD_RATE_MIN 1024u
#define RD_RATE_MAX ((uint64_t)1 << 40)

/* Options, for getopt_long: above all letters. Those of one command follow RD_OPTION_OWN. */
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
    RD_OPTION_OF_SENDER, /* in rdrecv: refused */
    RD_OPTION_OWN
};
/* The options that all commands have. */
#define RD_STREAM_OPTIONS                                                                          \
    {"carrier", 1, NULL, RD_OPTION_CARRIER}, {"encrypt", 0, NULL, RD_OPTION_ENCRYPT},              \
        {"streams", 1, NULL, RD_OPTION_STREAMS}, {"json", 0, NULL, RD_OPTION_JSON},                \
        {"progress", 0, NULL, RD_OPTION_PROGRESS}, {"quiet", 0, NULL, 'q'},                        \
        {"verbose", 0, NULL, 'v'}, {"help", 0, NULL, 'h'},                                         \
    {                                                                                              \
        "version", 0, NULL, RD_OPTION_VERSION                                                      \
    }

/* Those that a sender decides for both sides. */
#define RD_SENDER_OPTIONS                                                                          \
    {"block", 1, NULL, RD_OPTION_BLOCK}, {"no-checksum", 0, NULL, RD_OPTION_NO_CHECKSUM},          \
        {"zstd", 2, NULL, RD_OPTION_ZSTD}, {"rate", 1, NULL, RD_OPTION_RATE},                      \
    {                                                                                              \
        "congestion", 1, NULL, RD_OPTION_CONGESTION                                                \
    }

/* The first call of each command: no descriptor of ours takes the place of a standard one that is
 * closed. Closed input is empty then; what is written to closed output is an error. Children can be
 * waited for, whatever we have inherited. */
void rd_cli_init(rd_cli_t *cli, const char *name);

/* What was printed is there: 0, or it is said that it is not, and RD_EXIT_FAULT. */
int rd_cli_printed(const rd_cli_t *cli);

struct option;
/* Takes the options of rdsend or rdrecv: those of `options`; exits on --help, and as the next. */
void rd_cli_options(rd_cli_t *cli, int argc, char **argv, const struct option *options,
                    const char *help);

/* Takes an option of rd_cli_t; exits on a bad value, --version, or an option that is not known. */
void rd_cli_option(rd_cli_t *cli, int option, const char *value);

/* To be called when all options are taken: exits if some cannot go together. */
void rd_cli_check(const rd_cli_t *cli);

/* "prog: text" on standard error. */
__attribute__((format(printf, 2, 3))) void rd_say(const rd_cli_t *cli, const char *form, ...);

/* Text that others may have written: controls and what is no UTF-8 as \xNN, so that a terminal
 * shows them and does not obey. */
void rd_plain_text(FILE *to, const char *text);

/* "name: text" on standard error, plain, and in one piece: others may write there, too. */
void rd_say_plain(const char *name, const char *text);

/* As rd_say, and exits with RD_EXIT_USAGE. */
__attribute__((format(printf, 2, 3), noreturn)) void rd_usage(const rd_cli_t *cli, const char *form,
                                                              ...);

/* A port from 1 (or 0, if `any`) to 65535; exits if it is none. */
uint16_t rd_cli_port(const rd_cli_t *cli, const char *text, bool any);

/* Signals that would end us silently become errors of calls: SIGPIPE, SIGXFSZ. */
void rd_ignore_signals(void);

/* 1.234 GB/s, 12.3 MB: decimal units. */
void rd_amount(char text[32], double amount, const char *unit);

/* What rdsend and rdrecv do: opens a hop with the key of the options, moves one stream over it by
 * `move`, which has its own end of it, and gives the exit status. `host` is the other side, NULL:
 * it comes to us, and is called "the sender" in messages. Exits as rd_usage if there is no key. */
typedef bool rd_open_t(const rd_cli_t *cli, const char *host, uint16_t port, const rd_key_t *key,
                       rd_hop_t *hop_p, rd_why_t *why);
typedef void rd_move_t(rd_transfer_t *transfer, rd_stream_t *stream);
int rd_cli_carry(const rd_cli_t *cli, const char *host, uint16_t port, rd_open_t *open,
                 rd_move_t *move);

/* `text` as a string of JSON, with its quotes; what is no UTF-8 becomes U+FFFD. */
void rd_json_text(FILE *to, const char *text);

#endif
