/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how much memory a link uses: none before its first use, the rings while bytes flow, and
 * none again after trim. Also tests that frames far larger than the ring pass through it.
 */
#include "../check.h"
#include "../rings.h"

#include "../../link/frame.h"

#define RING ((uint64_t)4 * 1024 * 1024)
#define IDLE_KB 192 /* the goal is 256 KB per link for both ends */

/* Writes and reads `bytes` in one direction; the value of each byte is derived from `seed`. */
static void flow(bw_link_t *from, bw_link_t *to, uint64_t bytes, uint64_t seed)
{
    uint64_t written = 0, done = 0, out = seed, in = seed;

    while (done < bytes) {
        bw_span_t span = {0};
        size_t n;

        if (from->ops->reserve(from, 1, &span) == BW_OK) {
            n = span.len < bytes - written ? span.len : (size_t)(bytes - written);
            for (size_t i = 0; i < n; i++)
                span.base[i] = (uint8_t)(next_random(&out) >> 56);
            from->ops->commit(from, n);
            written += n;
        }
        CHECK_EQ(to->ops->peek(to, &span), BW_OK);
        for (size_t i = 0; i < span.len; i++)
            CHECK_EQ(span.base[i], (uint8_t)(next_random(&in) >> 56));
        to->ops->release(to, span.len);
        done += span.len;
    }
    CHECK_EQ(done, bytes);
}

/* Returns the memory used by the rings of both ends. A page that is mapped several times in one
 * process is divided among its mappings. */
static long used_kb(void)
{
    return carrier_mappings("Pss:");
}

static void a_new_link_costs_nearly_nothing(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};

    CHECK(open_link(RING, &joined, &accepted, &error));
    CHECK(used_kb() > 0);
    CHECK(used_kb() <= 64);
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
    CHECK_EQ(used_kb(), 0);
}

static void trim_all(bw_link_t *link)
{
    while (link->ops->trim(link))
        ;
}

/* No call may hold up a scheduler for too long, however large the ring is. */
static void trim_gives_back_piece_by_piece(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};
    long before, after;
    int calls = 0;
    bool more;

    CHECK(open_link(16 * RING, &joined, &accepted, &error));
    CHECK_IN(flow(joined, accepted, 16 * RING + 12345, 1));
    before = used_kb();
    CHECK(before >= 16 * 4096);
    do {
        more = joined->ops->trim(joined);
        after = used_kb();
        /* both mappings of a piece at both ends, and the pages around it */
        CHECK(before - after <= 1024 + 64);
        before = after;
        calls++;
    } while (more && calls < 1000);
    CHECK(calls >= 64);
    CHECK(after <= IDLE_KB);
    /* a single call releases only a little */
    CHECK_IN(flow(joined, accepted, 10000, 2));
    CHECK(!joined->ops->trim(joined));
    CHECK(used_kb() <= IDLE_KB);
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

static void trim_gives_memory_back(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};

    CHECK(open_link(RING, &joined, &accepted, &error));
    for (uint64_t round = 1; round <= 3; round++) {
        CHECK_IN(flow(joined, accepted, RING + 12345, round));
        CHECK(used_kb() >= 4096);
        trim_all(joined);
        CHECK(used_kb() <= IDLE_KB);
        CHECK_IN(flow(accepted, joined, RING + 777, round + 50));
        CHECK(used_kb() >= 4096);
        trim_all(joined); /* only the producer can release it */
        CHECK(used_kb() >= 4096);
        trim_all(accepted);
        CHECK(used_kb() <= IDLE_KB);
    }
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

/* A link that is used only occasionally is not worth a timer, so its user does not call trim. */
static void a_little_is_not_spare(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};

    CHECK(open_link(RING, &joined, &accepted, &error));
    for (int round = 0; round < 3; round++) {
        CHECK_IN(flow(joined, accepted, 64 * 1024, 1));
        CHECK(!joined->ops->has_spare(joined));
        CHECK_IN(flow(joined, accepted, 1, 2));
        CHECK(joined->ops->has_spare(joined));
        CHECK(!accepted->ops->has_spare(accepted));
        trim_all(joined);
        CHECK(used_kb() <= IDLE_KB);
    }
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

