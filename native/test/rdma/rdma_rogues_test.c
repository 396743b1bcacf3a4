/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests peers that lie, over a real device: first about themselves in the hello, then about memory,
 * slots and positions. They must not be able to write to anything but the ring, nothing may hang,
 * and each link must end with a reason.
 */
#include "rdma_rogue.h"

/* ---- peers ---- */

/* Waits for the peer with the right token, whatever other peers connect first. */
static void patient_here(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    offer_t offer = {0};
    char done;

    CHECK_IN(begin_listening(4, RING, &connection, &offer));
    CHECK(tell(wire, &offer, sizeof offer));
    CHECK(hear(wire, &done, 1));
    connection->ops->step(connection, &report);
    CHECK_EQ(report.state, BW_LISTENING);
    CHECK(tell(wire, "!", 1));
    CHECK_EQ(wait_from(connection, BW_LISTENING, &report), BW_LINKED);
    connection->ops->close(connection, NULL);
}

static void is_sent_away(const offer_t *offer, const uint8_t *bytes, size_t len)
{
    rogue_t rogue;

    CHECK_IN(rogue_approach(&rogue, &offer->at));
    CHECK_EQ(rogue_say(&rogue, bytes, len), RDMA_CM_EVENT_REJECTED);
    rogue_leave(&rogue);
}

static void peers_there(int wire)
{
    uint8_t good[BW_RDMA_HELLO_BYTES], bytes[BW_RDMA_HELLO_BYTES];
    bw_link_t *connection = NULL;
    bw_report_t report;
    bw_error_t error = {0};
    rogue_t nobody = {0};
    bw_rdma_hello_t hello;
    offer_t offer;
    char done;

    if (!hear(wire, &offer, sizeof offer))
        SKIP("the other side could not begin");
    hello = rogue_hello(&nobody, offer.token);
    bw_rdma_hello_put(&hello, good);
    CHECK_IN(is_sent_away(&offer, good, 0));
    CHECK_IN(is_sent_away(&offer, good, 20));
    for (int at = 0; at < 9; at++) { /* magic, version, byte order, token */
        memcpy(bytes, good, sizeof bytes);
        bytes[at] ^= 0x40;
        CHECK_IN(is_sent_away(&offer, bytes, sizeof bytes));
    }
    hello.ring_bytes = 2 * RING;
    bw_rdma_hello_put(&hello, bytes);
    CHECK_IN(is_sent_away(&offer, bytes, sizeof bytes));
    hello.ring_bytes = RING - 1;
    bw_rdma_hello_put(&hello, bytes);
    CHECK_IN(is_sent_away(&offer, bytes, sizeof bytes));
    hello.ring_bytes = RING;
    hello.slots = 0;
    bw_rdma_hello_put(&hello, bytes);
    CHECK_IN(is_sent_away(&offer, bytes, sizeof bytes));
    CHECK(tell(wire, "!", 1));
    CHECK(hear(wire, &done, 1));
    /* the valid peer is the carrier itself */
    CHECK_EQ(connect_to(&offer.at, offer.token, RING, WAIT_MS, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_LINKED);
    connection->ops->close(connection, NULL);
}

static void peers_without_a_good_hello(void)
{
    run_pair(patient_here, peers_there);
}

/* ---- listeners ---- */

/* A listener that sends an arbitrary reply; the peer's connection must fail and report the
 * reason. */
static void answer_here(int wire)
{
    static const struct {
        size_t len;
        uint64_t ring_bytes;
        uint16_t slots;
        const char *says;
    } answers[] = {
        {BW_RDMA_HELLO_BYTES, 2 * RING, BW_RDMA_SLOTS, "rings of"},
        {BW_RDMA_HELLO_BYTES, 5, BW_RDMA_SLOTS, "not valid"},
        {BW_RDMA_HELLO_BYTES, RING, 1, "not valid"},
        {0, RING, BW_RDMA_SLOTS, "none of Beamway's"}, /* padded with zeros */
    };
    bw_rdma_address_t at;

    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        struct sockaddr_in in = {.sin_family = AF_INET};
        struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 1};
        uint8_t bytes[BW_RDMA_HELLO_BYTES];
        rogue_t rogue = {.channel = rdma_create_event_channel()};
        bw_rdma_hello_t hello;
        offer_t offer = {.at = at};
        char says[64] = {0};

        memcpy(&in.sin_addr, at.ip, 4);
        CHECK_EQ(rdma_create_id(rogue.channel, &rogue.listener, NULL, RDMA_PS_TCP), 0);
        CHECK_EQ(rdma_bind_addr(rogue.listener, (struct sockaddr *)&in), 0);
        CHECK_EQ(rdma_listen(rogue.listener, 1), 0);
        offer.at.port = ntohs(rdma_get_src_port(rogue.listener));
        snprintf(says, sizeof says, "%s", answers[i].says);
        CHECK(tell(wire, &offer, sizeof offer));
        CHECK(tell(wire, says, sizeof says));
        CHECK_EQ(rogue_event(&rogue), RDMA_CM_EVENT_CONNECT_REQUEST);
        CHECK_IN(rogue_equip(&rogue));
        hello = rogue_hello(&rogue, NULL);
        hello.ring_bytes = answers[i].ring_bytes;
        hello.slots = answers[i].slots;
        bw_rdma_hello_put(&hello, bytes);
        param.private_data = bytes;
        param.private_data_len = (uint8_t)answers[i].len;
        CHECK_EQ(rdma_accept(rogue.id, &param), 0);
        CHECK(hear(wire, says, 1));
        rogue_leave(&rogue);
    }
}

