/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle_state.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bytes.h"
#include "ring_memory.h"

#define UNSENT_BYTES (64 * 1024) /* per connection, in addition to the bytes in flight */
#define DEAD_MS 20000            /* how long a connection may go without acknowledgements */
#define PERIOD_MAX_MS 2000
#define PERIOD_RTTS 4 /* round trips that a new connection needs to reach its full speed */

static rd_bundle_t *bundle_of(bw_link_t *link)
{
    return (rd_bundle_t *)link;
}

/* Returns an eighth of the limit on open files, because an agent has two hops, and its listener
 * needs descriptors for clients that have not proved yet that they have the key. */
unsigned rd_streams_max(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 8 >= RD_STREAMS_MAX)
        return RD_STREAMS_MAX;
    return limit.rlim_cur < 8 ? 1 : (unsigned)(limit.rlim_cur / 8);
}

/* ---- the user's thread ---- */

static void wake_thread(rd_bundle_t *bundle)
{
    if (atomic_exchange(&bundle->is_asleep, false))
        (void)eventfd_write(bundle->wake, 1);
}

static bw_status_t bundle_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    rd_bundle_t *bundle = bundle_of(link);
    uint64_t room = rd_bundle_room(bundle);

    (void)want;
    if (room == 0)
        return BW_AGAIN;
    *span_p = (bw_span_t){
        .base = rd_bundle_place(bundle->out, bundle->out_bytes,
                                atomic_load_explicit(&bundle->out_head, memory_order_relaxed)),
        .len = room};
    return BW_OK;
}

static void bundle_commit(bw_link_t *link, size_t n)
{
    rd_bundle_t *bundle = bundle_of(link);

    atomic_fetch_add(&bundle->out_head, n);
    wake_thread(bundle);
}

static bw_status_t bundle_peek(bw_link_t *link, bw_span_t *span_p)
{
    rd_bundle_t *bundle = bundle_of(link);
    uint64_t tail = atomic_load_explicit(&bundle->in_tail, memory_order_relaxed);

    bundle->peeked_state = atomic_load(&bundle->state);
    bundle->peeked = atomic_load_explicit(&bundle->in_head, memory_order_acquire);
    if (bundle->peeked == tail)
        return bundle->peeked_state == RD_BUNDLE_FAILED ? BW_SYSTEM : BW_AGAIN;
    *span_p = (bw_span_t){.base = rd_bundle_place(bundle->in, bundle->in_bytes, tail),
                          .len = bundle->peeked - tail};
    return BW_OK;
}

static void bundle_release(bw_link_t *link, size_t n)
{
    rd_bundle_t *bundle = bundle_of(link);
    uint64_t tail = atomic_fetch_add(&bundle->in_tail, n) + n;

    if (tail - bundle->told < rd_bundle_ack_bytes(bundle))
        return;
    bundle->told = tail;
    wake_thread(bundle);
}

static bw_status_t bundle_arm_read(bw_link_t *link)
{
    rd_bundle_t *bundle = bundle_of(link);
    int state;

    atomic_store(&bundle->awaits, bundle->peeked + 1);
    state = atomic_load(&bundle->state);
    if (atomic_load(&bundle->in_head) != bundle->peeked || state != bundle->peeked_state)
        return BW_AGAIN;
    if (state == RD_BUNDLE_FAILED ||
        (state == RD_BUNDLE_ENDED && bundle->peeked != atomic_load(&bundle->in_tail)))
        return BW_CORRUPT;
    return BW_OK;
}

static bw_status_t bundle_arm_write(bw_link_t *link, size_t wanted)
{
    rd_bundle_t *bundle = bundle_of(link);

    atomic_store(&bundle->wants, wanted);
    return rd_bundle_room(bundle) >= wanted ? BW_AGAIN : BW_OK;
}

static int bundle_fd(const bw_link_t *link)
{
    return ((const rd_bundle_t *)link)->event;
}

static void bundle_clear_event(bw_link_t *link)
{
    eventfd_t ignored;

    (void)eventfd_read(bundle_of(link)->event, &ignored);
}

static void bundle_wake_self(bw_link_t *link)
{
    (void)eventfd_write(bundle_of(link)->event, 1);
}

static bool bundle_is_finished(bw_link_t *link)
{
    const rd_bundle_t *bundle = bundle_of(link);

    return atomic_load(&bundle->state) == RD_BUNDLE_ENDED &&
           atomic_load(&bundle->in_head) == atomic_load(&bundle->in_tail);
}

static const char *bundle_reason(bw_link_t *link)
{
    return atomic_load(&bundle_of(link)->reason);
}

static void free_bundle(rd_bundle_t *bundle)
{
    if (bundle->out)
        munmap(bundle->out, 2 * bundle->out_bytes);
    if (bundle->in)
        munmap(bundle->in, 2 * bundle->in_bytes);
    rd_close(&bundle->event);
    rd_close(&bundle->wake);
    free(bundle->strands.in.of);
    (void)pthread_mutex_destroy(&bundle->mutex);
    free(bundle);
}

