/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_LINE_H
#define BW_TEST_LINE_H

/*
 * A driver port that sends packets over a socket, as in a link to an ordinary Erlang node. It
 * runs in the VM of vm.h. The program itself reads and writes the other end of the socket;
 * everything that was sent must arrive there in order. LINE_MAIN runs each case twice: with a port
 * that sleeps when it has nothing to read, and with one that polls first.
 */
#include "../kernel.h"
#include "ports.h"

#include "../../link/frame.h"

static struct {
    ErlDrvPort port;
    int peer;            /* -1 if closed */
    bool peer_is_at_end; /* the peer has read to the end of the port's stream */
    bool is_wrong;       /* the peer has read bytes that were not sent */
    bool is_asked;       /* the keeper has an unhandled message */
    bool is_looking;     /* the poller has a message, or was told to look again */
    uint8_t *sent; /* the bytes of all packets; the peer has read the first read_bytes of them */
    size_t sent_bytes, read_bytes, room;
    uint32_t packets;
    uint64_t tokens[2]; /* part of the address; over tcp they are not secret */
} line;

/* How long the port of the running case polls before it sleeps; 0 if it never polls. */
static uint64_t line_poll_us;
#define LINE_POLL_US 5000

/* On a busy system the kernel may delay sent bytes for this long. */
#define LINE_KERNEL_MS 500

/* Reads the messages that the port has sent to its keeper and its poller. */
static inline void line_hears(void)
{
    const char *term;

    while ((term = vm_heard(line.port))) {
        line.is_asked |= strcmp(term, "flush") == 0;
        line.is_looking |= strcmp(term, "look") == 0;
    }
}

/* Runs one round like vm_run. If the port is polling, this requests one look instead of waiting.
 * Returns false if nothing was due and the port is asleep. */
static inline bool line_runs(int ms)
{
    words_t none = {.len = 0};
    vm_reply_t reply;
    bool found;

    line_hears();
    found = vm_run(line.is_looking ? 0 : ms);
    line_hears();
    if (!line.is_looking)
        return found;
    line.is_looking =
        port_does(line.port, COMMAND_LOOK, &none, &reply) && reply.len == 1 && reply.bytes[0] == 1;
    return true;
}

/* The peer sends a tick, after which the port polls for line_poll_us, or for less if this program
 * is preempted. Returns false if it does not poll. */
static inline bool line_begins_to_look(void)
{
    static const uint8_t tick[BW_PACKET_HEADER_BYTES];
    bool done;

    for (int i = 0; i < 2; i++) { /* the port first falls asleep, then its ban on polling ends */
        vm_skip(1001);
        while (line_runs(0))
            ;
    }
    done = send(line.peer, tick, sizeof tick, MSG_NOSIGNAL) == sizeof tick;
    for (int ms = 0; ms < LINE_KERNEL_MS && !line.is_looking; ms++) {
        (void)vm_run(1);
        line_hears();
    }
    return done && line.is_looking;
}

static inline void drop_peer(void)
{
    if (line.peer >= 0)
        close(line.peer);
    free(line.sent);
    line.peer = -1;
    line.sent = NULL;
}

static inline void drop_line(void)
{
    kernel.answer = NULL;
    drop_ports();
    drop_peer();
}

static inline bool open_line(int sockets[2], int (*answer)(void))
{
    words_t words = {.len = 0}, flush = {.len = 0};
    vm_reply_t reply;
    bool done;

    memset(&line, 0, sizeof line);
    kernel.answer = NULL;
    kernel.calls = 0;
    kernel.thread = pthread_self();
    check_clean_up = drop_line;
    line.port = vm_open();
    line.peer = sockets[1];
    put_number(&words, PORT_RING, 8);
    put_bytes(&words, line.tokens, BW_TOKEN_BYTES);
    put_number(&words, 10000, 4);
    put_number(&words, (uint64_t)sockets[0], BW_TCP_PLACE_BYTES);
    done = port_uses(line.port, "tcp") && port_does(line.port, COMMAND_CONNECT, &words, NULL) &&
           port_steps_to(line.port, BW_LINKED, &reply) &&
           port_does(line.port, COMMAND_PACKETS, &flush, NULL) &&
           port_does(line.port, COMMAND_FLUSH, &flush, NULL) &&
           port_activates(line.port, line_poll_us);
    close(sockets[0]);
    while (line_runs(0))
        ; /* waits until the port has reported the link and has looked for the first time */
    if (line_poll_us > 0)
        done = done && line_begins_to_look();
    line.is_asked = false;
    kernel.answer = answer;
    return done;
}

static inline uint64_t line_frames_out(void)
{
    return stat_of(line.port, STAT_frames_out);
}

