/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CLI_H
#define RD_CLI_H

#include <stddef.h>

#include "hop/hop.h"
#include "stream/transfer.h"

/*
 * What the commands have in common: options, messages, and exit statuses. Only data is written to
 * standard output; messages go to standard error.
 */

#define RD_VERSION "0.3.0"

enum {
    RD_EXIT_FAULT = 1, /* the stream is incomplete */
    RD_EXIT_USAGE = 2,
    RD_EXIT_OWN = 125, /* in rdpipe: a host, a connection or an agent failed, not a command */
    RD_EXIT_QUIT = 141 /* the reader closed early; a shell reports the same status for SIGPIPE */
};

typedef struct {
    const char *name;
    rd_terms_t terms;
    bool verbose, json, progress, quiet;
    uint64_t buffer;    /* size in bytes of the buffer before the output, or 0 if none */
    uint64_t drop_s;    /* seconds after which a stuck receiver is dropped, or 0 for never */
    unsigned start;     /* percentage of `buffer` at which writing begins */
    const char *resume; /* the file of --resume, or NULL if none */
    uint64_t rate;      /* maximum number of bytes per second, or 0 if unlimited */
    uint64_t wait_s;    /* how long to wait for the other side */
    const char *bind;
    const char *key_file;
    int key_fd; /* -1 if none */
} rd_cli_t;

#define RD_RATE_MIN 1024u
#define RD_RATE_MAX ((uint64_t)1 << 40)

/* How an option's value is stored. The kinds up to BLOCK store it in the field at offset `at`,
 * which is a bool (FLAG), a const char * (TEXT), a uint64_t (NUMBER and SIZE), an int or unsigned
 * (INT) or a uint32_t (BLOCK); the others store it in the terms. No kind is 0, so that an assertion
 * can detect a table row without one. */
typedef enum {
    RD_SET_FLAG = 1,
    RD_SET_TEXT,
    RD_SET_NUMBER,
    RD_SET_SIZE,
    RD_SET_INT,
    RD_SET_BLOCK,
    RD_SET_CARRIER,
    RD_SET_NO_CHECKSUM,
    RD_SET_ENCRYPT,
    RD_SET_ZSTD,
    RD_SET_STREAMS,
    RD_SET_CONGESTION
} rd_set_t;

/* An option of a command. The parser, the help text and the completion are all made from tables of
 * these. */
typedef struct rd_option {
    const char *name;  /* "-x" if it has only a letter */
    char letter;       /* 0 if it has none */
    const char *value; /* what the help calls the value: NULL if none, in brackets if optional */
    const char *help;  /* NULL if the help does not list it */
    rd_set_t set;
    size_t at;            /* offset in the command's structure, which begins with rd_cli_t */
    uint64_t min, max;    /* the range of a number */
    const char *expected; /* describes the numbers that are valid */
    /* If not NULL, this function stores the value instead of the field at `at`. */
    void (*take)(rd_cli_t *cli, const struct rd_option *option, const char *value);
    bool is_passed; /* a flag that rdcp passes to the parts of a copy */
} rd_option_t;

/* Options that several commands share. If their help text differs from command to command, it is an
 * argument of the macro. */
#define RD_OPTION_CARRIER(help) "carrier", 0, "NAME", help, .set = RD_SET_CARRIER
#define RD_OPTION_BLOCK                                                                            \
    "block", 0, "SIZE", "bytes sent at a time, 4K to 8M (256K)",                                   \
        .set = RD_SET_BLOCK, .at = offsetof(rd_cli_t, terms.block), .min = RD_BLOCK_MIN,           \
        .max = RD_BLOCK_MAX, .expected = "4K to 8M"
#define RD_OPTION_NO_CHECKSUM                                                                      \
    "no-checksum", 0, NULL, "omits the crc32c checksum", .set = RD_SET_NO_CHECKSUM
#define RD_OPTION_ENCRYPT(help) "encrypt", 0, NULL, help, .set = RD_SET_ENCRYPT
#define RD_OPTION_ZSTD                                                                             \
    "zstd", 0, "[=LEVEL]", "compresses the data, level 1 to 19 (3)", .set = RD_SET_ZSTD
#define RD_OPTION_STREAMS(help) "streams", 0, "N|auto", help, .set = RD_SET_STREAMS
#define RD_OPTION_CONGESTION                                                                       \
    "congestion", 0, "NAME", "their congestion control (the kernel's default)",                    \
        .set = RD_SET_CONGESTION
#define RD_OPTION_RATE(help)                                                                       \
    "rate", 0, "SIZE", help, .set = RD_SET_SIZE, .at = offsetof(rd_cli_t, rate),                   \
                             .min = RD_RATE_MIN, .max = RD_RATE_MAX,                               \
                             .expected = "bytes per second, 1K to 1024G"
