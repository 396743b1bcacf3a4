/* SPDX-License-Identifier: Apache-2.0
 *
 * The least that a server can do, for `bench http`: it reads requests, throws their bodies away and
 * says hello world. What it reaches is what the load can offer on this machine, so no server's
 * figure can be much above it. Loopback only, for well-behaved clients only.
 *
 * usage: http_bare PORT
 *
 * Ends when it is killed; exit code 1 with a line on standard error if it cannot begin.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_BYTES = 16384, BODY_BYTES = 1 << 20, BACKLOG = 1024, EVENTS = 256 };

static const char answer[] = "HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\nhello world\n";
static const char last_answer[] =
    "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 12\r\n\r\nhello world\n";

typedef struct {
    int fd;
    size_t have;    /* bytes in `head` */
    size_t missing; /* bytes of the body to come */
    bool closes;    /* after the answer, as the client has said */
    char head[HEAD_BYTES];
} connection_t;

static int events_of_all;
static char body[BODY_BYTES];

static void fail(const char *what)
{
    fprintf(stderr, "http_bare: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void watch(int fd, void *data)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = data};
    if (epoll_ctl(events_of_all, EPOLL_CTL_ADD, fd, &event) != 0)
        fail("epoll_ctl");
}

static void end(connection_t *connection)
{
    close(connection->fd);
    free(connection);
}

/* False if the connection is gone. */
static bool say_hello(connection_t *connection)
{
    const char *text = connection->closes ? last_answer : answer;
    size_t size = connection->closes ? sizeof last_answer - 1 : sizeof answer - 1;
    if (send(connection->fd, text, size, MSG_NOSIGNAL) > 0 && !connection->closes)
        return true;
    end(connection);
    return false;
}

/* Answers all requests that `head` holds whole. */
static void take_heads(connection_t *connection)
{
    const char *stop;
    while ((stop = memmem(connection->head, connection->have, "\r\n\r\n", 4)) != NULL) {
        size_t head = (size_t)(stop - connection->head) + 4, length = 0;
        for (const char *line = connection->head; line < stop; line++) {
            if (*line != '\r')
                continue;
            if (strncasecmp(line, "\r\ncontent-length:", 17) == 0)
                length = strtoul(line + 17, NULL, 10);
            else if (strncasecmp(line, "\r\nconnection: close", 19) == 0)
                connection->closes = true;
        }
        size_t here = connection->have - head;
        if (here < length) {
            connection->missing = length - here;
            connection->have = 0;
            return;
        }
        connection->have = here - length;
        memmove(connection->head, connection->head + head + length, connection->have);
        if (!say_hello(connection))
            return;
    }
    if (connection->have == HEAD_BYTES)
        end(connection);
}

static void serve(connection_t *connection)
{
    bool in_body = connection->missing > 0;
    size_t room = in_body ? connection->missing : HEAD_BYTES - connection->have;
    ssize_t n = recv(connection->fd, in_body ? body : connection->head + connection->have,
                     in_body && room > BODY_BYTES ? BODY_BYTES : room, 0);
    if (n <= 0) {
        end(connection);
    } else if (in_body) {
        connection->missing -= (size_t)n;
        if (connection->missing == 0)
            say_hello(connection);
    } else {
        connection->have += (size_t)n;
        take_heads(connection);
    }
}

static void accept_all(int listening)
{
    int fd;
    while ((fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        connection_t *connection = calloc(1, sizeof *connection);
        if (!connection)
            fail("calloc");
        connection->fd = fd;
        watch(fd, connection);
    }
    if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
        fail("accept");
}

int main(int argc, char **argv)
{
    int port = argc == 2 ? atoi(argv[1]) : 0, one = 1;
    if (port < 1 || port > 65535) {
        fprintf(stderr, "usage: http_bare PORT\n");
        return 1;
    }
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (listening < 0)
        fail("socket");
    if (setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        setsockopt(listening, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0)
        fail("setsockopt");
    if (bind(listening, (struct sockaddr *)&address, sizeof address) != 0)
        fail("bind");
    if (listen(listening, BACKLOG) != 0)
        fail("listen");
    if ((events_of_all = epoll_create1(EPOLL_CLOEXEC)) < 0)
        fail("epoll_create1");
    watch(listening, NULL);
    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(events_of_all, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr)
                serve(events[i].data.ptr);
            else
                accept_all(listening);
        }
    }
}
