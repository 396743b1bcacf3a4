/* SPDX-License-Identifier: Apache-2.0 */

/* Queue pairs: posting requests, sending them, and handling what arrives. */

#include "inside.h"

static void complete_send(pair_t *pair, uint64_t number, enum ibv_wc_status status)
{
    const request_t *request = &pair->sends[(number - 1) % pair->cap.max_send_wr];
    bool is_signaled = pair->signals_all || (request->wr.send_flags & IBV_SEND_SIGNALED);

    pair->acked = number;
    if (is_signaled || status != IBV_WC_SUCCESS)
        fake_complete(pair->qp.send_cq,
                      (struct ibv_wc){.wr_id = request->wr.wr_id,
                                      .status = status,
                                      .opcode = request->wr.opcode == IBV_WR_SEND
                                                    ? IBV_WC_SEND
                                                    : IBV_WC_RDMA_WRITE},
                      pair, number);
}

static void complete_slot(pair_t *pair, enum ibv_wc_status status, uint32_t len)
{
    const slot_t *slot = &pair->slots[pair->slots_taken++ % pair->cap.max_recv_wr];

    fake_complete(pair->qp.recv_cq,
                  (struct ibv_wc){
                      .wr_id = slot->id, .status = status, .opcode = IBV_WC_RECV, .byte_len = len},
                  pair, 0);
}

/* Completes every posted request with an error. */
static void flush(pair_t *pair)
{
    while (pair->acked < pair->posted)
        complete_send(pair, pair->acked + 1, IBV_WC_WR_FLUSH_ERR);
    while (pair->slots_taken < pair->slots_posted)
        complete_slot(pair, IBV_WC_WR_FLUSH_ERR, 0);
    pair->sent = pair->posted;
    pair->offset = 0;
}

void fake_fail_pair(pair_t *pair)
{
    pair->qp.state = IBV_QPS_ERR;
    flush(pair);
}

/* ---- sending ---- */

