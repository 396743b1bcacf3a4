/* SPDX-License-Identifier: Apache-2.0 */
#include "fault.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "../link/buffer.h"
#include "vm_clock.h"

/* How often one call retries if the inner link has room again right after it had none. */
#define ROUNDS 4

/* If no held output has been sent for this long, it counts as unanswered, because a kernel would
 * have retransmitted it twice by then. */
#define SILENT_US 600000u

typedef struct {
    bw_link_t link;   /* must be first, so that a pointer to it is a pointer to this struct */
    bw_carrier_t ops; /* the functions below, except those that the inner link lacks */
    bw_link_t *inner;
    bw_fault_t fault;
    bw_fault_way_t in, out;
    bw_buffer_t held;  /* outgoing bytes; uses the same positions as `out` */
    uint64_t taken_us; /* when it was last empty, or when bytes from it were last sent */
    uint64_t stalls;
} faulty_t;

static faulty_t *faulty_of(const bw_link_t *link)
{
    return (faulty_t *)(uintptr_t)link;
}

static bool waits_in(const faulty_t *faulty)
{
    return faulty->in.seen > faulty->in.open;
}

/* Writes as much of a span as possible. Returns 0 if the inner link accepts nothing. */
static size_t pass(bw_link_t *inner, const bw_span_t *span)
{
    struct iovec iov = {.iov_base = span->base, .iov_len = span->len};
    bw_span_t gap, rest;
    size_t taken = 0;

    if (inner->ops->write && (inner->ops->write(inner, &iov, 1, &taken) != BW_OK || taken > 0))
        return taken;
    if (inner->ops->reserve(inner, 1, &gap) != BW_OK)
        return 0;
    taken = bw_least(span->len, gap.len);
    memcpy(gap.base, span->base, taken);
    inner->ops->commit(inner, taken);
    if (inner->ops->flush && !inner->ops->write)
        inner->ops->flush(inner, &rest);
    return taken;
}

/* Returns true if the inner link has room again; if not, its descriptor will report it. */
static bool has_room(const faulty_t *faulty)
{
    return faulty->inner->ops->arm_write(faulty->inner, faulty->held.size / 2) == BW_AGAIN;
}

static void push(faulty_t *faulty, bool all)
{
    uint64_t now = bw_now_us(), to = faulty->held.head;
    int rounds = ROUNDS;

    if (!all)
        to = bw_fault_open(&faulty->out, &faulty->fault, faulty->fault.holds_out, now);
    while (faulty->held.tail < to && rounds > 0) {
        bw_span_t span = bw_buffer_span(&faulty->held);
        size_t n;

        span.len = bw_least(span.len, to - faulty->held.tail);
        n = pass(faulty->inner, &span);
        faulty->held.tail += n;
        if (n > 0)
            faulty->taken_us = now;
        else if (has_room(faulty))
            rounds--;
        else
            break;
    }
}

/* Records that `n` more bytes are held, and passes those that are due. */
static void took(faulty_t *faulty, size_t n)
{
    uint64_t now = bw_now_us();

    if (bw_buffer_fill(&faulty->held) == 0)
        faulty->taken_us = now;
    faulty->held.head += n;
    bw_fault_note(&faulty->out, &faulty->fault, faulty->held.head, now);
    push(faulty, false);
}

static bw_status_t faulty_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    faulty_t *faulty = faulty_of(link);

    if (bw_buffer_room(&faulty->held) < want)
        push(faulty, false);
    if (bw_buffer_room(&faulty->held) == 0)
        return BW_AGAIN;
    *span_p = bw_buffer_gap(&faulty->held);
    return BW_OK;
}

static void faulty_commit(bw_link_t *link, size_t n)
{
    took(faulty_of(link), n);
}

static void faulty_defer(bw_link_t *link)
{
    faulty_of(link)->inner->ops->defer(faulty_of(link)->inner);
}

static bool faulty_needs_flush(const bw_link_t *link)
{
    (void)link;
    return false;
}

static void faulty_flush(bw_link_t *link, bw_span_t *rest_p)
{
    push(faulty_of(link), false);
    *rest_p = (bw_span_t){0};
}

static bw_status_t faulty_write(bw_link_t *link, const struct iovec *iov, int count,
                                size_t *taken_p)
{
    faulty_t *faulty = faulty_of(link);

    *taken_p = 0;
    push(faulty, false);
    for (int i = 0; i < count && bw_buffer_room(&faulty->held) > 0; i++) {
        bw_span_t gap = bw_buffer_gap(&faulty->held);
        size_t n = bw_least(iov[i].iov_len, gap.len);

        memcpy(gap.base, iov[i].iov_base, n);
        *taken_p += n;
        took(faulty, n);
        if (n < iov[i].iov_len)
            break;
    }
    return *taken_p > 0 || count == 0 ? BW_OK : BW_AGAIN;
}

