/* SPDX-License-Identifier: Apache-2.0 */

/* Completion queues and their channels. */

#include "inside.h"

void fake_complete(struct ibv_cq *cq, struct ibv_wc wc, pair_t *pair, uint64_t frees)
{
    queue_t *queue = (queue_t *)cq;

    if (queue->end - queue->first == (uint64_t)cq->cqe)
        broken("a completion queue overflows");
    wc.qp_num = pair->qp.qp_num;
    queue->ring[queue->end++ % (uint64_t)cq->cqe] =
        (completion_t){.wc = wc, .pair = pair, .frees = frees};
    if (queue->is_armed) {
        event_t *event = make(sizeof *event);

        queue->is_armed = false;
        event->about = event->cq = cq;
        fake_mailbox_put(&((comp_t *)cq->channel)->events, event);
    }
}

void fake_forget_completions(struct ibv_cq *cq, const pair_t *pair)
{
    queue_t *queue = (queue_t *)cq;
    uint64_t kept = queue->first;

    for (uint64_t at = queue->first; at < queue->end; at++)
        if (queue->ring[at % (uint64_t)cq->cqe].pair != pair)
            queue->ring[kept++ % (uint64_t)cq->cqe] = queue->ring[at % (uint64_t)cq->cqe];
    queue->end = kept;
    queue->users--;
}

int fake_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions)
{
    queue_t *queue = (queue_t *)cq;
    int taken = 0;

    lock();
    for (; taken < count && queue->first < queue->end; taken++) {
        const completion_t *next = &queue->ring[queue->first++ % (uint64_t)cq->cqe];

        completions[taken] = next->wc;
        if (next->frees > next->pair->freed)
            next->pair->freed = next->frees;
    }
    return unlock(taken);
}

int fake_req_notify_cq(struct ibv_cq *cq, int solicited)
{
    (void)solicited;
    lock();
    if (!cq->channel)
        broken("a completion queue without a channel is armed");
    ((queue_t *)cq)->is_armed = true;
    return unlock(0);
}

/* ---- libibverbs ---- */

EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    static _Thread_local char text[32];

    snprintf(text, sizeof text, "completion status %d", (int)status);
    return text;
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    comp_t *comp = make(sizeof *comp);

    if (!fake_mailbox_open(&comp->events)) {
        free(comp);
        return NULL;
    }
    comp->channel.context = context;
    comp->channel.fd = comp->events.reader;
    lock();
    ((device_t *)context)->users++;
    unlock(0);
    return &comp->channel;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    lock();
    if (channel->refcnt > 0)
        return unlock(EBUSY);
    fake_mailbox_close(&((comp_t *)channel)->events);
    fake_forget_user(channel->context);
    free(channel);
    return unlock(0);
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int count, void *user,
                                    struct ibv_comp_channel *channel, int vector)
{
    queue_t *queue = make(sizeof *queue);

    (void)vector;
    queue->cq =
        (struct ibv_cq){.context = context, .channel = channel, .cq_context = user, .cqe = count};
    queue->ring = make((size_t)count * sizeof *queue->ring);
    lock();
    if (channel)
        channel->refcnt++;
    ((device_t *)context)->users++;
    fake.holder->objects++;
    unlock(0);
    return &queue->cq;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    queue_t *queue = (queue_t *)cq;

    lock();
    if (queue->users > 0)
        return unlock(EBUSY);
    if (cq->channel) {
        fake_mailbox_forget(&((comp_t *)cq->channel)->events, cq);
        cq->channel->refcnt--;
    }
    if (queue->unacked > 0)
        broken("a completion queue is destroyed before its events are acknowledged");
    fake_forget_user(cq->context);
    fake.holder->objects--;
    free(queue->ring);
    free(queue);
    return unlock(0);
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq_p, void **user_p)
{
    event_t *event;

    lock();
    event = fake_mailbox_wait(&((comp_t *)channel)->events);
    if (event) {
        *cq_p = event->cq;
        *user_p = event->cq->cq_context;
        ((queue_t *)event->cq)->unacked++;
    }
    free(event);
    return unlock(event ? 0 : -1);
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    lock();
    ((queue_t *)cq)->unacked -= (int)count;
    unlock(0);
}
