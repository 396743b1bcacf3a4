/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_PIPELINE_H
#define RD_PIPELINE_H

#include "text.h"

/*
 * Parses the command line of a pipeline into a list of segments. These functions are pure.
 *
 *   HOST:COMMAND    a shell command on HOST ([USER@]NAME, or an IPv6 address in brackets; empty:
 *                   this host, without ssh)
 *   HOST:           passes the stream on, without a process
 *   HOST:<FILE      the first segment: the file itself, no process
 *   HOST:>FILE      the last segment, also HOST:>>FILE
 *   [A B C]         the last segments: each gets the whole stream. Each bracket is an argument of
 *                   its own, or both are attached to the segments next to them: `[A B C]`.
 */

typedef enum {
    RD_WORK_COMMAND,
    RD_WORK_RELAY,
    RD_WORK_FROM_FILE,
    RD_WORK_TO_FILE,
    RD_WORK_APPEND,
    RD_WORK_STDIN, /* added by rdpipe itself: the local standard input and output */
    RD_WORK_STDOUT
} rd_work_t;

typedef struct {
    char *host; /* "" for this host; otherwise in the form that ssh expects */
    char *text; /* the command, or the shell word that names the file */
    rd_work_t work;
    bool is_receiver; /* one of several segments that receive the same stream */
} rd_segment_t;

#define RD_SEGMENTS_MAX 64u

typedef struct {
    rd_segment_t of[RD_SEGMENTS_MAX];
    size_t count;
} rd_pipeline_t;

/* Parses the arguments. With `tee`, all segments but the first are treated as if they were in
 * brackets. On success the caller frees the pipeline. */
bool rd_pipeline_parse(char *const *args, size_t count, bool tee, rd_pipeline_t *pipeline_p,
                       rd_why_t *why);
void rd_pipeline_free(rd_pipeline_t *pipeline);

/* Splits [USER@]HOST:PATH of a copy. As for scp, text without a colon, or with a slash before it,
 * is a local path. On success the caller frees both strings. */
bool rd_host_path(const char *text, char **host_p, char **path_p, rd_why_t *why);

/* Translate a kind of work to its name in messages to agents, and back. */
const char *rd_work_name(rd_work_t work);
bool rd_work_of(const char *name, rd_work_t *work_p);

#endif
