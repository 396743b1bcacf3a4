/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what is particular to the tcp carrier: which descriptors it accepts, how a connection ends,
 * what the link reports about the end, and that it never wakes a user that has not armed it.
 */
#include "../carriers.h"
#include "../peers.h"

#include "../../link/buffer.h"

#include <signal.h>

static struct {
    bw_link_t *link; /* the link under test */
    int peer;        /* the other end, a plain socket */
    int descriptors;
} here;

static void start(void)
{
    bw_error_t error = {0};
    int socket = -1;

    here.descriptors = open_descriptors();
    CHECK(connect_sockets(8192, &socket, &here.peer));
    CHECK_EQ(bw_tcp_adopt(socket, RING, &here.link, &error), BW_OK);
    CHECK_EQ(close(socket), 0); /* the link has its own descriptor */
}

static void stop(void)
{
    here.link->ops->close(here.link, NULL);
    if (here.peer >= 0)
        close(here.peer);
    CHECK_EQ(carrier_mappings(NULL), 0);
    CHECK_EQ(open_descriptors(), here.descriptors);
}

static void peer_closes(void)
{
    CHECK_EQ(close(here.peer), 0);
    here.peer = -1;
}

/* The peer's kernel sends a reset instead of a normal end of stream. */
static void peer_resets(void)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};

    CHECK_EQ(setsockopt(here.peer, SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    CHECK_IN(peer_closes());
}

/* Ends the peer's stream; when this returns, its bytes and the end of the stream have reached our
 * kernel. */
static void peer_ends(void)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    CHECK_EQ(shutdown(here.peer, SHUT_WR), 0);
    for (int ms = 0; ms < ARRIVES_MS && info.tcpi_state != TCP_FIN_WAIT2; ms++) {
        CHECK_EQ(getsockopt(here.peer, IPPROTO_TCP, TCP_INFO, &info, &len), 0);
        (void)poll(NULL, 0, info.tcpi_state != TCP_FIN_WAIT2);
    }
    CHECK_EQ(info.tcpi_state, TCP_FIN_WAIT2);
}

