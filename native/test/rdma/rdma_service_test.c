/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how the rdma carrier copes with a device that misbehaves, with both ends in one process.
 * This runs over the fake verbs only, because no real device fails on demand.
 */
#include "rdma_ends.h"
#include "../carriers.h"

static bw_link_t *one, *other;

static void open_both(void)
{
    bw_error_t error = {0};

    one = other = NULL;
    run_over(rdma);
    CHECK(open_ends(RING, &one, &other, &error));
    CHECK(writes(one, "there", 5, WAIT_MS));
    CHECK(reads(other, "there", 5, WAIT_MS));
}

/* The carrier frees its resources asynchronously; after that it owns no device objects. */
static void close_both(void)
{
    int64_t end = now_ms() + WAIT_MS;

    one->ops->close(one, NULL);
    if (other)
        other->ops->close(other, NULL);
    while ((carrier_mappings(NULL) > 0 || fake_verbs_held() > 0) && now_ms() < end)
        (void)poll(NULL, 0, 1);
    CHECK_EQ(carrier_mappings(NULL), 0);
    CHECK_EQ(fake_verbs_held(), 0);
}

/* A process that forks while a link exists, as rdpipe's agent does, keeps the link even on old
 * kernels. */
static void forks_are_prepared_for(void)
{
    CHECK_IN(begin_rdma());
    CHECK(fake_verbs_is_fork_safe());
}

/* The service may be just about to set up a connection when its user closes it. */
static void who_leaves_at_once_is_freed_once(void)
{
    bw_link_t *connection = NULL;
    bw_error_t error = {0};
    bw_rdma_address_t at;
    int before;

    CHECK_IN(begin_rdma());
    CHECK(find_address(4, &at));
    before = descriptors_at_rest();
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 50; i++) {
            CHECK_EQ(listen_at(&at, 0, 0, RING, &connection, &error), BW_OK);
            connection->ops->close(connection, NULL);
        }
        CHECK_EQ(descriptors_at_rest(), before);
    }
}

/* The peer is silent and the link still has bytes to send when its device is removed: no part of
 * the link may be leaked, and the process must not wait for the link when it exits. */
static void a_link_that_lingers_goes_with_its_device(void)
{
    int64_t end = now_ms() + WAIT_MS;

    CHECK_IN(open_both());
    fake_verbs_complete_late(60000);
    CHECK(writes(one, "last words", 10, WAIT_MS));
    one->ops->close(one, NULL);
    while (!fake_verbs_is_waited_for() && now_ms() < end)
        (void)poll(NULL, 0, 1);
    CHECK(fake_verbs_is_waited_for());
    CHECK(fake_verbs_remove());
    fake_verbs_add();
    fake_verbs_complete_late(0);
    one = other;
    other = NULL;
    CHECK(ends_with(one, "", WAIT_MS)); /* everything that was sent had arrived */
    CHECK_IN(close_both());
}

static void a_post_that_fails_ends_the_link(void)
{
    CHECK_IN(open_both());
    fake_verbs_fail_posts(1);
    (void)writes(one, "words", 5, WAIT_MS);
    CHECK(ends_with(one, "beamway_rdma_device_failed", WAIT_MS));
    one->ops->close(one, NULL);
    one = other;
    other = NULL;
    CHECK(ends_with(one, "connection_closed", WAIT_MS));
    CHECK_IN(close_both());
}

/* Until the completion, the device may read the bytes again. The fake device aborts if they
 * change. */
static void bytes_stay_until_their_completion(void)
{
    static uint8_t bytes[8 * RING];
    uint64_t written = 0, read = 0;
    int64_t end = now_ms() + WAIT_MS;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = byte_at(i);
    CHECK_IN(open_both());
    fake_verbs_complete_late(20);
    while (read < sizeof bytes && now_ms() < end) {
        bw_span_t span = {0};

        if (written < sizeof bytes && one->ops->reserve(one, RING / 4, &span) == BW_OK) {
            size_t n = span.len < sizeof bytes - written ? span.len : sizeof bytes - written;

            memcpy(span.base, bytes + written, n);
            one->ops->commit(one, n);
            written += n;
        }
        (void)one->ops->peek(one, &span); /* sends what was queued */
        if (other->ops->peek(other, &span) == BW_OK) {
            CHECK_EQ(memcmp(span.base, bytes + read, span.len), 0);
            other->ops->release(other, span.len);
            read += span.len;
        }
    }
    CHECK_EQ(read, sizeof bytes);
    fake_verbs_complete_late(0);
    CHECK_IN(close_both());
}

/* The device raises more events than one call processes; none of them affects a connection. */
static void a_storm_of_events_does_no_harm(void)
{
    CHECK_IN(open_both());
    fake_verbs_raise(IBV_EVENT_LID_CHANGE, 1000);
    fake_verbs_raise(IBV_EVENT_PORT_ACTIVE, 1000);
    for (int i = 0; i < 100; i++) {
        CHECK(writes(one, &i, sizeof i, WAIT_MS));
        CHECK(reads(other, &i, sizeof i, WAIT_MS));
        CHECK(writes(other, &i, sizeof i, WAIT_MS));
        CHECK(reads(one, &i, sizeof i, WAIT_MS));
    }
    CHECK_IN(close_both());
}

static void a_device_that_fails_is_gone(void)
{
    CHECK_IN(open_both());
    fake_verbs_raise(IBV_EVENT_DEVICE_FATAL, 1);
    CHECK(ends_with(one, "beamway_rdma_device_removed", WAIT_MS));
    CHECK(ends_with(other, "beamway_rdma_device_removed", WAIT_MS));
    CHECK_IN(close_both());
    CHECK(fake_verbs_remove());
    fake_verbs_add();
    CHECK_IN(open_both());
    CHECK_IN(close_both());
}

static const check_case_t cases[] = {
    {"forks_are_prepared_for", forks_are_prepared_for},
    {"who_leaves_at_once_is_freed_once", who_leaves_at_once_is_freed_once},
    {"a_link_that_lingers_goes_with_its_device", a_link_that_lingers_goes_with_its_device},
    {"a_post_that_fails_ends_the_link", a_post_that_fails_ends_the_link},
    {"bytes_stay_until_their_completion", bytes_stay_until_their_completion},
    {"a_storm_of_events_does_no_harm", a_storm_of_events_does_no_harm},
    {"a_device_that_fails_is_gone", a_device_that_fails_is_gone},
};

CHECK_MAIN(cases)
