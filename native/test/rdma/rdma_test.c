/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the rdma carrier between two processes on a real device (soft-RoCE is enough): how they
 * connect, that bytes arrive in order whatever the ring's size, that every wait ends, and how a
 * link ends.
 */
#include "rdma_ends.h"

#include <arpa/inet.h>

/* ---- connection ---- */

static void talk_here(int wire, int family)
{
    bw_link_t *link = NULL;
    bw_link_stats_t stats;

    CHECK_IN(link_here(wire, family, RING, &link));
    CHECK_EQ(strcmp(link->ops->kind, "rdma"), 0);
    CHECK(writes(link, "there", 5, WAIT_MS));
    CHECK(reads(link, "and back", 8, WAIT_MS));
    link->ops->stats(link, &stats);
    CHECK_EQ(stats.bytes_out, 5);
    CHECK_EQ(stats.bytes_in, 8);
    CHECK_EQ(stats.ring_bytes, RING);
    CHECK_EQ(stats.fill_in, 0);
    link->ops->close(link, NULL);
}

static void talk_there(int wire)
{
    bw_link_t *link = NULL;

    CHECK_IN(link_there(wire, RING, &link));
    CHECK(reads(link, "there", 5, WAIT_MS));
    CHECK(writes(link, "and back", 8, WAIT_MS));
    CHECK(ends_with(link, "", WAIT_MS));
    link->ops->close(link, NULL);
}

static void talk_here_over_ipv4(int wire)
{
    talk_here(wire, 4);
}

static void talk_here_over_ipv6(int wire)
{
    talk_here(wire, 6);
}

static void over_ipv4(void)
{
    run_pair(talk_here_over_ipv4, talk_there);
}

static void over_ipv6(void)
{
    run_pair(talk_here_over_ipv6, talk_there);
}

/* A peer without the token is rejected, and the connection continues to wait. */
static void token_here(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    offer_t offer = {0};

    CHECK_IN(begin_listening(4, RING, &connection, &offer));
    CHECK(tell(wire, &offer, sizeof offer));
    CHECK_EQ(wait_from(connection, BW_LISTENING, &report), BW_LINKED);
    connection->ops->close(connection, NULL); /* a link that is never used */
}

