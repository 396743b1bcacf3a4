/* SPDX-License-Identifier: Apache-2.0 */
#include "detached_link.h"

static bw_status_t no_room(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    (void)link, (void)want, (void)span_p;
    return BW_AGAIN;
}

static bw_status_t takes_nothing(bw_link_t *link, const struct iovec *iov, int count,
                                 size_t *taken_p)
{
    (void)link, (void)iov, (void)count;
    *taken_p = 0;
    return BW_AGAIN;
}

static bw_status_t nothing_to_read(bw_link_t *link, bw_span_t *span_p)
{
    (void)link, (void)span_p;
    return BW_AGAIN;
}

static bw_status_t reads_nothing(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p)
{
    (void)link, (void)to, (void)most;
    *got_p = 0;
    return BW_AGAIN;
}

static bw_status_t armed_read(bw_link_t *link)
{
    (void)link;
    return BW_OK;
}

static bw_status_t armed_write(bw_link_t *link, size_t room)
{
    (void)link, (void)room;
    return BW_OK;
}

static void does_nothing(bw_link_t *link)
{
    (void)link;
}

static bool never(const bw_link_t *link)
{
    (void)link;
    return false;
}

static bool never_yet(bw_link_t *link)
{
    (void)link;
    return false;
}

static void no_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    (void)link;
    *stats_p = (bw_link_stats_t){0};
}

static const char *no_reason(bw_link_t *link)
{
    (void)link;
    return NULL;
}

static const bw_carrier_t between_ops = {.kind = "none",
                                         .caps = BW_CAP_KERNEL_BUFFERS,
                                         .reserve = no_room,
                                         .write = takes_nothing,
                                         .peek = nothing_to_read,
                                         .read = reads_nothing,
                                         .arm_read = armed_read,
                                         .arm_write = armed_write,
                                         .clear_event = does_nothing,
                                         .wake_self = does_nothing,
                                         .trim = never_yet,
                                         .has_spare = never,
                                         .stats = no_stats,
                                         .is_finished = never_yet,
                                         .reason = no_reason};

bw_link_t bw_detached_link = {.ops = &between_ops};