#define RD_OPTION_BUFFER(help)                                                                     \
    "buffer", 0, "SIZE", help, .set = RD_SET_SIZE, .at = offsetof(rd_cli_t, buffer),               \
                               .min = RD_BUFFER_MIN, .max = RD_BUFFER_MAX,                         \
                               .expected = "1M to 1024G"
#define RD_OPTION_START(help)                                                                      \
    "start", 0, "PERCENT", help, .set = RD_SET_INT, .at = offsetof(rd_cli_t, start), .max = 100,   \
                                 .expected = "a level in percent, 0 to 100"
#define RD_OPTION_SECONDS(field)                                                                   \
    .set = RD_SET_NUMBER, .at = offsetof(rd_cli_t, field), .min = 1, .max = 86400,                 \
    .expected = "seconds, 1 to 86400"
#define RD_OPTION_TEXT(field) .set = RD_SET_TEXT, .at = offsetof(rd_cli_t, field)
#define RD_OPTION_KEY_FILE                                                                         \
    "key-file", 0, "FILE", "reads the key from a file that only you can read",                     \
        RD_OPTION_TEXT(key_file)
#define RD_OPTION_KEY_FD                                                                           \
    "key-fd", 0, "N", "reads the key from an open descriptor",                                     \
        .set = RD_SET_INT, .at = offsetof(rd_cli_t, key_fd), .max = 1 << 20,                       \
        .expected = "the number of an open descriptor"
#define RD_OPTION_VERBOSE(help)                                                                    \
    "verbose", 'v', NULL, help, .set = RD_SET_FLAG, .at = offsetof(rd_cli_t, verbose),             \
                                .is_passed = true

/* Options that every command has. The help lists them last. */
extern const rd_option_t rd_common_options[];

typedef struct {
    const char *usage, *end;      /* the help text before and after the list of options */
    int column;                   /* the column in which the descriptions begin */
    bool is_ordered;              /* options are recognized only before the first argument */
    const rd_option_t *tables[4]; /* each ends with a row whose name is NULL */
} rd_command_t;

/* Every command must call this first. It opens /dev/null for each closed standard stream so that no
 * other descriptor gets its number; a closed input then reads as empty, and writing to a closed
 * output is an error. It also resets SIGCHLD to its default, because a process that inherits it as
 * ignored cannot wait for its children. */
void rd_cli_init(rd_cli_t *cli, const char *name);

/* Flushes standard output. On failure, prints an error and returns RD_EXIT_FAULT. */
int rd_cli_printed(const rd_cli_t *cli);

/* Stores the options. Exits on --help, on --version, on a bad value, or on an unknown option. */
void rd_cli_options(rd_cli_t *cli, int argc, char **argv, const rd_command_t *command);

/* Call this after the last option. Exits if any options contradict each other. */
void rd_cli_check(const rd_cli_t *cli);

/* Prints "prog: text" to standard error. */
__attribute__((format(printf, 2, 3))) void rd_say(const rd_cli_t *cli, const char *form, ...);

/* Prints text from an untrusted source. Control characters and invalid UTF-8 are written as \xNN,
 * so that the terminal displays them instead of obeying them. */
void rd_plain_text(FILE *to, const char *text);

/* Prints "name: text" to standard error as plain text and with one write, because other processes
 * may write there at the same time. */
void rd_say_plain(const char *name, const char *text);

/* Like rd_say, but exits with RD_EXIT_USAGE. */
__attribute__((format(printf, 2, 3), noreturn)) void rd_usage(const rd_cli_t *cli, const char *form,
                                                              ...);

/* Parses a port from 1 (or 0, if `any`) to 65535. Exits if the text is not a valid port. */
uint16_t rd_cli_port(const rd_cli_t *cli, const char *text, bool any);

/* Ignores SIGPIPE and SIGXFSZ, which would kill the process without a message, so that the system
 * calls return an error instead. */
void rd_ignore_signals(void);

/* Formats an amount in decimal units, such as 1.234 GB/s or 12.3 MB. */
void rd_amount(char text[32], double amount, const char *unit);

/* The body of rdsend and rdrecv: opens a hop with the key that the options specify, transfers one
 * stream over it with `move`, which owns the local end, and returns the exit status. `host` is the
 * other side, or NULL if it connects to us, in which case messages call it "the sender". Exits
 * through rd_usage if the options specify no key. */
typedef bool rd_open_t(const rd_cli_t *cli, const char *host, uint16_t port, const rd_key_t *key,
                       rd_hop_t *hop_p, rd_why_t *why);
typedef void rd_move_t(rd_transfer_t *transfer, rd_stream_t *stream);
int rd_cli_carry(const rd_cli_t *cli, const char *host, uint16_t port, rd_open_t *open,
                 rd_move_t *move);

/* Prints `text` as a JSON string in quotes. Invalid UTF-8 becomes U+FFFD. */
void rd_json_text(FILE *to, const char *text);

#endif
