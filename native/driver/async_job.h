/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_ASYNC_JOB_H
#define BW_ASYNC_JOB_H

#include "erl_driver.h"

#include "../link/link.h"
#include "reply.h"

/*
 * A command that accesses a file system or loads a library could block a scheduler thread for too
 * long, so it runs on the VM's async thread. The command replies REPLY_LATER, and the caller later
 * receives the actual reply in the message {Port, done, Reply}.
 */
#define JOB_PATH_BYTES 4096

typedef struct job job_t;

/* Every structure passed to the async thread begins with one of these. */
typedef enum { ASYNC_JOB, ASYNC_CLOSING /* closing.c */ } async_kind_t;

struct job {
    async_kind_t kind;
    void (*run)(job_t *job);
    ErlDrvTermData caller;
    reply_t reply;
    const bw_carrier_t *carrier; /* the carrier to use, or the one that was loaded; NULL if none */
    bw_link_t *link;             /* the link whose setup was started, or NULL */
    size_t path_len;
    char path[JOB_PATH_BYTES]; /* NUL-terminated */
};

/* Starts a job for the caller of the running command. Returns false if the path is too long, memory
 * runs out or the VM does not accept the job. Callers of this function and job_end must hold the
 * port lock. */
bool job_begin(ErlDrvPort port, void (*run)(job_t *job), const bw_carrier_t *carrier,
               const char *path, size_t len, reply_t *reply);

/* Sends the reply and frees the job. The port must already own whatever the job created. */
void job_end(ErlDrvPort port, job_t *job);

#endif
