/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what an rdma link sends and when, without a device, over a wire that preserves the order of
 * each direction and guarantees nothing else. Messages arrive, complete and are polled in any order
 * that a device allows. The receive slots, the send queue and the rings must never overflow, and
 * everything must arrive.
 */
#include "../check.h"
#include "../rings.h"

#include "../../link/rdma/flow.h"
#include "../../link/token.h"

#define RING BW_RING_MIN_BYTES
#define WIRE 4096

/* A message in flight, with the bytes that were written before it. */
typedef struct {
    uint64_t number;
    bool signaled;
    size_t bytes;
    uint8_t slot[BW_RDMA_SLOT_BYTES];
    int writes;
    struct {
        uint64_t offset, len;
        uint8_t *copy;
    } write[2];
} carried_t;

typedef struct side {
    bw_rdma_flow_t flow;
    struct side *peer;
    carried_t wire[WIRE];                         /* messages to the peer */
    uint64_t sent, arrived, looked_at, completed; /* numbers of messages */
    uint32_t slots;                               /* slots that are posted and free at this end */
    uint64_t written, read, to_write;             /* numbers of bytes of the stream */
    uint64_t posts, signaled;
} side_t;

static uint64_t dice;

static uint64_t roll(uint64_t sides)
{
    return next_random(&dice) % sides;
}

static uint8_t byte_at(uint64_t position)
{
    return (uint8_t)(position * 131 + (position >> 11));
}

/* Handles a batch as the carrier would. It copies the bytes immediately, because the flow does not
 * depend on when they arrive. */
static void post_batches(side_t *side)
{
    bw_rdma_batch_t batch;

    while (bw_rdma_flow_next(&side->flow, &batch)) {
        carried_t *carried = &side->wire[side->sent++ % WIRE];

        CHECK(side->sent - side->arrived < WIRE);
        CHECK_EQ(batch.number, side->sent);
        CHECK(side->flow.number - side->flow.reaped <= BW_RDMA_WINDOW);
        side->posts++;
        side->signaled += batch.signaled;
        carried->number = batch.number;
        carried->signaled = batch.signaled;
        carried->bytes = sizeof batch.message + batch.message.len;
        CHECK(carried->bytes <= BW_RDMA_SLOT_BYTES);
        memcpy(carried->slot, &batch.message, sizeof batch.message);
        if (batch.message.len > 0)
            memcpy(carried->slot + sizeof batch.message, batch.inlined, batch.message.len);
        carried->writes = batch.writes;
        for (int i = 0; i < batch.writes; i++) {
            CHECK(batch.write[i].len > 0 && batch.write[i].offset + batch.write[i].len <= RING);
            carried->write[i].offset = batch.write[i].offset;
            carried->write[i].len = batch.write[i].len;
            carried->write[i].copy = malloc(batch.write[i].len);
            CHECK(carried->write[i].copy != NULL);
            memcpy(carried->write[i].copy, side->flow.tx_data + batch.write[i].offset,
                   batch.write[i].len);
        }
    }
}

/* The next message reaches the peer, which must have a slot for it, and stays in that slot. */
static void arrive(side_t *side)
{
    carried_t *carried = &side->wire[side->arrived % WIRE];

    if (side->arrived == side->sent)
        return;
    CHECK(side->peer->slots > 0); /* otherwise: receiver not ready */
    side->arrived++;
    side->peer->slots--;
    for (int i = 0; i < carried->writes; i++)
        memcpy(side->peer->flow.rx_data + carried->write[i].offset, carried->write[i].copy,
               carried->write[i].len);
}

/* The peer processes up to `most` of the messages that have arrived, and posts their slots
 * again. */
static void look(side_t *side, uint64_t most)
{
    for (; most > 0 && side->looked_at < side->arrived; most--) {
        carried_t *carried = &side->wire[side->looked_at++ % WIRE];

        CHECK_EQ(bw_rdma_flow_receive(&side->peer->flow, carried->slot, carried->bytes), BW_OK);
        side->peer->slots++;
    }
    CHECK_IN(post_batches(side->peer));
}

/* The next signaled message that has arrived is reported as completed. Until then a device may have
 * to send the bytes again, so they must be unchanged. */
static void complete(side_t *side)
{
    bool signaled = false;

    while (side->completed < side->arrived && !signaled) {
        carried_t *carried = &side->wire[side->completed++ % WIRE];

        for (int i = 0; i < carried->writes; i++) {
            CHECK_EQ(memcmp(side->flow.tx_data + carried->write[i].offset, carried->write[i].copy,
                            carried->write[i].len),
                     0);
            free(carried->write[i].copy);
        }
        signaled = carried->signaled;
        if (signaled)
            bw_rdma_flow_reap(&side->flow, carried->number);
    }
    CHECK_IN(post_batches(side));
}