/* Nothing is released while the peer has unread bytes, and none of those bytes is lost. */
static void trim_waits_for_the_reader(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_span_t span = {0};
    bw_error_t error = {0};

    CHECK(open_link(RING, &joined, &accepted, &error));
    CHECK_IN(flow(joined, accepted, RING / 2, 1));
    CHECK_EQ(joined->ops->reserve(joined, 100, &span), BW_OK);
    memset(span.base, 'x', 100);
    joined->ops->commit(joined, 100);
    trim_all(joined);
    CHECK(used_kb() >= 2048);
    CHECK_EQ(accepted->ops->peek(accepted, &span), BW_OK);
    CHECK_EQ(span.len, 100);
    for (size_t i = 0; i < 100; i++)
        CHECK_EQ(span.base[i], 'x');
    accepted->ops->release(accepted, 99);
    trim_all(joined);
    CHECK(used_kb() >= 2048);
    accepted->ops->release(accepted, 1);
    trim_all(joined);
    CHECK(used_kb() <= IDLE_KB);
    CHECK_IN(flow(joined, accepted, 3 * RING, 2));
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

/* A full mesh of 64 nodes on the same host: measures the memory that a node uses if each link was
 * used once and has been idle since. */
static void idle_links_are_cheap(void)
{
    enum { LINKS = 63 };
    static bw_link_t *joined[LINKS], *accepted[LINKS];
    bw_error_t error = {0};

    for (int i = 0; i < LINKS; i++) {
        CHECK(open_link(RING, &joined[i], &accepted[i], &error));
        CHECK_IN(flow(joined[i], accepted[i], 300000, 9));
        CHECK_IN(flow(accepted[i], joined[i], 300000, 8));
        trim_all(joined[i]);
        trim_all(accepted[i]);
    }
    CHECK(used_kb() <= LINKS * (long)IDLE_KB);
    for (int i = 0; i < LINKS; i++) {
        joined[i]->ops->close(joined[i], NULL);
        accepted[i]->ops->close(accepted[i], NULL);
    }
    CHECK_EQ(used_kb(), 0);
}

/* A 40 MB frame passes through the smallest ring, because the header comes first and announces the
 * length. */
static void a_frame_larger_than_the_ring_streams_through(void)
{
    const uint32_t len = 40 * 1000 * 1000 + 3;
    uint64_t size = bw_frame_size(len), written = 0, done = 0, out = 42, in = 42;
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};
    bw_frame_t frame = {0};

    CHECK(open_link(BW_RING_MIN_BYTES, &joined, &accepted, &error));
    while (done < size) {
        bw_span_t span = {0};

        while (written < size && joined->ops->reserve(joined, 1, &span) == BW_OK) {
            size_t n = span.len < size - written ? span.len : (size_t)(size - written), at = 0;

            if (written == 0) {
                bw_frame_put_header(span.base, BW_FRAME_DATA, len);
                at = BW_FRAME_HEADER_BYTES;
            }
            for (; at < n; at++)
                span.base[at] = (uint8_t)(next_random(&out) >> 56);
            joined->ops->commit(joined, n);
            written += n;
        }
        CHECK_EQ(accepted->ops->peek(accepted, &span), BW_OK);
        if (done == 0) {
            CHECK_EQ(bw_frame_parse(span.base, span.len, &frame), BW_FRAME_PART);
            CHECK_EQ(frame.len, len);
            CHECK_EQ(frame.size, size);
        }
        for (size_t i = done == 0 ? BW_FRAME_HEADER_BYTES : 0; i < span.len; i++)
            CHECK_EQ(span.base[i], (uint8_t)(next_random(&in) >> 56));
        accepted->ops->release(accepted, span.len);
        done += span.len;
    }
    CHECK_EQ(done, size);
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

/* A peer that has died or lies about its position cannot cause harm in trim and stats. */
static void trim_and_stats_of_a_lying_peer(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_link_stats_t stats;
    bw_error_t error = {0};
    bw_ring_shared_t *headers = NULL;
    FILE *maps;
    char line[512];

    CHECK(open_link(RING, &joined, &accepted, &error));
    maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (!headers && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:beamway") && strstr(line, " 00000000 "))
            headers = (bw_ring_shared_t *)(uintptr_t)strtoull(line, NULL, 16);
    fclose(maps);
    CHECK(headers != NULL);
    CHECK_IN(flow(joined, accepted, 5000, 1));
    CHECK_EQ(headers[0].head, 5000);
    for (int i = 0; i < 64; i++) {
        atomic_store(&headers[0].tail, 1ull << i);
        atomic_store(&headers[1].head, UINT64_MAX << i);
        trim_all(joined);
        joined->ops->stats(joined, &stats);
        CHECK_EQ(stats.bytes_out, 5000);
        CHECK(stats.fill_out <= RING && stats.fill_in <= RING);
    }
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

static const check_case_t cases[] = {
    {"a_new_link_costs_nearly_nothing", a_new_link_costs_nearly_nothing},
    {"trim_gives_back_piece_by_piece", trim_gives_back_piece_by_piece},
    {"trim_gives_memory_back", trim_gives_memory_back},
    {"a_little_is_not_spare", a_little_is_not_spare},
    {"trim_waits_for_the_reader", trim_waits_for_the_reader},
    {"idle_links_are_cheap", idle_links_are_cheap},
    {"a_frame_larger_than_the_ring_streams_through", a_frame_larger_than_the_ring_streams_through},
    {"trim_and_stats_of_a_lying_peer", trim_and_stats_of_a_lying_peer},
};

CHECK_MAIN(cases)
