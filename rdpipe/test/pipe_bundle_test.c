/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that a link over several connections delivers all bytes once and in order, even if
 * connections die. */
#include "pipe_ends.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "hop/bundle.h"
#include "hop/tls.h"

#define RING ((uint64_t)4 << 20)
#define UP ((uint64_t)64 << 10)
#define BYTES ((uint64_t)48 << 20)

static bool encrypts; /* whether the current case encrypts */

/* Two links, and the test's own descriptors of the connections between them. */
typedef struct {
    bw_link_t *from, *to;
    int fds[RD_STREAMS_MAX];
    unsigned count;
    _Atomic uint64_t received;
    uint64_t limit; /* position at which the reader stops */
    bool is_right, is_finished, has_failed;
    pthread_t reader;
} pair_t;

static bool connect_pair(int ends[2])
{
    uint16_t port;
    int listener = open_listener(&port);
    rd_why_t why;
    bool done = rd_connect("127.0.0.1", port, -1, 0, rd_now_ms() + LONG_MS, &ends[0], &why) &&
                rd_wait(listener, POLLIN, -1, rd_now_ms() + LONG_MS) == RD_READY;

    ends[1] = done ? accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC) : -1;
    close(listener);
    return ends[1] >= 0;
}

static bool shake_both(const int ends[2], rd_tls_t *tls[2])
{
    rd_key_t key = key_of("the key of both sides");
    bool done[2] = {false, false};

    for (int i = 0; i < 2; i++)
        tls[i] = rd_tls_new(ends[i], &key, i == 1, true);
    for (int64_t deadline = rd_now_ms() + LONG_MS;
         !(done[0] && done[1]) && rd_left_ms(deadline) > 0;)
        for (int i = 0; i < 2; i++)
            done[i] = done[i] || rd_tls_shake(tls[i]) == RD_TLS_DONE;
    return done[0] && done[1];
}

static bool add_stream(pair_t *pair)
{
    rd_tls_t *tls[2] = {NULL, NULL};
    int ends[2];

    if (!connect_pair(ends) || (encrypts && !shake_both(ends, tls)))
        return false;
    pair->fds[pair->count++] = dup(ends[1]);
    return rd_bundle_add(pair->from, ends[0], tls[0]) && rd_bundle_add(pair->to, ends[1], tls[1]);
}

static bool open_pair(pair_t *pair, unsigned streams)
{
    rd_bundle_terms_t terms = {.out_bytes = RING, .in_bytes = UP, .most = RD_STREAMS_MAX};
    rd_why_t why;
    bool done;

    *pair = (pair_t){.is_right = true, .limit = UINT64_MAX};
    done = rd_bundle_open(&terms, &pair->from, &why);
    terms.out_bytes = UP;
    terms.in_bytes = RING;
    done = done && rd_bundle_open(&terms, &pair->to, &why);
    while (done && pair->count < streams)
        done = add_stream(pair);
    return done;
}

static void close_pair(pair_t *pair)
{
    if (pair->from)
        pair->from->ops->close(pair->from, NULL);
    if (pair->to)
        pair->to->ops->close(pair->to, NULL);
    for (unsigned i = 0; i < pair->count; i++)
        close(pair->fds[i]);
}

/* Resets the connection, which loses the data in flight and the data that the reader has not read
 * yet. */
static void kill_stream(const pair_t *pair, unsigned i)
{
    struct sockaddr none = {.sa_family = AF_UNSPEC};

    (void)connect(pair->fds[i], &none, sizeof none);
}

static uint8_t byte_at(uint64_t i)
{
    return (uint8_t)(i * 167 + (i >> 8) * 13 + (i >> 16) * 7 + (i >> 24));
}

static void wait_for(bw_link_t *link)
{
    struct pollfd polled = {.fd = link->ops->fd(link), .events = POLLIN};

    (void)poll(&polled, 1, 1000);
    link->ops->clear_event(link);
}

/* Reads until the link is closed, or up to the limit. */
static void *read_all(void *argument)
{
    pair_t *pair = argument;
    bw_link_t *link = pair->to;
    int64_t deadline = rd_now_ms() + LONG_MS;

    while (rd_left_ms(deadline) > 0 && atomic_load(&pair->received) < pair->limit) {
        uint64_t at = atomic_load(&pair->received);
        bw_span_t span = {0};
        bw_status_t status = link->ops->peek(link, &span);

        if (status == BW_OK) {
            for (size_t i = 0; i < span.len; i++)
                pair->is_right = pair->is_right && span.base[i] == byte_at(at + i);
            link->ops->release(link, span.len);
            atomic_store(&pair->received, at + span.len);
            continue;
        }
        pair->has_failed = status == BW_SYSTEM;
        pair->is_finished = link->ops->is_finished(link);
        if (pair->has_failed || pair->is_finished)
            break;
        if (link->ops->arm_read(link) == BW_OK)
            wait_for(link);
    }
    return NULL;
}

/* Writes pieces of many sizes, and calls `at_each` between them. Returns false if there was no room
 * for `ms` milliseconds. */
