/* SPDX-License-Identifier: Apache-2.0 */

#include "meet.h"

#include <dlfcn.h>

#include "job.h"

#define ADDRESS_BYTES 23

static ErlDrvEvent event_of(const meet_t *meet)
{
    return (ErlDrvEvent)(intptr_t)meet->api->fd(meet->connection);
}

static uint64_t bytes_at(const char **at, int bytes)
{
    uint64_t number = 0;

    for (; bytes > 0; bytes--)
        number = number << 8 | (uint8_t) * (*at)++;
    return number;
}

static bw_rdma_address_t address_at(const char **at)
{
    bw_rdma_address_t address = {.family = (uint8_t)bytes_at(at, 1)};

    memcpy(address.ip, *at, sizeof address.ip);
    *at += sizeof address.ip;
    address.scope = (uint32_t)bytes_at(at, 4);
    address.port = (uint16_t)bytes_at(at, 2);
    return address;
}

static void reply_reason(reply_t *reply, const char *reason)
{
    reply->len = 0;
    reply_number(reply, 1, 1);
    reply_bytes(reply, reason, strlen(reason));
}

static void load(job_t *job)
{
    bw_error_t error = {0};
    bw_rdma_api_fn api;
    /* Its thread runs until the process ends: it is never unloaded. */
    void *library = dlopen(job->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (!library) {
        reply_reason(&job->reply, dlerror());
        return;
    }
    *(void **)&api = dlsym(library, BW_RDMA_SYMBOL);
    job->api = api ? api(BW_RDMA_API_VERSION, &error) : NULL;
    dlclose(library);
    if (!api)
        reply_reason(&job->reply, "no carrier for rdma in the file: build it with 'make build'");
    else if (!job->api)
        reply_status(&job->reply, BW_SYSTEM, &error);
}

bool meet_load(meet_t *meet, const char *data, size_t len, reply_t *reply)
{
    return meet->api || job_begin(meet->port, load, data, len, reply);
}

/* A connection has begun, or not. */
static void begin(meet_t *meet, bw_status_t status, const bw_error_t *error, reply_t *reply)
{
    reply_status(reply, status, error);
    if (status != BW_OK)
        return;
    meet->caller = driver_caller(meet->port);
    if (driver_select(meet->port, event_of(meet), ERL_DRV_READ | ERL_DRV_USE, 1) == 0) {
        meet->is_selected = true;
        return;
    }
    meet->api->close(meet->connection, NULL);
    meet->connection = NULL;
    reply_reason(reply, "rdma: the descriptor cannot be polled");
}

bool meet_listen(meet_t *meet, const char *data, size_t len, reply_t *reply)
{
    bw_error_t error = {0};
    bw_rdma_address_t at;
    uint16_t first, last;
    uint64_t ring_bytes;
    bw_status_t status;

    if (!meet->api || meet->connection || len != ADDRESS_BYTES + 2 + 2 + 8)
        return false;
    at = address_at(&data);
    first = (uint16_t)bytes_at(&data, 2);
    last = (uint16_t)bytes_at(&data, 2);
    ring_bytes = bytes_at(&data, 8);
    status = meet->api->listen(&at, first, last, ring_bytes, &meet->connection, &error);
    begin(meet, status, &error, reply);
    return true;
}

bool meet_connect(meet_t *meet, const char *data, size_t len, reply_t *reply)
{
    bw_rdma_address_t from, to;
    bw_error_t error = {0};
    const char *token;
    uint64_t ring_bytes;
    bw_status_t status;

    if (!meet->api || meet->connection || len != 2 * ADDRESS_BYTES + BW_RDMA_TOKEN_BYTES + 8 + 4)
        return false;
    from = address_at(&data);
    to = address_at(&data);
    token = data;
    data += BW_RDMA_TOKEN_BYTES;
    ring_bytes = bytes_at(&data, 8);
    status = meet->api->connect(from.family ? &from : NULL, &to, (const uint8_t *)token, ring_bytes,
                                (uint32_t)bytes_at(&data, 4), &meet->connection, &error);
    begin(meet, status, &error, reply);
    return true;
}

bool meet_status(meet_t *meet, reply_t *reply, bw_link_t **link_p)
{
    bw_rdma_report_t report;

    if (!meet->connection)
        return false;
    meet->api->look(meet->connection, &report);
    reply_number(reply, report.state, 1);
    switch (report.state) {
    case BW_RDMA_LISTENING:
        reply_number(reply, report.port, 2);
        reply_bytes(reply, report.token, sizeof report.token);
        break;
    case BW_RDMA_FAILED:
        reply_bytes(reply, report.text, strlen(report.text));
        return true;
    case BW_RDMA_LINKED:
        /* Frames may come from now on, and nobody may read them before ACTIVATE. */
        driver_select(meet->port, event_of(meet), ERL_DRV_READ, 0);
        *link_p = meet->api->take(meet->connection);
        meet->connection = NULL;
        break;
    default:
        break;
    }
    if (report.state != BW_RDMA_WORKING) {
        reply_number(reply, report.device_port, 1);
        reply_bytes(reply, report.device, strlen(report.device));
    }
    if (meet->connection)
        driver_select(meet->port, event_of(meet), ERL_DRV_READ, 1);
    return true;
}

void meet_tell(meet_t *meet)
{
    ErlDrvTermData port = driver_mk_port(meet->port);
    ErlDrvTermData news[] = {ERL_DRV_ATOM, driver_mk_atom("rdma"), ERL_DRV_PORT,
                             port,         ERL_DRV_TUPLE,          2};

    if (!meet->connection)
        return;
    driver_select(meet->port, event_of(meet), ERL_DRV_READ, 0);
    /* It is linked to the port: if it is gone, so is the port soon. */
    (void)erl_drv_send_term(port, meet->caller, news, 6);
}

void meet_close(meet_t *meet)
{
    int fd = -1;

    if (!meet->connection)
        return;
    meet->api->close(meet->connection, &fd);
    driver_select(meet->port, (ErlDrvEvent)(intptr_t)fd, ERL_DRV_READ | ERL_DRV_USE, 0);
    meet->connection = NULL;
}
