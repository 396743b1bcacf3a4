/* SPDX-License-Identifier: Apache-2.0
 *
 * A load generator for `bench http` and `bench http-memory`, for loads that wrk and httperf cannot
 * produce. Loopback only.
 *
 * usage: http_load rate PORT PATH CONNECTIONS RATE SECONDS
 *        http_load hold PORT PATH CONNECTIONS
 *        http_load ws PORT PATH CONNECTIONS SECONDS PROCESSES
 *
 * rate: makes RATE requests per second at equal intervals over keep-alive connections, whatever the
 * server does (open loop). The latency of a request counts from the time when it was due, even if
 * no connection was free then, so a pause of the server counts against every request that it
 * delayed. A request that was never sent or answered counts as if it had been answered at the end
 * of the run, which exposes a server that is too slow for the rate. The program polls without
 * sleeping, so it needs its own processor. It prints `DONE UNSENT ERRORS P50 P99 MAX`: three
 * numbers of requests, and three latencies in microseconds.
 *
 * hold: opens the connections, makes one request on each, prints `holding`, and closes them at the
 * end of its standard input.
 *
 * ws: opens the connections, upgrades each to a WebSocket (RFC 6455), and sends a 64-byte text on
 * it as soon as the previous text has been echoed (closed loop). No two texts and masks are the
 * same, and each echo is compared with the text that was sent. It prints `ECHOES ERRORS CPU_US`:
 * the echoes received within SECONDS, the echoes that were wrong or missing, and the CPU time that
 * this program used in the meantime. The connections are distributed over PROCESSES processes.
 *
 * Exit status: 0, or 1 after an error message on standard error.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    ANSWER_BYTES = 8192,
    MOST_CONNECTIONS = 100000,
    EVENTS = 256,
    WAIT_S = 30,
    LATE_S = 5, /* how long after the end of the run a response may arrive */
    MASK_BYTES = 4,
    TEXT_BYTES = 64
};

/* The key in RFC 6455's example, and the response to it, which proves that the server supports
 * WebSockets. */
#define UPGRADE                                                                                    \
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"                   \
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
#define ACCEPT "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="

#define SECOND_NS UINT64_C(1000000000)

typedef struct {
    int fd;
    uint64_t due_ns;
    bool waits;   /* a response is outstanding */
    bool is_kept; /* at least one response has arrived */
    size_t have;
    char answer[ANSWER_BYTES];
    char text[TEXT_BYTES]; /* the text whose echo is expected */
} connection_t;

/* The results of one process. */
typedef struct {
    uint64_t echoes;
    long errors;
    uint64_t cpu_us;
} echoes_t;

static struct sockaddr_in server;
static char request[1024];
static size_t request_bytes;
static long errors;
static int events_of_all;

static void fail(const char *what)
{
    fprintf(stderr, "http_load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static long number(const char *text, const char *name, long least, long most)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end != 0 || value < least || value > most) {
        fprintf(stderr, "http_load: %s is %s; expected a number from %ld to %ld\n", name, text,
                least, most);
        exit(1);
    }
    return value;
}

static void open_connection(connection_t *connection)
{
    int one = 1;
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection->fd < 0)
        fail("socket");
    if (connect(connection->fd, (struct sockaddr *)&server, sizeof server) != 0)
        fail("connect");
    if (setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        fail("setsockopt");
    connection->have = 0;
    connection->is_kept = false;
}

/* Returns the size of a complete response, or 0 if it is not complete yet. */
static size_t answer_size(const connection_t *connection)
{
    const char *end = memmem(connection->answer, connection->have, "\r\n\r\n", 4);
    if (!end)
        return 0;
    size_t head = (size_t)(end - connection->answer) + 4, body = 0;
    for (const char *line = connection->answer; line < end; line++) {
        if (strncasecmp(line, "\r\ncontent-length:", 17) == 0)
            body = strtoul(line + 17, NULL, 10);
    }
    return head + body <= connection->have ? head + body : 0;
}

