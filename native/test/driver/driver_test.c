/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the driver's callbacks without a VM, on links that this program simulates: the order in
 * which descriptors and links are closed, what the timer does, and the reason with which a port
 * ends.
 */
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "../check.h"
#define SHIM_POLLS
#include "driver_shim.h"

#include "../../driver/beamway_drv.c"

static struct {
    int fd;           /* descriptor of the link or the connection */
    bool is_selected; /* the VM polls it */
    bool was_open;    /* when the link or the connection was closed */
    int trims_left;   /* how many more calls of the link's trim have work to do */
    int timer_ms;     /* -1 if not set */
    int used_percent; /* percentage of its time slice, as reported by the port */
    bw_link_stats_t stats;
    const char *reason;    /* why the link failed, as reported by the link */
    const char *said;      /* as reported by the port */
    void (*later)(void *); /* work that was passed to another thread */
    void *later_data;
    void (*later_drop)(void *);
    bool was_told; /* the caller has received the result */
} vm;

/* ---- the VM ---- */

static void shim_deliver(const uint8_t *at, uint64_t len)
{
    (void)at, (void)len;
}

/* No thread is polling the descriptor, so stop_select is called from within this function, as with
 * epoll. */
int driver_select(ErlDrvPort port, ErlDrvEvent event, int mode, int on)
{
    (void)port;
    if ((int)(intptr_t)event != vm.fd)
        return -1;
    vm.is_selected = on;
    if (!on && (mode & ERL_DRV_USE))
        entry.stop_select(event, NULL);
    return 0;
}

int driver_set_timer(ErlDrvPort port, unsigned long ms)
{
    (void)port;
    vm.timer_ms = (int)ms;
    return 0;
}

int driver_cancel_timer(ErlDrvPort port)
{
    (void)port;
    vm.timer_ms = -1;
    return 0;
}

int erl_drv_consume_timeslice(ErlDrvPort port, int percent)
{
    (void)port;
    vm.used_percent = percent;
    return 1;
}

long driver_async(ErlDrvPort port, unsigned int *key, void (*invoke)(void *), void *data,
                  void (*release)(void *))
{
    (void)port, (void)key;
    vm.later_drop = release;
    vm.later = invoke;
    vm.later_data = data;
    return 1;
}

void set_port_control_flags(ErlDrvPort port, int flags)
{
    (void)port, (void)flags;
}

ErlDrvTermData driver_mk_port(ErlDrvPort port)
{
    (void)port;
    return 0;
}

ErlDrvTermData driver_mk_atom(char *name)
{
    (void)name;
    return 0;
}

ErlDrvTermData driver_caller(ErlDrvPort port)
{
    (void)port;
    return 0;
}

int erl_drv_output_term(ErlDrvTermData port, ErlDrvTermData *data, int len)
{
    (void)port, (void)data, (void)len;
    return 1;
}

int erl_drv_send_term(ErlDrvTermData port, ErlDrvTermData to, ErlDrvTermData *data, int len)
{
    (void)port, (void)to, (void)data, (void)len;
    vm.was_told = true;
    return 1;
}

int driver_failure_atom(ErlDrvPort port, char *reason)
{
    (void)port;
    vm.said = reason;
    return 0;
}

int driver_exit(ErlDrvPort port, int reason)
{
    (void)port, (void)reason;
    return 0;
}

/* ---- a link, and a connection ---- */

#define MAP_BYTES ((size_t)1 << 20)

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static int fake_fd(const bw_link_t *link)
{
    (void)link;
    return vm.fd;
}

static void fake_wake_self(bw_link_t *link)
{
    (void)link;
}

static bool fake_trim(bw_link_t *link)
{
    (void)link;
    return vm.trims_left > 0 && --vm.trims_left > 0;
}

static void fake_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    (void)link;
    *stats_p = vm.stats;
}

static void fake_flush(bw_link_t *link, bw_span_t *rest_p)
{
    (void)link;
    *rest_p = (bw_span_t){.len = 0};
}

