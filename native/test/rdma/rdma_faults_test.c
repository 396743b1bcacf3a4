/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the rdma carrier under faults: the peer is killed or stopped, memory cannot be locked, the
 * port goes down, or the device is removed under load. Every link must end in time, with a reason,
 * and without leaving anything behind. Over real verbs the last two cases need root and soft-RoCE,
 * because they remove the soft-RoCE device and create it again; RXE_DEVICE and RXE_NETDEV name it
 * (the test guest sets them).
 */
#include "rdma_ends.h"

#include <linux/capability.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* ---- the peer ---- */

/* A partial frame stays unread because it will never be completed: this must neither make the
 * reader poll forever nor hide the failure. */
static bool fails_with_the_rest(bw_link_t *link, const char *reason)
{
    int64_t end = now_ms() + WAIT_MS;
    bw_span_t span = {0};

    while (now_ms() < end) {
        bw_status_t status;

        link->ops->clear_event(link);
        if (link->ops->peek(link, &span) != BW_OK)
            return false;
        status = link->ops->arm_read(link);
        if (status == BW_CORRUPT)
            return strcmp(link->ops->reason(link), reason) == 0;
        if (status == BW_OK)
            (void)poll(&(struct pollfd){.fd = link->ops->fd(link), .events = POLLIN}, 1, WAIT_MS);
    }
    return false;
}

static void killed_here(int wire)
{
    bw_link_t *link = NULL;
    int before;
    bw_rdma_address_t at;
    bw_span_t span = {0};
    pid_t peer;
    int64_t end;

    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK(hear(wire, &peer, sizeof peer));
    CHECK_EQ(wait_to_read(link, &span, WAIT_MS), BW_OK);
    end = now_ms() + WAIT_MS;
    CHECK_EQ(kill(peer, SIGKILL), 0);
    /* bytes that the peer had already written can still be read */
    while (link->ops->peek(link, &span) != BW_OK || span.len < 10)
        CHECK(now_ms() < end);
    CHECK_EQ(memcmp(span.base, "last words", 10), 0);
    link->ops->release(link, 4);
    CHECK(fails_with_the_rest(link, "connection_closed"));
    link->ops->release(link, 6);
    CHECK(ends_with(link, "connection_closed", WAIT_MS));
    /* using a link that has ended does no harm */
    CHECK_EQ(link->ops->reserve(link, 1, &span), BW_AGAIN);
    CHECK_EQ(link->ops->arm_write(link, 1), BW_OK);
    CHECK(!link->ops->is_finished(link));
    link->ops->close(link, NULL);
    CHECK_EQ(descriptors_at_rest(), before);
}

static void killed_there(int wire)
{
    bw_link_t *link = NULL;
    pid_t self = getpid();

    CHECK_IN(link_there(wire, RING, &link));
    CHECK(writes(link, "last words", 10, WAIT_MS));
    CHECK(tell(wire, &self, sizeof self));
    (void)hear(wire, &self, 1); /* this process is killed in the meantime */
}

static void closed_here(int wire)
{
    bw_link_t *link = NULL;
    bw_rdma_address_t at;
    bw_span_t span = {0};

    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK_EQ(wait_to_read(link, &span, WAIT_MS), BW_OK);
    CHECK(fails_with_the_rest(link, "connection_closed"));
    link->ops->release(link, 10);
    CHECK(link->ops->is_finished(link));
    link->ops->close(link, NULL);
}

static void closed_there(int wire)
{
    bw_link_t *link = NULL;

    CHECK_IN(link_there(wire, RING, &link));
    CHECK(writes(link, "half frame", 10, WAIT_MS));
    link->ops->close(link, NULL);
}

static void a_peer_closes_in_a_frame(void)
{
    run_pair(closed_here, closed_there);
}

static void a_killed_peer_is_noticed(void)
{
    run_pair(killed_here, killed_there);
}

