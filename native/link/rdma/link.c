/* SPDX-License-Identifier: Apache-2.0 */

/* The link: what the user's thread does, under the meeting's lock. No call here may block: work is
 * posted, completion queues are polled and armed, a descriptor that does not block is read. */

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "service.h"

static bw_rdma_meeting_t *meeting_of(bw_link_t *link)
{
    return (bw_rdma_meeting_t *)link;
}

/* The same, locked. */
static bw_rdma_meeting_t *enter(bw_link_t *link)
{
    pthread_mutex_lock(&meeting_of(link)->lock);
    return meeting_of(link);
}

static void leave(bw_rdma_meeting_t *meeting)
{
    pthread_mutex_unlock(&meeting->lock);
}

void bw_rdma_ring(bw_rdma_meeting_t *meeting)
{
    meeting->rung = true;
    (void)eventfd_write(meeting->bell, 1);
}

void bw_rdma_fail(bw_rdma_meeting_t *meeting, bw_status_t status, const char *reason)
{
    if (meeting->status != BW_OK)
        return;
    meeting->status = status;
    meeting->reason = reason;
    bw_rdma_ring(meeting);
}

/* ---- completions ---- */

static const char *reason_of(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
        return "beamway_rdma_peer_is_silent";
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return "beamway_rdma_peer_has_no_slots";
    case IBV_WC_REM_ACCESS_ERR:
        return "beamway_rdma_peer_refuses_writes";
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
        return "beamway_rdma_peer_failed";
    case IBV_WC_WR_FLUSH_ERR:
        return "connection_closed";
    default:
        return "beamway_rdma_device_failed";
    }
}

static unsigned poll_sent(bw_rdma_meeting_t *meeting);

/* The queue pair has failed. If a request of ours was the reason, its completion came first. */
static void flushed(bw_rdma_meeting_t *meeting)
{
    while (poll_sent(meeting) > 0)
        ;
    bw_rdma_fail(meeting, BW_SYSTEM, reason_of(IBV_WC_WR_FLUSH_ERR));
}

/* One message: taken, and its slot posted again. */
static void receive(bw_rdma_meeting_t *meeting, const struct ibv_wc *completion)
{
    const uint8_t *slot = meeting->memory.slots + completion->wr_id * BW_RDMA_SLOT_BYTES;
    int sys_errno;

    if (completion->status == IBV_WC_WR_FLUSH_ERR)
        flushed(meeting);
    else if (completion->status != IBV_WC_SUCCESS)
        bw_rdma_fail(meeting, BW_SYSTEM, reason_of(completion->status));
    else if (completion->opcode != IBV_WC_RECV ||
             bw_rdma_flow_receive(&meeting->flow, slot, completion->byte_len) != BW_OK)
        bw_rdma_fail(meeting, BW_CORRUPT, "beamway_link_corrupt");
    else if (!bw_rdma_verbs_post_slot(&meeting->verbs, &meeting->memory, completion->wr_id,
                                      &sys_errno))
        bw_rdma_fail(meeting, BW_SYSTEM, "beamway_rdma_device_failed");
}

#define POLL_BATCH 16

/* Takes what has completed, at most one round of slots: a fast peer cannot keep us here. How many.
 * Also of a link that has failed: what came before is read, and perhaps that it was the end. */
static unsigned poll_received(bw_rdma_meeting_t *meeting)
{
    struct ibv_wc completion[POLL_BATCH];
    unsigned taken = 0;
    int count = POLL_BATCH;

    while (meeting->status != BW_CORRUPT && count == POLL_BATCH && taken < BW_RDMA_SLOTS) {
        count = ibv_poll_cq(meeting->verbs.rcq, POLL_BATCH, completion);
        if (count < 0)
            bw_rdma_fail(meeting, BW_SYSTEM, "beamway_rdma_device_failed");
        for (int i = 0; i < count && meeting->status != BW_CORRUPT; i++, taken++)
            receive(meeting, &completion[i]);
    }
    return taken;
}

static unsigned poll_sent(bw_rdma_meeting_t *meeting)
{
    struct ibv_wc completion[POLL_BATCH];
    int count;

    if (meeting->status != BW_OK || meeting->flow.reaped == meeting->flow.number)
        return 0;
    count = ibv_poll_cq(meeting->verbs.scq, POLL_BATCH, completion);
    if (count < 0)
        bw_rdma_fail(meeting, BW_SYSTEM, "beamway_rdma_device_failed");
    for (int i = 0; i < count && meeting->status == BW_OK; i++)
        if (completion[i].status == IBV_WC_SUCCESS)
            bw_rdma_flow_reap(&meeting->flow, completion[i].wr_id);
        else
            bw_rdma_fail(meeting, BW_SYSTEM, reason_of(completion[i].status));
    return count < 0 ? 0 : (unsigned)count;
}