static inline uint8_t *line_grows(size_t bytes)
{
    if (line.sent_bytes + bytes > line.room) {
        line.room = 2 * (line.sent_bytes + bytes);
        line.sent = realloc(line.sent, line.room);
        if (!line.sent)
            abort();
    }
    line.sent_bytes += bytes;
    return line.sent + line.sent_bytes - bytes;
}

/* Sends a packet that differs from all others. */
static inline void line_sends(uint32_t len)
{
    uint8_t *at = line_grows(BW_PACKET_HEADER_BYTES + len);

    at = bw_put(at, len, BW_PACKET_HEADER_BYTES);
    line.packets++;
    for (uint32_t i = 0; i < len; i++)
        at[i] = (uint8_t)(line.packets * 13 + i * 31 + (i >> 8));
    vm_send(line.port, at, len);
}

static inline void line_ticks(void)
{
    uint64_t before = line_frames_out();

    if (!port_does(line.port, COMMAND_TICK, NULL, NULL))
        return;
    if (line_frames_out() != before)
        memset(line_grows(BW_PACKET_HEADER_BYTES), 0, BW_PACKET_HEADER_BYTES);
}

/* Flushes if the port has called the keeper. Returns whether it has. */
static inline bool line_is_flushed(void)
{
    words_t none = {.len = 0};

    line_hears();
    if (!line.is_asked)
        return false;
    line.is_asked = false;
    return port_does(line.port, COMMAND_FLUSH, &none, NULL);
}

/* The peer reads at most `most` bytes. Returns true if it read any. */
static inline bool line_is_read(size_t most)
{
    size_t before = line.read_bytes;
    uint8_t bytes[4096];

    while (most > 0 && !line.peer_is_at_end) {
        ssize_t n = recv(line.peer, bytes, most < sizeof bytes ? most : sizeof bytes, MSG_DONTWAIT);

        if (n <= 0) {
            line.peer_is_at_end = n == 0 || errno != EAGAIN;
            break;
        }
        line.is_wrong |= (size_t)n > line.sent_bytes - line.read_bytes ||
                         memcmp(bytes, line.sent + line.read_bytes, (size_t)n) != 0;
        if (line.is_wrong)
            break;
        line.read_bytes += (size_t)n;
        most -= (size_t)n;
    }
    return line.read_bytes != before;
}

/* The peer reads everything that arrives within this many milliseconds, or longer while more keeps
 * arriving. The keeper never flushes. */
static inline void line_settles(int ms)
{
    int waited = 0;

    for (int quiet = 0; quiet < ms;) {
        vm_skip(waited == 0);
        quiet = line_is_read(SIZE_MAX) || line_runs(0) ? 0 : quiet + 1;
        if (quiet == ms && line.read_bytes != line.sent_bytes && !vm_reason(line.port) &&
            waited++ < LINE_KERNEL_MS) {
            (void)poll(NULL, 0, 1);
            quiet = 0;
        }
    }
}

static inline bool line_is_settled(void)
{
    return !line.is_wrong && line.read_bytes == line.sent_bytes;
}

/* The peer reads everything that has left the port. Neither the port nor its timers run in the
 * meantime. */
static inline bool line_arrives(void)
{
    for (int ms = 0; ms < LINE_KERNEL_MS && line.read_bytes != line.sent_bytes; ms++)
        if (!line_is_read(SIZE_MAX))
            (void)poll(NULL, 0, 1);
    return line_is_settled();
}

/* Closes the port; the peer reads to the end of the stream. Returns false if the stream does not
 * end. */
static inline bool line_ends(void)
{
    kernel.answer = NULL;
    vm_close(line.port);
    for (int ms = 0; ms < ARRIVES_MS && !line.peer_is_at_end && !line.is_wrong;)
        if (!line_is_read(SIZE_MAX) && !line_runs(0))
            ms += poll(NULL, 0, 1) == 0;
    return line.peer_is_at_end;
}

/* Returns whether nothing was leaked. */
static inline bool line_is_clean(void)
{
    vm_close(line.port);
    for (int round = 0; round < PORT_ROUNDS && !vm_reason(line.port); round++)
        if (!line_runs(0))
            vm_skip(1000); /* time allowed for a final flush */
    if (!vm_reason(line.port))
        return false;
    vm_forget(line.port);
    drop_peer();
    return vm_is_clean();
}

#define LINE_MAIN(cases)                                                                           \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        check_each("", cases, sizeof(cases) / sizeof *(cases), argc, argv);                        \
        line_poll_us = LINE_POLL_US;                                                               \
        check_each("looks: ", cases, sizeof(cases) / sizeof *(cases), argc, argv);                 \
        return check_end();                                                                        \
    }

#endif