/* A stopped peer does not read, so the writer fills both rings and waits. */
static void fill(bw_link_t *link, const uint8_t bytes[RING])
{
    bw_link_stats_t stats;
    bw_span_t span = {0};

    CHECK(writes(link, bytes, RING, WAIT_MS));
    CHECK_EQ(link->ops->arm_write(link, 1), BW_OK);
    for (int wakes = 0; wakes < 10 && sleep_on(link, 1500); wakes++)
        CHECK_EQ(link->ops->arm_write(link, 1), BW_OK); /* a completion does not make room */
    link->ops->stats(link, &stats);
    CHECK_EQ(stats.bytes_out, RING);
    CHECK_EQ(stats.fill_out, RING);
    CHECK(stats.stalls > 0);
    CHECK_EQ(link->ops->peek(link, &span), BW_AGAIN); /* a slow peer must not be considered dead */
}

/* The transfer continues when the peer is resumed. */
static void stopped_here(int wire)
{
    static uint8_t bytes[4 * RING];
    bw_link_t *link = NULL;
    pid_t peer;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = byte_at(i);
    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK(hear(wire, &peer, sizeof peer));
    CHECK_EQ(kill(peer, SIGSTOP), 0);
    fill(link, bytes);
    /* also after a failure, because an alarm does not terminate a stopped process */
    CHECK_EQ(kill(peer, SIGCONT), 0);
    if (check_failed)
        return;
    CHECK(writes(link, bytes + RING, sizeof bytes - RING, WAIT_MS));
    CHECK(reads(link, "done", 4, WAIT_MS));
    link->ops->close(link, NULL);
}

static void stopped_there(int wire)
{
    static uint8_t bytes[4 * RING];
    bw_link_t *link = NULL;
    pid_t self = getpid();

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = byte_at(i);
    CHECK_IN(link_there(wire, RING, &link));
    CHECK(tell(wire, &self, sizeof self));
    CHECK(reads(link, bytes, sizeof bytes, 2 * WAIT_MS));
    CHECK(writes(link, "done", 4, WAIT_MS));
    CHECK(ends_with(link, "", WAIT_MS));
    link->ops->close(link, NULL);
}

static void a_stopped_peer_is_waited_for(void)
{
    run_pair(stopped_here, stopped_there);
}

/* ---- limits ---- */

/* Root may lock any amount of memory unless it drops that capability, which is per thread. */
static void give_up_locking(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];

    if (syscall(SYS_capget, &header, data) != 0)
        SKIP("capget is not allowed");
    data[0].effective &= ~(1u << CAP_IPC_LOCK);
    data[0].permitted &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, data) != 0)
        SKIP("capset is not allowed");
}

/* A user with the usual limit of 8 MB may or may not be able to lock a link of this size. */
#define LOCKED_RING (2u << 20)

