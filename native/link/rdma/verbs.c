/* SPDX-License-Identifier: Apache-2.0 */
#include "verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../ring_memory.h"

#define SLOTS_BYTES ((size_t)(BW_RDMA_SLOTS + BW_RDMA_WINDOW) * BW_RDMA_SLOT_BYTES)

bw_status_t bw_rdma_problem(bw_rdma_problem_t *problem_p, bw_status_t status, const char *format,
                            ...)
{
    va_list args;

    problem_p->status = status;
    va_start(args, format);
    vsnprintf(problem_p->text, sizeof problem_p->text, format, args);
    va_end(args);
    return status;
}

/* ---- memory ---- */

bw_status_t bw_rdma_memory_make(bw_rdma_memory_t *memory_p, uint64_t ring_bytes,
                                bw_rdma_problem_t *problem_p)
{
    bw_rdma_memory_t memory = {.ring_bytes = ring_bytes};
    const char *step = "mmap of the slots";

    memory.slots =
        mmap(NULL, SLOTS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory.slots == MAP_FAILED)
        memory.slots = NULL;
    if (memory.slots)
        memory.rx = bw_map_twice("beamway-rdma", ring_bytes, &step);
    if (memory.rx)
        memory.tx = bw_map_twice("beamway-rdma", ring_bytes, &step);
    if (!memory.tx) {
        bw_error_t error;
        bw_status_t status = bw_fail_system(&error, step, errno);

        bw_rdma_memory_free(&memory);
        return bw_rdma_problem(problem_p, status, "memory for two rings of %llu bytes: %s: %s",
                               (unsigned long long)ring_bytes, step, strerror(error.sys_errno));
    }
    *memory_p = memory;
    return BW_OK;
}

void bw_rdma_memory_free(bw_rdma_memory_t *memory)
{
    if (memory->rx)
        munmap(memory->rx, 2 * memory->ring_bytes);
    if (memory->tx)
        munmap(memory->tx, 2 * memory->ring_bytes);
    if (memory->slots)
        munmap(memory->slots, SLOTS_BYTES);
    *memory = (bw_rdma_memory_t){0};
}

/* ---- device objects ---- */

/* The limit on locked memory is the most common problem, so its error names the remedy. */
static bw_status_t refused(bw_rdma_problem_t *problem_p, const char *step, int sys_errno,
                           uint64_t ring_bytes)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    if (sys_errno == ENOMEM && limit.rlim_cur != RLIM_INFINITY)
        return bw_rdma_problem(
            problem_p, BW_LIMIT,
            "%s: the locked memory limit of %llu KB (ulimit -l) is too low, a link needs %llu KB: "
            "raise LimitMEMLOCK= of the service, or memlock in /etc/security/limits.conf",
            step, (unsigned long long)limit.rlim_cur / 1024,
            (unsigned long long)(2 * ring_bytes + SLOTS_BYTES) / 1024);
    return bw_rdma_problem(problem_p, sys_errno == ENOMEM ? BW_LIMIT : BW_SYSTEM, "%s: %s", step,
                           strerror(sys_errno));
}

/* Tries decreasing sizes of inline data, starting with the size of a slot, because no call reports
 * how much the device supports. */
static bool make_queue_pair(bw_rdma_verbs_t *verbs, struct rdma_cm_id *id)
{
    uint32_t wanted = BW_RDMA_SLOT_BYTES;

    for (;;) {
        struct ibv_qp_init_attr attr = {
            .send_cq = verbs->scq,
            .recv_cq = verbs->rcq,
            .cap = {.max_send_wr = BW_RDMA_WORK_REQUESTS,
                    .max_recv_wr = BW_RDMA_SLOTS,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = wanted},
            .qp_type = IBV_QPT_RC,
        };

        if (rdma_create_qp(id, verbs->pd, &attr) == 0) {
            verbs->qp = id->qp;
            verbs->inline_max = attr.cap.max_inline_data;
            return true;
        }
        if (wanted == 0 || errno == ENOMEM)
            return false;
        wanted = wanted > 32 ? wanted / 2 : 0;
    }
}