static bool write_bytes(pair_t *pair, uint64_t *at_p, uint64_t to,
                        void (*at_each)(pair_t *pair, uint64_t at), int ms)
{
    bw_link_t *link = pair->from;
    int64_t deadline = rd_now_ms() + ms;

    while (*at_p < to) {
        uint64_t len = 1 + (*at_p * 2654435761u) % 300000;
        bw_span_t span = {0};

        len = len < to - *at_p ? len : to - *at_p;
        if (link->ops->reserve(link, len, &span) != BW_OK || span.len < len) {
            if (rd_left_ms(deadline) == 0)
                return false;
            if (link->ops->arm_write(link, len) == BW_OK) {
                struct pollfd polled = {.fd = link->ops->fd(link), .events = POLLIN};

                (void)poll(&polled, 1, rd_left_ms(deadline));
                link->ops->clear_event(link);
            }
            continue;
        }
        for (uint64_t i = 0; i < len; i++)
            span.base[i] = byte_at(*at_p + i);
        link->ops->commit(link, len);
        *at_p += len;
        if (at_each)
            at_each(pair, *at_p);
        deadline = rd_now_ms() + ms;
    }
    return true;
}

/* Closes like a producer, which waits for DONE, because a closed link cannot resend data that is
 * lost if a connection dies at that moment. */
static void end_writer(pair_t *pair, uint64_t at)
{
    int64_t deadline = rd_now_ms() + LONG_MS;

    while (atomic_load(&pair->received) < at && rd_left_ms(deadline) > 0)
        (void)poll(NULL, 0, 1);
    pair->from->ops->close(pair->from, NULL);
    pair->from = NULL;
}

static void all_bytes_come_in_order(void)
{
    static const unsigned counts[] = {1, 2, 16, 64};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        pair_t pair;
        uint64_t at = 0;

        CHECK(open_pair(&pair, counts[i]));
        CHECK(pthread_create(&pair.reader, NULL, read_all, &pair) == 0);
        CHECK(write_bytes(&pair, &at, BYTES, NULL, LONG_MS));
        end_writer(&pair, at);
        (void)pthread_join(pair.reader, NULL);
        CHECK_EQ(pair.received, BYTES);
        CHECK(pair.is_right && pair.is_finished && !pair.has_failed);
        close_pair(&pair);
    }
}

/* Kills a stream after each eighth of the data, while it is carrying a chunk. */
static void kill_at_eighths(pair_t *pair, uint64_t at)
{
    static unsigned killed;

    if (at < BYTES / 8)
        killed = 0;
    while (killed < 7 && at >= (killed + 1) * (BYTES / 8))
        kill_stream(pair, killed++);
}

static void streams_may_die(void)
{
    pair_t pair;
    uint64_t at = 0;

    CHECK(open_pair(&pair, 8));
    CHECK(pthread_create(&pair.reader, NULL, read_all, &pair) == 0);
    CHECK(write_bytes(&pair, &at, BYTES, kill_at_eighths, LONG_MS));
    end_writer(&pair, at);
    (void)pthread_join(pair.reader, NULL);
    CHECK_EQ(pair.received, BYTES);
    CHECK(pair.is_right && pair.is_finished && !pair.has_failed);
    CHECK(rd_bundle_live(pair.to) <= 1);
    close_pair(&pair);
}

static void replace_at_eighths(pair_t *pair, uint64_t at)
{
    while (pair->count < 9 && at >= pair->count * (BYTES / 16)) {
        (void)add_stream(pair);
        kill_stream(pair, pair->count - 2);
    }
}

static void a_stream_that_joins_later_carries_on(void)
{
    pair_t pair;
    uint64_t at = 0;

    CHECK(open_pair(&pair, 1));
    CHECK(pthread_create(&pair.reader, NULL, read_all, &pair) == 0);
    CHECK(write_bytes(&pair, &at, BYTES, replace_at_eighths, LONG_MS));
    end_writer(&pair, at);
    (void)pthread_join(pair.reader, NULL);
    CHECK_EQ(pair.count, 9);
    CHECK_EQ(pair.received, BYTES);
    CHECK(pair.is_right && pair.is_finished);
    close_pair(&pair);
}

static void a_cut_stream_is_never_whole(void)
{
    pair_t pair;
    uint64_t at = 0;

    CHECK(open_pair(&pair, 4));
    CHECK(pthread_create(&pair.reader, NULL, read_all, &pair) == 0);
    CHECK(write_bytes(&pair, &at, BYTES / 4, NULL, LONG_MS));
    for (unsigned i = 0; i < 4; i++)
        kill_stream(&pair, i);
    (void)pthread_join(pair.reader, NULL);
    CHECK(pair.has_failed && !pair.is_finished && pair.is_right);
    CHECK(pair.received <= at);
    CHECK(strcmp(pair.to->ops->reason(pair.to), "connection_closed") == 0);
    close_pair(&pair);
}

/* If the other side does not read, the writer can write exactly as many bytes as fit in the
 * ring. */