static void answer_there(int wire)
{
    for (int i = 0; i < 4; i++) {
        bw_link_t *connection = NULL;
        bw_report_t report;
        bw_error_t error = {0};
        offer_t offer;
        char says[64];

        if (!hear(wire, &offer, sizeof offer))
            SKIP("the other side could not begin");
        CHECK(hear(wire, says, sizeof says));
        CHECK_EQ(connect_to(&offer.at, offer.token, RING, WAIT_MS, &connection, &error), BW_OK);
        CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
        CHECK_EQ(report.status, BW_REFUSED);
        CHECK(strstr(report.text, says) != NULL);
        connection->ops->close(connection, NULL);
        CHECK(tell(wire, "!", 1));
    }
}

static void listeners_with_a_bad_answer(void)
{
    run_pair(answer_here, answer_there);
}

/* The id listens but never accepts, so no reply ever comes. */
static void mute_here(int wire)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    rogue_t rogue = {.channel = rdma_create_event_channel()};
    offer_t offer = {0};
    char done;

    if (!find_address(4, &offer.at))
        SKIP("no RDMA device with an IPv4 address here");
    memcpy(&in.sin_addr, offer.at.ip, 4);
    CHECK_EQ(rdma_create_id(rogue.channel, &rogue.listener, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_bind_addr(rogue.listener, (struct sockaddr *)&in), 0);
    CHECK_EQ(rdma_listen(rogue.listener, 1), 0);
    offer.at.port = ntohs(rdma_get_src_port(rogue.listener));
    CHECK(tell(wire, &offer, sizeof offer));
    CHECK(hear(wire, &done, 1));
}

static void mute_there(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    bw_error_t error = {0};
    offer_t offer;
    int before;

    if (!hear(wire, &offer, sizeof offer))
        SKIP("the other side could not begin");
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(connect_to(&offer.at, offer.token, RING, 700, &connection, &error), BW_OK);
        if (round == 0) {
            CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
            CHECK(strstr(report.text, "within 700 ms") != NULL);
        } /* otherwise the attempt is aborted immediately */
        connection->ops->close(connection, NULL);
    }
    before = descriptors_at_rest();
    CHECK(before > 0);
    CHECK(tell(wire, "!", 1));
}

static void a_listener_that_never_answers(void)
{
    run_pair(mute_here, mute_there);
}

/* ---- false messages after the hello ---- */

/* The victim, whose link must end with the reason that the rogue tells it to expect. A letter
 * before the reason selects what the victim does in the meantime: w writes a lot, s writes a
 * little, . only waits. */
typedef struct {
    char does;
    char reason[63];
} expected_t;

static void victim_here(int wire)
{
    static uint8_t bytes[RING / 2];
    bw_link_t *link = NULL;
    expected_t expected;
    int before = -1;
    bw_rdma_address_t at;

    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK(hear(wire, &expected, sizeof expected));
    if (expected.does == 'w')
        CHECK(writes(link, bytes, sizeof bytes, WAIT_MS));
    for (int64_t end = now_ms() + WAIT_MS;
         expected.does == 's' && !link->ops->reason(link) && now_ms() < end;)
        (void)writes(link, bytes, 8, 20);
    CHECK(ends_with(link, expected.reason, WAIT_MS));
    link->ops->close(link, NULL);
    CHECK_EQ(descriptors_at_rest(), before);
    CHECK(tell(wire, "!", 1));
}