static bool make_channel(bw_rdma_verbs_t *verbs, struct ibv_context *context)
{
    int flags;

    verbs->channel = ibv_create_comp_channel(context);
    if (!verbs->channel)
        return false;
    flags = fcntl(verbs->channel->fd, F_GETFL);
    return flags >= 0 && fcntl(verbs->channel->fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

/* Grants the peer write access to the ring and to nothing else. */
static const char *make_all(bw_rdma_verbs_t *verbs, struct rdma_cm_id *id,
                            const bw_rdma_memory_t *memory)
{
    struct ibv_context *context = id->verbs;

    verbs->pd = ibv_alloc_pd(context);
    if (!verbs->pd)
        return "protection domain";
    if (!make_channel(verbs, context))
        return "completion channel";
    verbs->rcq = ibv_create_cq(context, BW_RDMA_SLOTS, NULL, verbs->channel, 0);
    /* has room for every request, because all of them complete when the queue pair fails */
    verbs->scq = ibv_create_cq(context, BW_RDMA_WORK_REQUESTS, NULL, verbs->channel, 0);
    if (!verbs->rcq || !verbs->scq)
        return "completion queue";
    if (!make_queue_pair(verbs, id))
        return "queue pair";
    verbs->slots_mr = ibv_reg_mr(verbs->pd, memory->slots, SLOTS_BYTES, IBV_ACCESS_LOCAL_WRITE);
    if (!verbs->slots_mr)
        return "registering the receive slots";
    verbs->tx_mr = ibv_reg_mr(verbs->pd, memory->tx, memory->ring_bytes, 0);
    if (!verbs->tx_mr)
        return "registering the ring to send from";
    verbs->rx_mr = ibv_reg_mr(verbs->pd, memory->rx, memory->ring_bytes,
                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!verbs->rx_mr)
        return "registering the ring to receive in";
    for (uint64_t slot = 0; slot < BW_RDMA_SLOTS; slot++)
        if (!bw_rdma_verbs_post_slot(verbs, memory, slot))
            return "posting the receive slots";
    return NULL;
}

bw_status_t bw_rdma_verbs_make(bw_rdma_verbs_t *verbs_p, struct rdma_cm_id *id,
                               const bw_rdma_memory_t *memory, bw_rdma_problem_t *problem_p)
{
    bw_rdma_verbs_t verbs = {0};
    const char *step = make_all(&verbs, id, memory);

    if (step) {
        int saved = errno;

        bw_rdma_verbs_destroy(&verbs, id);
        return refused(problem_p, step, saved, memory->ring_bytes);
    }
    *verbs_p = verbs;
    return BW_OK;
}

void bw_rdma_verbs_destroy(bw_rdma_verbs_t *verbs, struct rdma_cm_id *id)
{
    if (verbs->qp)
        rdma_destroy_qp(id);
    if (verbs->rx_mr)
        ibv_dereg_mr(verbs->rx_mr);
    if (verbs->tx_mr)
        ibv_dereg_mr(verbs->tx_mr);
    if (verbs->slots_mr)
        ibv_dereg_mr(verbs->slots_mr);
    if (verbs->scq)
        ibv_destroy_cq(verbs->scq);
    if (verbs->rcq)
        ibv_destroy_cq(verbs->rcq);
    if (verbs->channel)
        ibv_destroy_comp_channel(verbs->channel);
    if (verbs->pd)
        ibv_dealloc_pd(verbs->pd);
    *verbs = (bw_rdma_verbs_t){0};
}

/* ---- posting work requests ---- */

static uint8_t *slot_at(const bw_rdma_memory_t *memory, uint64_t slot)
{
    return memory->slots + slot * BW_RDMA_SLOT_BYTES;
}

bool bw_rdma_verbs_post_slot(const bw_rdma_verbs_t *verbs, const bw_rdma_memory_t *memory,
                             uint64_t slot)
{
    struct ibv_sge sge = {.addr = (uintptr_t)slot_at(memory, slot),
                          .length = BW_RDMA_SLOT_BYTES,
                          .lkey = verbs->slots_mr->lkey};
    struct ibv_recv_wr request = {.wr_id = slot, .sg_list = &sge, .num_sge = 1}, *bad;

    errno = ibv_post_recv(verbs->qp, &request, &bad);
    return errno == 0;
}

static uint32_t put_message(uint8_t *at, const bw_rdma_batch_t *batch)
{
    memcpy(at, &batch->message, sizeof batch->message);
    if (batch->message.len > 0)
        memcpy(at + sizeof batch->message, batch->inlined, batch->message.len);
    return (uint32_t)sizeof batch->message + batch->message.len;
}

bool bw_rdma_verbs_post_batch(const bw_rdma_verbs_t *verbs, const bw_rdma_memory_t *memory,
                              const bw_rdma_batch_t *batch)
{
    uint8_t *buffer = slot_at(memory, BW_RDMA_SLOTS + batch->number % BW_RDMA_WINDOW);
    struct ibv_sge sge[3];
    struct ibv_send_wr request[3] = {{0}}, *bad;
    int last = batch->writes;

    for (int i = 0; i < batch->writes; i++) {
        sge[i] = (struct ibv_sge){.addr = (uintptr_t)memory->tx + batch->write[i].offset,
                                  .length = (uint32_t)batch->write[i].len,
                                  .lkey = verbs->tx_mr->lkey};
        request[i] = (struct ibv_send_wr){.wr_id = batch->number,
                                          .next = &request[i + 1],
                                          .sg_list = &sge[i],
                                          .num_sge = 1,
                                          .opcode = IBV_WR_RDMA_WRITE};
        request[i].wr.rdma.remote_addr = verbs->peer_ring + batch->write[i].offset;
        request[i].wr.rdma.rkey = verbs->peer_key;
    }
    sge[last] = (struct ibv_sge){.addr = (uintptr_t)buffer,
                                 .length = put_message(buffer, batch),
                                 .lkey = verbs->slots_mr->lkey};
    request[last] = (struct ibv_send_wr){
        .wr_id = batch->number,
        .sg_list = &sge[last],
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = (batch->signaled ? IBV_SEND_SIGNALED : 0) |
                      (sge[last].length <= verbs->inline_max ? IBV_SEND_INLINE : 0)};
    errno = ibv_post_send(verbs->qp, request, &bad);
    return errno == 0;
}