static const char *fake_reason(bw_link_t *link)
{
    (void)link;
    return vm.reason;
}

/* A carrier may use its descriptor until this call. */
static void fake_close(bw_link_t *link, bw_leftover_t *left_p)
{
    (void)link;
    vm.was_open = is_open(vm.fd);
    *left_p = (bw_leftover_t){.fd = vm.fd, .socket = -1};
    left_p->map[0].iov_base = mmap(NULL, MAP_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    left_p->map[0].iov_len = MAP_BYTES;
}

static const bw_carrier_t fake_ops = {.kind = "fake",
                                      .fd = fake_fd,
                                      .wake_self = fake_wake_self,
                                      .trim = fake_trim,
                                      .stats = fake_stats,
                                      .flush = fake_flush,
                                      .reason = fake_reason,
                                      .close = fake_close};

static bw_link_t fake_link = {.ops = &fake_ops};

static bw_port_t *open_port(void)
{
    memset(&vm, 0, sizeof vm);
    vm.fd = eventfd(0, EFD_CLOEXEC);
    vm.timer_ms = -1;
    return (bw_port_t *)entry.start(NULL, NULL);
}

static bool begin(bw_port_t *port)
{
    port->active = pump_begin_polling(&port->pump);
    return port->active;
}

/* ---- cases ---- */

/* Freeing is left to another thread, because it takes up to 0.3 ms per megabyte of memory, and
 * seconds if the peer is slow. */
static void the_rest_is_freed_later(void)
{
    void *map;

    CHECK(vm.later != NULL);
    map = ((closing_t *)vm.later_data)->left.map[0].iov_base;
    CHECK_EQ(madvise(map, MAP_BYTES, MADV_NORMAL), 0);
    vm.later(vm.later_data);
    CHECK_EQ(madvise(map, MAP_BYTES, MADV_NORMAL), -1);
    vm.later_drop(vm.later_data);
}

static void a_link_is_closed_before_its_descriptor(void)
{
    bw_port_t *port = open_port();

    pump_start(&port->pump, &fake_link);
    CHECK(begin(port));
    CHECK(vm.is_selected);
    entry.stop((ErlDrvData)port);
    CHECK(vm.was_open);
    CHECK(!vm.is_selected);
    CHECK(!is_open(vm.fd));
    CHECK_IN(the_rest_is_freed_later());
}

static void a_connection_is_closed_before_its_descriptor(void)
{
    bw_port_t *port = open_port();

    port->establish.carrier = &fake_ops;
    port->establish.link = &fake_link;
    CHECK_EQ(driver_select(NULL, (ErlDrvEvent)(intptr_t)vm.fd, ERL_DRV_READ | ERL_DRV_USE, 1), 0);
    port->establish.is_selected = true;
    entry.stop((ErlDrvData)port);
    CHECK(vm.was_open);
    CHECK(!is_open(vm.fd));
    CHECK_IN(the_rest_is_freed_later());
}

/* Memory is released in pieces once there has been no output for a while: the timer fires again
 * immediately for each further piece, and stops when nothing is left to release. */
static void idle_memory_goes_back_in_pieces(void)
{
    bw_port_t *port = open_port();
    int calls = 0;

    pump_start(&port->pump, &fake_link);
    CHECK(begin(port));
    vm.stats.bytes_out = 100;
    check_later(port);
    CHECK_EQ(vm.timer_ms, CHECK_MS);
    vm.trims_left = 5;
    while (vm.timer_ms >= 0 && calls < 10) {
        vm.timer_ms = -1;
        entry.timeout((ErlDrvData)port);
        CHECK(vm.timer_ms <= 1);
        calls++;
    }
    CHECK_EQ(vm.trims_left, 0);
    CHECK_EQ(calls, 5);

    /* output between two pieces starts a longer wait for idleness */
    vm.trims_left = 5;
    check_later(port);
    entry.timeout((ErlDrvData)port);
    CHECK(vm.timer_ms <= 1);
    vm.stats.bytes_out = 200;
    entry.timeout((ErlDrvData)port);
    CHECK_EQ(vm.timer_ms, BUSY_MS);
    CHECK_EQ(vm.trims_left, 4);
    entry.stop((ErlDrvData)port);
    vm.later(vm.later_data);
    vm.later_drop(vm.later_data);
}

/* Executes a command and stores its reply in `reply`. Returns the length of the reply. */
static int control(bw_port_t *port, unsigned int command, const void *data, size_t len, char *reply)
{
    char *at = reply;

    return (int)entry.control((ErlDrvData)port, command, (char *)(uintptr_t)data, len, &at, 64);
}

/* Starts listening in a directory. */
static int listen_in(bw_port_t *port, const char *dir, char *reply)
{
    uint8_t data[64];

    if (control(port, COMMAND_USE, "shm", 4, reply) != 1 || reply[0] != 0)
        return -1;
    memcpy(bw_put(data, BW_RING_MIN_BYTES, 8), dir, strlen(dir));
    return control(port, COMMAND_LISTEN, data, 8 + strlen(dir), reply);
}

static void work_in_a_file_system_is_left_to_another_thread(void)
{
    char dir[] = "/tmp/beamway-test-XXXXXX", reply[64];
    bw_port_t *port = open_port();

    CHECK(mkdtemp(dir) != NULL);
    CHECK_EQ(listen_in(port, dir, reply), 1);
    CHECK_EQ(reply[0], REPLY_LATER);
    CHECK_EQ(rmdir(dir), 0); /* the directory is empty again */
    CHECK_EQ(mkdir(dir, 0700), 0);
    CHECK(vm.later != NULL && !vm.was_told);
    vm.later(vm.later_data);
    CHECK_EQ(((job_t *)vm.later_data)->reply.bytes[0], 0);
    CHECK(port->establish.link == NULL);
    entry.ready_async((ErlDrvData)port, vm.later_data);
    CHECK(vm.was_told);
    CHECK(port->establish.link != NULL);
    entry.stop((ErlDrvData)port);
    CHECK_EQ(rmdir(dir), 0);
    vm.later(vm.later_data);
    vm.later_drop(vm.later_data);

    port = open_port();
    CHECK_EQ(control(port, COMMAND_USE, "rdma\0/nowhere.so", 16, reply), 1);
    CHECK_EQ(reply[0], REPLY_LATER);
    vm.later(vm.later_data);
    CHECK_EQ(((job_t *)vm.later_data)->reply.bytes[0], 1);
    entry.ready_async((ErlDrvData)port, vm.later_data);
    CHECK(vm.was_told);
    CHECK(port->establish.carrier == NULL);
    entry.stop((ErlDrvData)port);
}

/* The port may close before the thread has finished its work; nothing may be leaked. */
static void what_nobody_waits_for_is_closed(void)
{
    char dir[] = "/tmp/beamway-test-XXXXXX", reply[64];
    bw_port_t *port = open_port();

    CHECK(mkdtemp(dir) != NULL);
    CHECK_EQ(listen_in(port, dir, reply), 1);
    vm.later(vm.later_data);
    entry.stop((ErlDrvData)port);
    CHECK(vm.later_drop != NULL);
    vm.later_drop(vm.later_data);
    CHECK_EQ(rmdir(dir), 0);
}

/* A server call consists of three frames, which are sent together. */
static void what_is_sent_while_the_poller_looks_goes_with_the_next_look(void)
{
    reply_t reply = {0};
    bw_port_t *port = open_port();

    pump_start(&port->pump, &fake_link);
    CHECK(begin(port));
    port->senders.has_keeper = true;
    port->rounds.at_us = bw_now_us();
    port->pump.is_unflushed = true;
    port->pump.spinning = true;
    CHECK(flush_soon(port));
    CHECK(port->pump.is_unflushed);
    CHECK(port->flush_ms != NO_FLUSH);
    port->pump.spinning = false; /* this look sends, and finds nothing to read */
    CHECK(command_look(port, &reply));
    CHECK(!port->pump.is_unflushed);
    entry.stop((ErlDrvData)port);
    vm.later(vm.later_data);
    vm.later_drop(vm.later_data);
}

/* The timer that was set for data already sent by earlier looks may not have fired yet. */
static void what_a_lone_caller_sends_waits_for_no_timer_of_before(void)
{
    bw_port_t *port = open_port();

    pump_start(&port->pump, &fake_link);
    CHECK(begin(port));
    port->senders.has_keeper = true;
    port->rounds.lone = BW_ROUNDS_LONE;
    port->rounds.at_us = bw_now_us();
    port->pump.is_unflushed = port->pump.spinning = true;
    CHECK(flush_soon(port));
    CHECK_EQ(vm.timer_ms, FLUSH_MS);
    CHECK(flush(port));
    port->pump.spinning = false;
    port->pump.is_unflushed = true;
    CHECK(flush_soon(port));
    CHECK_EQ(vm.timer_ms, 0);
    entry.stop((ErlDrvData)port);
    vm.later(vm.later_data);
    vm.later_drop(vm.later_data);
}

/* The VM fires a zero timeout immediately unless the port has used up its time slice. */
static void others_run_before_the_port_comes_back(void)
{
    bw_port_t *port = open_port();

    pump_start(&port->pump, &fake_link);
    CHECK(begin(port));
    come_back(port);
    CHECK_EQ(vm.timer_ms, -1);
    port->pump.comes_back = true;
    come_back(port);
    CHECK_EQ(vm.timer_ms, 0);
    CHECK_EQ(vm.used_percent, 100);
    entry.stop((ErlDrvData)port);
    vm.later(vm.later_data);
    vm.later_drop(vm.later_data);
}

/* Over TCP the peer may be any Erlang node, whereas over TLS it is always a Beamway node. */
static void a_failed_link_says_why(void)
{
    static const struct {
        const char *reason;
        bool is_packets;
        const char *said;
    } links[] = {
        {NULL, false, "beamway_link_corrupt"},
        {NULL, true, "beamway_link_corrupt"},
        {"etimedout", false, "etimedout"},
        {"etimedout", true, "connection_closed"},
        {"beamway_tcp_failed", true, "connection_closed"},
        {"beamway_tls_corrupt", true, "beamway_tls_corrupt"},
        {"beamway_tls_failed", true, "beamway_tls_failed"},
    };

    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        bw_port_t *port = open_port();

        pump_start(&port->pump, &fake_link);
        port->pump.is_packets = links[i].is_packets;
        vm.reason = links[i].reason;
        fail(port);
        CHECK(vm.said && strcmp(vm.said, links[i].said) == 0);
        entry.stop((ErlDrvData)port);
        vm.later(vm.later_data);
        vm.later_drop(vm.later_data);
    }
}

static const check_case_t cases[] = {
    {"a_link_is_closed_before_its_descriptor", a_link_is_closed_before_its_descriptor},
    {"a_connection_is_closed_before_its_descriptor", a_connection_is_closed_before_its_descriptor},
    {"work_in_a_file_system_is_left_to_another_thread",
     work_in_a_file_system_is_left_to_another_thread},
    {"what_nobody_waits_for_is_closed", what_nobody_waits_for_is_closed},
    {"idle_memory_goes_back_in_pieces", idle_memory_goes_back_in_pieces},
    {"what_is_sent_while_the_poller_looks_goes_with_the_next_look",
     what_is_sent_while_the_poller_looks_goes_with_the_next_look},
    {"others_run_before_the_port_comes_back", others_run_before_the_port_comes_back},
    {"what_a_lone_caller_sends_waits_for_no_timer_of_before",
     what_a_lone_caller_sends_waits_for_no_timer_of_before},
    {"a_failed_link_says_why", a_failed_link_says_why},
};

CHECK_MAIN(cases)