static void approach(int wire, rogue_t *rogue, offer_t *offer)
{
    if (!hear(wire, offer, sizeof *offer))
        SKIP("the other side could not begin");
    CHECK_IN(rogue_approach(rogue, &offer->at));
}

static void expect(int wire, char does, const char *reason)
{
    expected_t expected = {.does = does};

    snprintf(expected.reason, sizeof expected.reason, "%s", reason);
    CHECK(tell(wire, &expected, sizeof expected));
}

static void leave_when_it_has_ended(int wire, rogue_t *rogue)
{
    char done;

    CHECK(hear(wire, &done, 1));
    rogue_leave(rogue);
}

/* Connects to the victim. `added` is added to the fields of a valid hello. */
static void open_as_rogue(int wire, const bw_rdma_hello_t *added, rogue_t *rogue)
{
    offer_t offer;
    bw_rdma_hello_t hello;

    CHECK_IN(approach(wire, rogue, &offer));
    CHECK_IN(rogue_post_slots(rogue, added->slots ? 1 : BW_RDMA_SLOTS));
    hello = rogue_hello(rogue, offer.token);
    hello.ring_key ^= added->ring_key;
    hello.ring_address += added->ring_address;
    if (added->slots)
        hello.slots = added->slots;
    CHECK_EQ(rogue_say_hello(rogue, &hello), RDMA_CM_EVENT_ESTABLISHED);
}

static void wrong_hello(int wire, bw_rdma_hello_t added, char does, const char *reason)
{
    rogue_t rogue;

    CHECK_IN(open_as_rogue(wire, &added, &rogue));
    CHECK_IN(expect(wire, does, reason));
    CHECK_IN(leave_when_it_has_ended(wire, &rogue));
}

static void wrong_key_there(int wire)
{
    wrong_hello(wire, (bw_rdma_hello_t){.ring_key = 0x5a5a5a}, 'w',
                "beamway_rdma_peer_refuses_writes");
}

static void wrong_address_there(int wire)
{
    wrong_hello(wire, (bw_rdma_hello_t){.ring_address = 64 * RING}, 'w',
                "beamway_rdma_peer_refuses_writes");
}

/* The rogue announces more slots than it has posted. */
static void no_slots_there(int wire)
{
    wrong_hello(wire, (bw_rdma_hello_t){.slots = BW_RDMA_SLOTS_MAX}, 's',
                "beamway_rdma_peer_has_no_slots");
}

/* Sends one message, after which the link must fail. */
static void one_message(int wire, bw_rdma_message_t message, size_t extra, const char *reason)
{
    rogue_t rogue;

    CHECK_IN(open_as_rogue(wire, &(bw_rdma_hello_t){0}, &rogue));
    CHECK_IN(expect(wire, '.', reason));
    (void)rogue_send(&rogue, &message, extra);
    CHECK_IN(leave_when_it_has_ended(wire, &rogue));
}

static void head_too_far_there(int wire)
{
    one_message(wire, (bw_rdma_message_t){.head = RING + 1}, 0, "beamway_link_corrupt");
}

static void tail_of_nothing_there(int wire)
{
    one_message(wire, (bw_rdma_message_t){.tail = 1}, 0, "beamway_link_corrupt");
}

static void credits_of_nothing_there(int wire)
{
    one_message(wire, (bw_rdma_message_t){.received = 1}, 0, "beamway_link_corrupt");
}

static void length_of_nothing_there(int wire)
{
    one_message(wire, (bw_rdma_message_t){.head = 8, .len = 8}, 0, "beamway_link_corrupt");
}

static void longer_than_a_slot_there(int wire)
{
    one_message(wire, (bw_rdma_message_t){0}, BW_RDMA_SLOT_BYTES, "beamway_rdma_device_failed");
}

/* Writes outside the ring: before it, after it, across its bounds, or into other memory. */
static void write_elsewhere(int wire, int64_t offset, size_t len)
{
    rogue_t rogue;
    char bytes[64] = {0};
    int status;

    CHECK_IN(open_as_rogue(wire, &(bw_rdma_hello_t){0}, &rogue));
    CHECK_EQ(rogue.peer.ring_bytes, RING);
    CHECK(hear(wire, bytes, 1));
    /* a write into the ring succeeds, so later failures are not due to a wrong key or address */
    CHECK_EQ(rogue_request(&rogue, IBV_WR_RDMA_WRITE, bytes, sizeof bytes,
                           rogue.peer.ring_address + RING - sizeof bytes, rogue.peer.ring_key),
             IBV_WC_SUCCESS);
    status =
        rogue_request(&rogue, IBV_WR_RDMA_WRITE, bytes, len,
                      (uint64_t)((int64_t)rogue.peer.ring_address + offset), rogue.peer.ring_key);
    printf("    the device says: %s\n", ibv_wc_status_str((enum ibv_wc_status)status));
    CHECK(status > 0 && status != IBV_WC_SUCCESS);
    CHECK(tell(wire, "!", 1));
    rogue_leave(&rogue);
}

