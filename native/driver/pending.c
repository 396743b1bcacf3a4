/* SPDX-License-Identifier: Apache-2.0 */
#include "pending.h"

#include <string.h>

#include "../link/bytes.h"

static const char zeros[8];

static ErlDrvBinary *binary_of(const ErlIOVec *ev, int at)
{
    return ev->binv ? ev->binv[at] : NULL;
}

bw_pending_t *bw_pending_keep(const ErlIOVec *ev, uint64_t size)
{
    size_t pieces = (size_t)ev->vsize + 1, loose = 0;
    bw_pending_t *frame;
    char *copy;

    for (int i = 0; i < ev->vsize; i++)
        loose += binary_of(ev, i) ? 0 : ev->iov[i].iov_len;
    frame = driver_alloc(
        (ErlDrvSizeT)(sizeof *frame + pieces * (sizeof *frame->iov + sizeof *frame->binv) + loose));
    if (!frame)
        return NULL;
    *frame = (bw_pending_t){.scheduled.user = frame, .size = size, .count = (int)pieces};
    frame->iov = (struct iovec *)(frame + 1);
    frame->binv = (ErlDrvBinary **)(frame->iov + pieces);
    copy = (char *)(frame->binv + pieces);
    for (int i = 0; i < ev->vsize; i++) {
        frame->iov[i] =
            (struct iovec){.iov_base = ev->iov[i].iov_base, .iov_len = ev->iov[i].iov_len};
        frame->binv[i] = binary_of(ev, i);
        if (frame->binv[i]) {
            driver_binary_inc_refc(frame->binv[i]);
        } else if (ev->iov[i].iov_len > 0) {
            frame->iov[i].iov_base = memcpy(copy, ev->iov[i].iov_base, ev->iov[i].iov_len);
            copy += ev->iov[i].iov_len;
        }
    }
    frame->iov[ev->vsize] =
        (struct iovec){.iov_base = (void *)(uintptr_t)zeros, .iov_len = size - ev->size};
    frame->binv[ev->vsize] = NULL;
    return frame;
}

void bw_pending_free(bw_pending_t *frame)
{
    for (int i = 0; i < frame->count; i++)
        if (frame->binv[i])
            driver_free_binary(frame->binv[i]);
    driver_free(frame);
}

void bw_pending_append(bw_pending_list_t *list, bw_pending_t *frame)
{
    frame->next = NULL;
    *(list->first ? &list->last->next : &list->first) = frame;
    list->last = frame;
    list->bytes += frame->size;
    list->bulk += frame->is_bulk;
}

void bw_pending_prepend(bw_pending_list_t *list, bw_pending_t *frame)
{
    frame->next = list->first;
    if (!list->first)
        list->last = frame;
    list->first = frame;
    list->bytes += frame->size;
    list->bulk += frame->is_bulk;
}

int bw_pending_gather(const bw_pending_list_t *list, struct iovec *vector, int count, uint64_t most)
{
    int gathered = 0;

    for (const bw_pending_t *frame = list->first; frame; frame = frame->next) {
        size_t offset = frame->offset;

        for (int at = frame->at; at < frame->count; at++, offset = 0) {
            size_t len = bw_least(frame->iov[at].iov_len - offset, most);

            if (most == 0 || gathered == count)
                return gathered;
            if (len == 0)
                continue;
            vector[gathered++] = (struct iovec){
                .iov_base = (char *)frame->iov[at].iov_base + offset, .iov_len = len};
            most -= len;
        }
    }
    return gathered;
}

void bw_pending_advance(bw_pending_list_t *list, uint64_t bytes)
{
    list->bytes -= bytes;
    while (list->first) {
        bw_pending_t *frame = list->first;

        for (; frame->at < frame->count; frame->at++, frame->offset = 0) {
            uint64_t left = frame->iov[frame->at].iov_len - frame->offset;

            if (bytes < left) {
                frame->offset += bytes;
                return;
            }
            bytes -= left;
        }
        list->first = frame->next;
        list->bulk -= frame->is_bulk;
        bw_pending_free(frame);
    }
}
