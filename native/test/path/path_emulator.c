/* SPDX-License-Identifier: Apache-2.0
 *
 * Emulates a network path between two network namespaces, with a rate, a delay, loss and a bounded
 * queue in both directions, for kernels without netem. See README.md in this directory. Needs root.
 *
 * usage: path_emulator SPACE SPACE [--rate BITS] [--delay US] [--loss SHARE] [--queue BYTES]
 *                      [--seed N] [--mtu BYTES] [--offload 0|1]
 *
 * Each namespace gets a TUN device `path0`, which is up and has no address. Then the line "ready"
 * is printed. The program prints its counters as a line of JSON on SIGUSR1, and when it exits,
 * which it does on SIGTERM, on SIGINT and at the end of its standard input.
 */
#include "path.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* How many packets are read from one device before the other gets its turn. */
enum { BATCH = 64, PACKET_ROOM = 65536 + sizeof(struct virtio_net_hdr), QUEUE_PACKETS = 10000 };
enum { WRONG_WORDS = 2, NS_PER_S = 1000000000 };

static const char device[] = "path0";
static volatile sig_atomic_t is_ending, is_asked;

typedef struct {
    int tun;            /* source of its packets */
    int out;            /* the other end */
    path_t *path;       /* the path through which they pass */
    uint64_t refused;   /* rejected by the device at the far end */
    uint64_t latest_ns; /* the longest delay in handing over a packet */
} direction_t;

static void on_signal(int number)
{
    if (number == SIGUSR1)
        is_asked = 1;
    else
        is_ending = 1;
}

static void fail(const char *what, const char *of)
{
    fprintf(stderr, "path_emulator: %s %s: %s\n", what, of, strerror(errno));
    exit(1);
}

static uint64_t now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

/* ---- devices ---- */

static void enter(const char *space)
{
    char file[300];
    int fd;

    snprintf(file, sizeof file, "/run/netns/%s", space);
    fd = open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fail("no network namespace", space);
    if (setns(fd, CLONE_NEWNET) < 0)
        fail("cannot enter the network namespace", space);
    close(fd);
}

static void configure(const path_settings_t *settings)
{
    struct ifreq request = {0};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        fail("cannot open", "a socket");
    memcpy(request.ifr_name, device, sizeof device);
    request.ifr_mtu = (int)settings->mtu;
    if (ioctl(fd, SIOCSIFMTU, &request) < 0)
        fail("cannot set the MTU of", device);
    /* Packets should queue in the path, not in the device. */
    request.ifr_qlen = QUEUE_PACKETS;
    if (ioctl(fd, SIOCSIFTXQLEN, &request) < 0)
        fail("cannot set the queue of", device);
    if (ioctl(fd, SIOCGIFFLAGS, &request) < 0)
        fail("cannot read the flags of", device);
    request.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &request) < 0)
        fail("cannot bring up", device);
    close(fd);
}

/* Opens a device in a network namespace. The receiver of a packet verifies its checksum, because
 * the path does not change packets. */
static int open_device(const path_settings_t *settings, const char *space)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
    int fd;

    enter(space);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        fail("cannot open", "/dev/net/tun");
    memcpy(request.ifr_name, device, sizeof device);
    if (ioctl(fd, TUNSETIFF, &request) < 0)
        fail("cannot make the device path0 in", space);
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | (settings->offload ? TUN_F_TSO4 | TUN_F_TSO6 : 0)) <
        0)
        fail("cannot set the offload of path0 in", space);
    configure(settings);
    return fd;
}

/* ---- packets ---- */

/* Segments that arrive as one packet occupy the line with one header each. */
static void offer(path_t *path, const uint8_t *packet, uint32_t size)
{
    struct virtio_net_hdr header;
    uint32_t line_bytes = size - sizeof header, segments = 1;

    memcpy(&header, packet, sizeof header);
    if (header.gso_type != VIRTIO_NET_HDR_GSO_NONE && header.gso_size > 0 &&
        line_bytes > header.hdr_len) {
        segments = (line_bytes - header.hdr_len + header.gso_size - 1) / header.gso_size;
        line_bytes += (segments - 1) * header.hdr_len;
    }
    path_offer(path, now(), packet, size, line_bytes, segments);
}