static uint64_t sum_of(const uint8_t *at, size_t len)
{
    uint64_t sum = len, word;

    for (; len >= 8; len -= 8, at += 8) {
        memcpy(&word, at, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15ull;
        sum ^= sum >> 29;
    }
    for (; len > 0; len--)
        sum = sum * 31 + *at++;
    return sum;
}

static bool is_inlined(const request_t *request)
{
    return request->wr.send_flags & IBV_SEND_INLINE;
}

static bool may_be_read(const pair_t *pair, const request_t *request)
{
    return is_inlined(request) || fake_region_of(pair->qp.pd, request->sge.lkey, request->sge.addr,
                                                 request->sge.length, 0);
}

/* Aborts if the bytes of a request have changed before its completion. Until then, a device may
 * have to send them again. */
static void check_unchanged(const pair_t *pair, uint64_t number)
{
    const request_t *request = &pair->sends[(number - 1) % pair->cap.max_send_wr];

    if (!is_inlined(request) && may_be_read(pair, request) &&
        sum_of(pointer(request->sge.addr), request->sge.length) != request->sum)
        broken("bytes have changed before the completion of their request");
}

bool fake_transmit(conn_t *conn)
{
    pair_t *pair = pair_of(conn);

    if (!pair)
        return true;
    if (pair->told != pair->got) {
        if (!fake_put(conn, &(head_t){.kind = ACK, .number = pair->got}, NULL, 0))
            return false;
        pair->told = pair->got;
    }
    if (pair->refusal) {
        if (!fake_put(conn,
                      &(head_t){.kind = NAK, .number = pair->got + 1, .status = pair->refusal},
                      NULL, 0))
            return false;
        pair->refusal = 0;
    }
    while (pair->qp.state == IBV_QPS_RTS && pair->sent < pair->posted) {
        const request_t *request = &pair->sends[pair->sent % pair->cap.max_send_wr];
        const uint8_t *bytes = is_inlined(request) ? request->bytes : pointer(request->sge.addr);
        uint64_t left = request->sge.length - pair->offset;
        size_t len = left < CHUNK ? (size_t)left : CHUNK;
        head_t head = {.kind = request->wr.opcode == IBV_WR_SEND ? SEND : WRITE,
                       .address = request->wr.wr.rdma.remote_addr + pair->offset,
                       .total = left,
                       .key = request->wr.wr.rdma.rkey,
                       .is_last = len == left};

        if (!may_be_read(pair, request)) {
            complete_send(pair, pair->sent + 1, IBV_WC_LOC_PROT_ERR);
            fake_fail_pair(pair);
            break;
        }
        if (!fake_put(conn, &head, bytes + pair->offset, len))
            return false;
        pair->offset += len;
        if (head.is_last) {
            pair->sent++;
            pair->offset = 0;
        }
    }
    return true;
}

static void acknowledge(pair_t *pair, uint64_t number)
{
    while (pair->acked < number && pair->acked < pair->sent) {
        check_unchanged(pair, pair->acked + 1);
        complete_send(pair, pair->acked + 1, IBV_WC_SUCCESS);
    }
}

void fake_acknowledged(pair_t *pair, const head_t *head)
{
    if (pair->qp.state != IBV_QPS_RTS)
        return;
    if (head->kind == NAK) {
        acknowledge(pair, head->number - 1);
        complete_send(pair, head->number, (enum ibv_wc_status)head->status);
        fake_fail_pair(pair);
    } else if (fake.late_ms > 0) {
        if (pair->told_acked <= pair->acked)
            pair->late_until = now_ms() + fake.late_ms;
        pair->told_acked = head->number;
    } else {
        acknowledge(pair, head->number);
    }
}

void fake_pass_time(conn_t *conn)
{
    pair_t *pair = pair_of(conn);

    if (!pair || pair->qp.state != IBV_QPS_RTS)
        return;
    if (pair->told_acked > pair->acked && now_ms() >= pair->late_until)
        acknowledge(pair, pair->told_acked);
    if (conn->socket < 0 && pair->acked < pair->posted && now_ms() > conn->gone_at + SILENCE_MS) {
        complete_send(pair, pair->acked + 1, IBV_WC_RETRY_EXC_ERR);
        fake_fail_pair(pair);
    }
}

/* ---- receiving ---- */

static void refuse(conn_t *conn, enum ibv_wc_status status)
{
    pair_of(conn)->refusal = status;
    fake_fail_pair(pair_of(conn));
}

void fake_write_bytes(conn_t *conn, const head_t *head, const uint8_t *bytes, size_t len)
{
    pair_t *pair = pair_of(conn);

    if (len > 0 && !fake_region_of(pair->qp.pd, head->key, head->address, head->total,
                                   IBV_ACCESS_REMOTE_WRITE)) {
        fake_raise_async((device_t *)conn->id.verbs, IBV_EVENT_QP_ACCESS_ERR, pair);
        refuse(conn, IBV_WC_REM_ACCESS_ERR);
        return;
    }
    if (len > 0)
        memcpy(pointer(head->address), bytes, len);
    pair->got += head->is_last;
}

bool fake_fill_slot(conn_t *conn, const uint8_t *bytes, size_t len)
{
    pair_t *pair = pair_of(conn);
    const slot_t *slot = &pair->slots[pair->slots_taken % pair->cap.max_recv_wr];

    if (pair->slots_taken == pair->slots_posted)
        return false;
    if (len > slot->sge.length) {
        complete_slot(pair, IBV_WC_LOC_LEN_ERR, 0);
        refuse(conn, IBV_WC_REM_INV_REQ_ERR);
    } else if (!fake_region_of(pair->qp.pd, slot->sge.lkey, slot->sge.addr, slot->sge.length,
                               IBV_ACCESS_LOCAL_WRITE)) {
        complete_slot(pair, IBV_WC_LOC_PROT_ERR, 0);
        refuse(conn, IBV_WC_REM_OP_ERR);
    } else {
        memcpy(pointer(slot->sge.addr), bytes, len);
        complete_slot(pair, IBV_WC_SUCCESS, (uint32_t)len);
        pair->got++;
    }
    return true;
}

/* ---- work requests ---- */

static bool is_failing(void)
{
    return fake.fail_posts > 0 && fake.fail_posts-- > 0;
}

static int check_request(const pair_t *pair, const struct ibv_send_wr *wr)
{
    bool is_inline = wr->send_flags & IBV_SEND_INLINE;

    if (is_failing() || pair->posted - pair->freed == pair->cap.max_send_wr)
        return ENOMEM;
    if ((pair->qp.state != IBV_QPS_RTS && pair->qp.state != IBV_QPS_ERR) || wr->num_sge != 1 ||
        (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_RDMA_WRITE) ||
        (is_inline && wr->sg_list->length > pair->cap.max_inline_data) ||
        (wr->opcode == IBV_WR_SEND && wr->sg_list->length > CHUNK))
        return EINVAL;
    return 0;
}

int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p)
{
    pair_t *pair = (pair_t *)qp;
    int error = 0;

    lock();
    for (; wr && (*bad_p = wr, error = check_request(pair, wr)) == 0; wr = wr->next) {
        request_t *request = &pair->sends[pair->posted++ % pair->cap.max_send_wr];

        request->wr = *wr;
        request->sge = *wr->sg_list;
        if (is_inlined(request))
            memcpy(request->bytes, pointer(request->sge.addr), request->sge.length);
        else if (may_be_read(pair, request))
            request->sum = sum_of(pointer(request->sge.addr), request->sge.length);
    }
    if (qp->state == IBV_QPS_ERR)
        flush(pair);
    wake();
    return unlock(error);
}

