/* SPDX-License-Identifier: Apache-2.0 */

#include "establish.h"

#include "../link/bytes.h"
#include "closing.h"

static ErlDrvEvent event_of(const bw_link_t *link)
{
    return (ErlDrvEvent)(intptr_t)link->ops->fd(link);
}

static bool is_polled(const establish_t *establish)
{
    return establish->link && !(establish->carrier->caps & BW_CAP_IMMEDIATE);
}

static int waits_for(const bw_link_t *link)
{
    bool for_room = link->ops->wants && link->ops->wants(link) & POLLOUT;

    return ERL_DRV_READ | (for_room ? ERL_DRV_WRITE : 0);
}

static void load(job_t *job)
{
    char text[BW_TEXT_BYTES];

    job->carrier = bw_carrier_load(job->path, text);
    if (!job->carrier)
        reply_reason(&job->reply, text);
}

bool establish_use(establish_t *establish, const char *data, size_t len, reply_t *reply)
{
    const char *path = memchr(data, 0, len);
    const bw_carrier_t *loaded;
    size_t path_len;

    if (!path || establish->link)
        return false;
    path_len = len - (size_t)(++path - data);
    if (establish->carrier && strcmp(establish->carrier->kind, data) == 0)
        return true;
    if (path_len == 0) {
        establish->carrier = bw_carrier_named(data);
        if (!establish->carrier)
            reply_reason(reply, "the driver has no such carrier");
        return true;
    }
    loaded = bw_carrier_loaded(path, path_len);
    if (loaded) {
        establish->carrier = loaded;
        return true;
    }
    return job_begin(establish->port, load, NULL, path, path_len, reply);
}

bool establish_probe(const establish_t *establish, const char *data, size_t len, reply_t *reply)
{
    bw_error_t error = {0};

    if (!establish->carrier || len != 8)
        return false;
    reply_status(reply, establish->carrier->probe(bw_number(data, 8), &error), &error);
    return true;
}

static void begin(establish_t *establish, bw_link_t *link, ErlDrvTermData caller, reply_t *reply)
{
    establish->link = link;
    establish->caller = caller;
    if (!is_polled(establish))
        return;
    if (driver_select(establish->port, event_of(link), waits_for(link) | ERL_DRV_USE, 1) == 0) {
        establish->is_selected = true;
        return;
    }
    link->ops->close(link, NULL);
    establish->link = NULL;
    reply_reason(reply, "the link's descriptor cannot be polled");
}

static bw_status_t listen_at(const bw_carrier_t *carrier, const char *data, size_t len,
                             bw_link_t **link_p, reply_t *reply)
{
    bw_order_t order = {
        .at = (const uint8_t *)data + 8, .at_len = len - 8, .ring_bytes = bw_number(data, 8)};
    bw_error_t error = {0};
    bw_status_t status = carrier->listen(&order, link_p, &error);

    reply_status(reply, status, &error);
    return status;
}

static void listen_later(job_t *job)
{
    (void)listen_at(job->carrier, job->path, job->path_len, &job->link, &job->reply);
}

bool establish_listen(establish_t *establish, const char *data, size_t len, reply_t *reply)
{
    bw_link_t *link = NULL;

    if (!establish->carrier || establish->link || len < 8)
        return false;
    if (len > 8 && establish->carrier->caps & BW_CAP_FILES)
        return job_begin(establish->port, listen_later, establish->carrier, data, len, reply);
    if (listen_at(establish->carrier, data, len, &link, reply) == BW_OK)
        begin(establish, link, driver_caller(establish->port), reply);
    return true;
}

bool establish_connect(establish_t *establish, const char *data, size_t len, reply_t *reply)
{
    size_t fixed = 8 + BW_TOKEN_BYTES + 4;
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    bw_order_t order;
    bw_status_t status;

    if (!establish->carrier || establish->link || len < fixed)
        return false;
    order = (bw_order_t){.at = (const uint8_t *)data + fixed,
                         .at_len = len - fixed,
                         .ring_bytes = bw_number(data, 8),
                         .timeout_ms = (uint32_t)bw_number(data + 8 + BW_TOKEN_BYTES, 4)};
    memcpy(order.token, data + 8, sizeof order.token);
    status = establish->carrier->connect(&order, &link, &error);
    reply_status(reply, status, &error);
    if (status == BW_OK)
        begin(establish, link, driver_caller(establish->port), reply);
    return true;
}

void establish_done(establish_t *establish, job_t *job)
{
    if (job->carrier)
        establish->carrier = job->carrier;
    if (job->link && establish->link)
        job->link->ops->close(job->link, NULL); /* another link was started first */
    else if (job->link)
        begin(establish, job->link, job->caller, &job->reply);
}

