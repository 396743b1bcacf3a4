/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_JOB_H
#define BW_JOB_H

#include "erl_driver.h"

#include "../link/link.h"
#include "reply.h"

/*
 * A command that may take longer than a scheduler can wait, because it uses a file system or loads
 * a library: the VM's async thread runs it. It is answered by REPLY_LATER, and the caller gets
 * {Port, done, Reply} with what would have been the answer.
 */
#define JOB_PATH_BYTES 4096

typedef struct job job_t;

/* What the async thread works for: the first member of all that it is given. */
typedef enum { ASYNC_JOB, ASYNC_CLOSING /* closing.c */ } async_kind_t;

struct job {
    async_kind_t kind;
    void (*run)(job_t *job);
    ErlDrvTermData caller;
    reply_t reply;
    const bw_carrier_t *carrier; /* to use, or what was loaded; NULL: none */
    uint64_t ring_bytes;
    bw_link_t *link; /* what was begun, or NULL */
    size_t path_len;
    char path[JOB_PATH_BYTES]; /* ends with a 0 */
};

/* A job for the caller of the running command, not begun; NULL: the path is too long, or there is
 * no memory. Under the port lock, as job_begin and job_end. */
job_t *job_new(ErlDrvPort port, void (*run)(job_t *job), const char *path, size_t len);

/* Begins it. False: the VM does not take it, and the job is gone. */
bool job_begin(ErlDrvPort port, job_t *job, reply_t *reply);

/* Tells the caller, and frees the job. What it has brought is the port's by now. */
void job_end(ErlDrvPort port, job_t *job);

#endif
