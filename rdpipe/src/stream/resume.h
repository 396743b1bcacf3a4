/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_RESUME_H
#define RD_RESUME_H

#include <sys/types.h>

#include "text.h"

/*
 * To resume a stream after an interruption, each side has a file that identifies the stream and
 * records how much of it was transferred. The producer chooses a random ID and records its input;
 * the consumer records how many bytes its output has, after it has synced them to the disk. A side
 * without such a file starts from the beginning. The files remain after the stream is complete, so
 * if the commands are run again, there is nothing left to do.
 *
 *   producer                        consumer
 *   RESUME: id                ->                                   (the first frame)
 *                             <-    RESUME: bytes that it has
 */

#define RD_RESUME_ID 33u   /* 128 bits in hexadecimal, and a NUL */
#define RD_RESUME_FILE 64u /* text that identifies the output file, and a NUL */
#define RD_CONFIRM_MS 1000 /* how often the consumer records its offset */

typedef struct {
    const char *file;
    char id[RD_RESUME_ID];       /* "" if none yet */
    uint64_t base;               /* where the stream begins in the input or output */
    uint64_t bytes;              /* how many of its bytes the output has */
    char output[RD_RESUME_FILE]; /* consumer: identifies the file that the stream is written to */
    bool is_whole;               /* consumer: the output has the complete stream */
    bool is_doubtful; /* the output has lost bytes; remembered here because the system reports that
                         only once */
} rd_resume_t;

/* For a producer: reads the file, or creates it. Fails, with *why set, if the input is not seekable
 * or is not the one that the file names. */
bool rd_resume_send(rd_resume_t *resume_p, const char *file, int input, rd_why_t *why);

/* For a consumer: reads the file, if there is one. Changes nothing, because no sender has connected
 * yet. Fails, with *why set, if the output is not the one that the file names. */
bool rd_resume_take(rd_resume_t *resume_p, const char *file, int output, rd_why_t *why);

/* Accepts the producer's ID, and truncates the output to the bytes that are certain to be on the
 * disk. Fails, with *why set, if the file belongs to a different stream. */
bool rd_resume_accept(rd_resume_t *resume, int output, const char *id, size_t len, rd_why_t *why);

/* Syncs the output, and records that it has this many bytes of the stream, which is complete if
 * `is_whole`. On failure, *why is set. Once bytes have been lost, nothing more is recorded. */
bool rd_resume_confirm(rd_resume_t *resume, int output, uint64_t bytes, bool is_whole,
                       rd_why_t *why);

/* Seeks the input to the offset at which the consumer wants to continue. */
bool rd_resume_seek(const rd_resume_t *resume, int input, uint64_t bytes, rd_why_t *why);

#endif
