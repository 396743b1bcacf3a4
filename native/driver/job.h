/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_JOB_H
#define BW_JOB_H

#include "../link/shm/shm.h"
#include "meet.h"

/*
 * A command that may take longer than a scheduler can wait, because it uses a file system or loads
 * a library: the VM's async thread runs it. It is answered by REPLY_LATER, and the caller gets
 * {Port, done, Reply} with what would have been the answer.
 */
#define JOB_PATH_BYTES 4096

typedef struct job job_t;

struct job {
    void (*run)(job_t *job);
    ErlDrvTermData caller;
    reply_t reply;
    bw_shm_listener_t listener; /* what was opened; fd -1: nothing */
    const bw_rdma_api_t *api;   /* what was loaded, or NULL */
    char path[JOB_PATH_BYTES];
};

/* Begins it for the caller of the running command. False: the path is too long, or no memory. */
bool job_begin(ErlDrvPort port, void (*run)(job_t *job), const char *path, size_t len,
               reply_t *reply);

/* Tells the caller, and frees the job. What it has brought is the port's by now. */
void job_end(ErlDrvPort port, job_t *job);

#endif
