/* SPDX-License-Identifier: Apache-2.0
 *
 * Simulates many nodes in one process, for `bench peers'. Each has its own name and its own
 * connection to the same real node, performs the handshake as an Erlang node does, and stays
 * connected. It answers ticks, and counts and discards messages. With Beamway's extension of the
 * handshake, the two nodes agree on the link over TCP, with a session (docs/dev/session.md) if the
 * real node wants one.
 *
 * The nodes are distributed over the hosts 127.1.0.1, 127.1.0.2 and so on, with HOST_NODES on each.
 * Each host has an epmd on the given port, and rejects connections to nodes that have vanished, as
 * the host of a killed node does.
 *
 * usage: peers COUNT EPMD_PORT stock|beamway
 *
 * The program reads one command per line on standard input and answers on standard output:
 *   connect ADDRESS PORT COOKIE   "connected", or "failed" and the reason
 *   await ticks|messages NUMBER   "reached", once NUMBER have arrived since the program started
 *   vanish                        "vanished NUMBER": every third node is gone, as if killed
 *   counts                        "ticks NUMBER lost NUMBER": the ticks received, and the
 *                                 connections that the real node has closed
 * It exits at the end of its standard input. If it fails, it prints the error and exits with 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    HOST_NODES = 30,
    MOST = 10000,
    AT_ONCE = 64, /* handshakes in progress at the same time */
    PACKET_BYTES = 1024,
    ACK_MS = 200,
    LOOK_MS = 50,
    RESUME_MS = 15000,
    IDLE_ACK_MS = RESUME_MS / 2
};

/* The flags of an OTP 25 node, and the flag for a visible one. */
#define FLAGS 0xd07df7fbdull
#define WORD_ACK 0xffffff03u
#define WORD_END 0xffffff04u
#define WORD_LOAD 0xffffff05u
/* Encoded as in native/driver/load.h: 1 % CPU, an empty run queue, load 0.50, 1024 MiB free. */
#define LOAD 0x8100000032000400ull
#define HEARS_LOAD 16
#define LONGEST 0x7fffffffu

typedef enum { COMMANDS, EPMD, EPMD_CLIENT, DOOR, NODE } kind_t;

/* A source of epoll events. */
typedef struct {
    kind_t kind;
    int fd, host;
} source_t;

typedef enum { RESTS, CONNECTS, STATUS, CHALLENGE, ACKNOWLEDGE, AGREES, UP, GONE } state_t;

typedef struct {
    source_t source;
    state_t state;
    char name[64];
    uint32_t challenge;
    bool resumes, expects_resume;
    /* A handshake packet, the length of a distribution packet, or a control word. */
    uint8_t packet[2 + PACKET_BYTES];
    size_t have;
    uint64_t left;     /* bytes of the current packet still to be read */
    uint64_t in, told; /* bytes of the session that were read and that were acknowledged */
    int64_t heard_ms, acked_ms;
} node_t;

typedef struct {
    source_t source;
    uint8_t request[300];
    size_t have;
} epmd_client_t;

/* Every third node is a victim. Victims have a separate port, so that their host can reject
 * connections to them. */
typedef struct {
    source_t epmd, doors[2];
    uint16_t ports[2];
} host_t;

static struct {
    int poller, count, hosts, next, shaking, up, lost;
    uint16_t epmd_port;
    bool is_beamway, has_vanished, is_asked; /* is_asked: `connect' waits for all nodes */
    node_t *nodes;
    host_t *hosts_of;
    struct sockaddr_in peer;
    char cookie[256];
    uint8_t host_digest[16];
    uint64_t ticks, messages, wanted;
    const uint64_t *awaited;
    int64_t looked_ms;
} self;

static void fail(const char *what)
{
    fprintf(stderr, "peers: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static uint8_t *put(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
    return at + bytes;
}

static uint64_t number(const uint8_t *at, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++)
        value = value << 8 | at[i];
    return value;
}

static void watch(source_t *source, uint32_t events, int operation)
{
    struct epoll_event event = {.events = events, .data.ptr = source};

    if (epoll_ctl(self.poller, operation, source->fd, &event) < 0)
        fail("epoll_ctl");
}

