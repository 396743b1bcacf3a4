/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the ring's arithmetic where it wraps, at the limits of 32, 63 and 64 bits, and with
 * positions that no correct peer writes. This program has one thread; stress_test.c has several.
 */
#include "../check.h"
#include "../rings.h"

#include "../../link/ring.h"

#define SIZE BW_RING_MIN_BYTES

typedef struct {
    bw_ring_shared_t *shared;
    uint8_t *data;
    bw_tx_t tx;
    bw_rx_t rx;
} ring_t;

/* Start positions. Each is used as it is and also slightly lower, so that the run crosses it. */
static const uint64_t starts[] = {
    0,
    1,
    SIZE - 1,
    SIZE,
    SIZE + 1,
    (1ull << 31) - SIZE,
    (1ull << 31) - 1,
    1ull << 31,
    (1ull << 32) - SIZE,
    (1ull << 32) - 1,
    1ull << 32,
    (1ull << 62) - 1,
    (1ull << 63) - SIZE,
    (1ull << 63) - 1,
    1ull << 63,
    UINT64_MAX - SIZE,
    UINT64_MAX - SIZE + 1,
    UINT64_MAX - 8,
    UINT64_MAX - 1,
    UINT64_MAX,
};

#define STARTS (sizeof starts / sizeof *starts)

static alignas(64) bw_ring_shared_t shared_memory;
static uint8_t *ring_memory;

static ring_t ring_at(uint64_t start)
{
    ring_t ring = {.shared = &shared_memory};

    if (!ring_memory)
        ring_memory = map_twice(SIZE);
    ring.data = ring_memory;
    bw_ring_init(ring.shared, start);
    bw_tx_attach(&ring.tx, ring.shared, ring.data, SIZE, start);
    bw_rx_attach(&ring.rx, ring.shared, ring.data, SIZE, start);
    return ring;
}

/* Writes n bytes whose values are derived from their positions. */
static void write_bytes(ring_t *ring, size_t n)
{
    bw_span_t span = {0};

    CHECK_EQ(bw_tx_reserve(&ring->tx, n, &span), BW_OK);
    CHECK(span.len >= n);
    CHECK(span.base >= ring->data && span.base < ring->data + SIZE);
    for (size_t i = 0; i < n; i++)
        span.base[i] = (uint8_t)((ring->tx.head + i) * 31 >> 3);
    tx_commit(&ring->tx, n);
}

static void read_bytes(ring_t *ring, size_t n)
{
    bw_span_t span = {0};

    CHECK_EQ(bw_rx_peek(&ring->rx, &span), BW_OK);
    CHECK(span.len >= n);
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(span.base[i], (uint8_t)((ring->rx.tail + i) * 31 >> 3));
    bw_rx_release(&ring->rx, n);
}