static void arm_queue(bw_rdma_meeting_t *meeting, struct ibv_cq *queue, bool *is_armed)
{
    if (*is_armed)
        return;
    *is_armed = ibv_req_notify_cq(queue, 0) == 0;
    if (!*is_armed)
        bw_rdma_fail(meeting, BW_SYSTEM, "beamway_rdma_device_failed");
}

static void post_all(bw_rdma_meeting_t *meeting)
{
    bw_rdma_batch_t batch;
    int sys_errno;

    while (meeting->status == BW_OK && bw_rdma_flow_next(&meeting->flow, &batch)) {
        meeting->posts++;
        if (!bw_rdma_verbs_post_batch(&meeting->verbs, &meeting->memory, &batch, &sys_errno))
            bw_rdma_fail(meeting, BW_SYSTEM, "beamway_rdma_device_failed");
    }
}

#define ROUNDS 4

/* Posts what can go. What has to wait goes out when an event comes, whatever the user does. */
static void post(bw_rdma_meeting_t *meeting)
{
    bw_rdma_flow_t *flow = &meeting->flow;

    post_all(meeting);
    for (int round = 0; meeting->status == BW_OK && bw_rdma_flow_is_waiting(flow); round++) {
        if (round == ROUNDS) { /* the peer is too fast: others first */
            bw_rdma_ring(meeting);
            break;
        }
        arm_queue(meeting, meeting->verbs.rcq, &meeting->rcq_is_armed);
        if (bw_rdma_flow_is_full(flow))
            arm_queue(meeting, meeting->verbs.scq, &meeting->scq_is_armed);
        if (poll_received(meeting) + poll_sent(meeting) == 0)
            break;
        post_all(meeting);
    }
}

void bw_rdma_progress(bw_rdma_meeting_t *meeting)
{
    poll_received(meeting);
    poll_sent(meeting);
    post(meeting);
}

bool bw_rdma_arm(bw_rdma_meeting_t *meeting)
{
    uint64_t head = meeting->flow.rx_head;
    unsigned taken;

    arm_queue(meeting, meeting->verbs.rcq, &meeting->rcq_is_armed);
    if (meeting->flow.closing) /* it waits for the completion of the last word */
        arm_queue(meeting, meeting->verbs.scq, &meeting->scq_is_armed);
    taken = poll_received(meeting);
    poll_sent(meeting);
    post(meeting);
    return meeting->status == BW_OK && meeting->flow.rx_head == head && taken < BW_RDMA_SLOTS;
}

void bw_rdma_take_events(bw_rdma_meeting_t *meeting)
{
    struct ibv_cq *queue;
    void *context;

    while ((meeting->rcq_is_armed || meeting->scq_is_armed) &&
           ibv_get_cq_event(meeting->verbs.channel, &queue, &context) == 0) {
        ibv_ack_cq_events(queue, 1);
        meeting->events++;
        if (queue == meeting->verbs.rcq)
            meeting->rcq_is_armed = false;
        else
            meeting->scq_is_armed = false;
    }
}

/* ---- the table ---- */

static bw_status_t rdma_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    bw_rdma_meeting_t *meeting = enter(link);
    bw_rdma_flow_t *flow = &meeting->flow;
    bw_status_t status = BW_AGAIN;

    if (meeting->is_live && meeting->status == BW_OK) {
        if (bw_rdma_flow_room(flow) < want)
            bw_rdma_progress(meeting);
        span_p->base = flow->tx_data + (flow->head & (flow->size - 1));
        span_p->len = bw_rdma_flow_room(flow);
        status = span_p->len > 0 && meeting->status == BW_OK ? BW_OK : BW_AGAIN;
    }
    leave(meeting);
    return status;
}

static void rdma_commit(bw_link_t *link, size_t n)
{
    bw_rdma_meeting_t *meeting = enter(link);

    meeting->flow.head += n;
    if (meeting->is_live && meeting->status == BW_OK)
        post(meeting);
    leave(meeting);
}

static bw_status_t rdma_peek(bw_link_t *link, bw_span_t *span_p)
{
    bw_rdma_meeting_t *meeting = enter(link);
    bw_rdma_flow_t *flow = &meeting->flow;
    bw_status_t status = BW_AGAIN;

    if (meeting->is_live)
        bw_rdma_progress(meeting);
    meeting->peeked = flow->rx_head;
    if (meeting->status == BW_CORRUPT) {
        status = BW_CORRUPT;
    } else if (flow->rx_head != flow->rx_tail) {
        span_p->base = flow->rx_data + (flow->rx_tail & (flow->size - 1));
        span_p->len = flow->rx_head - flow->rx_tail;
        status = BW_OK;
    } else if (meeting->status != BW_OK && !flow->finished) {
        status = meeting->status;
    }
    leave(meeting);
    return status;
}

