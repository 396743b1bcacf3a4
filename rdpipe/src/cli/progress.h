/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_PROGRESS_H
#define RD_PROGRESS_H

#include "cli.h"

/*
 * Shows the progress of a stream: the bytes, the current and the average rate, and the time left.
 * On a terminal, the progress is a single line that is redrawn. Elsewhere it is shown only on
 * request, as lines of text or JSON. A stopped terminal (Ctrl-S) or a full pipe never blocks the
 * stream, because a line that cannot be written now is omitted.
 */

#define RD_DRAW_MS 500  /* how often the line on a terminal is redrawn */
#define RD_LINE_MS 1000 /* how often a line elsewhere is written */

typedef struct {
    uint64_t bytes, size; /* size is 0 if unknown */
    uint64_t first;       /* bytes that had already been transferred at the start */
    int64_t began_ms, at_ms;
    double rate, average; /* bytes per second, since the last step and since the start */
} rd_speed_t;

void rd_speed_begin(rd_speed_t *speed_p, int64_t now_ms);
void rd_speed_step(rd_speed_t *speed, uint64_t bytes, uint64_t size, int64_t now_ms);

/* Returns the number of seconds left at the average rate, or -1 if it is unknown. */
int64_t rd_speed_left(const rd_speed_t *speed);

/* Writes a line such as "0:12  1.200 GB  98.0 MB/s  average 100.0 MB/s  41% 0:17 left". */
void rd_speed_text(char text[192], const rd_speed_t *speed);

/* Like rd_speed_text, but writes the members of a JSON object, without the braces. */
void rd_speed_json(char text[256], const rd_speed_t *speed);

/* Returns whether to show progress, which is shown on a terminal or on request, but never with
 * --quiet. */
bool rd_progress_is_wanted(const rd_cli_t *cli);

/* Returns the time between two updates in milliseconds. */
int rd_progress_ms(const rd_cli_t *cli);

/* Writes one of the two, depending on the options; `json` must be a complete line. Returns false if
 * the output cannot accept it at the moment. */
bool rd_progress_write(const rd_cli_t *cli, const char *text, const char *json);

void rd_progress_clear(const rd_cli_t *cli);

/* Shows the progress of a transfer, in a thread that watches it. */
typedef struct rd_progress rd_progress_t;
rd_progress_t *rd_progress_start(const rd_cli_t *cli, const rd_transfer_t *transfer);
void rd_progress_stop(rd_progress_t *progress);

#endif
