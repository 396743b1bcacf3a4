/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAKE_INSIDE_H
#define BW_FAKE_INSIDE_H

/*
 * Shared by the files of the fake device. One lock protects the state of a process; the functions
 * of the two libraries and the device's thread acquire it. The functions below are called with the
 * lock held, unless documented otherwise.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#define BROKEN_IN "fake verbs"
#include "../broken.h"
#include "fake_verbs.h"

#undef ibv_reg_mr
#undef rdma_reject_ece

#define EXPORT __attribute__((visibility("default")))

#define CHUNK 16384u     /* bytes per packet */
#define INLINE_MAX 128u  /* bytes that a request itself can carry */
#define TICK_MS 10       /* how quickly the device notices a test's command */
#define SLOT_RETRY_MS 20 /* interval after which a message without a slot is retried */
#define SILENCE_MS 300   /* after this time, a peer that has disappeared counts as lost */
/* Private data is padded with zeros to these lengths, as over InfiniBand. */
#define ASKED_BYTES 56
#define ANSWERED_BYTES 196
#define REFUSED_BYTES 148
#define CONSUMER_REJECTS 28 /* status if the peer rejects the connection or has disappeared */
#define NOBODY_LISTENS 8

/* ---- the host: what all processes share ---- */

/* The objects that a process owns; an exited process owns none. */
typedef struct {
    _Atomic int pid, objects;
    _Atomic bool has_device;
} holder_t;

typedef struct {
    _Atomic uint64_t number; /* 0 if not created */
    _Atomic bool is_removed, is_down;
    _Atomic uint32_t removals;
    holder_t holders[64];
} host_t;

extern host_t *fake_host;

/* ---- this process ---- */

typedef struct pair pair_t;
typedef struct conn conn_t;

/* Unread events; the pipe contains one byte for each. */
typedef struct event event_t;
struct event {
    event_t *next;
    const void *about;
    union {
        struct rdma_cm_event cm;
        struct ibv_async_event async;
        struct ibv_cq *cq;
    };
    uint8_t data[ANSWERED_BYTES];
};

typedef struct {
    int reader, writer;
    event_t *first;
} mailbox_t;

typedef struct {
    struct ibv_context context; /* first member, as in all structs below */
    mailbox_t async;
    bool is_gone, is_down;
    uint32_t removals; /* the device's number when it was opened */
    int users;
} device_t;

typedef struct {
    struct rdma_event_channel channel;
    mailbox_t events;
} cm_t;

typedef struct {
    struct ibv_comp_channel channel;
    mailbox_t events;
} comp_t;

typedef struct {
    struct ibv_pd pd;
    int users;
} domain_t;

typedef struct {
    struct ibv_mr mr;
    int access;
} region_t;

typedef struct {
    struct ibv_wc wc;
    pair_t *pair;
    uint64_t frees; /* on completion, releases the requests of the send queue up to this one */
} completion_t;

typedef struct {
    struct ibv_cq cq;
    completion_t *ring;
    uint64_t first, end;
    bool is_armed;
    int users;
    int unacked;
} queue_t;

typedef struct {
    struct ibv_send_wr wr;
    struct ibv_sge sge;
    uint64_t sum; /* checksum of the bytes when they were posted */
    uint8_t bytes[INLINE_MAX];
} request_t;

typedef struct {
    uint64_t id;
    struct ibv_sge sge;
} slot_t;

typedef enum { ASK = 1, ANSWER, READY, REFUSE, WRITE, SEND, ACK, NAK } kind_t;

typedef struct {
    uint32_t kind;
    /* NAK: status of the completion; ASK, ANSWER: number of retries without a slot */
    uint32_t status;
    uint64_t number; /* ACK: all requests up to this one; NAK: this one fails */
    uint64_t address, total;
    uint32_t key;
    bool is_last;
} head_t;

struct pair {
    struct ibv_qp qp;
    struct ibv_qp_cap cap;
    bool signals_all;
    request_t *sends;
    uint64_t posted, sent, acked, freed; /* request numbers; freed: their entries released */
    uint64_t offset;                     /* number of bytes of the next request that were sent */
    uint64_t told_acked;                 /* acknowledged, but reported only later */
    int64_t late_until;
    slot_t *slots;
    uint64_t slots_posted, slots_taken;
    uint64_t got, told; /* numbers of the peer's messages: processed, acknowledged */
    uint32_t refusal;   /* status of a NAK that is still to be sent */
};

