/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RDMA_VERBS_H
#define BW_RDMA_VERBS_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "flow.h"

/* The device objects of one connection: queue pair, completion queues, registered memory. The
 * service thread creates and destroys them, since most of these calls may block; the user's thread
 * uses them. */

/* The memory of one end. It lives as long as the link, even if the device is removed. */
typedef struct {
    uint64_t ring_bytes;
    uint8_t *rx, *tx; /* each mapped twice in a row */
    uint8_t *slots;   /* BW_RDMA_SLOTS for receiving, then BW_RDMA_WINDOW for sending */
} bw_rdma_memory_t;

typedef struct {
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *rcq, *scq;
    struct ibv_qp *qp;
    struct ibv_mr *rx_mr, *tx_mr, *slots_mr;
    uint32_t inline_max; /* maximum number of bytes that a work request can carry inline */
    uint64_t peer_ring;
    uint32_t peer_key;
} bw_rdma_verbs_t;

/* Why an object could not be created, in a text that contains numbers and names. */
typedef struct {
    bw_status_t status;
    char text[BW_TEXT_BYTES];
} bw_rdma_problem_t;

__attribute__((format(printf, 3, 4))) bw_status_t
bw_rdma_problem(bw_rdma_problem_t *problem_p, bw_status_t status, const char *format, ...);

bw_status_t bw_rdma_memory_make(bw_rdma_memory_t *memory_p, uint64_t ring_bytes,
                                bw_rdma_problem_t *problem_p);

/* May be called on memory that was never created. */
void bw_rdma_memory_free(bw_rdma_memory_t *memory);

/* Creates all objects for the connection `id`, which has a device, and posts every receive slot, so
 * the peer can send as soon as it is connected. On failure nothing is leaked. */
bw_status_t bw_rdma_verbs_make(bw_rdma_verbs_t *verbs_p, struct rdma_cm_id *id,
                               const bw_rdma_memory_t *memory, bw_rdma_problem_t *problem_p);

/* Does not free the memory. May be called on verbs that were never created. */
void bw_rdma_verbs_destroy(bw_rdma_verbs_t *verbs, struct rdma_cm_id *id);

/* If they return false, errno is set. */
bool bw_rdma_verbs_post_slot(const bw_rdma_verbs_t *verbs, const bw_rdma_memory_t *memory,
                             uint64_t slot);
bool bw_rdma_verbs_post_batch(const bw_rdma_verbs_t *verbs, const bw_rdma_memory_t *memory,
                              const bw_rdma_batch_t *batch);

#endif
