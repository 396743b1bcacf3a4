/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the assumptions that the carrier and its tests make about verbs. The same cases run over
 * the fake verbs and over a real device, which shows that both behave the same way. The last cases
 * are errors that only the fake verbs detect, whereas a real device fails silently.
 */
#include "rdma_rogue.h"

/* Opens one of two ends that do nothing on their own. `here` is the one that listens. */
static void listen_here(int wire, rogue_t *rogue)
{
    struct sockaddr_in in = {.sin_family = AF_INET};
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 1};
    offer_t offer = {0};

    *rogue = (rogue_t){.channel = rdma_create_event_channel()};
    if (!find_address(4, &offer.at))
        SKIP("no RDMA device with an IPv4 address here");
    memcpy(&in.sin_addr, offer.at.ip, 4);
    CHECK_EQ(rdma_create_id(rogue->channel, &rogue->listener, NULL, RDMA_PS_TCP), 0);
    CHECK_EQ(rdma_bind_addr(rogue->listener, (struct sockaddr *)&in), 0);
    CHECK_EQ(rdma_listen(rogue->listener, 1), 0);
    offer.at.port = ntohs(rdma_get_src_port(rogue->listener));
    CHECK(tell(wire, &offer, sizeof offer));
    CHECK_EQ(rogue_event(rogue), RDMA_CM_EVENT_CONNECT_REQUEST);
    CHECK_IN(rogue_equip(rogue));
    CHECK_EQ(rdma_accept(rogue->id, &param), 0);
    CHECK_EQ(rogue_event(rogue), RDMA_CM_EVENT_ESTABLISHED);
    CHECK(tell(wire, "!", 1));
}

static void come_there(int wire, rogue_t *rogue)
{
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 1};
    offer_t offer;
    char done;

    if (!hear(wire, &offer, sizeof offer))
        SKIP("the other side could not begin");
    CHECK_IN(rogue_approach(rogue, &offer.at));
    CHECK_EQ(rdma_connect(rogue->id, &param), 0);
    CHECK_EQ(rogue_event(rogue), RDMA_CM_EVENT_ESTABLISHED);
    CHECK(hear(wire, &done, 1));
}

static void patient_here(int wire)
{
    rogue_t rogue;
    char done;

    CHECK_IN(listen_here(wire, &rogue));
    CHECK(hear(wire, &done, 1));
    rogue_leave(&rogue);
}

static int post_send_of(rogue_t *rogue, uint64_t number)
{
    struct ibv_sge sge = {.addr = (uintptr_t)rogue->memory, .length = 8, .lkey = rogue->mr->lkey};
    struct ibv_send_wr request = {.wr_id = number,
                                  .sg_list = &sge,
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND},
                       *bad;

    return ibv_post_send(rogue->id->qp, &request, &bad);
}

/* Returns the next completion of a queue, or one with an impossible status if there is none. */
static struct ibv_wc next_completion(struct ibv_cq *queue)
{
    int64_t end = now_ms() + WAIT_MS;
    struct ibv_wc completion = {.status = IBV_WC_GENERAL_ERR};

    while (ibv_poll_cq(queue, 1, &completion) == 0 && now_ms() < end)
        (void)poll(NULL, 0, 1);
    return completion;
}

/* When the connection is closed, every posted request completes, in order and starting with the
 * failed one. */
static void flushed_there(int wire)
{
    struct ibv_wc completion;
    rogue_t rogue;

    CHECK_IN(come_there(wire, &rogue));
    CHECK_IN(rogue_post_slots(&rogue, 4));
    for (uint64_t i = 1; i <= 3; i++)
        CHECK_EQ(post_send_of(&rogue, i), 0);
    completion = next_completion(rogue.scq); /* there is no slot for it */
    CHECK_EQ(completion.wr_id, 1);
    CHECK_EQ(completion.status, IBV_WC_RNR_RETRY_EXC_ERR);
    for (uint64_t i = 2; i <= 3; i++) {
        completion = next_completion(rogue.scq);
        CHECK_EQ(completion.wr_id, i);
        CHECK_EQ(completion.status, IBV_WC_WR_FLUSH_ERR);
    }
    for (uint64_t i = 0; i < 4; i++) {
        completion = next_completion(rogue.rcq);
        CHECK_EQ(completion.wr_id, i);
        CHECK_EQ(completion.status, IBV_WC_WR_FLUSH_ERR);
    }
    CHECK(tell(wire, "!", 1));
    rogue_leave(&rogue);
}

