/* SPDX-License-Identifier: Apache-2.0
 *
 * What the service thread of the rdma carrier does with a device that this program plays: the calls
 * of libibverbs and librdmacm that a link needs are defined here. The device takes what is posted
 * and completes nothing, so a link that is closed lingers as if its peer was silent.
 */
#define _GNU_SOURCE
#include "rdma_ends.h"

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sys/eventfd.h>

#include "../link/rdma/wire.h"

#undef ibv_reg_mr

static struct {
    struct ibv_device device;
    struct ibv_context context;
    struct rdma_event_channel channel;
    int events; /* the pipe's end that events of the connection manager are written to */
    struct rdma_cm_id *connected;
    bool fork_was_prepared; /* before anything else */
    _Atomic bool waits_for_completions;
} fake;

/* ---- the connection manager ---- */

static int happens(struct rdma_cm_id *id, enum rdma_cm_event_type type)
{
    struct rdma_cm_event *event = calloc(1, sizeof *event);

    event->id = id;
    event->event = type;
    return write(fake.events, &event, sizeof event) == sizeof event ? 0 : -1;
}

struct rdma_event_channel *rdma_create_event_channel(void)
{
    int ends[2];

    if (pipe(ends) != 0)
        return NULL;
    fake.channel.fd = ends[0];
    fake.events = ends[1];
    return &fake.channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
    close(channel->fd);
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event_p)
{
    return read(channel->fd, event_p, sizeof *event_p) == sizeof *event_p ? 0 : -1;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
    free((void *)(uintptr_t)event->param.conn.private_data);
    free(event);
    return 0;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id_p, void *context,
                   enum rdma_port_space space)
{
    *id_p = calloc(1, sizeof **id_p);
    (*id_p)->channel = channel;
    (*id_p)->context = context;
    (*id_p)->ps = space;
    return 0;
}

int rdma_destroy_id(struct rdma_cm_id *id)
{
    free(id);
    return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *address)
{
    (void)address;
    id->verbs = &fake.context;
    return 0;
}

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to,
                      int timeout_ms)
{
    (void)to, (void)timeout_ms;
    (void)rdma_bind_addr(id, from);
    return happens(id, RDMA_CM_EVENT_ADDR_RESOLVED);
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
    (void)timeout_ms;
    return happens(id, RDMA_CM_EVENT_ROUTE_RESOLVED);
}

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len)
{
    (void)id, (void)level, (void)name, (void)value, (void)len;
    return 0;
}

/* The peer answers with rings of the same size. */
int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    struct rdma_cm_event *event = calloc(1, sizeof *event);
    uint8_t *answer = calloc(1, BW_RDMA_HELLO_BYTES);
    bw_rdma_hello_t hello;
    bw_error_t error;

    if (bw_rdma_hello_get(param->private_data, param->private_data_len, &hello, &error) != BW_OK)
        return -1;
    bw_rdma_hello_put(&hello, answer);
    event->id = fake.connected = id;
    event->event = RDMA_CM_EVENT_ESTABLISHED;
    event->param.conn.private_data = answer;
    event->param.conn.private_data_len = BW_RDMA_HELLO_BYTES;
    return write(fake.events, &event, sizeof event) == sizeof event ? 0 : -1;
}

int rdma_disconnect(struct rdma_cm_id *id)
{
    (void)id;
    return 0;
}

int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    (void)pd, (void)attr;
    id->qp = calloc(1, sizeof *id->qp);
    id->qp->context = &fake.context;
    return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
    free(id->qp);
}

/* ---- verbs ---- */

int ibv_fork_init(void)
{
    fake.fork_was_prepared = fake.events == 0;
    return 0;
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    (void)device;
    return "fake";
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    (void)context, (void)event;
    return -1;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    (void)context;
    return calloc(1, sizeof(struct ibv_pd));
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);

    channel->context = context;
    channel->fd = eventfd(0, EFD_CLOEXEC);
    return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int count, void *user,
                             struct ibv_comp_channel *channel, int vector)
{
    struct ibv_cq *queue = calloc(1, sizeof *queue);

    (void)vector;
    queue->context = context;
    queue->channel = channel;
    queue->cq_context = user;
    queue->cqe = count;
    return queue;
}