static bw_status_t faulty_peek(bw_link_t *link, bw_span_t *span_p)
{
    faulty_t *faulty = faulty_of(link);
    bw_link_stats_t stats;
    uint64_t now = bw_now_us(), open;
    bw_status_t status;

    push(faulty, false);
    status = faulty->inner->ops->peek(faulty->inner, span_p);
    if (status != BW_OK)
        return status;
    faulty->inner->ops->stats(faulty->inner, &stats);
    bw_fault_note(&faulty->in, &faulty->fault, stats.bytes_in + span_p->len, now);
    open = bw_fault_open(&faulty->in, &faulty->fault, faulty->fault.holds_in, now);
    if (open <= stats.bytes_in)
        return BW_AGAIN;
    span_p->len = bw_least(span_p->len, open - stats.bytes_in);
    return BW_OK;
}

static void faulty_release(bw_link_t *link, size_t n)
{
    faulty_of(link)->inner->ops->release(faulty_of(link)->inner, n);
}

/* If the inner link has ended, the bytes that are held here are read first. */
static bw_status_t faulty_arm_read(bw_link_t *link)
{
    faulty_t *faulty = faulty_of(link);
    bw_status_t status = faulty->inner->ops->arm_read(faulty->inner);

    return status == BW_CORRUPT && waits_in(faulty) ? BW_OK : status;
}

static bw_status_t faulty_arm_write(bw_link_t *link, size_t room)
{
    faulty_t *faulty = faulty_of(link);

    push(faulty, false);
    if (bw_buffer_room(&faulty->held) >= room)
        return BW_AGAIN;
    faulty->stalls++;
    return BW_OK;
}

static int faulty_fd(const bw_link_t *link)
{
    return faulty_of(link)->inner->ops->fd(faulty_of(link)->inner);
}

static short faulty_wants(const bw_link_t *link)
{
    return faulty_of(link)->inner->ops->wants(faulty_of(link)->inner);
}

static void faulty_is_ready(bw_link_t *link, short events)
{
    faulty_of(link)->inner->ops->is_ready(faulty_of(link)->inner, events);
    push(faulty_of(link), false);
}

/* Bytes that are held here can still be read, so the link counts as cut only after that. */
static bool faulty_is_cut(const bw_link_t *link)
{
    return !waits_in(faulty_of(link)) &&
           faulty_of(link)->inner->ops->is_cut(faulty_of(link)->inner);
}

static bool faulty_has_hung_up(const bw_link_t *link)
{
    return faulty_of(link)->inner->ops->has_hung_up(faulty_of(link)->inner);
}

static bool faulty_is_silent(bw_link_t *link)
{
    const faulty_t *faulty = faulty_of(link);

    return (faulty->fault.holds_out && bw_buffer_fill(&faulty->held) > 0 &&
            bw_now_us() - faulty->taken_us >= SILENT_US) ||
           faulty->inner->ops->is_silent(faulty->inner);
}

static void faulty_clear_event(bw_link_t *link)
{
    faulty_of(link)->inner->ops->clear_event(faulty_of(link)->inner);
}

static void faulty_wake_self(bw_link_t *link)
{
    faulty_of(link)->inner->ops->wake_self(faulty_of(link)->inner);
}

static bool faulty_trim(bw_link_t *link)
{
    faulty_t *faulty = faulty_of(link);

    return bw_buffer_trim(&faulty->held) || faulty->inner->ops->trim(faulty->inner);
}

static bool faulty_has_spare(const bw_link_t *link)
{
    const faulty_t *faulty = faulty_of(link);

    return bw_buffer_has_spare(&faulty->held) || !faulty->inner->ops->has_spare ||
           faulty->inner->ops->has_spare(faulty->inner);
}

static void faulty_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    const faulty_t *faulty = faulty_of(link);
    uint64_t held = bw_buffer_fill(&faulty->held);

    faulty->inner->ops->stats(faulty->inner, stats_p);
    stats_p->bytes_out += held;
    stats_p->fill_out += held;
    stats_p->unreleased += held;
    stats_p->stalls += faulty->stalls;
}

static bool faulty_is_finished(bw_link_t *link)
{
    return faulty_of(link)->inner->ops->is_finished(faulty_of(link)->inner);
}

static bool faulty_is_orphan(bw_link_t *link)
{
    return faulty_of(link)->inner->ops->is_orphan(faulty_of(link)->inner);
}

static bool faulty_is_corrupt(const bw_link_t *link)
{
    return faulty_of(link)->inner->ops->is_corrupt(faulty_of(link)->inner);
}

static const char *faulty_reason(bw_link_t *link)
{
    return faulty_of(link)->inner->ops->reason(faulty_of(link)->inner);
}

/* Bytes that were only delayed are sent first. If output is held back entirely, the peer does not
 * notice the close as long as another process has a descriptor for the connection. */
static void faulty_close(bw_link_t *link, bw_leftover_t *left_p)
{
    faulty_t *faulty = faulty_of(link);
    bw_link_t *inner = faulty->inner;

    push(faulty, !faulty->fault.holds_out);
    if (faulty->fault.holds_out && inner->ops->leave)
        inner->ops->leave(inner);
    bw_buffer_free(&faulty->held);
    free(faulty);
    inner->ops->close(inner, left_p);
}