static void lock_at_most(rlim_t bytes)
{
    struct rlimit limit;

    CHECK_EQ(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    limit.rlim_cur = bytes;
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
}

/* The listener cannot allocate its side: it reports the reason, which is also sent to the
 * connecting peer. */
static void locked_here(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    offer_t offer = {0};
    int before;

    if (!find_address(4, &offer.at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    CHECK_IN(lock_at_most(1024 * 1024));
    CHECK_IN(begin_listening(4, LOCKED_RING, &connection, &offer));
    CHECK(tell(wire, &offer, sizeof offer));
    CHECK_EQ(wait_from(connection, BW_LISTENING, &report), BW_FAILED);
    CHECK_EQ(report.status, BW_LIMIT);
    CHECK(strstr(report.text, "1024 KB (ulimit -l)") && strstr(report.text, "LimitMEMLOCK"));
    connection->ops->close(connection, NULL);
    CHECK_EQ(descriptors_at_rest(), before);
    /* then the reverse: the connecting side cannot allocate its side */
    CHECK_IN(begin_listening(4, LOCKED_RING, &connection, &offer));
    CHECK(tell(wire, &offer, sizeof offer));
    CHECK(hear(wire, &before, 1));
    connection->ops->step(connection, &report);
    CHECK_EQ(report.state, BW_LISTENING);
    connection->ops->close(connection, NULL);
}

static void locked_there(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    bw_error_t error = {0};
    offer_t offer;

    CHECK_IN(connect_there(wire, LOCKED_RING, BW_FAILED, &connection, &report));
    CHECK_EQ(report.status, BW_REFUSED);
    CHECK(strstr(report.text, "cannot make its side") != NULL);
    connection->ops->close(connection, NULL);
    CHECK(hear(wire, &offer, sizeof offer));
    CHECK_IN(lock_at_most(64 * 1024));
    CHECK_EQ(connect_to(&offer.at, offer.token, LOCKED_RING, WAIT_MS, &connection, &error), BW_OK);
    CHECK_EQ(wait_from(connection, BW_WORKING, &report), BW_FAILED);
    CHECK_EQ(report.status, BW_LIMIT);
    CHECK(strstr(report.text, "ulimit -l") != NULL);
    connection->ops->close(connection, NULL);
    CHECK(tell(wire, "!", 1));
}

static void locked_memory_too_low(void)
{
    before_rdma = give_up_locking;
    run_pair(locked_here, locked_there);
    before_rdma = NULL;
}

/* A ring is a memfd, so the limit on file sizes applies to it. */
static void sized_here(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;
    offer_t offer = {0};
    struct rlimit limit;
    int before;

    if (!find_address(4, &offer.at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = RING - 1;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_IN(begin_listening(4, RING, &connection, &offer));
    CHECK(tell(wire, &offer, sizeof offer));
    CHECK_EQ(wait_from(connection, BW_LISTENING, &report), BW_FAILED);
    limit.rlim_cur = limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(report.status, BW_LIMIT);
    CHECK(strstr(report.text, "ulimit -f"));
    connection->ops->close(connection, NULL);
    CHECK_EQ(descriptors_at_rest(), before);
}

static void sized_there(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report;

    CHECK_IN(connect_there(wire, RING, BW_FAILED, &connection, &report));
    CHECK_EQ(report.status, BW_REFUSED);
    connection->ops->close(connection, NULL);
}

static void file_sizes_too_low(void)
{
    run_pair(sized_here, sized_there);
}

/* Tries every limit on the number of descriptors: each failure must be reported, and must not leak
 * anything. */
static void few_here(int wire)
{
    bw_link_t *connection = NULL;
    bw_report_t report = {0};
    bw_error_t error = {0};
    struct rlimit limit;
    bw_rdma_address_t at;
    int before, failed = 0;

    (void)wire;
    if (!find_address(4, &at))
        SKIP("no RDMA device with an IPv4 address here");
    before = descriptors_at_rest();
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    for (rlim_t most = 3; most < 64; most++) {
        bw_status_t status;

        limit.rlim_cur = most;
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        status = listen_at(&at, 0, 0, RING, &connection, &error);
        if (status == BW_OK) {
            (void)wait_from(connection, BW_WORKING, &report);
            CHECK_EQ(report.state, BW_LISTENING);
            connection->ops->close(connection, NULL);
        } else {
            CHECK_EQ(status, BW_LIMIT);
            failed++;
        }
        limit.rlim_cur = 256;
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
        CHECK_EQ(descriptors_at_rest(), before);
    }
    CHECK(failed >= 2 && failed < 61);
}

static void nothing(int wire)
{
    (void)wire;
}

static void few_descriptors(void)
{
    run_pair(few_here, nothing);
}

/* ---- the device ---- */

static const char *rxe_device, *rxe_netdev;

static bool run(const char *format, const char *first, const char *second)
{
    char command[256];

    snprintf(command, sizeof command, format, first, second);
    if (system(command) == 0)
        return true;
    printf("    this has failed: %s\n", command);
    return false;
}

static bool remove_device(void)
{
    return fake_verbs_remove ? fake_verbs_remove()
                             : run("timeout 5 rdma link del %s", rxe_device, "");
}

static bool add_device(void)
{
    if (fake_verbs_add)
        fake_verbs_add();
    return fake_verbs_add || run("rdma link add %s type rxe netdev %s", rxe_device, rxe_netdev);
}

static bool take_port_down(void)
{
    if (fake_verbs_set_port)
        fake_verbs_set_port(false);
    return fake_verbs_set_port || run("ip link set %s down%s", rxe_netdev, "");
}

/* The connection manager of Soft-RoCE does not recover when the port comes back up (Linux 6.1), so
 * this creates a new device. */
static bool bring_port_up(void)
{
    if (fake_verbs_set_port)
        fake_verbs_set_port(true);
    return fake_verbs_set_port ||
           (run("ip link set %s up%s", rxe_netdev, "") && remove_device() && add_device());
}

/* Counts the queue pairs, completion queues and regions that do not belong to the system. */
static int held(void)
{
    int count = -1;
    FILE *pipe;

    if (fake_verbs_held)
        return fake_verbs_held();
    pipe = popen("for kind in qp cq mr; do rdma resource show $kind; done 2>/dev/null | "
                 "grep -c ' pid '",
                 "r");
    if (!pipe || fscanf(pipe, "%d", &count) != 1)
        count = -1;
    if (pipe)
        pclose(pipe);
    return count;
}

static _Atomic uint64_t loaded; /* number of bytes that have arrived over a link under load */

/* Writes as fast as possible and drops incoming bytes, until the link has ended. */
static const char *load_until_end(bw_link_t *link, int64_t end)
{
    bw_span_t span = {0};
    bw_status_t status;

    while (now_ms() < end) {
        status = link->ops->peek(link, &span);
        if (status != BW_OK && status != BW_AGAIN)
            return link->ops->reason(link);
        if (status == BW_OK) {
            loaded += span.len;
            link->ops->release(link, span.len);
        }
        link->ops->clear_event(link);
        if (link->ops->reserve(link, 30000, &span) == BW_OK)
            link->ops->commit(link, span.len < 30000 ? span.len : 30000);
        else if (link->ops->arm_write(link, RING / 2) == BW_OK &&
                 link->ops->arm_read(link) == BW_OK)
            (void)poll(&(struct pollfd){.fd = link->ops->fd(link), .events = POLLIN}, 1, 1000);
    }
    return NULL;
}

/* One process breaks the device while both processes use a link over it, under load. */
typedef struct {
    bool (*breaks)(void);
    int64_t took_ms;
    bool done;
} breaker_t;

static void *break_under_load(void *arg)
{
    breaker_t *breaker = arg;
    int64_t start, end = now_ms() + WAIT_MS;

    while (loaded < 16 * RING && now_ms() < end)
        (void)poll(NULL, 0, 1);
    start = now_ms();
    breaker->done = loaded >= 16 * RING && breaker->breaks();
    breaker->took_ms = now_ms() - start;
    return NULL;
}

static void break_here(int wire, bool (*breaks)(void), const char *reason, int64_t *took_ms_p)
{
    static breaker_t breaker; /* static because its thread may never exit */
    bw_link_t *link = NULL;
    struct timespec end;
    pthread_t thread;
    const char *got;
    int joined;

    breaker.breaks = breaks;
    loaded = 0;
    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK_EQ(pthread_create(&thread, NULL, break_under_load, &breaker), 0);
    got = load_until_end(link, now_ms() + 2 * WAIT_MS);
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += WAIT_MS / 1000;
    joined = pthread_timedjoin_np(thread, NULL, &end);
    if (joined != 0)
        check_tell_where(getpid()); /* also shows the command if it is blocked in the kernel */
    CHECK_EQ(joined, 0);
    CHECK(breaker.done);
    CHECK(got != NULL);
    if (reason && strcmp(got, reason) != 0)
        printf("    the link ends with \"%s\"\n", got);
    CHECK(!reason || strcmp(got, reason) == 0);
    *took_ms_p = breaker.took_ms;
    link->ops->close(link, NULL);
}

static void removed_here(int wire)
{
    int64_t took_ms = 0;
    bw_link_t *link = NULL;
    char done;

    CHECK_IN(break_here(wire, remove_device, "beamway_rdma_device_removed", &took_ms));
    printf("    the device was gone after %d ms\n", (int)took_ms);
    CHECK(hear(wire, &done, 1));
    CHECK_EQ(held(), 0);
    /* the same processes use the new device */
    CHECK(add_device());
    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK(writes(link, "again", 5, WAIT_MS));
    CHECK(reads(link, "and again", 9, WAIT_MS));
    link->ops->close(link, NULL);
    CHECK(hear(wire, &done, 1));
    /* no link is open, but it must still be possible to remove the device */
    CHECK(remove_device());
    CHECK(add_device());
}

static void removed_there(int wire)
{
    bw_link_t *link = NULL;
    const char *reason;

    CHECK_IN(link_there(wire, RING, &link));
    reason = load_until_end(link, now_ms() + 2 * WAIT_MS);
    CHECK(reason);
    /* the other process may have been notified first, so its close arrives before the kernel's
     * event */
    if (strcmp(reason, "connection_closed") != 0)
        CHECK_EQ(strcmp(reason, "beamway_rdma_device_removed"), 0);
    /* this side has not closed its link yet, but the removal does not wait for that */
    CHECK(tell(wire, "!", 1));
    link->ops->close(link, NULL);
    CHECK_IN(link_there(wire, RING, &link));
    CHECK(reads(link, "again", 5, WAIT_MS));
    CHECK(writes(link, "and again", 9, WAIT_MS));
    CHECK(ends_with(link, "", WAIT_MS));
    link->ops->close(link, NULL);
    CHECK(tell(wire, "!", 1));
    (void)hear(wire, &link, 1); /* stays until the other process has removed the device again */
}

static bool may_break_device(void)
{
    rxe_device = getenv("RXE_DEVICE");
    rxe_netdev = getenv("RXE_NETDEV");
    return fake_verbs_remove || (rxe_device && rxe_netdev && geteuid() == 0);
}

static void the_device_is_removed_under_load(void)
{
    if (!may_break_device())
        SKIP("no soft-RoCE device to remove (RXE_DEVICE, RXE_NETDEV)");
    run_pair(removed_here, removed_there);
}

/* An idle link is notified only by the device, so neither side closes before both have been
 * notified. */
static void down_here(int wire)
{
    bw_link_t *link = NULL;
    char done;

    CHECK_IN(link_here(wire, 4, RING, &link));
    CHECK(reads(link, "ready", 5, WAIT_MS));
    CHECK(take_port_down());
    CHECK(ends_with(link, "beamway_rdma_port_is_down", WAIT_MS));
    CHECK(hear(wire, &done, 1));
    link->ops->close(link, NULL);
}

static void down_there(int wire)
{
    bw_link_t *link = NULL;

    CHECK_IN(link_there(wire, RING, &link));
    CHECK(writes(link, "ready", 5, WAIT_MS));
    CHECK(ends_with(link, "beamway_rdma_port_is_down", WAIT_MS));
    CHECK(tell(wire, "!", 1));
    link->ops->close(link, NULL);
}

/* Under load, a link's requests may fail first, and their completions may have any status. */
static void down_loaded_here(int wire)
{
    int64_t took_ms;

    CHECK_IN(break_here(wire, take_port_down, NULL, &took_ms));
}

static void down_loaded_there(int wire)
{
    bw_link_t *link = NULL;

    CHECK_IN(link_there(wire, RING, &link));
    CHECK(load_until_end(link, now_ms() + 2 * WAIT_MS) != NULL);
    link->ops->close(link, NULL);
}

/* The interface keeps its addresses while the port is down. */
static void with_port_down(side_fn here, side_fn there)
{
    if (!may_break_device())
        SKIP("no soft-RoCE device whose interface may go down (RXE_DEVICE, RXE_NETDEV)");
    CHECK(fake_verbs_set_port ||
          run("echo 1 > /proc/sys/net/ipv6/conf/%s/keep_addr_on_down%s", rxe_netdev, ""));
    run_pair(here, there);
    CHECK(bring_port_up());
}

static void the_port_goes_down(void)
{
    with_port_down(down_here, down_there);
}

static void the_port_goes_down_under_load(void)
{
    with_port_down(down_loaded_here, down_loaded_there);
}

static const check_case_t cases[] = {
    {"a_killed_peer_is_noticed", a_killed_peer_is_noticed},
    {"a_peer_closes_in_a_frame", a_peer_closes_in_a_frame},
    {"a_stopped_peer_is_waited_for", a_stopped_peer_is_waited_for},
    {"locked_memory_too_low", locked_memory_too_low},
    {"file_sizes_too_low", file_sizes_too_low},
    {"few_descriptors", few_descriptors},
    {"the_device_is_removed_under_load", the_device_is_removed_under_load},
    {"the_port_goes_down", the_port_goes_down},
    {"the_port_goes_down_under_load", the_port_goes_down_under_load},
};

CHECK_MAIN(cases)