static void sizes(void)
{
    static const struct {
        uint64_t size;
        bool valid;
    } table[] = {
        {0, false},
        {1, false},
        {4096, false},
        {SIZE - 1, false},
        {SIZE / 2, false},
        {SIZE, true},
        {SIZE + 1, false},
        {3 * SIZE, false},
        {1ull << 20, true},
        {1ull << 22, true},
        {BW_RING_MAX_BYTES, true},
        {BW_RING_MAX_BYTES + 1, false},
        {2 * BW_RING_MAX_BYTES, false},
        {1ull << 32, false},
        {1ull << 63, false},
        {UINT64_MAX, false},
        {1000000000000ull, false},
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        CHECK_EQ(bw_ring_size_is_valid(table[i].size), table[i].valid);
}

static void empty_and_full_at_every_start(void)
{
    for (size_t i = 0; i < STARTS; i++) {
        ring_t ring = ring_at(starts[i]);
        bw_span_t span = {0};

        CHECK_EQ(bw_rx_peek(&ring.rx, &span), BW_AGAIN);
        CHECK(bw_tx_is_drained(&ring.tx));
        CHECK_EQ(bw_tx_reserve(&ring.tx, 1, &span), BW_OK);
        CHECK_EQ(span.len, SIZE);
        CHECK(span.base == ring.data + starts[i] % SIZE);
        CHECK_IN(write_bytes(&ring, SIZE));
        CHECK_EQ(ring.shared->head, starts[i] + SIZE);
        CHECK(!bw_tx_is_drained(&ring.tx));
        CHECK_EQ(bw_tx_reserve(&ring.tx, 1, &span), BW_AGAIN);
        CHECK_EQ(bw_tx_reserve(&ring.tx, SIZE_MAX, &span), BW_AGAIN);
        CHECK_IN(read_bytes(&ring, SIZE - 1));
        CHECK_EQ(bw_tx_reserve(&ring.tx, 1, &span), BW_OK);
        CHECK_EQ(span.len, SIZE - 1);
        CHECK_IN(read_bytes(&ring, 1));
        CHECK_EQ(bw_rx_peek(&ring.rx, &span), BW_AGAIN);
        CHECK(bw_tx_is_drained(&ring.tx));
    }
}

/* Uses pieces of every length up to 300 from each start; the ring is never empty and wraps several
 * times. */
static void pieces_cross_every_edge(void)
{
    for (size_t i = 0; i < STARTS; i++) {
        ring_t ring = ring_at(starts[i]);
        size_t kept = SIZE / 2;

        CHECK_IN(write_bytes(&ring, kept));
        for (size_t n = 1; n <= 300; n++) {
            CHECK_IN(write_bytes(&ring, n));
            CHECK_IN(read_bytes(&ring, n));
            CHECK_EQ(ring.tx.head - ring.rx.tail, kept);
        }
        for (int round = 0; round < 5; round++) {
            CHECK_IN(write_bytes(&ring, SIZE / 2 - 3));
            CHECK_IN(read_bytes(&ring, SIZE / 2 - 3));
        }
    }
}

/* Makes calls in random order and compares the ring with a count of its bytes. */
static void random_walks(void)
{
    uint64_t random = 20241107;

    for (size_t i = 0; i < STARTS; i++) {
        ring_t ring = ring_at(starts[i]);
        uint64_t fill = 0;

        for (int step = 0; step < 3000; step++) {
            size_t n = (size_t)(next_random(&random) % (SIZE + SIZE / 4));
            bw_span_t span = {0};
            bw_status_t status;

            if (next_random(&random) & 1) {
                status = bw_tx_reserve(&ring.tx, n, &span);
                /* with n = 0, a ring that looks full does not have to be checked again */
                CHECK(status == BW_OK || (status == BW_AGAIN && (n == 0 || fill == SIZE)));
                if (status == BW_OK) {
                    CHECK(span.len <= SIZE - fill);
                    CHECK(span.len >= n || span.len == SIZE - fill);
                    n = n < span.len ? n : span.len;
                    for (size_t k = 0; k < n; k++)
                        span.base[k] = (uint8_t)((ring.tx.head + k) * 31 >> 3);
                    tx_commit(&ring.tx, n);
                    fill += n;
                }
            } else {
                status = bw_rx_peek(&ring.rx, &span);
                CHECK_EQ(status, fill > 0 ? BW_OK : BW_AGAIN);
                if (status == BW_OK) {
                    CHECK_EQ(span.len, fill);
                    n = n < fill ? n : (size_t)fill;
                    CHECK_IN(read_bytes(&ring, n));
                    fill -= n;
                }
            }
        }
    }
}

static void reserve_looks_only_when_it_must(void)
{
    ring_t ring = ring_at(0);
    bw_span_t span = {0};

    CHECK_IN(write_bytes(&ring, 100));
    CHECK_IN(read_bytes(&ring, 100));
    CHECK_EQ(bw_tx_reserve(&ring.tx, SIZE - 100, &span), BW_OK);
    CHECK_EQ(span.len, SIZE - 100);
    CHECK_EQ(ring.tx.tail, 0);
    CHECK_EQ(bw_tx_reserve(&ring.tx, SIZE - 99, &span), BW_OK);
    CHECK_EQ(span.len, SIZE);
    CHECK_EQ(ring.tx.tail, 100);
}

/* ---- wake-ups ---- */

static void reader_is_woken_once(void)
{
    for (size_t i = 0; i < STARTS; i++) {
        ring_t ring = ring_at(starts[i]);
        bw_span_t span = {0};

        CHECK(!tx_commit(&ring.tx, 0));
        CHECK_EQ(bw_rx_arm(&ring.rx), BW_OK);
        CHECK_EQ(ring.shared->reader_armed, 1);
        CHECK_EQ(bw_tx_reserve(&ring.tx, 8, &span), BW_OK);
        CHECK(tx_commit(&ring.tx, 8));
        CHECK_EQ(ring.shared->reader_armed, 0);
        CHECK_EQ(bw_tx_reserve(&ring.tx, 8, &span), BW_OK);
        CHECK(!tx_commit(&ring.tx, 8));
        /* bytes have arrived since the last look, so it is not armed */
        CHECK_EQ(bw_rx_arm(&ring.rx), BW_AGAIN);
        CHECK_EQ(ring.shared->reader_armed, 0);
    }
}

/* A partial frame stays in the ring: the reader sleeps until there is more than it has already
 * seen. */
static void reader_sleeps_on_half_a_frame(void)
{
    for (size_t i = 0; i < STARTS; i++) {
        ring_t ring = ring_at(starts[i]);
        bw_span_t span = {0};

        CHECK_IN(write_bytes(&ring, 24));
        CHECK_IN(read_bytes(&ring, 10));
        CHECK_EQ(bw_rx_peek(&ring.rx, &span), BW_OK);
        CHECK_EQ(span.len, 14);
        CHECK_EQ(bw_rx_arm(&ring.rx), BW_OK);
        CHECK_EQ(bw_tx_reserve(&ring.tx, 1, &span), BW_OK);
        CHECK(tx_commit(&ring.tx, 1));
        CHECK_EQ(bw_rx_arm(&ring.rx), BW_AGAIN);
    }
}

static void writer_is_woken_when_the_room_is_there(void)
{
    static const size_t rooms[] = {1, 2, 8, 4096, SIZE / 2, SIZE - 1, SIZE};

    for (size_t i = 0; i < STARTS; i++)
        for (size_t k = 0; k < sizeof rooms / sizeof *rooms; k++) {
            ring_t ring = ring_at(starts[i]);
            size_t room = rooms[k];
            bw_span_t span = {0};

            CHECK_EQ(bw_tx_arm(&ring.tx, room), BW_AGAIN);
            CHECK_EQ(ring.shared->writer_wants, 0);
            CHECK_IN(write_bytes(&ring, SIZE));
            CHECK_EQ(bw_tx_arm(&ring.tx, room), BW_OK);
            CHECK_EQ(ring.shared->writer_wants, room);
            CHECK_EQ(bw_rx_peek(&ring.rx, &span), BW_OK);
            CHECK(!bw_rx_release(&ring.rx, room - 1));
            CHECK_EQ(ring.shared->writer_wants, room);
            CHECK(bw_rx_release(&ring.rx, 1));
            CHECK_EQ(ring.shared->writer_wants, 0);
            CHECK(room == SIZE || !bw_rx_release(&ring.rx, SIZE - room));
            CHECK_EQ(bw_tx_arm(&ring.tx, room), BW_AGAIN);
            CHECK_EQ(ring.shared->writer_wants, 0);
        }
}

/* The consumer calculates the free space from the head that it last saw: a doorbell may come too
 * early, in which case the producer arms again, but never too late. */
static void early_doorbell_is_answered_by_arming_again(void)
{
    ring_t ring = ring_at(UINT64_MAX - 50);
    bw_span_t span = {0};

    CHECK_IN(write_bytes(&ring, 100));
    CHECK_EQ(bw_rx_peek(&ring.rx, &span), BW_OK);
    CHECK_IN(write_bytes(&ring, SIZE - 100));
    CHECK_EQ(bw_tx_arm(&ring.tx, SIZE / 2), BW_OK);
    CHECK(bw_rx_release(&ring.rx, 100));
    CHECK_EQ(bw_tx_arm(&ring.tx, SIZE / 2), BW_OK);
    CHECK_EQ(bw_rx_peek(&ring.rx, &span), BW_OK);
    CHECK(!bw_rx_release(&ring.rx, SIZE / 2 - 101));
    CHECK(bw_rx_release(&ring.rx, 1));
}

/* ---- a malicious peer ---- */

/* Offsets from the tail of a consumer that has read 400 of 1000 written bytes and has seen the
 * other 600. Only heads between that point and a full ring are possible. */
static void forged_heads(void)
{
    static const struct {
        int64_t from_tail;
        bool valid;
    } table[] = {
        {0, false}, /* lower than what was already seen */
        {599, false},
        {600, true}, /* up to what was seen */
        {601, true},
        {SIZE, true},
        {SIZE + 1, false},
        {-1, false},
        {-(int64_t)SIZE, false},
        {2 * (int64_t)SIZE, false},
        {1ll << 31, false},
        {1ll << 32, false},
        {(1ll << 32) + 600, false}, /* only the lower half is right */
        {INT64_MAX, false},
        {INT64_MIN, false},
    };

    for (size_t i = 0; i < STARTS; i++)
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            ring_t ring = ring_at(starts[i]);
            bw_span_t span = {0};

            CHECK_IN(write_bytes(&ring, 1000));
            CHECK_IN(read_bytes(&ring, 400));
            atomic_store(&ring.shared->head, ring.rx.tail + (uint64_t)table[k].from_tail);
            CHECK_EQ(bw_rx_peek(&ring.rx, &span), table[k].valid ? BW_OK : BW_CORRUPT);
            if (table[k].valid)
                CHECK_EQ(span.len, (uint64_t)table[k].from_tail);
            else
                CHECK_EQ(bw_rx_arm(&ring.rx), BW_CORRUPT);
        }
}