static void token_there(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    bw_error_t error = {0};
    uint8_t wrong[BW_TOKEN_BYTES];
    offer_t offer;

    if (!hear(wire, &offer, sizeof offer))
        SKIP("the other side could not begin");
    for (int bit = 0; bit < 128; bit += 127) {
        memcpy(wrong, offer.token, sizeof wrong);
        wrong[bit / 8] ^= (uint8_t)(1 << bit % 8);
        CHECK_EQ(connect_to(&offer.at, wrong, RING, WAIT_MS, &connection, &error), BW_OK);
        CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
        CHECK_EQ(report.status, BW_REFUSED);
        CHECK(strstr(report.text, "token") != NULL);
        connection->ops->close(connection, NULL);
    }
    CHECK_EQ(connect_to(&offer.at, offer.token, 2 * RING, WAIT_MS, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
    CHECK_EQ(report.status, BW_REFUSED);
    CHECK(strstr(report.text, "larger") != NULL);
    connection->ops->close(connection, NULL);
    CHECK_EQ(connect_to(&offer.at, offer.token, RING, WAIT_MS, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_LINKED);
    connection->ops->close(connection, NULL);
    /* the token was valid for one peer only */
    CHECK_EQ(connect_to(&offer.at, offer.token, RING, WAIT_MS, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
    connection->ops->close(connection, NULL);
}

static void only_the_token_opens(void)
{
    run_pair(token_here, token_there);
}

static void nothing(int wire)
{
    (void)wire;
}

static void refusals(int wire)
{
    bw_rdma_address_t at = {0}, nowhere = {.family = 4, .ip = {127, 0, 0, 1}, .port = 18515};
    static const uint8_t token[BW_TOKEN_BYTES];
    static const uint64_t sizes[] = {
        0, 1, RING - 1, RING + 1, 3 * RING, 2 * BW_RING_MAX_BYTES, UINT64_MAX};
    bw_link_t *connection = NULL;
    bw_report_t report;
    bw_error_t error = {0};
    int before;

    (void)wire;
    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    at.port = 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_EQ(connect_to(&at, token, sizes[i], WAIT_MS, &connection, &error), BW_INVALID);
    at.port = 0;
    CHECK_EQ(connect_to(&at, token, RING, WAIT_MS, &connection, &error), BW_INVALID);
    CHECK_EQ(listen_at(&at, 5, 4, RING, &connection, &error), BW_INVALID);
    CHECK_EQ(listen_at(&at, 0, 4, RING, &connection, &error), BW_INVALID);
    at.family = 5;
    CHECK_EQ(listen_at(&at, 0, 0, RING, &connection, &error), BW_INVALID);
    at.family = 4;
    CHECK(connection == NULL);
    /* there is no listener, so the device replies immediately */
    at.port = 4;
    CHECK_EQ(connect_to(&at, token, RING, WAIT_MS, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
    CHECK_EQ(report.status, BW_REFUSED);
    CHECK(strstr(report.text, "nobody listens") != NULL);
    connection->ops->close(connection, NULL);
    /* an address that does not belong to any device */
    CHECK_EQ(listen_at(&nowhere, 0, 0, RING, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
    CHECK(strstr(report.text, "127.0.0.1") != NULL);
    connection->ops->close(connection, NULL);
    CHECK_EQ(connect_to(&nowhere, token, RING, WAIT_MS, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
    connection->ops->close(connection, NULL);
    CHECK_EQ(descriptors_at_rest(), before);
}

static void what_cannot_be_is_said(void)
{
    run_pair(refusals, nothing);
}

/* Listeners at the same address share a port, which is in the requested range. */
static void ports(int wire)
{
    bw_link_t *connections[3] = {0};
    bw_report_t report, first;
    bw_rdma_address_t at;
    bw_error_t error = {0};
    int before;

    (void)wire;
    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(listen_at(&at, 20000, 20001, RING, &connections[i], &error), BW_OK);
        CHECK_EQ(wait_from(connections[i], BW_WORKING, &report), BW_LISTENING);
        if (i == 0)
            first = report;
    }
    CHECK_EQ(port_of(&first), 20000);
    CHECK_EQ(port_of(&report), 20000);
    CHECK(memcmp(first.token, report.token, sizeof first.token) != 0);
    CHECK_EQ(listen_at(&at, 20001, 20001, RING, &connections[2], &error), BW_OK);
    CHECK_EQ(wait_from(connections[2], BW_WORKING, &report), BW_LISTENING);
    CHECK_EQ(port_of(&report), 20001);
    for (int i = 0; i < 3; i++)
        connections[i]->ops->close(connections[i], NULL);
    CHECK_EQ(descriptors_at_rest(), before);
}

static void ports_are_of_the_range(void)
{
    run_pair(ports, nothing);
}

/* Another process may have used up the port range: the listener must report that and must not
 * hang. */
static void hold_port(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    bw_rdma_address_t at;
    bw_error_t error = {0};
    char done;

    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    CHECK_EQ(listen_at(&at, 20005, 20005, RING, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_LISTENING);
    CHECK(tell(wire, "!", 1));
    CHECK(hear(wire, &done, 1));
    connection->ops->close(connection, NULL);
}

static void want_port(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    bw_rdma_address_t at;
    bw_error_t error = {0};
    char done;

    if (!hear(wire, &done, 1) || !find_address(4, &at))
        SKIP("the other side could not begin");
    CHECK_EQ(listen_at(&at, 20005, 20005, RING, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
    CHECK(strstr(report.text, "no port of 20005 to 20005 is free") != NULL);
    connection->ops->close(connection, NULL);
    CHECK(tell(wire, "!", 1));
}

static void a_port_that_is_taken(void)
{
    run_pair(hold_port, want_port);
}

/* ---- bytes ---- */

#define STREAM_BYTES (40 * RING)

/* Alternates between writing and reading, in pieces of any size, until both streams are
 * complete. */
static void stream(bw_link_t *link, uint64_t seed)
{
    const bw_carrier_t *ops = link->ops;
    uint64_t written = 0, read = 0;
    bw_link_stats_t stats;

    while (written < STREAM_BYTES || read < STREAM_BYTES) {
        uint64_t want =
            next_random(&seed) % 3 ? 1 + next_random(&seed) % 700 : 1 + next_random(&seed) % RING;
        bw_status_t status = BW_OK;
        bw_span_t span = {0};

        if (ops->peek(link, &span) == BW_OK) {
            for (size_t i = 0; i < span.len; i++)
                CHECK_EQ(span.base[i], byte_at(read + i));
            read += span.len;
            ops->release(link, span.len);
        }
        ops->clear_event(link);
        want = want < STREAM_BYTES - written ? want : STREAM_BYTES - written;
        if (want > 0 && ops->reserve(link, want, &span) == BW_OK) {
            want = want < span.len ? want : span.len;
            for (uint64_t i = 0; i < want; i++)
                span.base[i] = byte_at(written + i);
            written += want;
            ops->commit(link, want);
            continue;
        }
        if (want > 0)
            status = ops->arm_write(link, want < RING / 2 ? want : RING / 2);
        if (status == BW_OK && read < STREAM_BYTES)
            status = ops->arm_read(link);
        CHECK(status == BW_OK || status == BW_AGAIN);
        if (status == BW_OK && (written < STREAM_BYTES || read < STREAM_BYTES))
            CHECK(poll(&(struct pollfd){.fd = ops->fd(link), .events = POLLIN}, 1, WAIT_MS) == 1);
    }
    ops->stats(link, &stats);
    CHECK_EQ(stats.bytes_in, STREAM_BYTES);
    CHECK_EQ(stats.bytes_out, STREAM_BYTES);
}

static void stream_here(int wire)
{
    int before;
    bw_link_t *link = NULL;
    bw_rdma_address_t at;

    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK_IN(stream(link, 11));
    CHECK(ends_with(link, "", WAIT_MS));
    link->ops->close(link, NULL);
    CHECK_EQ(descriptors_at_rest(), before);
}

static void stream_there(int wire)
{
    bw_link_t *link = NULL;

    CHECK_IN(link_there(wire, RING, &link));
    CHECK_IN(stream(link, 12));
    link->ops->close(link, NULL);
}

static void bytes_arrive_in_order(void)
{
    run_pair(stream_here, stream_there);
}

/* A ring that is not read fills up, and its writer is woken once half of it has been read. */
static void full_here(int wire)
{
    const uint64_t all = 2 * RING; /* one ring on each side */
    bw_link_t *link = NULL;
    bw_span_t span = {0};
    uint64_t written = 0;
    char go = '!';

    CHECK_IN(link_here(wire, 4, RING, &link));
    while (link->ops->reserve(link, RING, &span) == BW_OK && written < all) {
        memset(span.base, 7, span.len);
        written += span.len;
        link->ops->commit(link, span.len);
        /* Give completions time to arrive, in case they wrongly make room. */
        (void)wait_to_read(link, &span, 100);
    }
    CHECK_EQ(written, RING);
    CHECK_EQ(link->ops->arm_write(link, RING / 2), BW_OK);
    for (int wakes = 0; wakes < 10 && sleep_on(link, 200); wakes++)
        CHECK_EQ(link->ops->arm_write(link, RING / 2), BW_OK); /* a completion does not make room */
    CHECK(tell(wire, &go, 1));
    for (int wakes = 0; link->ops->arm_write(link, RING / 2) == BW_OK && wakes < 10; wakes++)
        CHECK(sleep_on(link, WAIT_MS));
    CHECK_EQ(link->ops->reserve(link, RING / 2, &span), BW_OK);
    CHECK(span.len >= RING / 2);
    link->ops->close(link, NULL);
}

static void full_there(int wire)
{
    bw_link_t *link = NULL;
    bw_span_t span = {0};
    uint64_t read = 0;
    char go;

    CHECK_IN(link_there(wire, RING, &link));
    CHECK(hear(wire, &go, 1));
    while (read < RING - RING / 16) {
        CHECK_EQ(wait_to_read(link, &span, WAIT_MS), BW_OK);
        link->ops->release(link, 1024);
        read += 1024;
    }
    /* the last sixteenth stays unread, as a partial frame may */
    CHECK(wait_for_end(link, WAIT_MS) != NULL);
    link->ops->close(link, NULL);
}

static void a_full_ring_wakes_its_writer(void)
{
    run_pair(full_here, full_there);
}

/* A sleeping end is woken many times; in between, the descriptor is not readable. */
static void ping_here(int wire)
{
    bw_link_t *link = NULL;
    bw_link_stats_t stats;

    CHECK_IN(link_here(wire, 4, RING, &link));
    for (int i = 0; i < 2000; i++) {
        CHECK(writes(link, &i, sizeof i, WAIT_MS));
        CHECK(reads(link, &i, sizeof i, WAIT_MS));
    }
    link->ops->stats(link, &stats);
    CHECK(stats.doorbells_out < 2000 + 200); /* every post carries bytes or credits */
    CHECK(stats.doorbells_in > 100);         /* otherwise wake-ups were not tested */
    link->ops->close(link, NULL);
}

static void ping_there(int wire)
{
    bw_link_t *link = NULL;

    CHECK_IN(link_there(wire, RING, &link));
    for (int i = 0; i < 2000; i++) {
        CHECK(reads(link, &i, sizeof i, WAIT_MS));
        CHECK(writes(link, &i, sizeof i, WAIT_MS));
    }
    CHECK(ends_with(link, "", WAIT_MS));
    link->ops->close(link, NULL);
}

static void every_sleeper_is_woken(void)
{
    run_pair(ping_here, ping_there);
}

/* ---- closing ---- */

/* Everything that was committed arrives, however soon the writer closes; the descriptor stays open
 * if the caller asks for that. */
static void last_here(int wire)
{
    static uint8_t bytes[RING];
    bw_leftover_t left = {.fd = -1};

    for (int round = 0; round < 10; round++) {
        bw_link_t *link = NULL;

        CHECK_IN(link_here(wire, 4, RING, &link));
        memset(bytes, round, sizeof bytes);
        CHECK(writes(link, bytes, sizeof bytes, WAIT_MS));
        link->ops->close(link, round % 2 ? &left : NULL);
        if (round % 2) {
            CHECK_EQ(poll(&(struct pollfd){.fd = left.fd, .events = POLLIN}, 1, 0), 0);
            CHECK_EQ(close(left.fd), 0);
            bw_leftover_free(&left);
        }
        CHECK(hear(wire, &left, 1));
    }
}

static void last_there(int wire)
{
    static uint8_t bytes[RING];

    for (int round = 0; round < 10; round++) {
        bw_link_t *link = NULL;

        CHECK_IN(link_there(wire, RING, &link));
        memset(bytes, round, sizeof bytes);
        CHECK(reads(link, bytes, sizeof bytes, WAIT_MS));
        CHECK(ends_with(link, "", WAIT_MS));
        link->ops->close(link, NULL);
        CHECK(tell(wire, "!", 1));
    }
}

static void last_words_arrive(void)
{
    run_pair(last_here, last_there);
}

/* If the reader does not read, a closed link is kept for a second and no longer. Other processes
 * may be using the CPUs in the meantime, so only one of several attempts has to meet the limit. */
static void deaf_here(int wire)
{
    static uint8_t bytes[RING];
    bw_link_t *link = NULL;
    int before;
    bw_rdma_address_t at;
    bool in_time = false;

    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    for (int tries = 0; tries < 5 && !in_time; tries++) {
        int64_t start;

        CHECK_IN(link_here(wire, 4, RING, &link));
        CHECK(writes(link, bytes, sizeof bytes, WAIT_MS));
        start = now_ms();
        link->ops->close(link, NULL);
        in_time = now_ms() - start < 100;
        CHECK_EQ(descriptors_at_rest(), before);
        in_time = in_time && now_ms() - start < 2500;
        CHECK(tell(wire, &in_time, sizeof in_time));
    }
    CHECK(in_time);
}

static void deaf_there(int wire)
{
    bw_link_t *link = NULL;
    bool in_time = false;

    for (int tries = 0; tries < 5 && !in_time; tries++) {
        CHECK_IN(link_there(wire, RING, &link));
        CHECK(hear(wire, &in_time, sizeof in_time));
        link->ops->close(link, NULL);
    }
}

static void closing_does_not_wait_for_a_deaf_peer(void)
{
    run_pair(deaf_here, deaf_there);
}

static const check_case_t cases[] = {
    {"over_ipv4", over_ipv4},
    {"over_ipv6", over_ipv6},
    {"only_the_token_opens", only_the_token_opens},
    {"what_cannot_be_is_said", what_cannot_be_is_said},
    {"ports_are_of_the_range", ports_are_of_the_range},
    {"a_port_that_is_taken", a_port_that_is_taken},
    {"bytes_arrive_in_order", bytes_arrive_in_order},
    {"a_full_ring_wakes_its_writer", a_full_ring_wakes_its_writer},
    {"every_sleeper_is_woken", every_sleeper_is_woken},
    {"last_words_arrive", last_words_arrive},
    {"closing_does_not_wait_for_a_deaf_peer", closing_does_not_wait_for_a_deaf_peer},
};

CHECK_MAIN(cases)