static void carry_all(side_t *side)
{
    while (side->looked_at < side->sent) {
        CHECK_IN(arrive(side));
        CHECK_IN(look(side, 1));
    }
    while (side->completed < side->arrived)
        CHECK_IN(complete(side));
}

static void write_some(side_t *side, uint64_t most)
{
    uint64_t n = bw_rdma_flow_room(&side->flow);

    n = n < most ? n : most;
    n = n < side->to_write - side->written ? n : side->to_write - side->written;
    CHECK(n <= RING);
    for (uint64_t i = 0; i < n; i++)
        side->flow.tx_data[(side->flow.head + i) & (RING - 1)] = byte_at(side->written + i);
    side->flow.head += n;
    side->written += n;
    if (side->written == side->to_write)
        side->flow.closing = true;
    CHECK_IN(post_batches(side));
}

static void read_some(side_t *side, uint64_t most)
{
    uint64_t n = side->flow.rx_head - side->flow.rx_tail;

    CHECK(n <= RING);
    n = n < most ? n : most;
    for (uint64_t i = 0; i < n; i++)
        CHECK_EQ(side->flow.rx_data[(side->flow.rx_tail + i) & (RING - 1)],
                 byte_at(side->read + i));
    side->flow.rx_tail += n;
    side->read += n;
    CHECK_IN(post_batches(side));
}

static void begin(side_t sides[2], uint32_t slots)
{
    for (int i = 0; i < 2; i++) {
        uint8_t *tx = map_twice(RING), *rx = map_twice(RING);

        CHECK(tx && rx);
        memset(&sides[i], 0, sizeof sides[i]);
        sides[i].peer = &sides[!i];
        sides[i].slots = slots;
        bw_rdma_flow_init(&sides[i].flow, RING, tx, rx, slots, slots);
    }
}

static void end(side_t sides[2])
{
    for (int i = 0; i < 2; i++) {
        CHECK_IN(carry_all(&sides[i]));
    }
    for (int i = 0; i < 2; i++) {
        munmap(sides[i].flow.tx_data, 2 * RING);
        munmap(sides[i].flow.rx_data, 2 * RING);
    }
}

static bool is_over(const side_t *side)
{
    return side->read == side->peer->to_write && side->flow.finished &&
           bw_rdma_flow_is_closed(&side->flow);
}

/* Both sides act in any order, each at its own pace. */
static void run(side_t sides[2], uint64_t steps_max)
{
    uint64_t haste[2][5], steps = 0;

    for (int i = 0; i < 10; i++)
        haste[i / 5][i % 5] = 1 + roll(8);
    while (!is_over(&sides[0]) || !is_over(&sides[1])) {
        int which = (int)roll(2), what = (int)roll(5);

        CHECK(steps++ < steps_max); /* otherwise it is a deadlock */
        if (roll(8) >= haste[which][what])
            continue;
        if (what == 0)
            CHECK_IN(write_some(&sides[which], roll(4) ? 1 + roll(600) : 1 + roll(RING)));
        else if (what == 1)
            CHECK_IN(read_some(&sides[which], roll(4) ? 1 + roll(RING) : 1 + roll(100)));
        else if (what == 2)
            CHECK_IN(arrive(&sides[which]));
        else if (what == 3)
            CHECK_IN(look(&sides[which], roll(4) ? BW_RDMA_SLOTS : 1));
        else
            CHECK_IN(complete(&sides[which]));
    }
}

static void anything_in_any_order(void)
{
    static side_t sides[2];

    for (uint64_t seed = 1; seed <= 300; seed++) {
        dice = seed;
        CHECK_IN(begin(sides, roll(2) ? BW_RDMA_SLOTS : BW_RDMA_SLOTS_MIN));
        sides[0].to_write = roll(20 * RING);
        sides[1].to_write = roll(3) ? roll(20 * RING) : 0;
        CHECK_IN(run(sides, 4000000));
        CHECK_IN(end(sides));
    }
}

/* The writer waits for at most half a ring, which must be free once the reader has read
 * everything. */
