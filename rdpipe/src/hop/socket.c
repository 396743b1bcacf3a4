/* SPDX-License-Identifier: Apache-2.0 */
#include "socket.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG SOMAXCONN
#define TCP_CA_NAME_MAX 16 /* as in the kernel */
#define AGAIN_MS 100       /* pause between two attempts to connect */
#define ADDRESS_MS 4000    /* how long one of several addresses may remain silent */

rd_wait_t rd_wait(int fd, short events, int stop, int64_t deadline)
{
    for (;;) {
        struct pollfd polled[2] = {{.fd = fd, .events = events}, {.fd = stop, .events = POLLIN}};
        int n = poll(polled, 2, rd_left_ms(deadline));

        if (polled[1].revents)
            return RD_STOPPED;
        if (polled[0].revents)
            return RD_READY;
        if ((n == 0 || (n < 0 && errno != EINTR)) && rd_left_ms(deadline) == 0)
            return RD_TIMEOUT;
    }
}

bool rd_await(int fd, short events, int stop, int64_t deadline, rd_why_t *why)
{
    switch (rd_wait(fd, events, stop, deadline)) {
    case RD_READY:
        return true;
    case RD_STOPPED:
        return rd_because_of(why, RD_CAUSE_STOPPED, "stopped");
    default:
        return rd_because(why, "no answer in time");
    }
}

void rd_tune(int fd)
{
    int yes = 1, idle = 10, every = 5, count = 4;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

rd_tcp_t rd_tcp_of(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof info;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
        return (rd_tcp_t){0};
    return (rd_tcp_t){.acked = info.tcpi_bytes_acked,
                      .sent = info.tcpi_data_segs_out,
                      .resent = info.tcpi_total_retrans,
                      .rtt_us = info.tcpi_rtt,
                      .least_rtt_us = info.tcpi_min_rtt != UINT32_MAX ? info.tcpi_min_rtt : 0,
                      .busy_us = info.tcpi_busy_time,
                      .limited_us = info.tcpi_rwnd_limited + info.tcpi_sndbuf_limited};
}

unsigned rd_round_trip_ms(int fd)
{
    rd_tcp_t tcp = rd_tcp_of(fd);

    return (tcp.least_rtt_us > 0 ? tcp.least_rtt_us : tcp.rtt_us) / 1000;
}

const char *rd_kernel_line(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "re");

    text[0] = 0;
    if (file && fgets(text, (int)bytes, file))
        text[strcspn(text, "\n")] = 0;
    if (file)
        (void)fclose(file);
    return text;
}

bool rd_congestion_is_name(const char *name)
{
    size_t len = strlen(name);

    return len > 0 && len < TCP_CA_NAME_MAX &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == len;
}

bool rd_set_congestion(int fd, const char *name, rd_why_t *why)
{
    char has[256];

    if (!name || setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0)
        return true;
    return rd_because(
        why, "--congestion %s is not available; the kernel of this host has: %s", name,
        rd_kernel_line("/proc/sys/net/ipv4/tcp_allowed_congestion_control", has, sizeof has));
}

/* The kernel sizes buffers automatically up to the last number of tcp_wmem. A size that is set
 * explicitly can be up to twice wmem_max, which may be larger. */
void rd_widen(int fd)
{
    char text[64];
    uint64_t most = 0, by_itself = 0;
    const char *last;
    int bytes = 32 * 1024 * 1024;

    (void)rd_number(rd_kernel_line("/proc/sys/net/core/wmem_max", text, sizeof text), 1, UINT32_MAX,
                    &most);
    last = strrchr(rd_kernel_line("/proc/sys/net/ipv4/tcp_wmem", text, sizeof text), '\t');
    if (last)
        (void)rd_number(last + 1, 1, UINT32_MAX, &by_itself);
    if (by_itself > 0 && 2 * most > by_itself)
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static uint16_t port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at;

    if (getsockname(fd, (struct sockaddr *)&at, &len) < 0)
        return 0;
    return ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                          : ((struct sockaddr_in *)&at)->sin_port);
}

static void set_port(struct sockaddr *at, uint16_t port)
{
    if (at->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)at)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)at)->sin_port = htons(port);
}