static void end_source(source_t *source)
{
    if (source->fd >= 0)
        close(source->fd);
    source->fd = -1;
}

/* ---- hosts ---- */

static bool is_victim(int index)
{
    return index % 3 == 2;
}

static struct sockaddr_in address_of(int host, uint16_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(0x7f010000u + (uint32_t)(host / 250 << 8) +
                                                         (uint32_t)(host % 250 + 1))};
}

static void listen_at(source_t *source, kind_t kind, int host, uint16_t *port)
{
    struct sockaddr_in at = address_of(host, *port);
    socklen_t size = sizeof at;
    int one = 1;

    source->kind = kind;
    source->host = host;
    source->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (source->fd < 0)
        fail("socket");
    setsockopt(source->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(source->fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(source->fd, 1024) < 0 ||
        getsockname(source->fd, (struct sockaddr *)&at, &size) < 0)
        fail("listen");
    *port = ntohs(at.sin_port);
    watch(source, EPOLLIN, EPOLL_CTL_ADD);
}

static bool is_there(int index)
{
    return !(self.has_vanished && is_victim(index));
}

/* Returns the node on this host that has this name before the @, or NULL. */
static node_t *find(int host, const uint8_t *name, size_t size)
{
    for (int i = host * HOST_NODES; i < self.count && i < (host + 1) * HOST_NODES; i++) {
        const char *at = strchr(self.nodes[i].name, '@');

        if (is_there(i) && (size_t)(at - self.nodes[i].name) == size &&
            memcmp(self.nodes[i].name, name, size) == 0)
            return &self.nodes[i];
    }
    return NULL;
}

static uint16_t port_of(const node_t *node)
{
    return self.hosts_of[node->source.host].ports[is_victim((int)(node - self.nodes))];
}

/* Writes epmd's answer to a request, and returns its size. */
static size_t answered(int host, const uint8_t *request, size_t size, uint8_t *answer)
{
    uint8_t *at = answer;

    if (size > 1 && request[0] == 'z') {
        const node_t *node = find(host, request + 1, size - 1);

        *at++ = 'w';
        if (!node) {
            *at++ = 1;
            return (size_t)(at - answer);
        }
        *at++ = 0;
        at = put(put(at, port_of(node), 2), 'M', 1);
        at = put(put(put(at, 0, 1), 6, 2), 5, 2);
        at = put(at, size - 1, 2);
        memcpy(at, request + 1, size - 1);
        at = put(at + size - 1, 0, 2);
    } else if (size == 1 && request[0] == 'n') {
        at = put(at, self.epmd_port, 4);
        for (int i = host * HOST_NODES; i < self.count && i < (host + 1) * HOST_NODES; i++)
            if (is_there(i))
                at += sprintf((char *)at, "name %.*s at port %u\n",
                              (int)(strchr(self.nodes[i].name, '@') - self.nodes[i].name),
                              self.nodes[i].name, port_of(&self.nodes[i]));
    }
    return (size_t)(at - answer);
}

static void serve_epmd(epmd_client_t *client)
{
    static uint8_t answer[HOST_NODES * 100 + 400];
    ssize_t got = read(client->source.fd, client->request + client->have,
                       sizeof client->request - client->have);
    size_t size, length;

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    client->have += got > 0 ? (size_t)got : 0;
    size = client->have >= 2 ? number(client->request, 2) : 0;
    if (got > 0 && (client->have < 2 || client->have < 2 + size) &&
        2 + size <= sizeof client->request)
        return;
    if (got > 0 && client->have == 2 + size) {
        length = answered(client->source.host, client->request + 2, size, answer);
        if (length > 0 && write(client->source.fd, answer, length) != (ssize_t)length)
            fprintf(stderr, "peers: an answer of epmd was not taken\n");
    }
    end_source(&client->source);
    free(client);
}

static void accept_epmd(source_t *epmd)
{
    int fd;

    while ((fd = accept4(epmd->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        epmd_client_t *client = calloc(1, sizeof *client);

        if (!client)
            fail("memory");
        client->source = (source_t){.kind = EPMD_CLIENT, .fd = fd, .host = epmd->host};
        watch(&client->source, EPOLLIN, EPOLL_CTL_ADD);
    }
}

/* These nodes do not need incoming connections, because they connect to the real node themselves.
 */
static void accept_and_close(source_t *door)
{
    int fd;

    while ((fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
        close(fd);
}

/* ---- a node ---- */

static void end_node(node_t *node, bool by_peer)
{
    if (node->state == UP) {
        self.up--;
        self.lost += by_peer;
    } else {
        self.shaking--;
    }
    node->state = GONE;
    end_source(&node->source);
}

/* Closes a node whose connection was refused or whose peer violated the protocol. */
static void broken(node_t *node, const char *why)
{
    bool was_up = node->state == UP;

    end_node(node, true);
    if (was_up)
        fprintf(stderr, "peers: %s: %s\n", node->name, why);
    else if (self.is_asked) {
        self.is_asked = false;
        say("failed: %s: %s", node->name, why);
    }
}

/* Sends so few bytes that they fit into any socket whose buffer is not full. Returns false if the
 * buffer is full or the node is closed. */
static bool sent(node_t *node, const uint8_t *bytes, size_t size)
{
    ssize_t written = send(node->source.fd, bytes, size, MSG_NOSIGNAL);

    if (written == (ssize_t)size)
        return true;
    if (written >= 0)
        broken(node, "a packet was sent in part");
    else if (errno != EAGAIN)
        broken(node, strerror(errno));
    return false;
}

static void send_packet(node_t *node, uint8_t *packet, size_t size)
{
    put(packet, size - 2, 2);
    if (!sent(node, packet, size) && node->state != GONE)
        broken(node, "the socket is full in the handshake");
}

/* Computes the handshake's digest: the MD5 sum of the cookie and the challenge. */
static void digest(uint32_t challenge, uint8_t sum[16])
{
    char text[300];
    int size = snprintf(text, sizeof text, "%s%u", self.cookie, challenge);
    unsigned written = 16;

    if (!EVP_Digest(text, (size_t)size, sum, &written, EVP_md5(), NULL) || written != 16)
        fail("MD5");
}

/* Encodes the extension as beamway_wire:encode_extension/1 does. This node offers neither rings nor
 * the takeover of TLS connections, and it accepts the peer's load reports. */
static uint8_t *put_extension(const node_t *node, uint8_t *at)
{
    memcpy(at, "BWay", 4);
    at = put(put(at + 4, 1, 1), 24, 2);
    memcpy(at, self.host_digest, 16);
    return put(put(put(at + 16, HEARS_LOAD, 2), RESUME_MS, 4), port_of(node), 2);
}

static void send_name(node_t *node)
{
    uint8_t packet[256], *at = packet + 2;
    size_t size = strlen(node->name);

    at = put(put(put(put(at, 'N', 1), FLAGS, 8), 1, 4), size, 2);
    memcpy(at, node->name, size);
    at += size;
    if (self.is_beamway)
        at = put_extension(node, at);
    node->state = STATUS;
    send_packet(node, packet, (size_t)(at - packet));
}

/* Returns whether, according to the peer's extension, its links outlive their connections. */
static bool wants_session(const uint8_t *at, size_t size)
{
    return self.is_beamway && size >= 7 + 24 && memcmp(at, "BWay", 4) == 0 && at[4] == 1 &&
           number(at + 5, 2) >= 24 && number(at + 7 + 18, 4) > 0;
}

static void send_reply(node_t *node, uint32_t theirs)
{
    uint8_t packet[2 + 1 + 4 + 16] = {0};

    if (getrandom(&node->challenge, sizeof node->challenge, 0) != sizeof node->challenge)
        fail("getrandom");
    put(put(packet + 2, 'r', 1), node->challenge, 4);
    digest(theirs, packet + 7);
    node->state = ACKNOWLEDGE;
    send_packet(node, packet, sizeof packet);
}

static void is_up(node_t *node)
{
    node->state = UP;
    node->heard_ms = 0;
    node->acked_ms = now_ms();
    self.shaking--;
    self.up++;
    if (self.is_asked && self.up == self.count) {
        self.is_asked = false;
        say("connected");
    }
}

static void acknowledged(node_t *node, const uint8_t *at, size_t size)
{
    uint8_t resumes[] = {0, 0, 1, 'y'}, sum[16];

    digest(node->challenge, sum);
    if (size != 17 || at[0] != 'a' || memcmp(at + 1, sum, 16) != 0) {
        broken(node, "the node does not prove the cookie");
    } else if (node->expects_resume) {
        node->state = AGREES;
        send_packet(node, resumes, sizeof resumes);
    } else {
        is_up(node);
    }
}

static void handshake(node_t *node, const uint8_t *at, size_t size)
{
    size_t name;

    switch (node->state) {
    case STATUS:
        if (size != 3 || memcmp(at, "sok", 3) != 0)
            broken(node, "the node refuses the name");
        else
            node->state = CHALLENGE;
        return;
    case CHALLENGE:
        if (size < 19 || at[0] != 'N' || (name = number(at + 17, 2)) > size - 19) {
            broken(node, "not a challenge");
            return;
        }
        node->expects_resume = wants_session(at + 19 + name, size - 19 - name);
        send_reply(node, (uint32_t)number(at + 9, 4));
        return;
    case ACKNOWLEDGE:
        acknowledged(node, at, size);
        return;
    case AGREES:
        /* If the driver of the real node could not take over the connection, the node answers 'n'
         * and the reason. */
        if (size < 2 || (at[1] != 'y' && at[1] != 'n')) {
            broken(node, "neither a session nor why not");
            return;
        }
        node->resumes = at[1] == 'y';
        is_up(node);
        return;
    default:
        broken(node, "out of turn");
    }
}

/* Consumes bytes of the handshake, and returns how many. */
static size_t take_handshake(node_t *node, const uint8_t *at, size_t size)
{
    size_t wanted = node->have < 2 ? 2 : 2 + number(node->packet, 2);
    size_t taken = wanted - node->have < size ? wanted - node->have : size;

    memcpy(node->packet + node->have, at, taken);
    node->have += taken;
    if (node->have < wanted)
        return taken;
    if (wanted == 2) {
        size_t length = number(node->packet, 2);

        if (length == 0 || length > PACKET_BYTES)
            broken(node, "a packet of the handshake is empty or too long");
    } else {
        node->have = 0;
        handshake(node, node->packet + 2, wanted - 2);
    }
    return taken;
}

static void counted(uint64_t *counter)
{
    ++*counter;
    if (self.awaited && *self.awaited >= self.wanted) {
        self.awaited = NULL;
        say("reached");
    }
}

/* Answers the peer's tick with a tick, as any C node does. With a session, the node's load precedes
 * the tick. */
static void tick(node_t *node)
{
    uint8_t own[12 + 4] = {0};
    size_t from = node->resumes ? 0 : 12;

    put(put(own, WORD_LOAD, 4), LOAD, 8);
    counted(&self.ticks);
    (void)sent(node, own + from, sizeof own - from);
}

/* Consumes bytes of distribution packets, and returns how many. */
static size_t take_packets(node_t *node, const uint8_t *at, size_t size)
{
    size_t taken = 0, more;
    uint64_t length;

    if (node->left > 0) {
        more = node->left < size ? node->left : size;
        node->left -= more;
        if (node->left == 0)
            counted(&self.messages);
        node->in += more;
        return more;
    }
    /* The length of a packet takes four bytes; a control word takes eight more. */
    more = node->have < 4 ? 4 - node->have : 12 - node->have;
    taken = more < size ? more : size;
    memcpy(node->packet + node->have, at, taken);
    node->have += taken;
    node->in += taken;
    if (node->have < 4)
        return taken;
    length = number(node->packet, 4);
    if (length <= LONGEST) {
        node->have = 0;
        node->left = length;
        if (length == 0)
            tick(node);
    } else if (!node->resumes ||
               (length != WORD_ACK && length != WORD_END && length != WORD_LOAD)) {
        broken(node, "a packet that is too long");
    } else if (node->have == 12) {
        node->have = 0;
        node->told += 12; /* control words are not acknowledged */
        if (length == WORD_END)
            end_node(node, true);
    }
    return taken;
}

static void read_node(node_t *node)
{
    static uint8_t bytes[65536];
    ssize_t got = read(node->source.fd, bytes, sizeof bytes);
    size_t used = 0;

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        broken(node, got < 0 ? strerror(errno) : "the node has ended the connection");
        return;
    }
    while (used < (size_t)got && node->state != GONE)
        used += (node->state == UP ? take_packets : take_handshake)(node, bytes + used,
                                                                    (size_t)got - used);
    if (node->state == UP && node->in > node->told && node->heard_ms == 0)
        node->heard_ms = now_ms();
}

static void on_node(node_t *node, uint32_t events)
{
    int error = 0, one = 1;
    socklen_t size = sizeof error;

    if (node->state != CONNECTS) {
        if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_node(node);
        return;
    }
    getsockopt(node->source.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        broken(node, strerror(error));
        return;
    }
    setsockopt(node->source.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    watch(&node->source, EPOLLIN, EPOLL_CTL_MOD);
    send_name(node);
}

static void call(node_t *node)
{
    struct sockaddr_in from = address_of(node->source.host, 0);
    int one = 1;

    node->state = CONNECTS;
    self.shaking++;
    node->source.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (node->source.fd < 0)
        fail("socket");
    setsockopt(node->source.fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    if (bind(node->source.fd, (struct sockaddr *)&from, sizeof from) < 0)
        fail("bind");
    watch(&node->source, EPOLLOUT, EPOLL_CTL_ADD);
    if (connect(node->source.fd, (struct sockaddr *)&self.peer, sizeof self.peer) < 0 &&
        errno != EINPROGRESS)
        broken(node, strerror(errno));
}

static void call_more(void)
{
    while (self.is_asked && self.next < self.count && self.shaking < AT_ONCE)
        call(&self.nodes[self.next++]);
}

/* Acknowledges the bytes that the nodes have read: ACK_MS after a node has read something, and at
 * least every IDLE_ACK_MS. */
static void acknowledge(int64_t now)
{
    for (int i = 0; i < self.count; i++) {
        node_t *node = &self.nodes[i];
        bool is_due = (node->heard_ms > 0 && now - node->heard_ms >= ACK_MS) ||
                      now - node->acked_ms >= IDLE_ACK_MS;
        uint8_t words[24];

        if (node->state != UP || !node->resumes || !is_due)
            continue;
        put(put(put(put(words, WORD_LOAD, 4), LOAD, 8), WORD_ACK, 4), node->in, 8);
        if (sent(node, words, sizeof words)) {
            node->told = node->in;
            node->heard_ms = 0;
            node->acked_ms = now;
        }
    }
}

/* ---- commands ---- */

static void vanish(void)
{
    int gone = 0;

    self.has_vanished = true;
    for (int i = 0; i < self.hosts; i++)
        end_source(&self.hosts_of[i].doors[1]);
    for (int i = 0; i < self.count; i++)
        if (is_victim(i) && self.nodes[i].state == UP) {
            end_node(&self.nodes[i], false);
            gone++;
        }
    say("vanished %d", gone);
}

static void command(char *line)
{
    char address[64], what[16];
    unsigned long long wanted;
    unsigned port;

    if (sscanf(line, "connect %63s %u %255s", address, &port, self.cookie) == 3 && port <= 65535 &&
        inet_pton(AF_INET, address, &self.peer.sin_addr) == 1) {
        self.peer.sin_family = AF_INET;
        self.peer.sin_port = htons((uint16_t)port);
        self.is_asked = true;
    } else if (sscanf(line, "await %15s %llu", what, &wanted) == 2 &&
               (strcmp(what, "ticks") == 0 || strcmp(what, "messages") == 0)) {
        self.awaited = what[0] == 't' ? &self.ticks : &self.messages;
        self.wanted = wanted;
        if (*self.awaited >= wanted) {
            self.awaited = NULL;
            say("reached");
        }
    } else if (strcmp(line, "vanish") == 0) {
        vanish();
    } else if (strcmp(line, "counts") == 0) {
        say("ticks %llu lost %d", (unsigned long long)self.ticks, self.lost);
    } else {
        fprintf(stderr, "peers: not a command: %s\n", line);
        exit(1);
    }
}

static void read_commands(void)
{
    static char text[1024];
    static size_t have;
    ssize_t got = read(STDIN_FILENO, text + have, sizeof text - 1 - have);
    char *end;

    if (got <= 0)
        exit(0);
    have += (size_t)got;
    text[have] = 0;
    while ((end = strchr(text, '\n'))) {
        *end++ = 0;
        command(text);
        have = strlen(end);
        memmove(text, end, have + 1);
    }
    if (have == sizeof text - 1) {
        fprintf(stderr, "peers: a command is too long\n");
        exit(1);
    }
}

static void prepare(void)
{
    static source_t commands = {.kind = COMMANDS, .fd = STDIN_FILENO};
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    self.poller = epoll_create1(EPOLL_CLOEXEC);
    self.hosts = (self.count + HOST_NODES - 1) / HOST_NODES;
    self.nodes = calloc((size_t)self.count, sizeof *self.nodes);
    self.hosts_of = calloc((size_t)self.hosts, sizeof *self.hosts_of);
    if (self.poller < 0 || !self.nodes || !self.hosts_of ||
        getrandom(self.host_digest, sizeof self.host_digest, 0) != sizeof self.host_digest)
        fail("memory");
    watch(&commands, EPOLLIN, EPOLL_CTL_ADD);
    for (int i = 0; i < self.hosts; i++) {
        host_t *host = &self.hosts_of[i];

        listen_at(&host->epmd, EPMD, i, &self.epmd_port);
        for (int door = 0; door < 2; door++)
            listen_at(&host->doors[door], DOOR, i, &host->ports[door]);
    }
    for (int i = 0; i < self.count; i++) {
        struct sockaddr_in at = address_of(i / HOST_NODES, 0);
        char host[INET_ADDRSTRLEN];

        self.nodes[i].source = (source_t){.kind = NODE, .fd = -1, .host = i / HOST_NODES};
        inet_ntop(AF_INET, &at.sin_addr, host, sizeof host);
        snprintf(self.nodes[i].name, sizeof self.nodes[i].name, "peer%d@%s", i + 1, host);
    }
}

static void on_event(source_t *source, uint32_t events)
{
    /* An earlier event of the same epoll_wait may have closed the socket. */
    if (source->fd < 0)
        return;
    switch (source->kind) {
    case COMMANDS:
        read_commands();
        return;
    case EPMD:
        accept_epmd(source);
        return;
    case EPMD_CLIENT:
        serve_epmd((epmd_client_t *)source);
        return;
    case DOOR:
        accept_and_close(source);
        return;
    case NODE:
        on_node((node_t *)source, events);
        return;
    }
}

int main(int argc, char **argv)
{
    long count = argc == 4 ? atol(argv[1]) : 0, port = argc == 4 ? atol(argv[2]) : 0;

    if (count < 1 || count > MOST || port < 1 || port > 65535 ||
        (strcmp(argv[3], "stock") != 0 && strcmp(argv[3], "beamway") != 0)) {
        fprintf(stderr, "usage: peers COUNT EPMD_PORT stock|beamway, with COUNT up to %d\n", MOST);
        return 1;
    }
    self.count = (int)count;
    self.epmd_port = (uint16_t)port;
    self.is_beamway = strcmp(argv[3], "beamway") == 0;
    prepare();
    for (;;) {
        struct epoll_event events[256];
        int found = epoll_wait(self.poller, events, 256, LOOK_MS);
        int64_t now = now_ms();

        if (found < 0 && errno != EINTR)
            fail("epoll_wait");
        for (int i = 0; i < found; i++)
            on_event(events[i].data.ptr, events[i].events);
        call_more();
        if (self.is_beamway && now - self.looked_ms >= LOOK_MS) {
            self.looked_ms = now;
            acknowledge(now);
        }
    }
}
