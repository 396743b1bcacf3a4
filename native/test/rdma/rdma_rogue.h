/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_RDMA_ROGUE_H
#define BW_TEST_RDMA_ROGUE_H

/* A peer that speaks the protocol and violates it deliberately. It uses verbs directly, one step at
 * a time. */
#include <rdma/rdma_cma.h>

#include "rdma_ends.h"

#include "../../link/rdma/wire.h"

#define ROGUE_SLOTS 256
#define ROGUE_BYTES (2 * BW_RDMA_SLOT_BYTES * ROGUE_SLOTS)

typedef struct {
    struct rdma_event_channel *channel;
    struct rdma_cm_id *listener, *id;
    struct ibv_pd *pd;
    struct ibv_cq *rcq, *scq;
    struct ibv_mr *mr;
    uint8_t *memory;
    uint64_t sends;
    bw_rdma_hello_t peer; /* as received from the peer */
    uint8_t private_data[256];
    size_t private_len;
} rogue_t;

/* Returns the connection manager's next event, or -1. If the event is a request, the rogue becomes
 * the owner of its id. */
static inline int rogue_event(rogue_t *rogue)
{
    struct pollfd poller = {.fd = rogue->channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    int type;

    if (poll(&poller, 1, WAIT_MS) != 1 || rdma_get_cm_event(rogue->channel, &event) != 0)
        return -1;
    type = (int)event->event;
    if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
        rogue->id = event->id;
    rogue->private_len = 0;
    if (event->param.conn.private_data) {
        rogue->private_len = event->param.conn.private_data_len;
        memcpy(rogue->private_data, event->param.conn.private_data, rogue->private_len);
    }
    rdma_ack_cm_event(event);
    return type;
}

static inline void rogue_equip(rogue_t *rogue)
{
    struct ibv_qp_init_attr attr = {.cap = {.max_send_wr = ROGUE_SLOTS,
                                            .max_recv_wr = ROGUE_SLOTS,
                                            .max_send_sge = 1,
                                            .max_recv_sge = 1},
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1};

    rogue->pd = ibv_alloc_pd(rogue->id->verbs);
    rogue->rcq = ibv_create_cq(rogue->id->verbs, ROGUE_SLOTS, NULL, NULL, 0);
    rogue->scq = ibv_create_cq(rogue->id->verbs, ROGUE_SLOTS, NULL, NULL, 0);
    rogue->memory = aligned_alloc(4096, ROGUE_BYTES);
    CHECK(rogue->pd && rogue->rcq && rogue->scq && rogue->memory);
    memset(rogue->memory, 0, ROGUE_BYTES);
    rogue->mr = ibv_reg_mr(rogue->pd, rogue->memory, ROGUE_BYTES,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(rogue->mr != NULL);
    attr.send_cq = rogue->scq;
    attr.recv_cq = rogue->rcq;
    CHECK_EQ(rdma_create_qp(rogue->id, rogue->pd, &attr), 0);
}

/* Posts any number of receive slots. */
static inline void rogue_post_slots(rogue_t *rogue, int count)
{
    for (int i = 0; i < count; i++) {
        struct ibv_sge sge = {.addr = (uintptr_t)rogue->memory + (uint64_t)i * BW_RDMA_SLOT_BYTES,
                              .length = BW_RDMA_SLOT_BYTES,
                              .lkey = rogue->mr->lkey};
        struct ibv_recv_wr request = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1}, *bad;

        CHECK_EQ(ibv_post_recv(rogue->id->qp, &request, &bad), 0);
    }
}

/* Returns the hello of a correct peer whose ring starts in the second half of the rogue's memory,
 * after its slots. */
static inline bw_rdma_hello_t rogue_hello(const rogue_t *rogue, const uint8_t *token)
{
    bw_rdma_hello_t hello = {.ring_address = (uintptr_t)rogue->memory + ROGUE_BYTES / 2,
                             .ring_bytes = RING,
                             .ring_key = rogue->mr ? rogue->mr->rkey : 0,
                             .slots = BW_RDMA_SLOTS};

    if (token)
        memcpy(hello.token, token, sizeof hello.token);
    return hello;
}

/* Does everything up to, but not including, the hello. */
static inline void rogue_approach(rogue_t *rogue, const bw_rdma_address_t *to)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(to->port)};

    memset(rogue, 0, sizeof *rogue);
    memcpy(&at.sin_addr, to->ip, 4);
    rogue->channel = rdma_create_event_channel();
    CHECK(rogue->channel != NULL);
    CHECK_EQ(rdma_create_id(rogue->channel, &rogue->id, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_resolve_addr(rogue->id, NULL, (struct sockaddr *)&at, 2000), 0);
    CHECK_EQ(rogue_event(rogue), RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK_EQ(rdma_resolve_route(rogue->id, 2000), 0);
    CHECK_EQ(rogue_event(rogue), RDMA_CM_EVENT_ROUTE_RESOLVED);
    CHECK_IN(rogue_equip(rogue));
}

/* Sends arbitrary bytes as a hello and returns the event that comes in reply. */
static inline int rogue_say(rogue_t *rogue, const uint8_t *bytes, size_t len)
{
    struct rdma_conn_param param = {.private_data = bytes,
                                    .private_data_len = (uint8_t)len,
                                    .retry_count = 7,
                                    .rnr_retry_count = 1};
    bw_error_t error;
    int type;

    if (rdma_connect(rogue->id, &param) != 0)
        return -1;
    type = rogue_event(rogue);
    if (type == RDMA_CM_EVENT_ESTABLISHED &&
        bw_rdma_hello_get(rogue->private_data, rogue->private_len, &rogue->peer, &error) != BW_OK)
        return -1;
    return type;
}

static inline int rogue_say_hello(rogue_t *rogue, const bw_rdma_hello_t *hello)
{
    uint8_t bytes[BW_RDMA_HELLO_BYTES];

    bw_rdma_hello_put(hello, bytes);
    return rogue_say(rogue, bytes, sizeof bytes);
}

/* Posts one request and waits for its completion. Returns the status, or -1. */
static inline int rogue_request(rogue_t *rogue, enum ibv_wr_opcode opcode, const void *bytes,
                                size_t len, uint64_t address, uint32_t key)
{
    uint8_t *at = rogue->memory + ROGUE_BYTES - 4096;
    struct ibv_sge sge = {.addr = (uintptr_t)at, .length = (uint32_t)len, .lkey = rogue->mr->lkey};
    struct ibv_send_wr request = {.sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
    int64_t end = now_ms() + WAIT_MS;
    struct ibv_wc completion;

    if (bytes)
        memcpy(at, bytes, len);
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = key;
    if (ibv_post_send(rogue->id->qp, &request, &bad) != 0)
        return -1;
    while (now_ms() < end)
        if (ibv_poll_cq(rogue->scq, 1, &completion) == 1)
            return (int)completion.status;
    return -1;
}

static inline int rogue_send(rogue_t *rogue, const bw_rdma_message_t *message, size_t extra)
{
    uint8_t bytes[4096] = {0};

    memcpy(bytes, message, sizeof *message);
    return rogue_request(rogue, IBV_WR_SEND, bytes, sizeof *message + extra, 0, 0);
}

static inline void rogue_leave(rogue_t *rogue)
{
    if (rogue->id && rogue->id->qp) {
        (void)rdma_disconnect(rogue->id);
        rdma_destroy_qp(rogue->id);
    }
    if (rogue->mr)
        ibv_dereg_mr(rogue->mr);
    if (rogue->scq)
        ibv_destroy_cq(rogue->scq);
    if (rogue->rcq)
        ibv_destroy_cq(rogue->rcq);
    if (rogue->pd)
        ibv_dealloc_pd(rogue->pd);
    if (rogue->id)
        rdma_destroy_id(rogue->id);
    if (rogue->listener)
        rdma_destroy_id(rogue->listener);
    if (rogue->channel)
        rdma_destroy_event_channel(rogue->channel);
    free(rogue->memory);
}

#endif
