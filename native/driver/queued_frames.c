/* SPDX-License-Identifier: Apache-2.0 */
#include "queued_frames.h"

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

bw_pending_t *bw_pending_part(ErlDrvBinary *binary, size_t offset, size_t len)
{
    SysIOVec iov = {.iov_base = binary->orig_bytes + offset, .iov_len = len};
    ErlIOVec ev = {.vsize = 1, .size = len, .iov = &iov, .binv = &binary};

    return bw_pending_keep(&ev, len);
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

static bool is_begun(const bw_pending_t *frame)
{
    return frame->at > 0 || frame->offset > 0;
}

void bw_pending_insert(bw_pending_list_t *list, bw_pending_t *frame)
{
    bw_pending_t *before = NULL, *next = list->first;

    while (next && (next->is_rest || is_begun(next))) {
        before = next;
        next = next->next;
    }
    if (!before) {
        bw_pending_prepend(list, frame);
    } else if (!next) {
        bw_pending_append(list, frame);
    } else {
        before->next = frame;
        frame->next = next;
        list->bytes += frame->size;
        list->bulk += frame->is_bulk;
    }
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

static bw_pending_t *take_first(bw_pending_list_t *list)
{
    bw_pending_t *frame = list->first;

    list->first = frame->next;
    list->bulk -= frame->is_bulk;
    return frame;
}

void bw_pending_advance(bw_pending_list_t *list, uint64_t bytes, bw_pending_list_t *out)
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
        frame = take_first(list);
        if (out)
            bw_pending_append(out, frame);
        else
            bw_pending_free(frame);
    }
}

uint64_t bw_pending_drop(bw_pending_list_t *out, uint64_t bytes)
{
    uint64_t dropped = 0;

    while (out->first && out->first->size <= bytes - dropped) {
        bw_pending_t *frame = take_first(out);

        dropped += frame->size;
        out->bytes -= frame->size;
        bw_pending_free(frame);
    }
    return dropped;
}

static void begin_again(bw_pending_t *frame)
{
    frame->at = 0;
    frame->offset = 0;
}

void bw_pending_rewind(bw_pending_list_t *list, bw_pending_list_t *out, uint64_t bytes)
{
    if (list->first) {
        const bw_pending_t *rest = list->first->next;

        begin_again(list->first);
        list->bytes = list->first->size;
        for (; rest; rest = rest->next)
            list->bytes += rest->size;
    }
    if (out->first) {
        out->last->next = list->first;
        if (!list->first)
            list->last = out->last;
        for (bw_pending_t *frame = out->first; frame != list->first; frame = frame->next)
            begin_again(frame);
        list->first = out->first;
        list->bytes += out->bytes;
        list->bulk += out->bulk;
        *out = (bw_pending_list_t){0};
    }
    bw_pending_advance(list, bytes, out);
}
