/* SPDX-License-Identifier: Apache-2.0
 *
 * Does the minimum that a server can do, for `bench http`: it reads requests, discards their bodies
 * and responds with hello world, with a constant JSON object (/json) or with 1 KB (/file_1k.bin).
 * It echoes short WebSocket messages; the client must use the key from RFC 6455's example.
 * The responses to requests that arrived together are sent with one call. The rate of this program
 * shows how much load can be generated on this machine, so no server's rate can be much higher. It
 * listens only on loopback, and supports only well-behaved clients.
 *
 * usage: http_bare PORT [PROCESSES]
 *
 * It runs until it is killed. If it cannot start, it prints an error and exits with 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 16384,
    BODY_BYTES = 1 << 20,
    ANSWERS_BYTES = 1 << 16,
    FILE_BYTES = 1024,
    BACKLOG = 1024,
    EVENTS = 256,
    MASK_BYTES = 4
};

typedef struct {
    char *bytes;
    size_t size;
} answer_t;

typedef struct {
    int fd;
    size_t have;    /* bytes in `head` */
    size_t missing; /* bytes of the body still to arrive */
    bool closes;    /* the client requested that the connection be closed after the response */
    bool echoes;    /* `head` contains frames */
    const answer_t *answer;
    char head[HEAD_BYTES];
} connection_t;

static answer_t hello, last_hello, json, file_1k;
static const char upgraded[] =
    "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    "sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
static int events_of_all;
static char body[BODY_BYTES];
static char answers[ANSWERS_BYTES];
static size_t answers_size;

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

static void make_answer(answer_t *answer, const char *header, const char *text)
{
    int n = asprintf(&answer->bytes, "HTTP/1.1 200 OK\r\n%scontent-length: %zu\r\n\r\n%s", header,
                     strlen(text), text);
    if (n < 0)
        fail("asprintf");
    answer->size = (size_t)n;
}

/* Returns false if the connection is gone. */
static bool send_answers(connection_t *connection)
{
    size_t size = answers_size;
    answers_size = 0;
    if (size == 0 || send(connection->fd, answers, size, MSG_NOSIGNAL) > 0)
        return true;
    end(connection);
    return false;
}

/* Adds a response to those that are sent together, and sends the last response of a connection at
 * once. Returns false if the connection is gone. */
static bool add_answer(connection_t *connection)
{
    const answer_t *answer = connection->closes ? &last_hello : connection->answer;
    if (answers_size + answer->size > ANSWERS_BYTES && !send_answers(connection))
        return false;
    memcpy(answers + answers_size, answer->bytes, answer->size);
    answers_size += answer->size;
    if (!connection->closes)
        return true;
    if (send_answers(connection))
        end(connection);
    return false;
}

/* Echoes the complete frames in `head`. A message must be shorter than 126 bytes and consist of one
 * frame. */
static void echo(connection_t *connection)
{
    unsigned char *frame = (unsigned char *)connection->head;
    unsigned char *stop = frame + connection->have, echoed[HEAD_BYTES];
    size_t size = 0;
    while (stop - frame >= 2 + MASK_BYTES && stop - frame >= 2 + MASK_BYTES + (frame[1] & 0x7f)) {
        size_t length = frame[1] & 0x7f;
        const unsigned char *mask = frame + 2, *masked = mask + MASK_BYTES;
        if (frame[0] != 0x81 || length > 125) {
            end(connection);
            return;
        }
        echoed[size++] = frame[0];
        echoed[size++] = (unsigned char)length;
        for (size_t i = 0; i < length; i++)
            echoed[size++] = masked[i] ^ mask[i % MASK_BYTES];
        frame += 2 + MASK_BYTES + length;
    }
    connection->have = (size_t)(stop - frame);
    memmove(connection->head, frame, connection->have);
    if (size > 0 && send(connection->fd, echoed, size, MSG_NOSIGNAL) <= 0)
        end(connection);
}

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

static const answer_t *answer_to(const char *head)
{
    if (begins(head, "GET /json "))
        return &json;
    return begins(head, "GET /file_1k.bin ") ? &file_1k : &hello;
}

/* Responds to all complete requests in `head`. */
static void take_heads(connection_t *connection)
{
    const char *stop;
    while ((stop = memmem(connection->head, connection->have, "\r\n\r\n", 4)) != NULL) {
        size_t head = (size_t)(stop - connection->head) + 4, length = 0;
        connection->answer = answer_to(connection->head);
        for (const char *line = connection->head; line < stop; line++) {
            if (*line != '\r')
                continue;
            if (strncasecmp(line, "\r\ncontent-length:", 17) == 0)
                length = strtoul(line + 17, NULL, 10);
            else if (strncasecmp(line, "\r\nconnection: close", 19) == 0)
                connection->closes = true;
            else if (strncasecmp(line, "\r\nupgrade: websocket", 20) == 0)
                connection->echoes = true;
        }
        size_t here = connection->have - head;
        if (here < length) {
            connection->missing = length - here;
            connection->have = 0;
            send_answers(connection);
            return;
        }
        connection->have = here - length;
        memmove(connection->head, connection->head + head + length, connection->have);
        if (connection->echoes) {
            if (send_answers(connection) &&
                send(connection->fd, upgraded, sizeof upgraded - 1, MSG_NOSIGNAL) <= 0)
                end(connection);
            return;
        }
        if (!add_answer(connection))
            return;
    }
    if (send_answers(connection) && connection->have == HEAD_BYTES)
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
        if (connection->missing == 0 && add_answer(connection))
            send_answers(connection);
    } else {
        connection->have += (size_t)n;
        if (connection->echoes)
            echo(connection);
        else
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
    int port = argc == 2 || argc == 3 ? atoi(argv[1]) : 0, one = 1;
    int processes = argc == 3 ? atoi(argv[2]) : 1;
    if (port < 1 || port > 65535 || processes < 1) {
        fprintf(stderr, "usage: http_bare PORT [PROCESSES]\n");
        return 1;
    }
    char text[FILE_BYTES + 1] = {0};
    memset(text, 'x', FILE_BYTES);
    make_answer(&hello, "", "hello world\n");
    make_answer(&last_hello, "connection: close\r\n", "hello world\n");
    make_answer(&json, "content-type: application/json\r\n",
                "{\"id\":42,\"message\":\"hello world\",\"ok\":true}");
    make_answer(&file_1k, "", text);
    /* Each process has its own listening socket, and the kernel distributes the connections among
     * them. The other processes are killed when the first one exits. */
    while (--processes > 0) {
        pid_t pid = fork();
        if (pid < 0)
            fail("fork");
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            break;
        }
    }
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (listening < 0)
        fail("socket");
    if (setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        (argc == 3 && setsockopt(listening, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0) ||
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