static void reply_short(reply_t *reply, const void *bytes, size_t len)
{
    reply_number(reply, len, 1);
    reply_bytes(reply, bytes, len);
}

bool establish_step(establish_t *establish, reply_t *reply, bw_link_t **link_p)
{
    bw_link_t *link = establish->link;
    bw_report_t report;

    if (!link)
        return false;
    link->ops->step(link, &report);
    reply_number(reply, report.state, 1);
    switch (report.state) {
    case BW_LISTENING:
        reply_bytes(reply, report.token, sizeof report.token);
        reply_short(reply, report.address, report.address_len);
        reply_short(reply, report.device, strlen(report.device));
        reply_text(reply, report.text);
        break;
    case BW_FAILED:
        reply_text(reply, report.text);
        return true;
    case BW_LINKED:
        /* Frames may arrive from now on, but they must not be read before ACTIVATE. */
        if (establish->is_selected)
            driver_select(establish->port, event_of(link), ERL_DRV_READ | ERL_DRV_WRITE, 0);
        *link_p = link;
        establish->link = NULL;
        reply_text(reply, report.device);
        break;
    default:
        break;
    }
    if (is_polled(establish))
        driver_select(establish->port, event_of(link), waits_for(link), 1);
    return true;
}

bool establish_say(bw_link_t *link, const char *data, size_t len, reply_t *reply)
{
    bw_span_t span;

    if (link->ops->reserve(link, len, &span) != BW_OK || span.len < len) {
        reply_reason(reply, "the link takes no more");
        return true;
    }
    memcpy(span.base, data, len);
    link->ops->commit(link, len);
    return true;
}

/* Makes the port send the caller one message when bytes arrive. */
static void await_bytes(establish_t *establish, const bw_link_t *link, reply_t *reply)
{
    if (driver_select(establish->port, event_of(link), waits_for(link) | ERL_DRV_USE, 1) != 0) {
        reply_reason(reply, "the link's descriptor cannot be polled");
        return;
    }
    establish->is_selected = establish->is_heard = true;
    establish->caller = driver_caller(establish->port);
}

bool establish_hear(establish_t *establish, bw_link_t *link, uint64_t count, reply_t *reply)
{
    bw_status_t status;
    bw_span_t span;

    if (count == 0 || count > HEAR_BYTES)
        return false;
    do {
        link->ops->clear_event(link);
        status = link->ops->peek(link, &span);
        if (status == BW_OK && span.len >= count) {
            reply_bytes(reply, span.base, count);
            link->ops->release(link, count);
            return true;
        }
        if (status == BW_OK || status == BW_AGAIN)
            status = link->ops->arm_read(link);
    } while (status == BW_AGAIN);
    if (status == BW_OK && !link->ops->is_finished(link))
        await_bytes(establish, link, reply);
    else
        reply_reason(reply, "the link has ended");
    return true;
}

static void derive(job_t *job)
{
    const uint8_t *salt = (const uint8_t *)job->path + 1;
    size_t salt_len = (uint8_t)job->path[0];
    uint8_t key[BW_DERIVED_BYTES];
    bw_error_t error = {0};
    bw_status_t status = job->carrier->derive(salt, salt_len, salt + salt_len,
                                              job->path_len - 1 - salt_len, key, &error);

    reply_status(&job->reply, status, &error);
    if (status == BW_OK)
        reply_bytes(&job->reply, key, sizeof key);
    explicit_bzero(job->path, job->path_len);
    explicit_bzero(key, sizeof key);
}

bool establish_derive(establish_t *establish, const char *data, size_t len, reply_t *reply)
{
    return establish->carrier && establish->carrier->derive && len >= 1 &&
           len - 1 >= (size_t)(uint8_t)data[0] &&
           job_begin(establish->port, derive, establish->carrier, data, len, reply);
}

void establish_tell(establish_t *establish, bw_link_t *linked)
{
    bw_link_t *link = establish->link ? establish->link : linked;
    ErlDrvTermData port = driver_mk_port(establish->port);
    ErlDrvTermData news[] = {ERL_DRV_ATOM, driver_mk_atom("link"), ERL_DRV_PORT,
                             port,         ERL_DRV_TUPLE,          2};

    if (!establish->link && !(linked && establish->is_heard))
        return;
    establish->is_heard = false;
    driver_select(establish->port, event_of(link), ERL_DRV_READ | ERL_DRV_WRITE, 0);
    /* The result can be ignored: the caller is linked to the port, which is closed if it exits. */
    (void)erl_drv_send_term(port, establish->caller, news, 6);
}

void establish_close(establish_t *establish)
{
    if (establish->link)
        close_link(establish->port, establish->link, establish->is_selected);
    establish->link = NULL;
}
