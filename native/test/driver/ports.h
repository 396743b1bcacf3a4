/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_PORTS_H
#define BW_TEST_PORTS_H

/*
 * Issues the driver's commands (native/driver, beamway_port.erl) to a port of test/vm, and joins
 * two ports over a carrier.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../../driver/establish.h"
#include "../../driver/fault.h"
#include "../../driver/stats.h"
#include "../carriers.h"
#include "../vm/vm.h"

enum {
    COMMAND_VERSION = 1,
    COMMAND_ACTIVATE = 5,
    COMMAND_TICK,
    COMMAND_STATS,
    COMMAND_RECEIVE,
    COMMAND_PACKETS,
    COMMAND_LOOK,
    COMMAND_FLUSH,
    COMMAND_WATCH,
    COMMAND_ANSWER,
    COMMAND_CLASSES,
    COMMAND_SESSION,
    COMMAND_DETACH,
    COMMAND_ATTACH,
    COMMAND_PULSE,
    COMMAND_OFFER,
    COMMAND_LOAD = 30,
    COMMAND_TELL_LOAD,
    COMMAND_SPREAD,
    COMMAND_JOIN,
    COMMAND_FAULT,
    COMMAND_SOCKET_FAULT,
    COMMAND_CODEC,
    COMMAND_COMPRESS
};

#define PORT_RING BW_RING_MIN_BYTES
/* Everything in flight arrives within this many rounds of the VM, each of which takes about a
 * millisecond. */
#define PORT_ROUNDS 20000

#ifdef BW_TEST_RDMA
/* The carrier is linked into the program, but the driver loads it nevertheless. */
#define RDMA_LIBRARY "beamway_rdma.so"

bw_carrier_fn bw_carrier;

#undef dlopen
#undef dlsym
#undef dlclose
void *dlopen(const char *path, int flags);
void *dlsym(void *library, const char *name);
int dlclose(void *library);
void *own_dlopen(const char *path, int flags);
void *own_dlsym(void *library, const char *name);
int own_dlclose(void *library);

static char rdma_library;

void *own_dlopen(const char *path, int flags)
{
    return strcmp(path, RDMA_LIBRARY) == 0 ? &rdma_library : dlopen(path, flags);
}

void *own_dlsym(void *library, const char *name)
{
    return library == &rdma_library ? (void *)(uintptr_t)bw_carrier : dlsym(library, name);
}

int own_dlclose(void *library)
{
    return library == &rdma_library ? 0 : dlclose(library);
}
#endif

/* Can be used as check_clean_up. */
static inline void drop_ports(void)
{
    if (!vm_reset() || !vm_is_clean())
        printf("    that stays\n");
}

/* The bytes of a command, assembled one field at a time. */
typedef struct {
    uint8_t bytes[256];
    size_t len;
} words_t;

static inline void put_bytes(words_t *words, const void *bytes, size_t len)
{
    memcpy(words->bytes + words->len, bytes, len);
    words->len += len;
}

static inline void put_number(words_t *words, uint64_t number, int bytes)
{
    (void)bw_put(words->bytes + words->len, number, bytes);
    words->len += (size_t)bytes;
}

/* Issues a command and returns whether it succeeded; *reply_p contains the reply without its status
 * byte. A thread of the VM may have to execute the command first. */
static inline bool port_does(ErlDrvPort port, unsigned command, const words_t *words,
                             vm_reply_t *reply_p)
{
    vm_reply_t reply =
        vm_control(port, command, words ? words->bytes : NULL, words ? words->len : 0);

    if (reply.len == 1 && reply.bytes[0] == REPLY_LATER) {
        const char *term = NULL;
        const uint8_t *answer;
        size_t len;

        for (int round = 0; round < PORT_ROUNDS && !term; round++) {
            (void)vm_run(1);
            while ((term = vm_heard(port)) && strncmp(term, "{port,done,", 11) != 0)
                ; /* skips notifications about the link */
        }
        if (!term)
            return false;
        answer = vm_heard_bytes(port, &len);
        memcpy(reply.bytes, answer, len);
        reply.len = (int)len;
    }
    if (reply.len > 0 && reply.bytes[0] == 1)
        printf("    command %u: %.*s\n", command, reply.len - 1, (char *)reply.bytes + 1);
    if (reply.len < 1 || reply.bytes[0] != 0)
        return false;
    reply.len--;
    memmove(reply.bytes, reply.bytes + 1, (size_t)reply.len);
    if (reply_p)
        *reply_p = reply;
    return true;
}

/* The indices of the numbers in the reply to STATS. */
#define STAT_OF_LINK(name) STAT_##name,
#define STAT_OF_PORT(name, value) STAT_##name,
enum { BW_LINK_NUMBERS(STAT_OF_LINK) BW_PORT_NUMBERS(STAT_OF_PORT) };

/* Returns 0 if the port has ended. */
static inline uint64_t stat_of(ErlDrvPort port, int index)
{
    vm_reply_t stats;

    return port_does(port, COMMAND_STATS, NULL, &stats) ? bw_number(stats.bytes + 8 * index, 8) : 0;
}

/* Returns how many bytes are waiting for room. */
static inline uint64_t port_queued(ErlDrvPort port)
{
    return stat_of(port, STAT_queue_bytes);
}

static inline bool port_samples_load(ErlDrvPort port, uint8_t cpu_percent, uint32_t run_queue)
{
    words_t words = {.len = 0};

    put_number(&words, cpu_percent, 1);
    put_number(&words, run_queue, 4);
    put_number(&words, 60000, 4); /* the next sample comes within this many ms */
    return port_does(port, COMMAND_LOAD, &words, NULL);
}