static void half_the_ring_becomes_free_without_being_asked_for(void)
{
    static side_t sides[2];

    dice = 5;
    for (uint64_t left = 0; left <= RING / 16; left += RING / 64) {
        CHECK_IN(begin(sides, BW_RDMA_SLOTS));
        sides[0].to_write = UINT64_MAX;
        for (int round = 0; round < 40; round++) {
            CHECK_IN(write_some(&sides[0], RING));
            CHECK_IN(carry_all(&sides[0]));
            CHECK_IN(carry_all(&sides[1]));
        }
        CHECK_EQ(bw_rdma_flow_room(&sides[0].flow), 0);
        while (sides[1].flow.rx_head - sides[1].flow.rx_tail > left)
            CHECK_IN(read_some(&sides[1], sides[1].flow.rx_head - sides[1].flow.rx_tail - left));
        CHECK_IN(carry_all(&sides[1]));
        CHECK(bw_rdma_flow_room(&sides[0].flow) >= RING / 2);
        CHECK_IN(end(sides));
    }
}

/* If a writer needs more than half the ring, it may not be notified that there is room until its
 * reader closes. */
static void the_whole_ring_is_free_once_the_reader_has_closed(void)
{
    static side_t sides[2];

    dice = 6;
    CHECK_IN(begin(sides, BW_RDMA_SLOTS));
    sides[0].to_write = UINT64_MAX;
    CHECK_IN(write_some(&sides[0], RING / 4 + 100));
    CHECK_IN(carry_all(&sides[0]));
    CHECK_IN(read_some(&sides[1], RING / 4));
    CHECK_IN(carry_all(&sides[1]));
    CHECK_IN(read_some(&sides[1], RING));
    CHECK_IN(carry_all(&sides[1]));
    CHECK_EQ(sides[1].flow.rx_tail, sides[0].flow.head);
    CHECK(bw_rdma_flow_room(&sides[0].flow) < RING);
    sides[1].flow.closing = true;
    CHECK_IN(post_batches(&sides[1]));
    CHECK_IN(carry_all(&sides[1]));
    CHECK_EQ(bw_rdma_flow_room(&sides[0].flow), RING);
    CHECK_IN(end(sides));
}

/* A busy sender posts rarely; a sender that waits for replies needs no completions at all. */
static void posts_are_few(void)
{
    static side_t sides[2];

    dice = 7;
    CHECK_IN(begin(sides, BW_RDMA_SLOTS));
    sides[0].to_write = sides[1].to_write = UINT64_MAX;
    for (int i = 0; i < 100; i++)
        CHECK_IN(write_some(&sides[0], 100));
    CHECK_EQ(sides[0].posts, BW_RDMA_AHEAD);
    while (sides[0].arrived < BW_RDMA_AHEAD)
        CHECK_IN(arrive(&sides[0]));
    CHECK_EQ(sides[1].posts, 0);
    CHECK_IN(look(&sides[0], BW_RDMA_AHEAD));
    CHECK_EQ(sides[1].posts, 1); /* it was asked to report */
    CHECK_IN(carry_all(&sides[1]));
    CHECK_EQ(sides[0].posts, BW_RDMA_AHEAD + 1); /* 98 frames in one */
    CHECK_IN(end(sides));

    CHECK_IN(begin(sides, BW_RDMA_SLOTS));
    sides[0].to_write = sides[1].to_write = UINT64_MAX;
    for (int i = 0; i < 1000; i++)
        for (int which = 0; which < 2; which++) {
            CHECK_IN(write_some(&sides[which], 100));
            CHECK_IN(carry_all(&sides[which]));
            CHECK_IN(read_some(sides[which].peer, 100));
        }
    CHECK_EQ(sides[0].posts, 1000);
    CHECK(sides[0].signaled <= 1000 / 8 + 1);
    CHECK_IN(end(sides));
}

/* Both ends have sent messages until only one slot was left at the other end, and neither has
 * processed any. The last slot is reserved for a message that returns slots, because otherwise both
 * would wait forever. */
static void two_ends_without_credits_go_on(void)
{
    static side_t sides[2];

    dice = 9;
    CHECK_IN(begin(sides, 2)); /* few enough that the batches allowed in flight use them up */
    sides[0].to_write = sides[1].to_write = 1000;
    for (int round = 0; round < 100; round++)
        for (int which = 0; which < 2; which++) {
            CHECK_IN(write_some(&sides[which], 10));
            CHECK_IN(arrive(&sides[which]));
            CHECK_IN(complete(&sides[which]));
        }
    for (int which = 0; which < 2; which++) {
        CHECK_EQ(sides[which].written, 1000);
        CHECK_EQ(sides[which].slots, 1);
        CHECK(!sides[which].flow.closed);
    }
    CHECK_IN(look(&sides[0], UINT64_MAX));
    CHECK_IN(look(&sides[1], UINT64_MAX));
    CHECK_IN(run(sides, 100000));
    CHECK_IN(end(sides));
}

