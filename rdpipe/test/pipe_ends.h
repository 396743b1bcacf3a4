/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPE_ENDS_H
#define PIPE_ENDS_H

/*
 * Two ends of a hop for tests: the consumer in this process, and the producer in a child, which
 * reports through its exit status.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#include "hop/hop.h"
#include "stream/rdframe.h"
#include "hop/socket.h"

#define LONG_MS 60000 /* limit for events that are immediate except on a busy machine */

static inline rd_key_t key_of(const char *text)
{
    rd_key_t key = {{0}};
    rd_why_t why;

    if (!rd_key_of_text(text, strlen(text), "test", &key, &why))
        abort();
    return key;
}

static uint32_t carrier;  /* carrier of the current case */
static uint8_t encrypted; /* RD_TERM_TLS or 0 */

static inline rd_terms_t terms_of(uint32_t carriers, uint32_t block)
{
    return (rd_terms_t){
        .carriers = carriers, .block = block, .flags = (uint8_t)(RD_FLAG_CRC | encrypted)};
}

/* Opens a listener on loopback in this process. */
static inline int open_listener(uint16_t *port_p)
{
    rd_why_t why;
    int listener = -1;

    return rd_listen("127.0.0.1", 0, 0, &listener, port_p, &why) ? listener : -1;
}

/* Opens a connection to a listener, without a handshake. */
static inline int connect_to(uint16_t port)
{
    rd_why_t why;
    int fd = -1;

    return rd_connect("127.0.0.1", port, -1, 0, rd_now_ms() + LONG_MS, &fd, &why) ? fd : -1;
}

static inline bool join_listener(uint16_t port, const rd_key_t *key, const rd_terms_t *terms,
                                 rd_hop_t *hop_p, rd_why_t *why)
{
    rd_there_t there = {.host = "127.0.0.1",
                        .port = port,
                        .peer = "the listener",
                        .attempt_ms = LONG_MS,
                        .patient_until = rd_now_ms() + 3000};

    return rd_hop_reach(&there, key, terms, -1, hop_p, why);
}

/* Returns the exit status of a child, or 128 plus the number of the signal that killed it. */
static inline int status_of(pid_t child)
{
    int status = -1;

    if (child <= 0 || waitpid(child, &status, 0) != child)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static const struct {
    const char *name;
    uint32_t carrier;
    uint8_t flags;
} pipe_carriers[] = {
    {"shm", RD_CARRIER_SHM, 0}, {"tcp", RD_CARRIER_TCP, 0}, {"tls", RD_CARRIER_TCP, RD_TERM_TLS}};

static inline int run_over_carriers(const check_case_t *cases, size_t count, int argc, char **argv)
{
    (void)signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof pipe_carriers / sizeof *pipe_carriers; i++) {
        char prefix[16];

        carrier = pipe_carriers[i].carrier;
        encrypted = pipe_carriers[i].flags;
        snprintf(prefix, sizeof prefix, "%s: ", pipe_carriers[i].name);
        check_each(prefix, cases, count, argc, argv);
    }
    return check_end();
}

#endif
