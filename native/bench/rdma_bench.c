/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the bare rdma link between two processes on the same host, for a comparison with
 * perftest: the bytes per second in one direction, and half the round trip of a message, with both
 * sides sleeping (event mode).
 *
 * usage: rdma_bench bw MESSAGE_BYTES TOTAL_BYTES | lat MESSAGE_BYTES COUNT | memory BYTES COUNT
 * It prints one line: the result (MB/s of 2^20, or us, median and mean), then posts, completion
 * events and stalls of the sender. `memory` needs no peer; it measures copying a message into the
 * ring, and what it would cost to register the message instead and to deregister it.
 */
#include <rdma/rdma_cma.h>

#include "../test/rdma/rdma_ends.h"

static uint64_t message_bytes, total, ring_bytes = BW_RDMA_RING_BYTES;
static bool measures_latency;
static uint8_t *message;

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void print_cost(bw_link_t *link)
{
    bw_link_stats_t stats;

    link->ops->stats(link, &stats);
    printf("posts %" PRIu64 " events %" PRIu64 " stalls %" PRIu64 "\n", stats.doorbells_out,
           stats.doorbells_in, stats.stalls);
}

static int compare(const void *left, const void *right)
{
    double l = *(const double *)left, r = *(const double *)right;

    return l < r ? -1 : l > r;
}

static void ping(bw_link_t *link)
{
    double *took = calloc(total, sizeof *took), sum = 0;

    CHECK(took != NULL);
    for (uint64_t i = 0; i < total; i++) {
        double start = now_us();

        CHECK(writes(link, message, message_bytes, WAIT_MS));
        CHECK(reads(link, message, message_bytes, WAIT_MS));
        took[i] = (now_us() - start) / 2;
        sum += took[i];
    }
    qsort(took, total, sizeof *took, compare);
    printf("lat %" PRIu64 " bytes: median %.2f us, mean %.2f us; ", message_bytes, took[total / 2],
           sum / (double)total);
    print_cost(link);
    free(took);
}

#define POUR_MS 180000 /* time limit for one message, or for all messages at the end */

static void pour(bw_link_t *link)
{
    double start = now_us();

    for (uint64_t sent = 0; sent < total; sent += message_bytes)
        CHECK(writes(link, message, message_bytes, POUR_MS));
    CHECK(reads(link, "done", 4, POUR_MS));
    printf("bw %" PRIu64 " bytes: %.1f MB/s; ", message_bytes,
           (double)total / 1048576 / ((now_us() - start) / 1e6));
    print_cost(link);
}

static void measuring_here(int wire)
{
    bw_link_t *link = NULL;

    CHECK_IN(link_here(wire, 4, ring_bytes, &link));
    CHECK(reads(link, "go", 2, WAIT_MS));
    if (measures_latency)
        ping(link);
    else
        pour(link);
    link->ops->close(link, NULL);
}

static void measured_there(int wire)
{
    bw_link_t *link = NULL;
    bw_span_t span = {0};

    CHECK_IN(link_there(wire, ring_bytes, &link));
    CHECK(writes(link, "go", 2, WAIT_MS));
    for (uint64_t i = 0; measures_latency && i < total; i++) {
        CHECK(reads(link, message, message_bytes, WAIT_MS));
        CHECK(writes(link, message, message_bytes, WAIT_MS));
    }
    for (uint64_t read = 0; !measures_latency && read < total; read += span.len) {
        CHECK_EQ(wait_to_read(link, &span, WAIT_MS), BW_OK);
        link->ops->release(link, span.len);
    }
    if (!measures_latency)
        CHECK(writes(link, "done", 4, WAIT_MS));
    CHECK(ends_with(link, "", WAIT_MS));
    link->ops->close(link, NULL);
}

static double median(double *took)
{
    qsort(took, total, sizeof *took, compare);
    return took[total / 2];
}

/* Uses a new message each time, as the VM does with its binaries. Both methods touch the same
 * pages. */
static void measure_memory(struct ibv_pd *pd)
{
    double *copied = calloc(total, sizeof *copied), *registered = calloc(total, sizeof *registered);
    uint8_t *ring = calloc(1, message_bytes);

    CHECK(copied && registered && ring);
    for (uint64_t i = 0; i < total; i++) {
        uint8_t *binary = malloc(message_bytes);
        struct ibv_mr *mr;
        double start;

        CHECK(binary != NULL);
        memset(binary, (int)i, message_bytes);
        start = now_us();
        memcpy(ring, binary, message_bytes);
        copied[i] = now_us() - start;
        start = now_us();
        mr = ibv_reg_mr(pd, binary, message_bytes, 0);
        CHECK(mr != NULL);
        CHECK_EQ(ibv_dereg_mr(mr), 0);
        registered[i] = now_us() - start;
        CHECK(ring[message_bytes - 1] == (uint8_t)i);
        free(binary);
    }
    printf("memory %" PRIu64 " bytes: copy %.1f us, register %.1f us\n", message_bytes,
           median(copied), median(registered));
    free(copied);
    free(registered);
    free(ring);
}

static int memory_main(void)
{
    int count = 0;
    struct ibv_context **devices = rdma_get_devices(&count);
    struct ibv_pd *pd = devices && count > 0 ? ibv_alloc_pd(devices[0]) : NULL;

    if (!pd) {
        fprintf(stderr, "rdma_bench: no RDMA device here\n");
        return 1;
    }
    measure_memory(pd);
    ibv_dealloc_pd(pd);
    rdma_free_devices(devices);
    return check_failed;
}

int main(int argc, char **argv)
{
    if (argc != 4 || (strcmp(argv[1], "bw") != 0 && strcmp(argv[1], "lat") != 0 &&
                      strcmp(argv[1], "memory") != 0)) {
        fprintf(stderr, "usage: rdma_bench bw MESSAGE_BYTES TOTAL_BYTES | lat MESSAGE_BYTES COUNT"
                        " | memory BYTES COUNT\n");
        return 2;
    }
    measures_latency = strcmp(argv[1], "lat") == 0;
    message_bytes = strtoull(argv[2], NULL, 10);
    total = strtoull(argv[3], NULL, 10);
    if (strcmp(argv[1], "bw") == 0 && message_bytes > 0)
        total -= total % message_bytes;
    message = calloc(1, message_bytes);
    if (message_bytes == 0 || total == 0 || !message) {
        fprintf(stderr, "rdma_bench: sizes and counts are above 0\n");
        return 2;
    }
    check_name = argv[1];
    if (strcmp(argv[1], "memory") == 0)
        return memory_main();
    side_seconds = 1800;
    run_pair(measuring_here, measured_there);
    if (check_skipped)
        fprintf(stderr, "rdma_bench: %s\n", check_skipped);
    return check_failed || check_skipped;
}