typedef enum { NEW, LISTENS, CALLS, CALLED, ACCEPTED, CONNECTED, OVER } conn_state_t;

struct conn {
    struct rdma_cm_id id;
    conn_state_t state;
    int socket; /* -1 if none */
    uint32_t interest;
    uint32_t retries; /* the peer's number of retries, when we have no slot */
    int unacked;
    bool is_users; /* the user has created it, or received it with a request */
    int64_t gone_at;
    struct { /* a message that is waiting for a slot */
        bool is_there;
        int64_t until;
        head_t head;
        size_t len;
        uint8_t bytes[CHUNK];
    } waiting;
    conn_t *listener, *next;
};

typedef struct {
    pthread_mutex_t lock;
    bool runs, is_prepared_for_forks;
    int epoll, wake[2];
    bool is_woken;
    holder_t *holder;
    device_t *device;
    conn_t *conns;
    region_t *regions[4096];
    uint32_t regions_made;
    uint64_t locked;
    uint32_t pairs_made;
    int fail_posts, late_ms;
} fake_t;

extern fake_t fake;

static inline void lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static inline int unlock(int result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

static inline void wake(void)
{
    if (!fake.is_woken && fake.runs)
        fake.is_woken = write(fake.wake[1], "", 1) == 1;
}

static inline int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline int fails(int code)
{
    errno = code;
    return -1;
}

static inline void *pointer(uint64_t at)
{
    return (void *)(uintptr_t)at;
}

static inline pair_t *pair_of(const conn_t *conn)
{
    return (pair_t *)conn->id.qp;
}

/* ---- registry.c ---- */

holder_t *fake_claim_holder(void);
bool fake_mailbox_open(mailbox_t *box); /* needs no lock as long as the mailbox is private */
void fake_mailbox_put(mailbox_t *box, event_t *event);

/* Waits for an event, unless the reader's descriptor is non-blocking. The lock is held before and
 * after. */
event_t *fake_mailbox_wait(mailbox_t *box);

/* Drops the events about an object that is being destroyed. */
void fake_mailbox_forget(mailbox_t *box, const void *about);

void fake_mailbox_close(mailbox_t *box);

/* ---- device.c ---- */

bool fake_start(void);

/* As in librdmacm, the device is opened once; if it has been removed, it is closed at the next
 * call. */
device_t *fake_open_device(void);

void fake_bind_to_device(conn_t *conn, device_t *device);
void fake_forget_user(struct ibv_context *context);
void fake_raise_async(device_t *device, enum ibv_event_type type, void *about);

/* ---- memory.c ---- */

region_t *fake_region_of(const struct ibv_pd *pd, uint32_t key, uint64_t at, uint64_t len,
                         int access);

/* ---- completions.c ---- */

void fake_complete(struct ibv_cq *cq, struct ibv_wc wc, pair_t *pair, uint64_t frees);

/* Drops completions that have not been polled. */
void fake_forget_completions(struct ibv_cq *cq, const pair_t *pair);

/* The device's functions, which acquire the lock themselves. */
int fake_poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions);
int fake_req_notify_cq(struct ibv_cq *cq, int solicited);

/* ---- queue_pairs.c ---- */

/* This also acquires the lock. */
int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p);
int fake_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p);

void fake_fail_pair(pair_t *pair);

/* Sends as much as possible. Returns false if the socket is full. */
bool fake_transmit(conn_t *conn);

void fake_write_bytes(conn_t *conn, const head_t *head, const uint8_t *bytes, size_t len);

/* Returns false if there is no slot. */
bool fake_fill_slot(conn_t *conn, const uint8_t *bytes, size_t len);

void fake_acknowledged(pair_t *pair, const head_t *head);
void fake_pass_time(conn_t *conn);

/* ---- packets.c ---- */

int fake_open_socket(void);
void fake_close_socket(conn_t *conn);

/* Returns true if the packet was sent or has no receiver, false if the socket is full. */
bool fake_put(conn_t *conn, const head_t *head, const void *bytes, size_t len);

void fake_receive(conn_t *conn);
void fake_happens(conn_t *conn, enum rdma_cm_event_type type, int status, const void *data,
                  size_t len, size_t padded);
conn_t *fake_make_conn(struct rdma_event_channel *channel, void *context,
                       enum rdma_port_space space);

/* A caller gets its own id as soon as it has sent its request. */
void fake_answer_caller(conn_t *listener);

#endif