static void bundle_close(bw_link_t *link, bw_leftover_t *left_p)
{
    rd_bundle_t *bundle = bundle_of(link);

    atomic_store(&bundle->is_closing, true);
    (void)eventfd_write(bundle->wake, 1);
    (void)pthread_join(bundle->thread, NULL);
    free_bundle(bundle);
    if (left_p)
        *left_p = (bw_leftover_t){.fd = -1, .socket = -1};
}

static const bw_carrier_t bundle_carrier = {
    .kind = "tcp",
    .caps = BW_CAP_TELLS_DEATH | BW_CAP_KERNEL_BUFFERS,
    .reserve = bundle_reserve,
    .commit = bundle_commit,
    .peek = bundle_peek,
    .release = bundle_release,
    .arm_read = bundle_arm_read,
    .arm_write = bundle_arm_write,
    .fd = bundle_fd,
    .clear_event = bundle_clear_event,
    .wake_self = bundle_wake_self,
    .is_finished = bundle_is_finished,
    .reason = bundle_reason,
    .close = bundle_close,
};

/* ---- setting up a bundle ---- */

static bool make_rings(rd_bundle_t *bundle, rd_why_t *why)
{
    const char *step = NULL;

    bundle->out = bw_map_twice("rdpipe-out", bundle->out_bytes, &step);
    if (bundle->out)
        bundle->in = bw_map_twice("rdpipe-in", bundle->in_bytes, &step);
    return bundle->in || rd_because(why, "%s: %s", step, strerror(errno));
}

bool rd_bundle_open(const rd_bundle_terms_t *terms, bw_link_t **link_p, rd_why_t *why)
{
    rd_bundle_t *bundle = calloc(1, sizeof *bundle);

    if (!bundle)
        return rd_because(why, "out of memory");
    bundle->link.ops = &bundle_carrier;
    bundle->out_bytes = terms->out_bytes;
    bundle->in_bytes = terms->in_bytes;
    bundle->most = terms->most;
    bundle->strands.in_bytes = terms->in_bytes;
    bundle->strands.is_one = terms->most <= 1;
    bundle->is_auto = terms->is_auto && terms->most > 1;
    bundle->stream_count = rd_stream_count_of(
        bundle->is_auto ? (unsigned)bw_least(RD_STREAMS_FIRST, terms->most) : terms->most);
    bundle->strands.use = bundle->stream_count.use;
    bundle->period_ms = (int64_t)bw_least(PERIOD_RTTS * (uint64_t)terms->rtt_ms, PERIOD_MAX_MS);
    if (bundle->period_ms < RD_PERIOD_MIN_MS)
        bundle->period_ms = RD_PERIOD_MIN_MS;
    bundle->period_began_ms = rd_now_ms();
    (void)pthread_mutex_init(&bundle->mutex, NULL);
    bundle->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bundle->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (bundle->wake < 0 || bundle->event < 0) {
        (void)rd_because(why, "eventfd: %s", strerror(errno));
    } else if (make_rings(bundle, why)) {
        if (pthread_create(&bundle->thread, NULL, rd_bundle_thread, bundle) == 0) {
            *link_p = &bundle->link;
            return true;
        }
        (void)rd_because(why, "cannot start a thread");
    }
    free_bundle(bundle);
    return false;
}

/* A large backlog of unsent data in one connection's kernel buffer would delay its chunks; if the
 * buffers stay short, each connection gets only as much as it can carry. */
static void tune(const rd_bundle_t *bundle, int socket)
{
    int unsent = UNSENT_BYTES, dead_ms = DEAD_MS;

    if (bundle->most > 1)
        (void)setsockopt(socket, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof unsent);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
}

bool rd_bundle_add(bw_link_t *link, int socket, rd_tls_t *tls)
{
    rd_bundle_t *bundle = bundle_of(link);
    unsigned count;
    bool done;

    if (tls)
        rd_tls_stream(tls);
    tune(bundle, socket);
    (void)pthread_mutex_lock(&bundle->mutex);
    count = atomic_load(&bundle->added);
    done = count < RD_STREAMS_MAX;
    if (done) {
        bundle->adds[count] = (rd_wire_t){.fd = socket, .tls = tls, .may_read = true};
        atomic_fetch_add(&bundle->live, 1);
        atomic_store(&bundle->added, count + 1);
    }
    (void)pthread_mutex_unlock(&bundle->mutex);
    if (!done) {
        close(socket);
        rd_tls_free(tls);
        return false;
    }
    (void)eventfd_write(bundle->wake, 1);
    return true;
}

unsigned rd_bundle_live(bw_link_t *link)
{
    return atomic_load(&bundle_of(link)->live);
}

unsigned rd_bundle_used(bw_link_t *link)
{
    return atomic_load(&bundle_of(link)->used);
}