static bool is_good(const connection_t *connection)
{
    return connection->have > 12 && memcmp(connection->answer + 8, " 200", 4) == 0;
}

static void send_request(const connection_t *connection)
{
    ssize_t n = send(connection->fd, request, request_bytes, MSG_NOSIGNAL);
    if (n >= 0 && (size_t)n != request_bytes)
        fail("the system took a part of a request");
    /* If sending fails, the next read fails as well. */
}

static void watch(connection_t *connection)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(events_of_all, EPOLL_CTL_ADD, connection->fd, &event) != 0)
        fail("epoll_ctl");
}

/* Returns true if the response is complete or never will be. A server may close a keep-alive
 * connection at any time. The connection is then replaced with a new one, and if a request is still
 * unanswered, it is resent. */
static bool read_answer(connection_t *connection)
{
    bool was_kept = connection->is_kept;
    ssize_t n = recv(connection->fd, connection->answer + connection->have,
                     ANSWER_BYTES - 1 - connection->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n > 0 && connection->waits) {
        connection->have += (size_t)n;
        connection->answer[connection->have] = 0;
        if (connection->have < ANSWER_BYTES - 1 && answer_size(connection) == 0)
            return false;
        if (!is_good(connection))
            errors++;
        connection->have = 0;
        connection->is_kept = true;
        return true;
    }
    close(connection->fd);
    open_connection(connection);
    watch(connection);
    if (n <= 0 && (was_kept || !connection->waits)) {
        if (connection->waits)
            send_request(connection);
        return false;
    }
    errors++;
    return connection->waits;
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Returns the time at which the n-th request is due. Requests are counted from 0. */
static uint64_t due_ns(uint64_t start, uint64_t n, long rate)
{
    return start + n * SECOND_NS / (uint64_t)rate;
}

static void at_rate(long count, long rate, long seconds)
{
    connection_t *connections = calloc((size_t)count, sizeof *connections);
    connection_t **idle = calloc((size_t)count, sizeof *idle);
    uint64_t total = (uint64_t)rate * (uint64_t)seconds, sent = 0, done = 0, timed;
    uint32_t *times_us = calloc(total, sizeof *times_us);
    events_of_all = epoll_create1(EPOLL_CLOEXEC);
    if (!connections || !idle || !times_us || events_of_all < 0)
        fail("start");
    long idle_count = 0;
    for (long i = 0; i < count; i++) {
        open_connection(&connections[i]);
        watch(&connections[i]);
        idle[idle_count++] = &connections[i];
    }
    uint64_t start = now_ns() + 10000000u, end = start + (uint64_t)seconds * SECOND_NS,
             latest = end + LATE_S * SECOND_NS;
    uint64_t now = start;
    while ((now < end || idle_count < count) && now < latest) {
        struct epoll_event events[EVENTS];
        now = now_ns();
        while (now < end && idle_count > 0 && sent < total) {
            uint64_t due = due_ns(start, sent, rate);
            if (due > now)
                break;
            connection_t *connection = idle[--idle_count];
            connection->due_ns = due;
            connection->waits = true;
            sent++;
            send_request(connection);
        }
        int n = epoll_wait(events_of_all, events, EVENTS, 0);
        for (int i = 0; i < n; i++) {
            connection_t *connection = events[i].data.ptr;
            if (!read_answer(connection))
                continue;
            connection->waits = false;
            times_us[done++] = (uint32_t)((now_ns() - connection->due_ns) / 1000u);
            idle[idle_count++] = connection;
        }
    }
    if (done == 0) {
        fprintf(stderr, "http_load: no answer at all\n");
        exit(1);
    }
    timed = done;
    for (long i = 0; i < count; i++) {
        if (connections[i].waits)
            times_us[timed++] = (uint32_t)((now - connections[i].due_ns) / 1000u);
    }
    for (uint64_t i = sent; i < total; i++)
        times_us[timed++] = (uint32_t)((now - due_ns(start, i, rate)) / 1000u);
    qsort(times_us, timed, sizeof *times_us, by_size);
    printf("%llu %llu %ld %u %u %u\n", (unsigned long long)done, (unsigned long long)(total - sent),
           errors, times_us[timed / 2], times_us[timed - 1 - timed / 100], times_us[timed - 1]);
}

/* Sends the request and waits for the complete response. */
static void ask(connection_t *connection)
{
    struct timeval wait = {.tv_sec = WAIT_S};
    if (setsockopt(connection->fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) != 0)
        fail("setsockopt");
    send_request(connection);
    while (answer_size(connection) == 0) {
        ssize_t n = recv(connection->fd, connection->answer + connection->have,
                         ANSWER_BYTES - 1 - connection->have, 0);
        if (n <= 0)
            fail("no answer");
        connection->have += (size_t)n;
        connection->answer[connection->have] = 0;
    }
}

static void hold(long count)
{
    char byte;
    for (long i = 0; i < count; i++) {
        static connection_t connection;
        open_connection(&connection);
        ask(&connection);
    }
    puts("holding");
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
}

/* xorshift64 */
static uint64_t some_bits(void)
{
    static uint64_t bits;
    if (bits == 0)
        bits = now_ns() ^ ((uint64_t)getpid() << 32);
    bits ^= bits << 13;
    bits ^= bits >> 7;
    bits ^= bits << 17;
    return bits;
}

static void send_text(connection_t *connection)
{
    unsigned char frame[2 + MASK_BYTES + TEXT_BYTES] = {0x81, 0x80 | TEXT_BYTES};
    unsigned char *mask = frame + 2, *masked = mask + MASK_BYTES;
    uint64_t bits = some_bits(), letters = some_bits();
    memcpy(mask, &bits, MASK_BYTES);
    for (int i = 0; i < TEXT_BYTES; i++) {
        connection->text[i] = (char)('a' + ((letters >> (i % 61)) & 15));
        masked[i] = (unsigned char)connection->text[i] ^ mask[i % MASK_BYTES];
    }
    connection->have = 0;
    connection->waits = true;
    ssize_t n = send(connection->fd, frame, sizeof frame, MSG_NOSIGNAL);
    if (n >= 0 && (size_t)n != sizeof frame)
        fail("the system took a part of a frame");
    /* If sending fails, the next read fails as well. */
}

/* Returns true if the echo is complete or never will be. If it is wrong or missing, closes the
 * connection. */
static bool read_echo(connection_t *connection)
{
    const size_t size = 2 + TEXT_BYTES;
    const char *frame = connection->answer;
    ssize_t n = recv(connection->fd, connection->answer + connection->have,
                     ANSWER_BYTES - connection->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n > 0) {
        connection->have += (size_t)n;
        if (connection->have < size)
            return false;
        if (connection->have == size && frame[0] == (char)0x81 && frame[1] == TEXT_BYTES &&
            memcmp(frame + 2, connection->text, TEXT_BYTES) == 0) {
            connection->waits = false;
            return true;
        }
    }
    errors++;
    close(connection->fd);
    connection->fd = -1;
    return true;
}

static uint64_t cpu_us(void)
{
    struct rusage used;
    if (getrusage(RUSAGE_SELF, &used) != 0)
        fail("getrusage");
    return (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000u +
           (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static echoes_t echo(long count, long seconds)
{
    connection_t *connections = calloc((size_t)count, sizeof *connections);
    events_of_all = epoll_create1(EPOLL_CLOEXEC);
    if (!connections || events_of_all < 0)
        fail("start");
    for (long i = 0; i < count; i++) {
        connection_t *connection = &connections[i];
        open_connection(connection);
        ask(connection);
        if (memcmp(connection->answer + 8, " 101", 4) != 0 || !strstr(connection->answer, ACCEPT)) {
            fprintf(stderr, "http_load: the server did not agree to a WebSocket: %s\n",
                    connection->answer);
            exit(1);
        }
        watch(connection);
    }
    uint64_t cpu = cpu_us(), echoes = 0, now = now_ns(), end = now + (uint64_t)seconds * SECOND_NS,
             latest = end + LATE_S * SECOND_NS;
    long under_way = count;
    for (long i = 0; i < count; i++)
        send_text(&connections[i]);
    while (under_way > 0 && now < latest) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(events_of_all, events, EVENTS, 100);
        now = now_ns();
        for (int i = 0; i < n; i++) {
            connection_t *connection = events[i].data.ptr;
            if (!connection->waits || !read_echo(connection))
                continue;
            if (connection->fd < 0 || now >= end) {
                under_way--;
            } else {
                echoes++;
                send_text(connection);
            }
        }
    }
    cpu = cpu_us() - cpu;
    for (long i = 0; i < count; i++) {
        static const unsigned char goodbye[] = {0x88, 0x82, 0, 0, 0, 0, 1000 >> 8, 1000 & 0xff};
        if (connections[i].fd >= 0)
            (void)!send(connections[i].fd, goodbye, sizeof goodbye, MSG_NOSIGNAL);
    }
    return (echoes_t){.echoes = echoes, .errors = errors + under_way, .cpu_us = cpu};
}

static void echo_by_several(long count, long seconds, long processes)
{
    int ends[2];
    if (pipe(ends) != 0)
        fail("pipe");
    for (long i = 0; i < processes; i++) {
        pid_t pid = fork();
        if (pid < 0)
            fail("fork");
        if (pid == 0) {
            echoes_t mine = echo(count / processes + (i < count % processes), seconds);
            _exit(write(ends[1], &mine, sizeof mine) == (ssize_t)sizeof mine ? 0 : 1);
        }
    }
    close(ends[1]);
    echoes_t all = {0}, one;
    for (long i = 0; i < processes; i++) {
        /* A process that has failed has already printed the reason. */
        if (read(ends[0], &one, sizeof one) != (ssize_t)sizeof one)
            exit(1);
        all.echoes += one.echoes;
        all.errors += one.errors;
        all.cpu_us += one.cpu_us;
    }
    printf("%llu %ld %llu\n", (unsigned long long)all.echoes, all.errors,
           (unsigned long long)all.cpu_us);
}

int main(int argc, char **argv)
{
    bool rates = argc == 7 && strcmp(argv[1], "rate") == 0,
         echoes = argc == 7 && strcmp(argv[1], "ws") == 0;
    if (!rates && !echoes && !(argc == 5 && strcmp(argv[1], "hold") == 0)) {
        fprintf(stderr, "usage: http_load rate PORT PATH CONNECTIONS RATE SECONDS | http_load hold "
                        "PORT PATH CONNECTIONS | http_load ws PORT PATH CONNECTIONS SECONDS "
                        "PROCESSES\n");
        return 1;
    }
    server.sin_family = AF_INET;
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    server.sin_port = htons((uint16_t)number(argv[2], "PORT", 1, 65535));
    int n = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n%s\r\n",
                     argv[3], echoes ? UPGRADE : "");
    if (n < 0 || (size_t)n >= sizeof request) {
        fprintf(stderr, "http_load: PATH is too long\n");
        return 1;
    }
    request_bytes = (size_t)n;
    long count = number(argv[4], "CONNECTIONS", 1, MOST_CONNECTIONS);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (rates)
        at_rate(count, number(argv[5], "RATE", 1, 10000000), number(argv[6], "SECONDS", 1, 600));
    else if (echoes)
        echo_by_several(count, number(argv[5], "SECONDS", 1, 600),
                        number(argv[6], "PROCESSES", 1, count));
    else
        hold(count);
    return 0;
}