/* The send queue never overflows, whatever the peer claims to have received. */
static void completions_that_do_not_come_stop_the_sender(void)
{
    static side_t sides[2];

    CHECK_IN(begin(sides, BW_RDMA_SLOTS));
    sides[0].to_write = sides[1].to_write = UINT64_MAX;
    for (int round = 0; round < 100; round++)
        for (int which = 0; which < 2; which++) {
            CHECK_IN(write_some(&sides[which], 10));
            CHECK_IN(arrive(&sides[which]));
            CHECK_IN(look(&sides[which], UINT64_MAX));
            CHECK_IN(read_some(sides[which].peer, RING));
        }
    CHECK_EQ(sides[0].posts, BW_RDMA_WINDOW);
    CHECK(bw_rdma_flow_is_waiting(&sides[0].flow));
    for (int which = 0; which < 2; which++)
        CHECK_IN(carry_all(&sides[which]));
    CHECK(sides[0].posts > BW_RDMA_WINDOW);
    CHECK_IN(end(sides));
}

/* All written bytes and the end of the stream are sent even if the reader never processes a
 * message. */
static void a_closing_writer_does_not_wait_for_its_reader(void)
{
    static side_t sides[2];

    dice = 11;
    CHECK_IN(begin(sides, BW_RDMA_SLOTS));
    sides[0].to_write = RING;
    CHECK_IN(write_some(&sides[0], RING - 1));
    CHECK_EQ(sides[0].posts, BW_RDMA_AHEAD);
    CHECK_IN(write_some(&sides[0], 1));
    while (sides[0].sent > sides[0].arrived)
        CHECK_IN(arrive(&sides[0]));
    while (sides[0].completed < sides[0].arrived)
        CHECK_IN(complete(&sides[0]));
    CHECK(bw_rdma_flow_is_closed(&sides[0].flow));
    CHECK_IN(end(sides));
}

/* ---- messages that no correct peer sends ---- */

static bw_rdma_flow_t flow;

static bw_status_t told(bw_rdma_message_t message, size_t extra)
{
    static uint8_t slot[2 * BW_RDMA_SLOT_BYTES];
    bw_rdma_flow_t before = flow;
    bw_status_t status;

    memcpy(slot, &message, sizeof message);
    status = bw_rdma_flow_receive(&flow, slot, sizeof message + extra);
    if (status != BW_OK && memcmp(&before, &flow, sizeof flow) != 0)
        return BW_INVALID; /* the rejected message has changed something */
    return status;
}

static void hostile_messages_are_corrupt(void)
{
    uint8_t *tx = map_twice(RING), *rx = map_twice(RING);
    bw_rdma_batch_t batch;

    CHECK(tx && rx);
    bw_rdma_flow_init(&flow, RING, tx, rx, BW_RDMA_SLOTS, BW_RDMA_SLOTS);
    flow.head = 1000;
    CHECK(bw_rdma_flow_next(&flow, &batch));
    CHECK(!bw_rdma_flow_next(&flow, &batch));
    /* valid messages, to start from */
    CHECK_EQ(told((bw_rdma_message_t){.head = 10, .len = 10}, 10), BW_OK);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 500, .received = 1}, 0), BW_OK);
    /* more bytes in the ring than fit, or fewer than before */
    CHECK_EQ(told((bw_rdma_message_t){.head = RING + 1, .tail = 500, .received = 1}, 0),
             BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = 29999, .tail = 500, .received = 1}, 0), BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = UINT64_MAX, .tail = 500, .received = 1}, 0),
             BW_CORRUPT);
    /* room that is actually free but has not been reported */
    flow.rx_tail = 20000;
    CHECK_EQ(told((bw_rdma_message_t){.head = RING + 1, .tail = 500, .received = 1}, 0),
             BW_CORRUPT);
    /* more bytes freed than were sent, or fewer than before */
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 1001, .received = 1}, 0), BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 499, .received = 1}, 0), BW_CORRUPT);
    /* more slots returned than were used, which would give the peer more credits than it has */
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 500, .received = 2}, 0), BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 500, .received = 0}, 0), BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 500, .received = UINT32_MAX}, 0),
             BW_CORRUPT);
    /* inconsistent lengths */
    CHECK_EQ(told((bw_rdma_message_t){.head = 30008, .tail = 500, .received = 1, .len = 8}, 7),
             BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30009, .tail = 500, .received = 1, .len = 8}, 8),
             BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 500, .received = 1}, 1), BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30600, .tail = 500, .received = 1, .len = 600}, 600),
             BW_CORRUPT);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 500, .received = 1, .flags = 4}, 0),
             BW_CORRUPT);
    CHECK_EQ(bw_rdma_flow_receive(&flow, rx, 0), BW_CORRUPT);
    CHECK_EQ(bw_rdma_flow_receive(&flow, rx, sizeof(bw_rdma_message_t) - 1), BW_CORRUPT);
    /* a message after the last one */
    CHECK_EQ(told((bw_rdma_message_t){.head = 30000, .tail = 500, .received = 1, .flags = 1}, 0),
             BW_OK);
    CHECK_EQ(told((bw_rdma_message_t){.head = 30001, .tail = 500, .received = 1}, 0), BW_CORRUPT);
    munmap(tx, 2 * RING);
    munmap(rx, 2 * RING);
}