/* Returns the load that the peer last reported, without the system's part, or 0 if there is no
 * report. */
static inline uint64_t port_peer_load(ErlDrvPort port)
{
    return stat_of(port, STAT_peer_load) >> 40;
}

#define LOAD(cpu_percent, run_queue)                                                               \
    (1ull << 23 | (uint64_t)(cpu_percent) << 16 | (uint64_t)(run_queue))

static inline bool port_uses(ErlDrvPort port, const char *kind)
{
    words_t words = {.len = 0};

    put_bytes(&words, kind, strlen(kind) + 1);
#ifdef BW_TEST_RDMA
    if (!bw_carrier_named(kind))
        put_bytes(&words, RDMA_LIBRARY, strlen(RDMA_LIBRARY));
#endif
    return port_does(port, COMMAND_USE, &words, NULL);
}

/* Runs rounds until STEP reports at least this state, or the link fails. */
static inline bool port_steps_to(ErlDrvPort port, bw_state_t state, vm_reply_t *reply_p)
{
    for (int round = 0; round < PORT_ROUNDS; round++) {
        if (!port_does(port, COMMAND_STEP, NULL, reply_p) || reply_p->bytes[0] == BW_FAILED)
            return false;
        if (reply_p->bytes[0] >= state)
            return true;
        (void)vm_run(1);
    }
    return false;
}

static inline bool port_listens(ErlDrvPort port, const attempt_t *attempt)
{
    words_t words = {.len = 0};

    put_number(&words, PORT_RING, 8);
    put_bytes(&words, attempt->listen, attempt->listen_len);
    return port_uses(port, carrier->kind) && port_does(port, COMMAND_LISTEN, &words, NULL);
}

/* Connects to the address that a listener has reported: token, length of the address, address. */
static inline bool port_connects(ErlDrvPort port, attempt_t *attempt, const uint8_t *told)
{
    words_t words = {.len = 0};

    learn_address(attempt, told + BW_TOKEN_BYTES + 1, told[BW_TOKEN_BYTES]);
    put_number(&words, PORT_RING, 8);
    put_bytes(&words, told, BW_TOKEN_BYTES);
    put_number(&words, 10000, 4);
    put_bytes(&words, attempt->connect, attempt->connect_len);
    return port_uses(port, carrier->kind) && port_does(port, COMMAND_CONNECT, &words, NULL);
}

/* Issues a command that a thread of the VM must execute first. */
static inline vm_reply_t use_a_file(ErlDrvPort port)
{
    return vm_control(port, COMMAND_USE, "rdma\0/nowhere.so", 16);
}

/* Returns whether a command with these bytes would open descriptors, files or sockets that do not
 * belong to the test, or would take a long time. */
static inline bool names_something(unsigned command, uint8_t *bytes, size_t len)
{
    if (command == COMMAND_USE && len > 0)
        bytes[len - 1] = 0; /* not a file */
    return (command == COMMAND_LISTEN && len > 8) || command == COMMAND_CONNECT ||
           command == COMMAND_SOCKET_FAULT || command == COMMAND_CODEC ||
           (command == COMMAND_DERIVE && len > 0 && bytes[0] < len);
}

/* Starts connecting one port to the other; *told_p is the latest reply from the listening port. */
static inline bool begin_to_join(ErlDrvPort one, ErlDrvPort other, vm_reply_t *told_p)
{
    attempt_t attempt;
    bool done;

    *told_p = (vm_reply_t){0};
    done = begin_attempt(&attempt, 0) && port_listens(other, &attempt) &&
           port_steps_to(other, BW_LISTENING, told_p) &&
           port_connects(one, &attempt, told_p->bytes + 1);
    end_attempt(&attempt);
    return done;
}

/* Steps both ports in turn, because each may depend on the other's progress. */
static inline bool both_step_to_a_link(const ErlDrvPort ports[2], bool is_linked[2])
{
    vm_reply_t reply;

    for (int round = 0; round < PORT_ROUNDS && !(is_linked[0] && is_linked[1]); round++) {
        for (int i = 0; i < 2; i++) {
            if (is_linked[i])
                continue;
            if (!port_does(ports[i], COMMAND_STEP, NULL, &reply) || reply.bytes[0] == BW_FAILED)
                return false;
            is_linked[i] = reply.bytes[0] == BW_LINKED;
        }
        if (!(is_linked[0] && is_linked[1]))
            (void)vm_run(1);
    }
    return is_linked[0] && is_linked[1];
}

/* Sets up a link between two ports, neither of which reads yet. */
static inline bool join_ports(ErlDrvPort one, ErlDrvPort other)
{
    const ErlDrvPort ports[2] = {one, other};
    vm_reply_t told;
    bool done = begin_to_join(one, other, &told) &&
                both_step_to_a_link(ports, (bool[2]){false, told.bytes[0] == BW_LINKED});

    while (vm_heard(one) || vm_heard(other))
        ; /* skips notifications about the link */
    return done;
}

static inline bool port_gets_fault(ErlDrvPort port, const bw_fault_t *fault)
{
    words_t words = {.len = 0};

    put_number(&words, fault->delay_ms, 4);
    put_number(&words, fault->jitter_ms, 4);
    put_number(&words, fault->rate, 8);
    put_number(&words, fault->holds_in, 1);
    put_number(&words, fault->holds_out, 1);
    return port_does(port, COMMAND_FAULT, &words, NULL);
}

static inline bool port_activates(ErlDrvPort port, uint64_t poll_us)
{
    words_t words = {.len = 0};

    put_number(&words, poll_us, 8);
    put_number(&words, 1 << 20, 8);
    return port_does(port, COMMAND_ACTIVATE, &words, NULL);
}

#endif