static void rdma_release(bw_link_t *link, size_t n)
{
    bw_rdma_meeting_t *meeting = enter(link);

    meeting->flow.rx_tail += n;
    if (meeting->is_live && meeting->status == BW_OK)
        post(meeting);
    leave(meeting);
}

/* A link that has ended is never armed. What its user has seen and left then, half a frame, stays
 * so. */
static bw_status_t rdma_arm_read(bw_link_t *link)
{
    bw_rdma_meeting_t *meeting = enter(link);
    bw_rdma_flow_t *flow = &meeting->flow;
    bool has_ended = meeting->status != BW_OK || flow->finished;
    bw_status_t status = BW_AGAIN;

    if (has_ended) {
        if (meeting->is_live)
            poll_received(meeting);
        if (flow->finished && flow->rx_head == flow->rx_tail) {
            status = BW_OK;
        } else if (meeting->status == BW_CORRUPT || flow->rx_head == meeting->peeked) {
            bw_rdma_fail(meeting, BW_SYSTEM, "connection_closed");
            status = BW_CORRUPT;
        }
    } else if (meeting->is_live && bw_rdma_arm(meeting) && flow->rx_head == meeting->peeked) {
        status = BW_OK;
    }
    leave(meeting);
    return status;
}

static bw_status_t rdma_arm_write(bw_link_t *link, size_t room)
{
    bw_rdma_meeting_t *meeting = enter(link);
    bw_status_t status = BW_OK; /* also of a link that has failed: there will be no room */

    if (meeting->is_live && meeting->status == BW_OK) {
        if (bw_rdma_flow_room(&meeting->flow) < room) {
            if (bw_rdma_flow_is_held(&meeting->flow))
                arm_queue(meeting, meeting->verbs.scq, &meeting->scq_is_armed);
            bw_rdma_arm(meeting);
        }
        if (bw_rdma_flow_room(&meeting->flow) >= room)
            status = BW_AGAIN;
        else
            meeting->stalls++;
    }
    leave(meeting);
    return status;
}

static int rdma_fd(const bw_link_t *link)
{
    return ((const bw_rdma_meeting_t *)link)->epoll;
}

static void rdma_hush(bw_link_t *link)
{
    bw_rdma_meeting_t *meeting = enter(link);
    eventfd_t count;

    if (meeting->is_live)
        bw_rdma_take_events(meeting);
    if (meeting->rung) {
        meeting->rung = false;
        (void)eventfd_read(meeting->bell, &count);
    }
    leave(meeting);
}

static void rdma_kick(bw_link_t *link)
{
    bw_rdma_meeting_t *meeting = enter(link);

    bw_rdma_ring(meeting);
    leave(meeting);
}

static bool rdma_trim(bw_link_t *link)
{
    (void)link; /* registered memory stays where it is */
    return false;
}

static void rdma_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    bw_rdma_meeting_t *meeting = enter((bw_link_t *)(uintptr_t)link);
    const bw_rdma_flow_t *flow = &meeting->flow;

    *stats_p = (bw_link_stats_t){
        .bytes_in = flow->rx_tail,
        .bytes_out = flow->head,
        .doorbells_in = meeting->events,
        .doorbells_out = meeting->posts,
        .stalls = meeting->stalls,
        .ring_bytes = flow->size,
        .fill_in = flow->rx_head - flow->rx_tail,
        .fill_out = flow->head - flow->tail,
        .unreleased = flow->head - flow->tail,
    };
    leave(meeting);
}

static bool rdma_is_finished(bw_link_t *link)
{
    bw_rdma_meeting_t *meeting = enter(link);
    bool finished = meeting->flow.finished && meeting->flow.rx_head == meeting->flow.rx_tail;

    leave(meeting);
    return finished;
}

static const char *rdma_reason(bw_link_t *link)
{
    bw_rdma_meeting_t *meeting = enter(link);
    const char *reason = meeting->reason;

    leave(meeting);
    return reason;
}

/* The service thread frees the rest. */
static void rdma_close(bw_link_t *link, bw_leftover_t *left_p)
{
    if (left_p)
        *left_p = (bw_leftover_t){.socket = -1};
    bw_rdma_api_close(meeting_of(link), left_p ? &left_p->fd : NULL);
}

const bw_link_ops_t bw_rdma_link_ops = {
    .kind = "rdma",
    .reserve = rdma_reserve,
    .commit = rdma_commit,
    .peek = rdma_peek,
    .release = rdma_release,
    .arm_read = rdma_arm_read,
    .arm_write = rdma_arm_write,
    .fd = rdma_fd,
    .hush = rdma_hush,
    .kick = rdma_kick,
    .trim = rdma_trim,
    .stats = rdma_stats,
    .is_finished = rdma_is_finished,
    .reason = rdma_reason,
    .close = rdma_close,
};