/* Returns a listening socket, or -1 with errno. */
static int listen_at(const struct addrinfo *info, uint16_t port)
{
    int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int yes = 1, no = 0;

    if (fd < 0)
        return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (info->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    set_port(info->ai_addr, port);
    if (bind(fd, info->ai_addr, info->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    rd_close(&fd);
    return -1;
}

static bool look_up(const char *host, int family, int flags, struct addrinfo **list_p,
                    rd_why_t *why)
{
    struct addrinfo hints = {
        .ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = flags | AI_NUMERICSERV};
    int status = getaddrinfo(host, "0", &hints, list_p);

    return status == 0 ||
           rd_because(why, "host %s: %s", host ? host : "(any)", gai_strerror(status));
}

/* Returns a socket that listens on the first free port, or -1 with errno. */
static int listen_on(const struct addrinfo *list, uint16_t port_first, uint16_t port_last)
{
    int fd = -1;

    for (uint32_t port = port_first; port <= port_last && fd < 0; port++)
        fd = listen_at(list, (uint16_t)port);
    return fd;
}

bool rd_listen(const char *address, uint16_t port_first, uint16_t port_last, int *fd_p,
               uint16_t *port_p, rd_why_t *why)
{
    struct addrinfo *list;
    rd_why_t ignored;
    int fd = -1;

    /* The IPv6 wildcard accepts both families, but a host without IPv6 has only IPv4. */
    if (!address && look_up(NULL, AF_INET6, AI_PASSIVE, &list, &ignored)) {
        fd = listen_on(list, port_first, port_last);
        freeaddrinfo(list);
    }
    if (fd < 0) {
        if (!look_up(address, address ? AF_UNSPEC : AF_INET, AI_PASSIVE, &list, why))
            return false;
        fd = listen_on(list, port_first, port_last);
        if (fd < 0)
            (void)rd_because(why, "cannot listen on %s port %u%s: %s",
                             address ? address : "any address", port_first,
                             port_last > port_first ? " and the following" : "", strerror(errno));
        freeaddrinfo(list);
    }
    if (fd < 0)
        return false;
    *fd_p = fd;
    *port_p = port_of(fd);
    return true;
}

int rd_connect_to(const struct sockaddr *to, socklen_t to_len, int stop, int64_t deadline,
                  int *fd_p)
{
    int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t len = sizeof error;

    if (fd < 0)
        return errno;
    if (connect(fd, to, to_len) < 0)
        error = errno;
    if (error == EINPROGRESS) {
        switch (rd_wait(fd, POLLOUT, stop, deadline)) {
        case RD_READY:
            if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
                error = errno;
            break;
        case RD_STOPPED:
            error = ECANCELED;
            break;
        case RD_TIMEOUT:
            error = ETIMEDOUT;
        }
    }
    if (error == 0)
        *fd_p = fd;
    else
        close(fd);
    return error;
}

bool rd_connect(const char *host, uint16_t port, int stop, int64_t patient_until, int64_t deadline,
                int *fd_p, rd_why_t *why)
{
    struct addrinfo *list;
    int error;

    if (!look_up(host, AF_UNSPEC, 0, &list, why))
        return false;
    for (;;) {
        error = EHOSTUNREACH;
        for (const struct addrinfo *at = list; at && error != 0 && error != ECANCELED;
             at = at->ai_next) {
            int64_t until = rd_now_ms() + ADDRESS_MS;
            int last;

            /* No other address is left to try. */
            if (until > deadline || (!at->ai_next && error != ECONNREFUSED))
                until = deadline;
            set_port(at->ai_addr, port);
            last = rd_connect_to(at->ai_addr, at->ai_addrlen, stop, until, fd_p);
            /* If an address refuses the connection, a listener may still appear there later, so
             * keep this error whatever the next address returns. */
            if (last == 0 || last == ECANCELED || error != ECONNREFUSED)
                error = last;
        }
        if (error != ECONNREFUSED || rd_left_ms(patient_until) == 0)
            break;
        if (rd_wait(-1, 0, stop, rd_now_ms() + AGAIN_MS) == RD_STOPPED)
            error = ECANCELED;
        if (error == ECANCELED)
            break;
    }
    freeaddrinfo(list);
    if (error == 0)
        return true;
    /* Only rdsend waits for a listener, and rdsend does not have these options. */
    (void)rd_because(why, "cannot connect to %s port %u: %s%s", host, port, strerror(error),
                     patient_until == 0 && (error == ETIMEDOUT || error == EHOSTUNREACH ||
                                            error == ENETUNREACH || error == ECONNREFUSED)
                         ? " (a firewall between the hosts? --port FIRST-LAST chooses the ports, "
                           "--address HOST=ADDRESS another network)"
                         : "");
    /* The program that listened there may have exited for a reason of its own. */
    if (error == ECONNREFUSED || error == ECONNRESET)
        why->cause = RD_CAUSE_LOST;
    return false;
}