static void memory_is_bounded(void)
{
    pair_t pair;
    uint64_t at = 0;

    CHECK(open_pair(&pair, 16));
    CHECK(!write_bytes(&pair, &at, BYTES, NULL, 500));
    CHECK(at <= RING && at > RING / 2);
    CHECK(pthread_create(&pair.reader, NULL, read_all, &pair) == 0);
    CHECK(write_bytes(&pair, &at, BYTES, NULL, LONG_MS));
    end_writer(&pair, at);
    (void)pthread_join(pair.reader, NULL);
    CHECK_EQ(pair.received, BYTES);
    CHECK(pair.is_right && pair.is_finished);
    close_pair(&pair);
}

/* If the peer violates the protocol, the link fails and the invalid data is not accepted. */
static void a_bad_peer_ends_the_link(void)
{
    static const struct {
        uint8_t kind;
        uint32_t len;
        uint64_t offset, other;
    } bad[] = {{0, 0, 0, 0},
               {9, 1, 0, 0},
               {1, 0, 0, 0},
               {1, 1u << 30, 0, 0},
               {1, 4096, UINT64_MAX - 100, 0},
               {1, 4096, UP - 4095, 0},
               {1, 2 * UP, 0, 0},
               {2, 0, 1, 0},
               {2, 0, 0, 1},
               {2, 0, UINT64_MAX, UINT64_MAX}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rd_bundle_terms_t terms = {.out_bytes = UP, .in_bytes = UP, .most = 1};
        uint8_t header[24] = {bad[i].kind};
        bw_span_t span = {0};
        bw_link_t *link = NULL;
        rd_why_t why;
        int ends[2];

        memcpy(header + 4, &bad[i].len, 4);
        memcpy(header + 8, &bad[i].offset, 8);
        memcpy(header + 16, &bad[i].other, 8);
        CHECK(connect_pair(ends) && rd_bundle_open(&terms, &link, &why));
        CHECK(rd_bundle_add(link, ends[1], NULL));
        CHECK(send(ends[0], header, sizeof header, MSG_NOSIGNAL) == sizeof header);
        for (int64_t deadline = rd_now_ms() + LONG_MS;
             link->ops->peek(link, &span) == BW_AGAIN && rd_left_ms(deadline) > 0;)
            if (link->ops->arm_read(link) == BW_OK)
                wait_for(link);
        CHECK(link->ops->peek(link, &span) == BW_SYSTEM);
        link->ops->close(link, NULL);
        close(ends[0]);
    }
}

static void the_descriptors_bound_the_streams(void)
{
    static const struct {
        rlim_t files;
        unsigned streams;
    } limits[] = {{1024, 64}, {512, 64}, {511, 63}, {128, 16}, {8, 1}, {0, 1}};
    struct rlimit before, low;

    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    low = before;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        unsigned streams;

        low.rlim_cur = limits[i].files;
        CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
        streams = rd_streams_max();
        CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
        CHECK_EQ(streams, limits[i].streams);
    }
}

static void the_kernel_counts(void)
{
    static const uint8_t bytes[16384]; /* few enough that the kernel buffers them all */
    static uint8_t got[sizeof bytes];
    int64_t deadline = rd_now_ms() + LONG_MS;
    int ends[2], event = eventfd(0, 0);
    rd_tcp_t tcp;

    CHECK(connect_pair(ends) && fcntl(ends[1], F_SETFL, 0) == 0);
    CHECK(send(ends[0], bytes, sizeof bytes, 0) == sizeof bytes);
    CHECK(recv(ends[1], got, sizeof got, MSG_WAITALL) == sizeof got);
    do
        tcp = rd_tcp_of(ends[0]);
    while (tcp.acked < sizeof bytes && rd_left_ms(deadline) > 0);
    CHECK(tcp.acked >= sizeof bytes && tcp.acked < 2 * sizeof bytes);
    CHECK(tcp.sent > 0 && tcp.resent <= tcp.sent && tcp.busy_us >= tcp.limited_us);
    CHECK(tcp.rtt_us > 0 && tcp.least_rtt_us > 0);
    tcp = rd_tcp_of(event);
    CHECK(tcp.acked == 0 && tcp.rtt_us == 0 && tcp.least_rtt_us == 0);
    close(event);
    close(ends[0]);
    close(ends[1]);
}

static const check_case_t cases[] = {
    {"all bytes come in order", all_bytes_come_in_order},
    {"streams may die", streams_may_die},
    {"a stream that joins later carries on", a_stream_that_joins_later_carries_on},
    {"a cut stream is never whole", a_cut_stream_is_never_whole},
    {"memory is bounded", memory_is_bounded},
};

static const check_case_t others[] = {
    {"a bad peer ends the link", a_bad_peer_ends_the_link},
    {"the descriptors bound the streams", the_descriptors_bound_the_streams},
    {"the kernel counts", the_kernel_counts},
};

int main(int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN);
    check_each("plain: ", cases, sizeof cases / sizeof *cases, argc, argv);
    encrypts = true;
    check_each("tls: ", cases, sizeof cases / sizeof *cases, argc, argv);
    check_each("", others, sizeof others / sizeof *others, argc, argv);
    return check_end();
}