/* Offsets from the last tail that the producer knows, when 600 of 1000 bytes are still in the
 * ring. */
static void forged_tails(void)
{
    static const struct {
        int64_t from_known;
        bool valid;
    } table[] = {
        {0, true},
        {1, true},
        {599, true},
        {600, true}, /* all of them */
        {601, false},
        {-1, false},
        {-400, false},
        {SIZE, false},
        {-(int64_t)SIZE, false},
        {1ll << 32, false},
        {(1ll << 32) + 600, false},
        {INT64_MAX, false},
        {INT64_MIN, false},
    };

    for (size_t i = 0; i < STARTS; i++)
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            ring_t ring = ring_at(starts[i]);
            uint64_t forged;
            bw_span_t span = {0};

            CHECK_IN(write_bytes(&ring, 1000));
            CHECK_IN(read_bytes(&ring, 400));
            CHECK_EQ(bw_tx_reserve(&ring.tx, SIZE, &span), BW_OK);
            forged = ring.tx.tail + (uint64_t)table[k].from_known;
            atomic_store(&ring.shared->tail, forged);
            CHECK_EQ(bw_tx_is_drained(&ring.tx), table[k].from_known == 600);
            CHECK_EQ(bw_tx_reserve(&ring.tx, SIZE, &span), table[k].valid ? BW_OK : BW_CORRUPT);
            CHECK_EQ(bw_tx_arm(&ring.tx, SIZE), !table[k].valid              ? BW_CORRUPT
                                                : table[k].from_known == 600 ? BW_AGAIN
                                                                             : BW_OK);
        }
}

