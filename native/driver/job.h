/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_JOB_H
#define BW_JOB_H

#include "erl_driver.h"

#include "../link/link.h"
#include "reply.h"

/*
 * A command that may take longer than a scheduler can wait, because it uses a file system or loads
 * a library, so the VM's async thread runs it. The command replies REPLY_LATER, and later the
 * caller gets {Port, done, Reply} with what would have been the reply.
 */
#define JOB_PATH_BYTES 4096

typedef struct job job_t;

/* What the async thread works for. This is the first member of every structure that it is given. */
typedef enum { ASYNC_JOB, ASYNC_CLOSING /* closing.c */ } async_kind_t;

struct job {
    async_kind_t kind;
    void (*run)(job_t *job);
    ErlDrvTermData caller;
    reply_t reply;
    const bw_carrier_t *carrier; /* to use, or the one that was loaded; NULL: none */
    uint64_t ring_bytes;
    bw_link_t *link; /* the link that was begun, or NULL */
    size_t path_len;
    char path[JOB_PATH_BYTES]; /* ends with a 0 */
};

/* Makes a job for the caller of the running command, but does not begin it. Returns NULL if the
 * path is too long or memory runs out. The caller of this, of job_begin and of job_end holds the
 * port lock. */
job_t *job_new(ErlDrvPort port, void (*run)(job_t *job), const char *path, size_t len);

/* Begins the job. Returns false, and frees the job, if the VM does not take it. */
bool job_begin(ErlDrvPort port, job_t *job, reply_t *reply);

/* Replies to the caller and frees the job. The port must have taken what the job produced. */
void job_end(ErlDrvPort port, job_t *job);

#endif