static void peer_says(const char *text)
{
    CHECK_EQ(send(here.peer, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* ---- adopting sockets ---- */

static void refused(int fd, uint64_t ring_bytes, bw_status_t wanted)
{
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    int before = open_descriptors();
    bw_status_t status;

    status = bw_tcp_adopt(fd, ring_bytes, &link, &error);
    if (status != wanted)
        printf("    %s: %s\n", error.step, strerror(error.sys_errno));
    CHECK_EQ(status, wanted);
    CHECK(link == NULL && error.step != NULL);
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

static void only_connected_streams_are_taken(void)
{
    static const uint64_t sizes[] = {0, 1, RING - 1, RING + 1, 3 * RING, 2 * BW_RING_MAX_BYTES};
    int sockets[2], pipes[2], datagrams, lonely;

    CHECK_EQ(pipe2(pipes, O_CLOEXEC), 0);
    CHECK((datagrams = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK((lonely = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) >= 0);
    CHECK(connect_sockets(0, &sockets[0], &sockets[1]));
    CHECK_IN(refused(pipes[0], RING, BW_INVALID));
    CHECK_IN(refused(datagrams, RING, BW_INVALID));
    CHECK_IN(refused(lonely, RING, BW_INVALID));
    CHECK_IN(refused(-1, RING, BW_INVALID));
    CHECK_IN(refused(4711, RING, BW_INVALID));
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_IN(refused(sockets[0], sizes[i], BW_INVALID));
    for (int i = 0; i < 2; i++) {
        close(pipes[i]);
        close(sockets[i]);
    }
    close(datagrams);
    close(lonely);
}

/* The link's own descriptor exceeds the limit. */
static void too_many_descriptors(void)
{
    bw_status_t status, watched;
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    struct rlimit all, few;
    int sockets[2], free_fd, watch, before;

    CHECK(connect_sockets(0, &sockets[0], &sockets[1]));
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &all), 0);
    do /* uses up all free numbers below it */
        free_fd = dup(0);
    while (free_fd < sockets[1]);
    close(free_fd);
    before = open_descriptors();
    few = (struct rlimit){.rlim_cur = (rlim_t)free_fd, .rlim_max = all.rlim_max};
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    status = bw_tcp_adopt(sockets[0], RING, &link, &error);
    watched = bw_socket_watch(sockets[0], &watch, &error);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &all), 0);
    CHECK_EQ(status, BW_LIMIT);
    CHECK_EQ(watched, BW_LIMIT);
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

static void small_files(void)
{
    int sockets[2];

    CHECK(connect_sockets(0, &sockets[0], &sockets[1]));
    CHECK_IN(limit(RLIMIT_FSIZE, RING - 1));
    CHECK_IN(refused(sockets[0], RING, BW_LIMIT));
}

static void a_limit_leaves_nothing_behind(void)
{
    CHECK_IN(in_child(too_many_descriptors));
    in_child(small_files);
}

/* Any stream socket is accepted. */
static void unix_streams_are_taken(void)
{
    bw_link_t *one = NULL, *other = NULL;
    bw_error_t error = {0};
    bw_span_t span;
    int sockets[2];

    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    CHECK(adopt_both(sockets, RING, &one, &other, &error));
    CHECK(write_text(one, "over unix"));
    CHECK_EQ(await_bytes(other, 9, &span), BW_OK);
    CHECK_EQ(memcmp(span.base, "over unix", 9), 0);
    one->ops->close(one, NULL);
    other->ops->close(other, NULL);
}

/* ---- the end of a link ---- */

/* The reset arrives after other bytes, and the writer does not hang while it waits for it. */
static void a_reset_ends_it_with_a_reason(void)
{
    bw_span_t span;

    CHECK_IN(start());
    CHECK_IN(peer_says("said before"));
    CHECK_EQ(await_bytes(here.link, 11, &span), BW_OK);
    CHECK_IN(peer_resets());
    here.link->ops->release(here.link, 11);
    CHECK_EQ(await_bytes(here.link, 1, &span), BW_SYSTEM);
    CHECK(!here.link->ops->is_finished(here.link));
    CHECK_EQ(strcmp(here.link->ops->reason(here.link), "connection_closed"), 0);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(here.link->ops->reserve(here.link, 4096, &span), BW_OK);
        here.link->ops->commit(here.link, 4096);
    }
    CHECK_IN(stop());
}

/* The user is waiting for more bytes of a message, which will never arrive. */
static void an_end_within_what_is_waited_for_is_no_orderly_one(void)
{
    bw_span_t span;

    CHECK_IN(start());
    CHECK_IN(peer_says("half"));
    CHECK_EQ(await_bytes(here.link, 4, &span), BW_OK);
    here.link->ops->clear_event(here.link);
    CHECK_EQ(here.link->ops->arm_read(here.link), BW_OK);
    CHECK_IN(peer_closes());
    CHECK(is_readable(here.link));
    CHECK_EQ(here.link->ops->peek(here.link, &span), BW_OK);
    CHECK_EQ(span.len, 4);
    here.link->ops->clear_event(here.link);
    CHECK_EQ(here.link->ops->arm_read(here.link), BW_CORRUPT);
    CHECK(!here.link->ops->is_finished(here.link));
    CHECK_EQ(strcmp(here.link->ops->reason(here.link), "connection_closed"), 0);
    CHECK_IN(stop());
}

/* Only a write detects that the peer is gone: the bytes count as lost, and the end is reported to
 * the reader. */
static void writing_finds_out_that_the_peer_is_gone(void)
{
    bw_link_stats_t stats;
    bw_span_t span;
    int64_t written = 0;

    CHECK_IN(start());
    CHECK_IN(peer_resets());
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(here.link->ops->reserve(here.link, 1000, &span), BW_OK);
        here.link->ops->commit(here.link, 1000);
        written += 1000;
    }
    here.link->ops->stats(here.link, &stats);
    CHECK_EQ(stats.unreleased, written);
    CHECK_EQ(await_bytes(here.link, 1, &span), BW_SYSTEM);
    CHECK(!here.link->ops->has_hung_up(here.link));
    CHECK_IN(stop());
}

/* The kernel answers bytes that arrive after the peer has closed its end with a reset. */
static void a_reset_behind_the_end_changes_nothing(void)
{
    bw_span_t span;

    CHECK_IN(start());
    CHECK_IN(peer_closes());
    for (int i = 0; i < 10; i++) {
        CHECK_EQ(here.link->ops->reserve(here.link, 1000, &span), BW_OK);
        here.link->ops->commit(here.link, 1000);
        (void)poll(NULL, 0, 1);
    }
    CHECK(await_bytes(here.link, 1, &span) != BW_OK);
    CHECK(here.link->ops->has_hung_up(here.link));
    CHECK_IN(stop());
}

/* The last bytes sent arrive, even if the other side has sent bytes that were never read. */
static void last_words_outlive_unread_input(void)
{
    char got[64] = {0};
    size_t len = 0;
    ssize_t n;

    CHECK_IN(start());
    for (int i = 0; i < 20; i++)
        CHECK_IN(peer_says("nobody reads this"));
    CHECK(write_text(here.link, "last words"));
    here.link->ops->close(here.link, NULL);
    while ((n = recv(here.peer, got + len, sizeof got - len, 0)) > 0)
        len += (size_t)n;
    CHECK_EQ(n, 0);
    CHECK_EQ(len, 10);
    CHECK_EQ(strcmp(got, "last words"), 0);
    close(here.peer);
    CHECK_EQ(open_descriptors(), here.descriptors);
}

/* ---- wake-ups ---- */

/* The link is neither armed nor read: each arrival causes at most one wake-up. */
static void unread_input_does_not_wake_again_and_again(void)
{
    bw_span_t span;
    int wakes = 0;

    CHECK_IN(start());
    here.link->ops->clear_event(here.link);
    for (int i = 0; i < 10; i++) {
        CHECK_IN(peer_says("x"));
        for (int k = 0; k < 100; k++)
            if (!is_quiet(here.link)) {
                wakes++;
                here.link->ops->clear_event(here.link);
            }
    }
    CHECK(wakes <= 10);
    CHECK_EQ(await_bytes(here.link, 10, &span), BW_OK);
    CHECK_EQ(span.len, 10);
    CHECK_IN(stop());
}

/* The poller has reported both the bytes and the end of the stream after them. */
static void an_end_right_behind_the_bytes_is_not_slept_on(void)
{
    bw_status_t status;
    bw_span_t span;

    CHECK_IN(start());
    CHECK_EQ(here.link->ops->arm_read(here.link), BW_OK);
    CHECK_IN(peer_says("last"));
    CHECK_IN(peer_ends());
    CHECK(is_readable(here.link));
    here.link->ops->clear_event(here.link);
    CHECK_EQ(here.link->ops->peek(here.link, &span), BW_OK);
    CHECK_EQ(span.len, 4);
    here.link->ops->release(here.link, 4);
    status = here.link->ops->arm_read(here.link);
    CHECK(status == BW_AGAIN || here.link->ops->is_finished(here.link) || is_readable(here.link));
    CHECK_EQ(await_bytes(here.link, 1, &span), BW_AGAIN);
    CHECK(here.link->ops->is_finished(here.link));
    CHECK_IN(stop());
}

/* A user who peeks without having been woken sees the bytes that have arrived. */
static void a_look_without_a_wake_up_sees_what_is_there(void)
{
    bw_status_t status = BW_AGAIN;
    bw_span_t span;

    CHECK_IN(start());
    CHECK_EQ(here.link->ops->peek(here.link, &span), BW_AGAIN);
    CHECK_IN(peer_says("there"));
    for (int ms = 0; ms < ARRIVES_MS && status == BW_AGAIN; ms++) {
        status = here.link->ops->peek(here.link, &span);
        (void)poll(NULL, 0, status == BW_AGAIN);
    }
    CHECK_EQ(status, BW_OK);
    CHECK_EQ(span.len, 5);
    CHECK_IN(stop());
}

/* A watcher has its own descriptor, which reports the end of the stream. */
static void a_watch_sees_the_end(void)
{
    bw_error_t error = {0};
    int sockets[2], watch = -1;
    struct pollfd poller = {.events = POLLIN};
    char byte;

    CHECK(connect_sockets(0, &sockets[0], &sockets[1]));
    CHECK_EQ(bw_socket_watch(sockets[0], &watch, &error), BW_OK);
    CHECK(fcntl(watch, F_GETFD) & FD_CLOEXEC);
    CHECK_EQ(close(sockets[0]), 0);
    poller.fd = watch;
    CHECK_EQ(poll(&poller, 1, 0), 0); /* closing a descriptor does not shut down the connection */
    CHECK_EQ(close(sockets[1]), 0);
    CHECK_EQ(poll(&poller, 1, ARRIVES_MS), 1);
    CHECK_EQ(recv(watch, &byte, 1, MSG_DONTWAIT), 0);
    CHECK_EQ(close(watch), 0);
}

/* ---- bypassing the ring ---- */

static uint8_t large[4 * RING], arrived[sizeof large];

static void fill_large(void)
{
    for (size_t i = 0; i < sizeof large; i++)
        large[i] = (uint8_t)(i * 7 + i / 256);
}

/* Reads everything that the peer can receive at the moment. */
static size_t peer_takes(size_t have)
{
    ssize_t n = recv(here.peer, arrived + have, sizeof arrived - have, MSG_DONTWAIT);

    return n > 0 ? have + (size_t)n : have;
}

static bw_status_t write_past(size_t from, size_t *taken_p)
{
    struct iovec iov[2] = {{.iov_base = large + from, .iov_len = (sizeof large - from) / 2},
                           {.iov_base = large + from + (sizeof large - from) / 2}};

    iov[1].iov_len = sizeof large - from - iov[0].iov_len;
    return here.link->ops->write(here.link, iov, 2, taken_p);
}

/* A socket with an 8 KB buffer accepts the bytes in many steps. When it accepts nothing, it reports
 * when it can accept more. */
static void what_is_written_past_the_ring_arrives(void)
{
    size_t done = 0, have = 0, refusals = 0, taken;
    bw_link_stats_t stats;

    fill_large();
    CHECK_IN(start());
    while (done < sizeof large) {
        bw_status_t status = write_past(done, &taken);

        done += taken;
        if (status == BW_OK)
            continue;
        CHECK_EQ(status, BW_AGAIN);
        CHECK_EQ(taken, 0);
        refusals++;
        here.link->ops->clear_event(here.link);
        if (here.link->ops->arm_write(here.link, RING) == BW_AGAIN)
            continue;
        while (is_quiet(here.link))
            have = peer_takes(have);
    }
    while (have < done)
        have = peer_takes(have);
    CHECK(refusals > 0);
    CHECK_EQ(memcmp(arrived, large, sizeof large), 0);
    here.link->ops->stats(here.link, &stats);
    CHECK_EQ(stats.bytes_out, sizeof large);
    CHECK_EQ(stats.fill_out, 0);
    CHECK_IN(stop());
}

/* Bytes in the ring are sent first: while they cannot be sent, nothing is written ahead of them. */
static void nothing_is_written_past_what_waits(void)
{
    size_t taken = 1, have = 0, before = 0;
    bw_span_t span;

    fill_large();
    CHECK_IN(start());
    while (here.link->ops->reserve(here.link, 4096, &span) == BW_OK && span.len >= 4096) {
        memcpy(span.base, large + before, 4096);
        here.link->ops->commit(here.link, 4096);
        before += 4096;
        CHECK(before < sizeof large);
    }
    CHECK_EQ(write_past(before, &taken), BW_AGAIN);
    CHECK_EQ(taken, 0);
    while (taken == 0) {
        have = peer_takes(have);
        here.link->ops->clear_event(here.link);
        (void)write_past(before, &taken);
    }
    while (have < before + taken)
        have = peer_takes(have);
    CHECK_EQ(memcmp(arrived, large, before + taken), 0);
    CHECK_IN(stop());
}

/* A counter that is exported as a metric must never decrease. */
static void what_is_handed_back_stays_counted(void)
{
    size_t have = 0, before = 0, len;
    bw_link_stats_t stats;
    bw_span_t span;

    fill_large();
    CHECK_IN(start());
    here.link->ops->defer(here.link);
    while (here.link->ops->reserve(here.link, 4096, &span) == BW_OK && span.len >= 4096) {
        memcpy(span.base, large + before, 4096);
        here.link->ops->commit(here.link, 4096);
        before += 4096;
        CHECK(before < sizeof large);
    }
    here.link->ops->flush(here.link, &span);
    len = span.len;
    CHECK(len > 0);
    here.link->ops->stats(here.link, &stats);
    CHECK_EQ(stats.bytes_out, before);
    CHECK_EQ(here.link->ops->reserve(here.link, len, &span), BW_OK);
    CHECK(span.len >= len);
    memcpy(span.base, large + before - len, len);
    here.link->ops->commit(here.link, len);
    here.link->ops->stats(here.link, &stats);
    CHECK_EQ(stats.bytes_out, before);
    while (have < before) {
        have = peer_takes(have);
        here.link->ops->clear_event(here.link);
    }
    CHECK_EQ(memcmp(arrived, large, before), 0);
    CHECK_IN(stop());
}

static void what_is_written_to_a_dead_peer_goes_through_the_ring(void)
{
    bw_span_t span;
    size_t taken = 1;

    CHECK_IN(start());
    CHECK_IN(peer_resets());
    CHECK_EQ(write_past(0, &taken), BW_OK);
    CHECK_EQ(taken, 0);
    CHECK_EQ(here.link->ops->reserve(here.link, 4096, &span), BW_OK);
    here.link->ops->commit(here.link, 4096);
    CHECK_EQ(await_bytes(here.link, 1, &span), BW_SYSTEM);
    CHECK_IN(stop());
}

/* The bytes after those that are read directly are in the ring, and the read does not go beyond the
 * available data. */
static void what_is_read_past_the_ring_is_in_order(void)
{
    bw_link_stats_t stats;
    bw_span_t span;
    uint8_t to[8] = {0};
    size_t got = 1;

    CHECK_IN(start());
    CHECK_EQ(here.link->ops->read(here.link, to, 4, &got), BW_AGAIN);
    CHECK_EQ(got, 0);
    here.link->ops->clear_event(here.link);
    CHECK_EQ(here.link->ops->arm_read(here.link), BW_OK);
    CHECK_IN(peer_says("directbehind"));
    CHECK(is_readable(here.link));
    here.link->ops->clear_event(here.link);
    CHECK_EQ(here.link->ops->read(here.link, to, 6, &got), BW_OK);
    CHECK_EQ(got, 6);
    CHECK_EQ(memcmp(to, "direct", 6), 0);
    CHECK_EQ(here.link->ops->read(here.link, to, 6, &got), BW_OK);
    CHECK_EQ(got, 0);
    CHECK_EQ(here.link->ops->peek(here.link, &span), BW_OK);
    CHECK_EQ(span.len, 6);
    CHECK_EQ(memcmp(span.base, "behind", 6), 0);
    here.link->ops->release(here.link, 6);
    here.link->ops->stats(here.link, &stats);
    CHECK_EQ(stats.bytes_in, 12);
    CHECK_IN(peer_closes());
    do
        here.link->ops->clear_event(here.link);
    while (here.link->ops->read(here.link, to, 6, &got) == BW_AGAIN);
    CHECK_EQ(got, 0);
    CHECK(here.link->ops->is_finished(here.link));
    CHECK_IN(stop());
}

/* Together, the messages would fill the ring many times, but none of them needs more than its first
 * page. */
static void small_messages_need_one_page(void)
{
    bw_error_t error = {0};
    bw_buffer_t ring;
    uint8_t bytes[200], got[200];
    long before;

    CHECK_EQ(bw_buffer_make(&ring, "beamway-test", RING, &error), BW_OK);
    before = carrier_mappings("Pss:");
    for (uint64_t i = 0; i < 4 * RING / sizeof bytes; i++) {
        memset(bytes, (int)i, sizeof bytes);
        CHECK(bw_buffer_put(&ring, bytes, sizeof bytes));
        CHECK_EQ(bw_buffer_get(&ring, got, sizeof got), sizeof got);
        CHECK_EQ(memcmp(bytes, got, sizeof got), 0);
    }
    CHECK(carrier_mappings("Pss:") - before <= 4);
    CHECK(!bw_buffer_has_spare(&ring));

    /* a full ring starts in the middle, and releases everything except one page */
    CHECK(bw_buffer_put(&ring, bytes, sizeof bytes));
    memset(bw_buffer_gap(&ring).base, 7, RING - sizeof bytes);
    ring.head += RING - sizeof bytes;
    CHECK_EQ(bw_buffer_get(&ring, got, sizeof got), sizeof got);
    CHECK(bw_buffer_put(&ring, bytes, sizeof bytes));
    CHECK(!bw_buffer_trim(&ring)); /* it is not empty */
    ring.tail = ring.head;
    CHECK(carrier_mappings("Pss:") - before >= (long)(RING / 1024));
    CHECK(bw_buffer_has_spare(&ring));
    while (bw_buffer_trim(&ring)) {
    }
    CHECK(carrier_mappings("Pss:") - before <= 4);
    CHECK(!bw_buffer_has_spare(&ring));
    bw_buffer_free(&ring);
}

static const check_case_t cases[] = {
    {"small_messages_need_one_page", small_messages_need_one_page},
    {"only_connected_streams_are_taken", only_connected_streams_are_taken},
    {"a_limit_leaves_nothing_behind", a_limit_leaves_nothing_behind},
    {"unix_streams_are_taken", unix_streams_are_taken},
    {"a_reset_behind_the_end_changes_nothing", a_reset_behind_the_end_changes_nothing},
    {"a_reset_ends_it_with_a_reason", a_reset_ends_it_with_a_reason},
    {"an_end_within_what_is_waited_for_is_no_orderly_one",
     an_end_within_what_is_waited_for_is_no_orderly_one},
    {"writing_finds_out_that_the_peer_is_gone", writing_finds_out_that_the_peer_is_gone},
    {"last_words_outlive_unread_input", last_words_outlive_unread_input},
    {"unread_input_does_not_wake_again_and_again", unread_input_does_not_wake_again_and_again},
    {"an_end_right_behind_the_bytes_is_not_slept_on",
     an_end_right_behind_the_bytes_is_not_slept_on},
    {"a_look_without_a_wake_up_sees_what_is_there", a_look_without_a_wake_up_sees_what_is_there},
    {"a_watch_sees_the_end", a_watch_sees_the_end},
    {"what_is_written_past_the_ring_arrives", what_is_written_past_the_ring_arrives},
    {"nothing_is_written_past_what_waits", nothing_is_written_past_what_waits},
    {"what_is_handed_back_stays_counted", what_is_handed_back_stays_counted},
    {"what_is_written_to_a_dead_peer_goes_through_the_ring",
     what_is_written_to_a_dead_peer_goes_through_the_ring},
    {"what_is_read_past_the_ring_is_in_order", what_is_read_past_the_ring_is_in_order},
};

CHECK_MAIN(cases)
