/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_PROGRESS_H
#define RD_PROGRESS_H

#include "cli.h"

/*
 * How far a stream is: bytes, current and average rate, time left. As a line that is drawn again on
 * a terminal, as lines elsewhere if they are asked for, or as lines of JSON. Nothing waits for a
 * terminal that is stopped (ctrl-S) or a pipe that is full: that line is left out.
 */

#define RD_DRAW_MS 500  /* a line on a terminal is drawn so often */
#define RD_LINE_MS 1000 /* a line elsewhere is written so often */

typedef struct {
    uint64_t bytes, size; /* size 0: nobody knows */
    uint64_t first;       /* bytes that were there before */
    int64_t began_ms, at_ms;
    double rate, average; /* bytes a second: since the last look, and of the whole time */
} rd_speed_t;

void rd_speed_begin(rd_speed_t *speed_p, int64_t now_ms);

/* Looks once more. */
void rd_speed_step(rd_speed_t *speed, uint64_t bytes, uint64_t size, int64_t now_ms);

/* Seconds that are left at the average rate; -1: nobody knows. */
int64_t rd_speed_left(const rd_speed_t *speed);

/* "0:12  1.200 GB  98.0 MB/s  average 100.0 MB/s  41% 0:17 left" */
void rd_speed_text(char text[192], const rd_speed_t *speed);

/* The same as members of an object of JSON, without its braces. */
void rd_speed_json(char text[256], const rd_speed_t *speed);

/* Does anybody want to see how far it is? */
bool rd_progress_is_wanted(const rd_cli_t *cli);

/* The time between two looks. */
int rd_progress_ms(const rd_cli_t *cli);

/* Writes a line as the options and the terminal want it; false: there is no room for one now.
 * `json` is the whole line of JSON. */
bool rd_progress_write(const rd_cli_t *cli, const char *text, const char *json);

/* Takes the line from a terminal. */
void rd_progress_clear(const rd_cli_t *cli);

/* The same of a transfer, by a thread that looks at it. */
typedef struct rd_progress rd_progress_t;
rd_progress_t *rd_progress_start(const rd_cli_t *cli, const rd_transfer_t *transfer);
void rd_progress_stop(rd_progress_t *progress);

#endif
