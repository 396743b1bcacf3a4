/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what every carrier guarantees through the table of link.h: bytes arrive in order, even
 * those written just before a close; free space is reported, and a sleeping end is woken; and
 * nothing is left behind.
 */
#include "../carriers.h"

#include <fcntl.h>

#define RING BW_RING_MIN_BYTES
#define DESCRIPTORS_MAX 5 /* per end */

static struct {
    bw_link_t *one, *other;
    int descriptors;
} here;

static void run_other_end(const bw_link_t *waited_for)
{
    bw_link_t *link = waited_for == here.one ? here.other : here.one;

    if (link)
        run_end_of(link);
}

static void close_end(bw_link_t **link)
{
    if (*link)
        (*link)->ops->close(*link, NULL);
    *link = NULL;
}

static void close_ends(void)
{
    close_end(&here.one);
    close_end(&here.other);
}

static void start(void)
{
    bw_error_t error = {0};

    here.one = here.other = NULL;
    meanwhile = run_other_end;
    check_clean_up = close_ends;
    here.descriptors = held_descriptors();
    if (!open_ends(RING, &here.one, &here.other, &error))
        printf("    %s: %s\n", error.step, strerror(error.sys_errno));
    CHECK(here.one && here.other);
}

static void stop(void)
{
    close_ends();
    CHECK_EQ(held_descriptors(), here.descriptors);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

static void put_bytes(bw_link_t *link, const void *bytes, size_t len)
{
    bw_span_t span = {0};

    CHECK_EQ(link->ops->reserve(link, len, &span), BW_OK);
    CHECK(span.len >= len);
    memcpy(span.base, bytes, len);
    link->ops->commit(link, len);
}

static void write_bytes(bw_link_t *link, const void *bytes, size_t len)
{
    CHECK(await_room(link, len));
    put_bytes(link, bytes, len);
}

static void read_bytes(bw_link_t *link, const char *bytes)
{
    bw_span_t span;

    CHECK_EQ(await_bytes(link, strlen(bytes), &span), BW_OK);
    CHECK_EQ(span.len, strlen(bytes));
    CHECK_EQ(memcmp(span.base, bytes, span.len), 0);
}

static uint8_t byte_at(uint64_t position)
{
    return (uint8_t)(position * 131 + (position >> 11));
}

/* Fills all available room and returns the position after it. */
static uint64_t fill_up(bw_link_t *link, uint64_t position)
{
    bw_span_t span = {0};

    while (link->ops->reserve(link, 1, &span) == BW_OK) {
        for (size_t i = 0; i < span.len; i++)
            span.base[i] = byte_at(position + i);
        link->ops->commit(link, span.len);
        position += span.len;
    }
    return position;
}

/* Both ends use the same number of descriptors, which must match the number declared for the
 * carrier. */
static void check_descriptors(void)
{
    int of_both = open_descriptors() - here.descriptors;

    CHECK(of_both > 0 && of_both % 2 == 0 && of_both <= 2 * DESCRIPTORS_MAX);
    CHECK(carrier->descriptors == 0 || of_both == 2 * carrier->descriptors);
}

/* ---- bytes ---- */

static void both_ends_carry_bytes(void)
{
    bw_link_stats_t stats;

    CHECK_IN(start());
    CHECK(carrier_mappings(NULL) > 0);
    CHECK_IN(check_descriptors());
    CHECK_EQ(strcmp(here.one->ops->kind, carrier->kind), 0);
    CHECK_IN(write_bytes(here.one, "there", 5));
    CHECK_IN(write_bytes(here.other, "and back", 8));
    CHECK_IN(read_bytes(here.other, "there"));
    CHECK_IN(read_bytes(here.one, "and back"));
    here.one->ops->release(here.one, 3);
    CHECK_IN(read_bytes(here.one, " back"));
    here.one->ops->stats(here.one, &stats);
    CHECK_EQ(stats.bytes_out, 5);
    CHECK_EQ(stats.bytes_in, 3);
    CHECK_EQ(stats.fill_in, 5);
    /* a socket has already accepted it */
    CHECK_EQ(stats.fill_out, carrier->is_shared || carrier->at_rest ? 5 : 0);
    CHECK_EQ(stats.ring_bytes, RING);
    close_end(&here.one);
    CHECK_IN(read_bytes(here.other, "there")); /* the last bytes written remain readable */
    CHECK_IN(stop());
}

/* Everything that is written arrives exactly once and in order, in pieces of any length on both
 * sides. */
static void bytes_keep_their_order(void)
{
    uint64_t written = 0, read = 0, random = 9;

    CHECK_IN(start());
    while (read < 40 * RING) {
        bw_span_t span = {0};
        size_t n;

        if (here.one->ops->reserve(here.one, 1, &span) == BW_OK) {
            n = (size_t)(1 + next_random(&random) % span.len);
            for (size_t i = 0; i < n; i++)
                span.base[i] = byte_at(written + i);
            here.one->ops->commit(here.one, n);
            written += n;
        }
        run_end_of(here.one); /* sends what a socket link is still holding back */
        CHECK_EQ(await_bytes(here.other, 1, &span), BW_OK);
        n = (size_t)(1 + next_random(&random) % span.len);
        for (size_t i = 0; i < n; i++)
            CHECK_EQ(span.base[i], byte_at(read + i));
        here.other->ops->release(here.other, n);
        read += n;
    }
    CHECK(read <= written);
    CHECK_IN(stop());
}

/* Reads at the other end what this end has written, starting at *read_p. */
static void read_up_to(uint64_t position, uint64_t *read_p)
{
    while (*read_p < position) {
        bw_span_t span = {0};

        CHECK_EQ(await_bytes(here.other, 1, &span), BW_OK);
        for (size_t i = 0; i < span.len; i++)
            CHECK_EQ(span.base[i], byte_at(*read_p + i));
        *read_p += span.len;
        here.other->ops->release(here.other, span.len);
        run_end_of(here.one);
    }
}

/* A reader that looks repeatedly without consuming anything loses nothing. */
static void a_full_ring_may_be_looked_at(void)
{
    uint64_t position, read = 0;
    bw_span_t span = {0};

    CHECK_IN(start());
    position = fill_up(here.one, 0);
    for (int ms = 0; ms < ARRIVES_MS && span.len < RING; ms++) {
        run_end_of(here.one);
        here.other->ops->clear_event(here.other);
        if (here.other->ops->peek(here.other, &span) != BW_OK || span.len < RING)
            (void)poll(NULL, 0, 1);
    }
    CHECK_EQ(span.len, RING);
    for (int look = 0; look < 3; look++) {
        CHECK_EQ(here.other->ops->peek(here.other, &span), BW_OK);
        CHECK_EQ(here.other->ops->arm_read(here.other), BW_OK);
        CHECK(!here.other->ops->is_finished(here.other));
    }
    CHECK_IN(read_up_to(position, &read));
    CHECK_IN(stop());
}

/* ---- wake-ups ---- */

static void a_sleeping_reader_is_woken(void)
{
    bw_span_t span;

    CHECK_IN(start());
    for (int round = 0; round < 100; round++) {
        here.other->ops->clear_event(here.other);
        CHECK_EQ(here.other->ops->peek(here.other, &span), BW_AGAIN);
        CHECK_EQ(here.other->ops->arm_read(here.other), BW_OK);
        CHECK(is_quiet(here.other));
        CHECK_IN(write_bytes(here.one, "x", 1));
        CHECK(is_readable(here.other));
        CHECK_EQ(here.other->ops->peek(here.other, &span), BW_OK);
        here.other->ops->release(here.other, 1);
    }
    CHECK_IN(stop());
}

/* A reader must not sleep if bytes arrived before it armed. */
static void a_reader_that_comes_late_does_not_sleep(void)
{
    bw_status_t status;
    bw_span_t span;

    CHECK_IN(start());
    here.other->ops->clear_event(here.other);
    CHECK_EQ(here.other->ops->peek(here.other, &span), BW_AGAIN);
    CHECK_IN(write_bytes(here.one, "x", 1));
    status = here.other->ops->arm_read(here.other);
    CHECK(status == BW_AGAIN || (status == BW_OK && is_readable(here.other)));
    CHECK_IN(read_bytes(here.other, "x"));
    /* a partial frame remains unread, and more of it arrives */
    status = here.other->ops->arm_read(here.other);
    CHECK_EQ(status, BW_OK);
    here.other->ops->clear_event(here.other);
    CHECK_IN(write_bytes(here.one, "y", 1));
    CHECK(is_readable(here.other));
    CHECK_IN(read_bytes(here.other, "xy"));
    CHECK_IN(stop());
}

static void a_link_wakes_itself(void)
{
    CHECK_IN(start());
    run_end_of(here.one);
    for (int round = 0; round < 3 && here.one->ops->wake_self; round++) {
        CHECK(is_quiet(here.one));
        here.one->ops->wake_self(here.one);
        here.one->ops->wake_self(here.one);
        CHECK(is_readable(here.one));
        run_end_of(here.one);
    }
    CHECK(is_quiet(here.one));
    CHECK_IN(stop());
}

/* A writer that has filled the ring sleeps, and wakes once the reader has freed as much room as the
 * writer asked for. */
static void a_writer_without_room_is_woken(void)
{
    uint64_t position = 0, read = 0;
    bw_link_stats_t stats;

    CHECK_IN(start());
    for (int round = 0; round < 20; round++) {
        position = fill_up(here.one, position);
        run_end_of(here.one);
        position = fill_up(here.one, position); /* a socket's kernel buffer has accepted more */
        if (here.one->ops->arm_write(here.one, RING / 2) == BW_AGAIN)
            continue;
        CHECK_IN(read_up_to(position, &read));
        CHECK(await_room(here.one, RING / 2));
    }
    here.one->ops->stats(here.one, &stats);
    CHECK(stats.stalls > 0);
    CHECK_IN(stop());
}

/* rdma also wakes its owner for other reasons. Handling those while waiting for the reader may have
 * consumed the event. */
static bool was_told_of_room(void)
{
    return carrier->at_rest ? here.one->ops->arm_write(here.one, RING / 2) == BW_AGAIN
                            : !is_quiet(here.one);
}

/* Free room alone makes the descriptor readable. */
static void room_rings(void)
{
    uint64_t position;
    bw_span_t span = {0};

    CHECK_IN(start());
    position = fill_up(here.one, 0);
    do
        run_end_of(here.one);
    while (fill_up(here.one, position) != position && position++ < 100 * RING);
    while (here.one->ops->arm_write(here.one, RING / 2) == BW_AGAIN)
        fill_up(here.one, position);
    run_end_of(here.one);
    CHECK_EQ(here.one->ops->arm_write(here.one, RING / 2), BW_OK);
    CHECK(is_quiet(here.one) || carrier->at_rest); /* a completion may arrive at any time */
    while (!was_told_of_room() && await_bytes(here.other, 1, &span) == BW_OK)
        here.other->ops->release(here.other, span.len < RING / 8 ? span.len : RING / 8);
    CHECK(was_told_of_room());
    CHECK_IN(stop());
}

/* Bytes committed after `defer` cost one system call, at the flush; those that are never flushed
 * are sent when the link is closed. */
static void a_flush_sends_what_was_gathered(void)
{
    static const char *const words[] = {"one", "two", "three"};
    bw_link_stats_t before, after;
    bw_span_t span, rest;

    CHECK_IN(start());
    if (here.one->ops->defer) {
        here.one->ops->defer(here.one);
        CHECK(!here.one->ops->needs_flush(here.one));
        here.other->ops->clear_event(here.other);
        CHECK_EQ(here.other->ops->peek(here.other, &span), BW_AGAIN);
        CHECK_EQ(here.other->ops->arm_read(here.other), BW_OK);
        here.one->ops->stats(here.one, &before);
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            CHECK_IN(put_bytes(here.one, words[i], strlen(words[i])));
        CHECK(here.one->ops->needs_flush(here.one));
        CHECK(is_quiet(here.other));
        here.one->ops->flush(here.one, &rest);
        CHECK_EQ(rest.len, 0);
        CHECK(!here.one->ops->needs_flush(here.one));
        here.one->ops->stats(here.one, &after);
        CHECK_EQ(after.doorbells_out, before.doorbells_out + 1);
        CHECK(is_readable(here.other));
        CHECK_IN(read_bytes(here.other, "onetwothree"));
        here.other->ops->release(here.other, 11);
    }
    CHECK_IN(put_bytes(here.one, "last", 4));
    close_end(&here.one);
    CHECK_IN(read_bytes(here.other, "last"));
    CHECK_IN(stop());
}

/* ---- the end of the stream ---- */

static void the_end_comes_after_the_last_word(void)
{
    const char *reason;
    bw_span_t span;

    CHECK_IN(start());
    CHECK_IN(write_bytes(here.one, "last", 4));
    CHECK(!here.other->ops->is_finished(here.other));
    close_end(&here.one);
    CHECK_IN(read_bytes(here.other, "last"));
    CHECK(!here.other->ops->is_finished(here.other));
    here.other->ops->release(here.other, 4);
    CHECK_EQ(await_bytes(here.other, 1, &span), BW_AGAIN);
    CHECK(here.other->ops->is_finished(here.other));
    /* Over rdma the connection manager may already have reported the close. */
    reason = here.other->ops->reason(here.other);
    CHECK(!reason || (carrier->at_rest && strcmp(reason, "connection_closed") == 0));
    CHECK_IN(stop());
}

/* An end that sleeps while armed is woken when the peer closes. */
static void the_end_rings(void)
{
    bw_span_t span;

    CHECK_IN(start());
    here.other->ops->clear_event(here.other);
    CHECK_EQ(here.other->ops->peek(here.other, &span), BW_AGAIN);
    CHECK_EQ(here.other->ops->arm_read(here.other), BW_OK);
    close_end(&here.one);
    CHECK(is_readable(here.other));
    CHECK_EQ(await_bytes(here.other, 1, &span), BW_AGAIN);
    CHECK(here.other->ops->is_finished(here.other));
    CHECK_IN(stop());
}

/* Writing to a closed end is limited only by the size of the ring. */
static void writing_to_a_closed_end_does_no_harm(void)
{
    bw_link_stats_t stats;
    uint64_t position;

    CHECK_IN(start());
    close_end(&here.other);
    position = 0;
    for (int round = 0; round < 10; round++) {
        bw_span_t span = {0};

        if (here.one->ops->reserve(here.one, RING / 4, &span) == BW_OK) {
            memset(span.base, 7, span.len);
            here.one->ops->commit(here.one, span.len);
            position += span.len;
        }
        run_end_of(here.one);
    }
    /* over rdma the other end may have closed before everything was written */
    CHECK(position >= RING || (carrier->at_rest && here.one->ops->reason(here.one)));
    here.one->ops->stats(here.one, &stats);
    CHECK(stats.unreleased <= position);
    CHECK_IN(stop());
}

/* `unreleased` drops to 0 once the other end has consumed everything. Over rdma it is updated only
 * after each quarter of the ring. */
static void what_is_not_taken_is_counted(void)
{
    bw_link_stats_t stats;
    uint64_t position, read = 0, untold = carrier->at_rest ? RING / 4 - 1 : 0;

    CHECK_IN(start());
    position = fill_up(here.one, 0);
    here.one->ops->stats(here.one, &stats);
    CHECK(carrier->is_shared ? stats.unreleased == position
                             : stats.unreleased > 0 && stats.unreleased <= position);
    while (read < position) {
        bw_span_t span = {0};

        CHECK_EQ(await_bytes(here.other, 1, &span), BW_OK);
        here.other->ops->release(here.other, span.len);
        read += span.len;
        run_end_of(here.one);
    }
    for (int ms = 0; ms < ARRIVES_MS && stats.unreleased > untold; ms++) {
        run_end_of(here.one);
        here.one->ops->stats(here.one, &stats);
        (void)poll(NULL, 0, stats.unreleased > untold);
    }
    CHECK(stats.unreleased <= untold);
    CHECK_IN(stop());
}

/* ---- descriptors and memory ---- */

/* The polled descriptor outlives the link if the caller asks for that. */
static void close_hands_over_the_descriptor(void)
{
    bw_leftover_t left = {.fd = -1};

    CHECK_IN(start());
    CHECK(here.one->ops->fd(here.one) >= 0);
    here.one->ops->close(here.one, &left);
    here.one = NULL;
    CHECK(left.fd >= 0 && fcntl(left.fd, F_GETFD) >= 0);
    CHECK(left.map[0].iov_base != NULL || carrier->at_rest); /* rdma's own thread frees it */
    CHECK_EQ(close(left.fd), 0);
    bw_leftover_free(&left);
    CHECK_IN(stop());
}

/* Counts all descriptors that a link has opened, and checks that they are close-on-exec. */
static void descriptors_are_not_inherited(void)
{
    bool was_open[256];
    int opened = 0;

    for (int fd = 0; fd < 256; fd++)
        was_open[fd] = fcntl(fd, F_GETFD) >= 0;
    CHECK_IN(start());
    for (int fd = 0; fd < 256; fd++) {
        int flags = was_open[fd] ? -1 : fcntl(fd, F_GETFD);

        opened += flags >= 0;
        CHECK(flags < 0 || flags & FD_CLOEXEC);
    }
    CHECK_EQ(opened, open_descriptors() - here.descriptors);
    CHECK_IN(stop());
}

static void idle_memory_goes_back(void)
{
    uint64_t position, read = 0;
    bw_span_t span = {0};

    CHECK_IN(start());
    position = fill_up(here.one, 0);
    while (read < position) {
        CHECK_EQ(await_bytes(here.other, 1, &span), BW_OK);
        here.other->ops->release(here.other, span.len);
        read += span.len;
        run_end_of(here.one);
    }
    CHECK(carrier_mappings("Rss:") >= (long)RING / 1024);
    here.one->ops->trim(here.one);
    here.other->ops->trim(here.other);
    if (!carrier->at_rest) /* rdma has locked it */
        CHECK(carrier_mappings("Rss:") < (long)RING / 1024);
    CHECK_IN(write_bytes(here.one, "still there", 11));
    CHECK_IN(read_bytes(here.other, "still there"));
    CHECK_IN(stop());
}

static const check_case_t cases[] = {
    {"both_ends_carry_bytes", both_ends_carry_bytes},
    {"bytes_keep_their_order", bytes_keep_their_order},
    {"a_full_ring_may_be_looked_at", a_full_ring_may_be_looked_at},
    {"a_sleeping_reader_is_woken", a_sleeping_reader_is_woken},
    {"a_reader_that_comes_late_does_not_sleep", a_reader_that_comes_late_does_not_sleep},
    {"a_link_wakes_itself", a_link_wakes_itself},
    {"a_writer_without_room_is_woken", a_writer_without_room_is_woken},
    {"room_rings", room_rings},
    {"a_flush_sends_what_was_gathered", a_flush_sends_what_was_gathered},
    {"the_end_comes_after_the_last_word", the_end_comes_after_the_last_word},
    {"the_end_rings", the_end_rings},
    {"writing_to_a_closed_end_does_no_harm", writing_to_a_closed_end_does_no_harm},
    {"what_is_not_taken_is_counted", what_is_not_taken_is_counted},
    {"close_hands_over_the_descriptor", close_hands_over_the_descriptor},
    {"descriptors_are_not_inherited", descriptors_are_not_inherited},
    {"idle_memory_goes_back", idle_memory_goes_back},
};

CARRIERS_MAIN(cases)