/* ---- hellos ---- */

static bw_status_t hello_of(bw_rdma_hello_t hello, size_t len, int damaged)
{
    uint8_t at[BW_RDMA_HELLO_BYTES] = {0};
    bw_error_t error = {0};
    bw_rdma_hello_t got;
    bw_status_t status;

    bw_rdma_hello_put(&hello, at);
    if (damaged >= 0)
        at[damaged] ^= 0x11;
    status = bw_rdma_hello_get(at, len, &got, &error);
    if (status == BW_OK &&
        (got.ring_key != hello.ring_key || got.slots != hello.slots ||
         got.ring_bytes != hello.ring_bytes || got.ring_address != hello.ring_address ||
         !bw_token_is_same(got.token, hello.token)))
        return BW_INVALID;
    return status == BW_OK || error.step ? status : BW_INVALID;
}

static void hellos_are_checked(void)
{
    bw_rdma_hello_t good = {.token = {1, 2, 3},
                            .ring_address = 0x7f0123456000,
                            .ring_bytes = RING,
                            .ring_key = 0xdeadbeef,
                            .slots = BW_RDMA_SLOTS},
                    bad;
    static const uint64_t sizes[] = {
        0, 1, RING - 1, RING + 1, 3 * RING, 2 * BW_RING_MAX_BYTES, UINT64_MAX};

    CHECK_EQ(hello_of(good, BW_RDMA_HELLO_BYTES, -1), BW_OK);
    CHECK_EQ(hello_of(good, 196, -1) == BW_OK, 1); /* a longer field is padded */
    CHECK_EQ(hello_of(good, BW_RDMA_HELLO_BYTES - 1, -1), BW_REFUSED);
    CHECK_EQ(hello_of(good, 0, -1), BW_REFUSED);
    for (int damaged = 0; damaged < 8; damaged++) /* magic, version, byte order */
        CHECK_EQ(hello_of(good, BW_RDMA_HELLO_BYTES, damaged), BW_REFUSED);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bad = good;
        bad.ring_bytes = sizes[i];
        CHECK_EQ(hello_of(bad, BW_RDMA_HELLO_BYTES, -1), BW_REFUSED);
    }
    bad = good;
    bad.ring_address = UINT64_MAX - 10;
    CHECK_EQ(hello_of(bad, BW_RDMA_HELLO_BYTES, -1), BW_REFUSED);
    bad = good;
    bad.slots = BW_RDMA_SLOTS_MIN - 1;
    CHECK_EQ(hello_of(bad, BW_RDMA_HELLO_BYTES, -1), BW_REFUSED);
    bad.slots = BW_RDMA_SLOTS_MAX + 1;
    CHECK_EQ(hello_of(bad, BW_RDMA_HELLO_BYTES, -1), BW_REFUSED);
}

static const check_case_t cases[] = {
    {"anything_in_any_order", anything_in_any_order},
    {"half_the_ring_becomes_free_without_being_asked_for",
     half_the_ring_becomes_free_without_being_asked_for},
    {"the_whole_ring_is_free_once_the_reader_has_closed",
     the_whole_ring_is_free_once_the_reader_has_closed},
    {"posts_are_few", posts_are_few},
    {"two_ends_without_credits_go_on", two_ends_without_credits_go_on},
    {"completions_that_do_not_come_stop_the_sender", completions_that_do_not_come_stop_the_sender},
    {"a_closing_writer_does_not_wait_for_its_reader",
     a_closing_writer_does_not_wait_for_its_reader},
    {"hostile_messages_are_corrupt", hostile_messages_are_corrupt},
    {"hellos_are_checked", hellos_are_checked},
};

CHECK_MAIN(cases)