/* The memory around the ring is unchanged, and the link fails. The device decides which of the
 * errors it reports first. */
static void attacked_here(int wire)
{
    bw_link_t *link = NULL;
    bw_span_t span = {0}, room = {0};
    char done;

    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK_EQ(link->ops->reserve(link, RING, &room), BW_OK);
    memset(room.base, 0x77, room.len); /* the send ring is adjacent */
    CHECK(tell(wire, "!", 1));
    CHECK(hear(wire, &done, 1));
    CHECK(wait_for_end(link, WAIT_MS) != NULL);
    for (size_t i = 0; i < room.len; i++)
        CHECK_EQ(room.base[i], 0x77);
    CHECK(link->ops->peek(link, &span) != BW_OK);
    link->ops->close(link, NULL);
}

static void before_the_ring_there(int wire)
{
    write_elsewhere(wire, -8, 8);
}

static void into_the_ring_there(int wire)
{
    write_elsewhere(wire, -8, 16);
}

static void out_of_the_ring_there(int wire)
{
    write_elsewhere(wire, (int64_t)RING - 8, 16);
}

static void behind_the_ring_there(int wire)
{
    write_elsewhere(wire, (int64_t)RING, 8);
}

/* Sends more messages than there are slots: the sender's device is told to wait and then fails, and
 * the receiver's memory is not touched. Until then the victim does not poll. */
static void flood_there(int wire)
{
    rogue_t rogue;
    bw_rdma_message_t message = {0};
    int status = IBV_WC_SUCCESS, sent = 0;

    CHECK_IN(open_as_rogue(wire, &(bw_rdma_hello_t){0}, &rogue));
    for (; status == IBV_WC_SUCCESS && sent < 2 * (int)BW_RDMA_SLOTS; sent++)
        status = rogue_send(&rogue, &message, 0);
    CHECK_EQ(status, IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK_EQ(sent, BW_RDMA_SLOTS + 1);
    CHECK(tell(wire, "!", 1));
    rogue_leave(&rogue);
}

static void flooded_here(int wire)
{
    bw_link_t *link = NULL;
    char done;

    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK(hear(wire, &done, 1));
    CHECK(wait_for_end(link, WAIT_MS) != NULL);
    link->ops->close(link, NULL);
}

static void a_wrong_key(void)
{
    run_pair(victim_here, wrong_key_there);
}

static void a_wrong_address(void)
{
    run_pair(victim_here, wrong_address_there);
}

static void fewer_slots_than_announced(void)
{
    run_pair(victim_here, no_slots_there);
}

static void wrong_positions(void)
{
    static const side_fn liars[] = {head_too_far_there, tail_of_nothing_there,
                                    credits_of_nothing_there, length_of_nothing_there,
                                    longer_than_a_slot_there};

    for (size_t i = 0; i < sizeof liars / sizeof *liars; i++)
        CHECK_IN(run_pair(victim_here, liars[i]));
}

static void nothing_but_the_ring_can_be_written(void)
{
    static const side_fn attackers[] = {before_the_ring_there, into_the_ring_there,
                                        out_of_the_ring_there, behind_the_ring_there};

    for (size_t i = 0; i < sizeof attackers / sizeof *attackers; i++)
        CHECK_IN(run_pair(attacked_here, attackers[i]));
}

static void more_messages_than_slots(void)
{
    run_pair(flooded_here, flood_there);
}

static const check_case_t cases[] = {
    {"peers_without_a_good_hello", peers_without_a_good_hello},
    {"listeners_with_a_bad_answer", listeners_with_a_bad_answer},
    {"a_listener_that_never_answers", a_listener_that_never_answers},
    {"a_wrong_key", a_wrong_key},
    {"a_wrong_address", a_wrong_address},
    {"fewer_slots_than_announced", fewer_slots_than_announced},
    {"wrong_positions", wrong_positions},
    {"nothing_but_the_ring_can_be_written", nothing_but_the_ring_can_be_written},
    {"more_messages_than_slots", more_messages_than_slots},
};

CHECK_MAIN(cases)