/* Returns false if there may be more. */
static bool take_packets(direction_t *direction)
{
    static uint8_t packet[PACKET_ROOM];

    for (int i = 0; i < BATCH; i++) {
        ssize_t size = read(direction->tun, packet, sizeof packet);

        if (size < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (size <= (ssize_t)sizeof(struct virtio_net_hdr))
            fail("cannot read from", device);
        offer(direction->path, packet, (uint32_t)size);
    }
    return false;
}

static void hand_over(direction_t *direction)
{
    const void *packet;
    uint32_t size;
    uint64_t time = now();

    while ((packet = path_due(direction->path, time, &size))) {
        uint64_t late = time - path_next(direction->path);

        if (late > direction->latest_ns)
            direction->latest_ns = late;
        if (write(direction->out, packet, size) < 0)
            direction->refused++;
        path_done(direction->path);
    }
}

/* Waits until there is something to do, which may be immediately. Signals are delivered only here.
 * The standard input is never written to; it can only be closed. */
static void await(direction_t *directions, bool is_idle, const sigset_t *unblocked)
{
    struct pollfd fds[] = {{.fd = directions[0].tun, .events = POLLIN},
                           {.fd = directions[1].tun, .events = POLLIN},
                           {.fd = STDIN_FILENO, .events = POLLIN}};
    uint64_t next = path_next(directions[0].path), other = path_next(directions[1].path);
    uint64_t time = now();
    struct timespec left = {0};
    char byte;

    if (other < next)
        next = other;
    if (is_idle && next != UINT64_MAX && next > time) {
        left.tv_sec = (time_t)((next - time) / NS_PER_S);
        left.tv_nsec = (long)((next - time) % NS_PER_S);
    }
    if (ppoll(fds, 3, is_idle && next == UINT64_MAX ? NULL : &left, unblocked) < 0 &&
        errno != EINTR)
        fail("cannot wait for", device);
    if (fds[2].revents && read(STDIN_FILENO, &byte, 1) <= 0)
        is_ending = 1;
}

/* ---- reports ---- */

static void print_direction(const char *name, const direction_t *direction)
{
    const path_counts_t *counts = path_counts(direction->path);

    printf("\"%s\":{\"packets\":%llu,\"bytes\":%llu,\"lost\":%llu,\"dropped\":%llu,"
           "\"refused\":%llu,\"most_queued_bytes\":%llu,\"latest_us\":%llu}",
           name, (unsigned long long)counts->packets, (unsigned long long)counts->bytes,
           (unsigned long long)counts->lost, (unsigned long long)counts->dropped,
           (unsigned long long)direction->refused, (unsigned long long)counts->most_queued_bytes,
           (unsigned long long)(direction->latest_ns / 1000));
}

static double cpu_seconds(void)
{
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void print_counters(const direction_t *directions, uint64_t began, bool is_realtime)
{
    printf("{");
    print_direction("there", &directions[0]);
    printf(",");
    print_direction("back", &directions[1]);
    printf(",\"seconds\":%.3f,\"cpu_seconds\":%.3f,\"realtime\":%s}\n",
           (double)(now() - began) / NS_PER_S, cpu_seconds(), is_realtime ? "true" : "false");
    fflush(stdout);
}

/* A packet that is due must be sent on time, whatever else is running on the machine. */
static bool run_first(void)
{
    const struct sched_param priority = {.sched_priority = 1};

    prctl(PR_SET_TIMERSLACK, 1L);
    return sched_setscheduler(0, SCHED_FIFO, &priority) == 0;
}

static sigset_t hold_signals(void)
{
    const struct sigaction action = {.sa_handler = on_signal};
    const int taken[] = {SIGUSR1, SIGTERM, SIGINT};
    sigset_t held, before;

    sigemptyset(&held);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        sigaddset(&held, taken[i]);
        sigaction(taken[i], &action, NULL);
        sigprocmask(SIG_BLOCK, &held, i ? NULL : &before);
    }
    signal(SIGPIPE, SIG_IGN);
    return before;
}

int main(int argc, char **argv)
{
    path_settings_t settings;
    direction_t directions[2] = {0};
    char why[300];
    sigset_t unblocked = hold_signals();
    uint64_t began = now();
    bool is_realtime;

    if (!path_parse(&settings, argc, argv, why, sizeof why)) {
        fprintf(stderr, "path_emulator: %s\n", why);
        return WRONG_WORDS;
    }
    for (unsigned int i = 0; i < 2; i++) {
        directions[i].tun = open_device(&settings, settings.spaces[i]);
        directions[!i].out = directions[i].tun;
        directions[i].path = path_open(&settings, i);
        if (!directions[i].path)
            fail("no memory for the queue of", settings.spaces[i]);
    }
    is_realtime = run_first();
    printf("ready\n");
    fflush(stdout);
    while (!is_ending) {
        bool is_empty = true;

        for (int i = 0; i < 2; i++)
            is_empty = take_packets(&directions[i]) && is_empty;
        for (int i = 0; i < 2; i++)
            hand_over(&directions[i]);
        if (is_asked) {
            is_asked = 0;
            print_counters(directions, began, is_realtime);
        }
        await(directions, is_empty, &unblocked);
    }
    print_counters(directions, began, is_realtime);
    for (int i = 0; i < 2; i++)
        path_close(directions[i].path);
    return 0;
}