static void what_was_posted_comes_back_in_order(void)
{
    run_pair(patient_here, flushed_there);
}

/* Requests keep their entries in the queue until a completion has been polled; the peer receives
 * none of them. */
static void full_there(int wire)
{
    rogue_t rogue;
    int posted = 0;

    CHECK_IN(come_there(wire, &rogue));
    while (posted < 100 * ROGUE_SLOTS && post_send_of(&rogue, 1) == 0)
        posted++;
    CHECK(posted >= ROGUE_SLOTS && posted < 100 * ROGUE_SLOTS); /* a device may have more entries */
    CHECK(tell(wire, "!", 1));
    rogue_leave(&rogue);
}

static void a_send_queue_is_full(void)
{
    run_pair(patient_here, full_there);
}

/* Memory of a different protection domain, or bytes past the end of a region. */
static void wrong_memory_there(int wire)
{
    struct ibv_sge sge;
    struct ibv_send_wr request = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    rogue_t rogue;

    CHECK_IN(come_there(wire, &rogue));
    sge = (struct ibv_sge){
        .addr = (uintptr_t)rogue.memory + ROGUE_BYTES - 8, .length = 16, .lkey = rogue.mr->lkey};
    /* a device reports the error immediately or later */
    if (ibv_post_send(rogue.id->qp, &request, &bad) == 0)
        CHECK_EQ(next_completion(rogue.scq).status, IBV_WC_LOC_PROT_ERR);
    CHECK(tell(wire, "!", 1));
    rogue_leave(&rogue);
}

static void only_registered_memory_is_sent(void)
{
    run_pair(patient_here, wrong_memory_there);
}

/* ---- errors that end the process, over the fake verbs ---- */

static void was_noticed(int number)
{
    (void)number;
    _exit(0);
}

static void abused_there(int wire, void (*abuse)(rogue_t *rogue))
{
    rogue_t rogue;

    CHECK_IN(come_there(wire, &rogue));
    CHECK(signal(SIGABRT, was_noticed) != SIG_ERR);
    CHECK(tell(wire, "!", 1));
    abuse(&rogue);
    CHECK(!"it was not noticed");
}

#define ABUSES 100

static void generous_here(int wire)
{
    rogue_t rogue;
    char done;

    CHECK_IN(listen_here(wire, &rogue));
    CHECK_IN(rogue_post_slots(&rogue, ABUSES));
    CHECK(hear(wire, &done, 1));
    (void)rogue_event(&rogue); /* the other process has exited */
    rogue_leave(&rogue);
}

/* Changes the bytes over and over, so that even a device that sends immediately has a chance to
 * notice. The race with the device is the misuse under test, so TSan need not report it. */
__attribute__((no_sanitize("thread"))) static void change_bytes(rogue_t *rogue)
{
    for (int i = 0; i < ABUSES; i++) {
        (void)post_send_of(rogue, 1);
        rogue->memory[3]++;
        (void)next_completion(rogue->scq);
    }
}

static void overfill_a_completion_queue(rogue_t *rogue)
{
    (void)rdma_disconnect(rogue->id);
    for (int i = 0; i <= ROGUE_SLOTS; i++)
        rogue_post_slots(rogue, 1);
}

static void destroy_an_id_too_soon(rogue_t *rogue)
{
    (void)rdma_destroy_id(rogue->id);
}

static void changing_there(int wire)
{
    abused_there(wire, change_bytes);
}

static void overfilling_there(int wire)
{
    abused_there(wire, overfill_a_completion_queue);
}

static void destroying_there(int wire)
{
    abused_there(wire, destroy_an_id_too_soon);
}

static void abuse_is_noticed(void)
{
    static const side_fn abusers[] = {changing_there, overfilling_there, destroying_there};

    for (size_t i = 0; fake_verbs_held && i < sizeof abusers / sizeof *abusers; i++)
        CHECK_IN(run_pair(generous_here, abusers[i]));
}

static const check_case_t cases[] = {
    {"what_was_posted_comes_back_in_order", what_was_posted_comes_back_in_order},
    {"a_send_queue_is_full", a_send_queue_is_full},
    {"only_registered_memory_is_sent", only_registered_memory_is_sent},
    {"abuse_is_noticed", abuse_is_noticed},
};

CHECK_MAIN(cases)
