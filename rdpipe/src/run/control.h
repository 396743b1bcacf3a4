/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CONTROL_H
#define RD_CONTROL_H

#include "text.h"

/*
 * The messages between rdpipe and its agents, which are sent over ssh's standard streams. A message
 * is a line of words: the first is its kind, and the others are NAME=VALUE, where a byte that would
 * end the word is written as % and two hexadecimal digits. The length of a line is limited, and no
 * call blocks forever.
 */

#define RD_LINE_MAX ((size_t)16 * 1024 * 1024) /* a copy of many sources has long commands */
/* The version of these messages. It is also raised when a change would make an older rdcp misread a
 * part's command before it compares versions. */
#define RD_CONTROL_VERSION "4"
/* The maximum number of bytes of a receiver's output that each agent may have in transit. */
#define RD_OUTPUT_WINDOW ((size_t)256 * 1024)
/* The first word that an agent sends. Anything that a login shell prints before it is skipped. */
#define RD_CONTROL_HELLO "rdpipe-agent"

typedef struct {
    char *text;
    size_t len, room;
} rd_line_t;

/* Begins a line. If memory is exhausted the line stays empty, and sending it fails. */
void rd_line_begin(rd_line_t *line, const char *what);
void rd_line_add(rd_line_t *line, const char *name, const char *value);
void rd_line_add_bytes(rd_line_t *line, const char *name, const void *value, size_t len);
void rd_line_number(rd_line_t *line, const char *name, uint64_t value);
/* Sends the line and wipes it from memory. The other side has 10 s, plus one second for each 64
 * KiB, to read it. Returns false if the other side did not read it in time. */
bool rd_line_send(rd_line_t *line, int fd);

typedef struct {
    int fd;
    char *text;
    size_t len, room, taken;
    bool has_ended;
} rd_lines_t;

void rd_lines_init(rd_lines_t *lines, int fd);
void rd_lines_free(rd_lines_t *lines);
/* Reads the bytes that have arrived. Does not block if the descriptor is readable. */
void rd_lines_fill(rd_lines_t *lines);
/* Returns the next complete line, without its newline, or NULL if there is none yet. It is valid
 * until the next call. */
char *rd_lines_next(rd_lines_t *lines);

/* Returns whether `what` is the first word of the line. The line is not changed. */
bool rd_line_is(const char *line, const char *what);
/* Returns a copy of the value of `name`, decoded and NUL-terminated (*len_p, which may be NULL,
 * does not count the NUL), or NULL if the line has none. The caller frees it. */
char *rd_line_value(const char *line, const char *name, size_t *len_p);
bool rd_line_value_number(const char *line, const char *name, uint64_t max, uint64_t *number_p);

#endif