/* Flags with arbitrary values may cost a doorbell, but nothing more. */
static void forged_flags(void)
{
    static const uint32_t values[] = {1, 2, 0x80000000u, UINT32_MAX, SIZE, SIZE + 1};

    for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
        ring_t ring = ring_at(UINT64_MAX);
        bw_span_t span = {0};

        atomic_store(&ring.shared->reader_armed, values[k]);
        CHECK_EQ(bw_tx_reserve(&ring.tx, 8, &span), BW_OK);
        CHECK(tx_commit(&ring.tx, 8));
        CHECK(!tx_commit(&ring.tx, 0));
        atomic_store(&ring.shared->writer_wants, values[k]);
        CHECK_EQ(bw_rx_peek(&ring.rx, &span), BW_OK);
        CHECK_EQ(bw_rx_release(&ring.rx, 8), values[k] <= SIZE);
        CHECK_EQ(ring.shared->writer_wants, values[k] <= SIZE ? 0 : values[k]);
    }
}

/* The shared copies of our own positions exist only for the peer, so if the peer changes them, this
 * has no effect. */
static void own_positions_are_not_read_back(void)
{
    ring_t ring = ring_at(77);
    bw_span_t span = {0};

    CHECK_IN(write_bytes(&ring, 500));
    atomic_store(&ring.shared->head, 12345);
    CHECK_EQ(bw_tx_reserve(&ring.tx, 1, &span), BW_OK);
    CHECK_EQ(span.len, SIZE - 500);
    CHECK_IN(write_bytes(&ring, 8));
    CHECK_EQ(ring.shared->head, 77 + 508);
    CHECK_IN(read_bytes(&ring, 100));
    atomic_store(&ring.shared->tail, 999999);
    CHECK_IN(read_bytes(&ring, 408));
    CHECK_EQ(ring.shared->tail, 77 + 508);
}

static const check_case_t cases[] = {
    {"sizes", sizes},
    {"empty_and_full_at_every_start", empty_and_full_at_every_start},
    {"pieces_cross_every_edge", pieces_cross_every_edge},
    {"random_walks", random_walks},
    {"reserve_looks_only_when_it_must", reserve_looks_only_when_it_must},
    {"reader_is_woken_once", reader_is_woken_once},
    {"reader_sleeps_on_half_a_frame", reader_sleeps_on_half_a_frame},
    {"writer_is_woken_when_the_room_is_there", writer_is_woken_when_the_room_is_there},
    {"early_doorbell_is_answered_by_arming_again", early_doorbell_is_answered_by_arming_again},
    {"forged_heads", forged_heads},
    {"forged_tails", forged_tails},
    {"forged_flags", forged_flags},
    {"own_positions_are_not_read_back", own_positions_are_not_read_back},
};

CHECK_MAIN(cases)