int ibv_destroy_cq(struct ibv_cq *queue)
{
    free(queue);
    return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **queue_p, void **user_p)
{
    (void)channel, (void)queue_p, (void)user_p;
    return -1;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t len, int access)
{
    struct ibv_mr *region = calloc(1, sizeof *region);

    (void)access;
    region->pd = pd;
    region->addr = at;
    region->length = len;
    return region;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t len, uint64_t iova,
                                unsigned int access)
{
    (void)iova;
    return ibv_reg_mr(pd, at, len, (int)access);
}

int ibv_dereg_mr(struct ibv_mr *region)
{
    free(region);
    return 0;
}

static int poll_cq(struct ibv_cq *queue, int count, struct ibv_wc *completions)
{
    (void)queue, (void)count, (void)completions;
    return 0;
}

/* The carrier arms the queue of what it has sent only when a link is left. */
static int req_notify_cq(struct ibv_cq *queue, int solicited)
{
    (void)solicited;
    if (queue->cqe == (int)BW_RDMA_SLOTS)
        return 0;
    fake.waits_for_completions = true;
    return 0;
}

static int post_send(struct ibv_qp *pair, struct ibv_send_wr *request, struct ibv_send_wr **bad_p)
{
    (void)pair, (void)request, (void)bad_p;
    return 0;
}

static int post_recv(struct ibv_qp *pair, struct ibv_recv_wr *request, struct ibv_recv_wr **bad_p)
{
    (void)pair, (void)request, (void)bad_p;
    return 0;
}

/* ---- cases ---- */

static void open_fake_link(bw_link_t **link_p)
{
    bw_rdma_address_t to = {.family = 4, .ip = {192, 0, 2, 1}, .port = 1};
    static const uint8_t token[BW_RDMA_TOKEN_BYTES];
    bw_rdma_connection_t *connection = NULL;
    bw_rdma_report_t report;
    bw_error_t error = {0};

    fake.context.device = &fake.device;
    fake.context.async_fd = eventfd(0, EFD_CLOEXEC);
    fake.context.cmd_fd = eventfd(0, EFD_CLOEXEC);
    fake.context.ops.poll_cq = poll_cq;
    fake.context.ops.req_notify_cq = req_notify_cq;
    fake.context.ops.post_send = post_send;
    fake.context.ops.post_recv = post_recv;
    fake.waits_for_completions = false;
    CHECK_IN(begin_rdma());
    CHECK_EQ(api->connect(NULL, &to, token, RING, WAIT_MS, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_RDMA_WORKING, &report), BW_RDMA_LINKED);
    *link_p = api->take(connection);
}

static void wait_briefly(void)
{
    (void)poll(NULL, 0, 1);
}

/* Whoever forks while a link lives (rdpipe's agent does) keeps it on old kernels, too. */
static void forks_are_prepared_for(void)
{
    CHECK_IN(begin_rdma());
    CHECK(fake.fork_was_prepared);
}

/* The peer is silent and the link still has something to say when its device goes: nothing of it is
 * left, and nobody waits for it when the process ends. */
static void a_link_that_lingers_goes_with_its_device(void)
{
    bw_link_t *link = NULL;
    int64_t end;

    CHECK_IN(open_fake_link(&link));
    CHECK(writes(link, "last words", 10, WAIT_MS));
    CHECK(carrier_mappings(NULL) > 0);
    link->ops->close(link, NULL);
    for (end = now_ms() + WAIT_MS; !fake.waits_for_completions && now_ms() < end;)
        wait_briefly();
    CHECK(fake.waits_for_completions);
    CHECK_EQ(happens(fake.connected, RDMA_CM_EVENT_DEVICE_REMOVAL), 0);
    for (end = now_ms() + WAIT_MS; carrier_mappings(NULL) > 0 && now_ms() < end;)
        wait_briefly();
    CHECK_EQ(carrier_mappings(NULL), 0);
}

static const check_case_t cases[] = {
    {"forks_are_prepared_for", forks_are_prepared_for},
    {"a_link_that_lingers_goes_with_its_device", a_link_that_lingers_goes_with_its_device},
};

CHECK_MAIN(cases)