int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p)
{
    pair_t *pair = (pair_t *)qp;
    int error = 0;

    lock();
    for (; wr && error == 0; wr = wr->next) {
        *bad_p = wr;
        if (is_failing() || pair->slots_posted - pair->slots_taken == pair->cap.max_recv_wr)
            error = ENOMEM;
        else if (wr->num_sge != 1)
            error = EINVAL;
        else
            pair->slots[pair->slots_posted++ % pair->cap.max_recv_wr] =
                (slot_t){.id = wr->wr_id, .sge = *wr->sg_list};
    }
    if (qp->state == IBV_QPS_ERR)
        flush(pair);
    wake();
    return unlock(error);
}

/* ---- librdmacm ---- */

EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    pair_t *pair;

    if (attr->cap.max_inline_data > INLINE_MAX || attr->qp_type != IBV_QPT_RC)
        return fails(EINVAL);
    pair = make(sizeof *pair);
    pair->cap = attr->cap;
    pair->cap.max_inline_data = attr->cap.max_inline_data = INLINE_MAX;
    pair->signals_all = attr->sq_sig_all;
    pair->sends = make(attr->cap.max_send_wr * sizeof *pair->sends);
    pair->slots = make(attr->cap.max_recv_wr * sizeof *pair->slots);
    pair->qp = (struct ibv_qp){.context = id->verbs,
                               .pd = pd,
                               .send_cq = attr->send_cq,
                               .recv_cq = attr->recv_cq,
                               .state = IBV_QPS_INIT,
                               .qp_type = IBV_QPT_RC};
    lock();
    pair->qp.qp_num = ++fake.pairs_made;
    ((domain_t *)pd)->users++;
    ((queue_t *)attr->send_cq)->users++;
    ((queue_t *)attr->recv_cq)->users++;
    fake.holder->objects++;
    id->qp = &pair->qp;
    return unlock(0);
}

EXPORT void rdma_destroy_qp(struct rdma_cm_id *id)
{
    pair_t *pair = (pair_t *)id->qp;

    lock();
    fake_forget_completions(pair->qp.send_cq, pair);
    fake_forget_completions(pair->qp.recv_cq, pair);
    fake_mailbox_forget(&((device_t *)id->verbs)->async, pair);
    ((domain_t *)pair->qp.pd)->users--;
    fake.holder->objects--;
    id->qp = NULL;
    free(pair->sends);
    free(pair->slots);
    free(pair);
    unlock(0);
}
