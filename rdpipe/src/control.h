/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CONTROL_H
#define RD_CONTROL_H

#include "text.h"

/*
 * What rdpipe and its agents say to each other over ssh's standard streams: lines of words.
 * The first word is what is meant; the others are NAME=VALUE, where % and two hexadecimal digits
 * stand for a byte that would end a word. A line has a length limit; nothing blocks for ever.
 */

#define RD_LINE_MAX ((size_t)16 * 1024 * 1024) /* a copy of many sources has long commands */
/* Raised also when an older rdcp would misread the command of a part before it compares versions.
 */
#define RD_CONTROL_VERSION "4"
/* Bytes of receivers' output that each agent may have under way. */
#define RD_OUTPUT_WINDOW ((size_t)256 * 1024)
/* The first word of an agent; what a login shell prints before it is skipped. */
#define RD_CONTROL_HELLO "rdpipe-agent"

typedef struct {
    char *text;
    size_t len, room;
} rd_line_t;

/* Builds a line. Out of memory leaves it empty, and rd_line_end fails. */
void rd_line_begin(rd_line_t *line, const char *what);
void rd_line_add(rd_line_t *line, const char *name, const char *value);
void rd_line_add_bytes(rd_line_t *line, const char *name, const void *value, size_t len);
void rd_line_number(rd_line_t *line, const char *name, uint64_t value);
/* Writes it and wipes it. The other side has 10 s and another second for each 64 KiB to take all of
 * it. False: it has not. */
bool rd_line_send(rd_line_t *line, int fd);

/* Reads lines from a descriptor. */
typedef struct {
    int fd;
    char *text;
    size_t len, room, taken;
    bool has_ended;
} rd_lines_t;

void rd_lines_init(rd_lines_t *lines, int fd);
void rd_lines_free(rd_lines_t *lines);
/* Takes what there is, without waiting when the descriptor is readable. */
void rd_lines_fill(rd_lines_t *lines);
/* The next whole line, without its end, valid until the next call; NULL: none yet. */
char *rd_lines_next(rd_lines_t *lines);

/* Looks into a line (which stays as it is): is `what` its first word? */
bool rd_line_is(const char *line, const char *what);
/* A copy of the value of `name`, decoded and ended by a 0 that *len_p (may be NULL) does not count;
 * NULL if there is none. The caller frees. */
char *rd_line_value(const char *line, const char *name, size_t *len_p);
bool rd_line_value_number(const char *line, const char *name, uint64_t max, uint64_t *number_p);

#endif
