/* SPDX-License-Identifier: Apache-2.0 */

#include "async_job.h"

static void invoke(void *data)
{
    job_t *job = data;

    job->run(job);
}

/* Frees the job if the port was closed in the meantime. */
static void drop(void *data)
{
    job_t *job = data;

    if (job->link)
        job->link->ops->close(job->link, NULL);
    driver_free(job);
}

bool job_begin(ErlDrvPort port, void (*run)(job_t *job), const bw_carrier_t *carrier,
               const char *path, size_t len, reply_t *reply)
{
    job_t *job = len < JOB_PATH_BYTES ? driver_alloc(sizeof *job) : NULL;

    if (!job)
        return false;
    job->kind = ASYNC_JOB;
    job->run = run;
    job->caller = driver_caller(port);
    job->reply.len = 0;
    reply_number(&job->reply, 0, 1);
    job->carrier = carrier;
    job->link = NULL;
    job->path_len = len;
    memcpy(job->path, path, len);
    job->path[len] = 0;
    reply->len = 0;
    reply_number(reply, REPLY_LATER, 1);
    if (driver_async(port, NULL, invoke, job, drop) >= 0)
        return true;
    driver_free(job);
    return false;
}

void job_end(ErlDrvPort port, job_t *job)
{
    ErlDrvTermData message[] = {ERL_DRV_PORT,
                                driver_mk_port(port),
                                ERL_DRV_ATOM,
                                driver_mk_atom("done"),
                                ERL_DRV_BUF2BINARY,
                                (ErlDrvTermData)job->reply.bytes,
                                (ErlDrvTermData)job->reply.len,
                                ERL_DRV_TUPLE,
                                3};

    (void)erl_drv_send_term(driver_mk_port(port), job->caller, message, 9);
    driver_free(job);
}