bool bw_is_faulty(const bw_link_t *link)
{
    return link->ops->close == faulty_close;
}

bw_link_t *bw_fault_behind(bw_link_t *link)
{
    return bw_is_faulty(link) ? faulty_of(link)->inner : link;
}

void bw_fault_change(bw_link_t *link, const bw_fault_t *fault)
{
    faulty_t *faulty = faulty_of(link);
    uint64_t now = bw_now_us();

    faulty->fault = *fault;
    bw_fault_retime(&faulty->in, fault, now);
    bw_fault_retime(&faulty->out, fault, now);
    push(faulty, false);
}

uint64_t bw_fault_due_us(const bw_link_t *link)
{
    const faulty_t *faulty = faulty_of(link);
    const bw_fault_t *fault = &faulty->fault;
    uint64_t now = bw_now_us();

    return bw_least(bw_fault_wait_us(&faulty->in, fault, fault->holds_in, now),
                    bw_fault_wait_us(&faulty->out, fault, fault->holds_out, now));
}

/* Omits each function that the inner link lacks. `read` is always omitted. */
static bw_carrier_t ops_before(const bw_carrier_t *inner)
{
    return (bw_carrier_t){
        .kind = inner->kind,
        .caps = inner->caps,
        .reserve = faulty_reserve,
        .commit = faulty_commit,
        .defer = inner->defer ? faulty_defer : NULL,
        .needs_flush = inner->defer ? faulty_needs_flush : NULL,
        .flush = inner->defer ? faulty_flush : NULL,
        .peek = faulty_peek,
        .release = faulty_release,
        .write = inner->write ? faulty_write : NULL,
        .arm_read = faulty_arm_read,
        .arm_write = faulty_arm_write,
        .fd = faulty_fd,
        .wants = inner->wants ? faulty_wants : NULL,
        .is_ready = inner->is_ready ? faulty_is_ready : NULL,
        .is_cut = inner->is_cut ? faulty_is_cut : NULL,
        .has_hung_up = inner->has_hung_up ? faulty_has_hung_up : NULL,
        .is_silent = inner->is_silent ? faulty_is_silent : NULL,
        .clear_event = faulty_clear_event,
        .wake_self = inner->wake_self ? faulty_wake_self : NULL,
        .trim = faulty_trim,
        .has_spare = faulty_has_spare,
        .stats = faulty_stats,
        .is_finished = faulty_is_finished,
        .is_orphan = inner->is_orphan ? faulty_is_orphan : NULL,
        .is_corrupt = inner->is_corrupt ? faulty_is_corrupt : NULL,
        .reason = faulty_reason,
        .close = faulty_close,
    };
}

bw_status_t bw_fault_before(bw_link_t *inner, const bw_fault_t *fault, bw_link_t **link_p,
                            bw_error_t *error_p)
{
    faulty_t *faulty = calloc(1, sizeof *faulty);
    bw_link_stats_t stats;
    bw_status_t status;

    if (!faulty)
        return bw_fail(error_p, BW_LIMIT, "memory for a fault", ENOMEM);
    inner->ops->stats(inner, &stats);
    status = bw_buffer_make(&faulty->held, "beamway-fault", stats.ring_bytes, error_p);
    if (status != BW_OK) {
        free(faulty);
        return status;
    }
    faulty->inner = inner;
    faulty->fault = *fault;
    faulty->in.seen = faulty->in.open = stats.bytes_in;
    faulty->in.random = faulty->taken_us = bw_now_us();
    faulty->out.random = faulty->in.random + 1;
    faulty->ops = ops_before(inner->ops);
    faulty->link.ops = &faulty->ops;
    *link_p = &faulty->link;
    return BW_OK;
}

/* ---- a socket ---- */

/* The filter runs before TCP, so the packets that it drops are not acknowledged, and the peer's
 * kernel retransmits them as if they had been lost. This needs no privileges. */
static int drop_packets(int socket)
{
    struct sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
    struct sock_fprog program = {.len = 1, .filter = &nothing};

    return setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

static int take_packets(int socket)
{
    int none = 0;
    int result = setsockopt(socket, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);

    return result < 0 && errno == ENOENT ? 0 : result;
}

/* On Linux, connecting the socket to AF_UNSPEC resets the connection. */
static int reset(int socket)
{
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};

    return connect(socket, &nobody, sizeof nobody);
}

bw_status_t bw_fault_socket(int socket, bw_socket_fault_t fault, bw_error_t *error_p)
{
    static const char *const steps[BW_SOCKET_FAULTS] = {
        "setsockopt(SO_DETACH_FILTER)", "setsockopt(SO_ATTACH_FILTER)", "connect(AF_UNSPEC)"};
    int result = fault == BW_SOCKET_PASS   ? take_packets(socket)
                 : fault == BW_SOCKET_DROP ? drop_packets(socket)
                                           : reset(socket);

    /* It does not matter if the connection has just ended. */
    if (result == 0 || errno == EBADF)
        return BW_OK;
    return bw_fail_system(error_p, steps[fault], errno);
}
