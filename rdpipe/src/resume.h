/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_RESUME_H
#define RD_RESUME_H

#include <sys/types.h>

#include "text.h"

/*
 * What a stream needs to go on after a cut: a file on each side that says which stream it is and
 * how far it came. The producer makes a random id and notes its input; the consumer notes how many
 * bytes lie in its output, after it has forced them to the disk. Whoever has no such file begins
 * anew. The files stay when the stream is whole, so that a repeated call finds nothing to do.
 *
 *   producer                        consumer
 *   RESUME: id                ->                                   (the first frame)
 *                             <-    RESUME: bytes that it has
 */

#define RD_RESUME_ID 33u   /* 128 bits in hexadecimal, and a 0 */
#define RD_RESUME_FILE 64u /* which file the output is, as text, and a 0 */
#define RD_CONFIRM_MS 1000 /* the consumer notes its offset so often */

typedef struct {
    const char *file;
    char id[RD_RESUME_ID];       /* "": none yet */
    uint64_t base;               /* where the stream begins in the input or output */
    uint64_t bytes;              /* of it that the output has */
    char output[RD_RESUME_FILE]; /* of a consumer: the file that the stream goes into */
    bool is_whole;               /* of a consumer: the output has all of the stream */
    bool is_doubtful;            /* bytes of the output are lost, which the system says only once */
} rd_resume_t;

/* Of a producer: reads the file, or makes it. False: *why; the input cannot be sought in, or is
 * another one than the file speaks of. */
bool rd_resume_send(rd_resume_t *resume_p, const char *file, int input, rd_why_t *why);

/* Of a consumer: reads the file, if there is one. It changes nothing, as no sender is there yet.
 * False: *why; the output is not the one that the file speaks of. */
bool rd_resume_take(rd_resume_t *resume_p, const char *file, int output, rd_why_t *why);

/* The producer's id has come: cuts the output to what is sure to be there. False: *why; the file
 * speaks of another stream. */
bool rd_resume_accept(rd_resume_t *resume, int output, const char *id, size_t len, rd_why_t *why);

/* Notes that the output has so many bytes of the stream, and that they are on the disk.
 * `is_whole`: the stream has ended. False: *why; once bytes were lost, nothing is noted any more.
 */
bool rd_resume_confirm(rd_resume_t *resume, int output, uint64_t bytes, bool is_whole,
                       rd_why_t *why);

/* Goes to where the consumer wants to go on in the input. */
bool rd_resume_seek(const rd_resume_t *resume, int input, uint64_t bytes, rd_why_t *why);

#endif
