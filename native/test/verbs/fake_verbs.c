/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

#undef ibv_reg_mr
#undef rdma_reject_ece

#define EXPORT __attribute__((visibility("default")))

#define CHUNK 16384u     /* bytes of a packet */
#define INLINE_MAX 128u  /* that a request carries itself */
#define TICK_MS 10       /* how soon the device hears of an order */
#define SLOT_RETRY_MS 20 /* until a message without a slot is tried again */
#define SILENCE_MS 300   /* until a peer that is gone is given up */
/* Private data comes with zeros up to these, as over InfiniBand. */
#define ASKED_BYTES 56
#define ANSWERED_BYTES 196
#define REFUSED_BYTES 148
#define CONSUMER_REJECTS 28 /* status of a rejection: the peer said no, or was not there */
#define NOBODY_LISTENS 8

/* Ends the process: what would be silent harm, or a call that never returns, with a real device. */
static void broken(const char *what)
{
    fprintf(stderr, "fake verbs: %s\n", what);
    abort();
}

static void *make(size_t bytes)
{
    void *at = calloc(1, bytes);

    if (!at)
        broken("no memory");
    return at;
}

static int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int fails(int code)
{
    errno = code;
    return -1;
}

/* ---- the host: what all processes share ---- */

/* What a process holds; a dead one holds nothing. */
typedef struct {
    _Atomic int pid, objects;
    _Atomic bool has_device;
} holder_t;

static struct {
    _Atomic uint64_t number; /* 0: not made */
    _Atomic bool is_removed, is_down;
    _Atomic uint32_t removals;
    holder_t holders[64];
} * host;

__attribute__((constructor)) static void find_host(void)
{
    const char *path = getenv("FAKE_VERBS_HOST");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    uint64_t nothing = 0, number = 0;

    if (fd >= 0 && ftruncate(fd, sizeof *host) != 0)
        broken("FAKE_VERBS_HOST");
    host = mmap(NULL, sizeof *host, PROT_READ | PROT_WRITE,
                fd >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd, 0);
    if (fd >= 0)
        close(fd);
    if (host == MAP_FAILED || getrandom(&number, sizeof number, 0) != sizeof number)
        broken("no memory for the host");
    atomic_compare_exchange_strong(&host->number, &nothing, number | 1);
}

static bool is_alive(int pid)
{
    return pid != 0 && (kill(pid, 0) == 0 || errno != ESRCH);
}

static holder_t *claim_holder(void)
{
    for (size_t i = 0; i < sizeof host->holders / sizeof *host->holders; i++) {
        int pid = host->holders[i].pid;

        if (!is_alive(pid) &&
            atomic_compare_exchange_strong(&host->holders[i].pid, &pid, getpid())) {
            host->holders[i].objects = 0;
            host->holders[i].has_device = false;
            return &host->holders[i];
        }
    }
    broken("too many processes");
    return NULL;
}

/* ---- this process ---- */

typedef struct pair pair_t;
typedef struct conn conn_t;

/* Events that wait for a reader: one byte in the pipe for each. */
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
    struct ibv_context context; /* first, as in all that follow */
    mailbox_t async;
    bool is_gone, is_down;
    uint32_t removals; /* when it was opened */
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
    uint64_t frees; /* requests of the send queue up to this one */
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
    uint64_t sum; /* of the bytes when they were posted */
    uint8_t bytes[INLINE_MAX];
} request_t;

typedef struct {
    uint64_t id;
    struct ibv_sge sge;
} slot_t;

typedef enum { ASK = 1, ANSWER, READY, REFUSE, WRITE, SEND, ACK, NAK } kind_t;

typedef struct {
    uint32_t kind;
    uint32_t status; /* NAK: of the completion; ASK, ANSWER: retries without a slot */
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
    uint64_t posted, sent, acked, freed; /* numbers of requests; freed: their places */
    uint64_t offset;                     /* sent of the next one */
    uint64_t told_acked;                 /* acknowledged, but late */
    int64_t late_until;
    slot_t *slots;
    uint64_t slots_posted, slots_taken;
    uint64_t got, told; /* messages of the peer: done, acknowledged */
    uint32_t refusal;   /* status of a NAK that is still to be sent */
};

typedef enum { NEW, LISTENS, CALLS, CALLED, ACCEPTED, CONNECTED, OVER } conn_state_t;

struct conn {
    struct rdma_cm_id id;
    conn_state_t state;
    int socket; /* -1: none */
    uint32_t interest;
    uint32_t retries; /* of the peer, when we have no slot */
    int unacked;
    bool is_users; /* has been made by him, or given to him as a request */
    int64_t gone_at;
    struct { /* a message that waits for a slot */
        bool is_there;
        int64_t until;
        head_t head;
        size_t len;
        uint8_t bytes[CHUNK];
    } waiting;
    conn_t *listener, *next;
};

static struct {
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
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void lock(void)
{
    pthread_mutex_lock(&fake.lock);
}

static int unlock(int result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

static void wake(void)
{
    if (!fake.is_woken && fake.runs)
        fake.is_woken = write(fake.wake[1], "", 1) == 1;
}

/* ---- events ---- */

static bool mailbox_open(mailbox_t *box)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    *box = (mailbox_t){.reader = ends[0], .writer = ends[1]};
    return true;
}

static event_t *mailbox_take(mailbox_t *box)
{
    event_t *event = box->first;
    char byte;

    if (event && read(box->reader, &byte, 1) == 1)
        box->first = event->next;
    return event;
}

static void mailbox_put(mailbox_t *box, event_t *event)
{
    event_t **at = &box->first;

    while (*at)
        at = &(*at)->next;
    *at = event;
    if (write(box->writer, "", 1) != 1)
        broken("an event is lost");
}

/* Waits for one, unless the reader wants that not. Locked before and after. */
static event_t *mailbox_wait(mailbox_t *box)
{
    while (!box->first) {
        if (fcntl(box->reader, F_GETFL) & O_NONBLOCK) {
            errno = EAGAIN;
            return NULL;
        }
        unlock(0);
        (void)poll(&(struct pollfd){.fd = box->reader, .events = POLLIN}, 1, -1);
        lock();
    }
    return mailbox_take(box);
}

/* Nobody hears of what is destroyed. */
static void mailbox_forget(mailbox_t *box, const void *about)
{
    event_t *kept = NULL, **end = &kept, *event;

    while ((event = mailbox_take(box))) {
        if (event->about == about) {
            free(event);
            continue;
        }
        event->next = NULL;
        *end = event;
        end = &event->next;
    }
    while ((event = kept)) {
        kept = event->next;
        event->next = NULL;
        mailbox_put(box, event);
    }
}

static void mailbox_close(mailbox_t *box)
{
    event_t *event;

    while ((event = mailbox_take(box)))
        free(event);
    close(box->reader);
    close(box->writer);
}

static void raise_async(device_t *device, enum ibv_event_type type, void *about)
{
    event_t *event = make(sizeof *event);

    event->about = about;
    event->async.event_type = type;
    if (about)
        event->async.element.qp = about;
    else
        event->async.element.port_num = 1;
    mailbox_put(&device->async, event);
}

static void happens(conn_t *conn, enum rdma_cm_event_type type, int status, const void *data,
                    size_t len, size_t padded)
{
    event_t *event = make(sizeof *event);
    conn_t *to = conn->listener && type == RDMA_CM_EVENT_CONNECT_REQUEST ? conn->listener : conn;

    event->about = conn;
    event->cm.id = &conn->id;
    event->cm.listen_id = conn->listener ? &conn->listener->id : NULL;
    event->cm.event = type;
    event->cm.status = status;
    if (len > 0)
        memcpy(event->data, data, len);
    if (padded > 0) {
        event->cm.param.conn.private_data = event->data;
        event->cm.param.conn.private_data_len = (uint8_t)padded;
    }
    mailbox_put(&((cm_t *)to->id.channel)->events, event);
}

/* ---- completions ---- */

static void complete(struct ibv_cq *cq, struct ibv_wc wc, pair_t *pair, uint64_t frees)
{
    queue_t *queue = (queue_t *)cq;

    if (queue->end - queue->first == (uint64_t)cq->cqe)
        broken("a completion queue overflows");
    wc.qp_num = pair->qp.qp_num;
    queue->ring[queue->end++ % (uint64_t)cq->cqe] =
        (completion_t){.wc = wc, .pair = pair, .frees = frees};
    if (queue->is_armed) {
        event_t *event = make(sizeof *event);

        queue->is_armed = false;
        event->about = event->cq = cq;
        mailbox_put(&((comp_t *)cq->channel)->events, event);
    }
}

static void complete_send(pair_t *pair, uint64_t number, enum ibv_wc_status status)
{
    const request_t *request = &pair->sends[(number - 1) % pair->cap.max_send_wr];
    bool is_signaled = pair->signals_all || (request->wr.send_flags & IBV_SEND_SIGNALED);

    pair->acked = number;
    if (is_signaled || status != IBV_WC_SUCCESS)
        complete(pair->qp.send_cq,
                 (struct ibv_wc){.wr_id = request->wr.wr_id,
                                 .status = status,
                                 .opcode = request->wr.opcode == IBV_WR_SEND ? IBV_WC_SEND
                                                                             : IBV_WC_RDMA_WRITE},
                 pair, number);
}

static void complete_slot(pair_t *pair, enum ibv_wc_status status, uint32_t len)
{
    const slot_t *slot = &pair->slots[pair->slots_taken++ % pair->cap.max_recv_wr];

    complete(pair->qp.recv_cq,
             (struct ibv_wc){
                 .wr_id = slot->id, .status = status, .opcode = IBV_WC_RECV, .byte_len = len},
             pair, 0);
}

/* All that was posted comes back. */
static void flush(pair_t *pair)
{
    while (pair->acked < pair->posted)
        complete_send(pair, pair->acked + 1, IBV_WC_WR_FLUSH_ERR);
    while (pair->slots_taken < pair->slots_posted)
        complete_slot(pair, IBV_WC_WR_FLUSH_ERR, 0);
    pair->sent = pair->posted;
    pair->offset = 0;
}

static void fail_pair(pair_t *pair)
{
    pair->qp.state = IBV_QPS_ERR;
    flush(pair);
}

/* ---- memory ---- */

static region_t *region_of(const struct ibv_pd *pd, uint32_t key, uint64_t at, uint64_t len,
                           int access)
{
    region_t *region = fake.regions[(key >> 8) % (sizeof fake.regions / sizeof *fake.regions)];

    if (!region || region->mr.rkey != key || region->mr.pd != pd ||
        (region->access & access) != access || at < (uintptr_t)region->mr.addr ||
        len > region->mr.length || at - (uintptr_t)region->mr.addr > region->mr.length - len)
        return NULL;
    return region;
}

static void *pointer(uint64_t at)
{
    return (void *)(uintptr_t)at;
}

static uint64_t sum_of(const uint8_t *at, size_t len)
{
    uint64_t sum = len, word;

    for (; len >= 8; len -= 8, at += 8) {
        memcpy(&word, at, 8);
        sum = (sum ^ word) * 0x9E3779B97F4A7C15ull;
        sum ^= sum >> 29;
    }
    for (; len > 0; len--)
        sum = sum * 31 + *at++;
    return sum;
}

static bool is_inlined(const request_t *request)
{
    return request->wr.send_flags & IBV_SEND_INLINE;
}

static bool may_be_read(const pair_t *pair, const request_t *request)
{
    return is_inlined(request) ||
           region_of(pair->qp.pd, request->sge.lkey, request->sge.addr, request->sge.length, 0);
}

/* A device may have to send the bytes once more until then. */
static void check_unchanged(const pair_t *pair, uint64_t number)
{
    const request_t *request = &pair->sends[(number - 1) % pair->cap.max_send_wr];

    if (!is_inlined(request) && may_be_read(pair, request) &&
        sum_of(pointer(request->sge.addr), request->sge.length) != request->sum)
        broken("bytes have changed before the completion of their request");
}

/* ---- packets ---- */

/* True: it is out, or nobody is there. False: the socket is full. */
static bool put(conn_t *conn, const head_t *head, const void *bytes, size_t len)
{
    struct iovec iov[2] = {{(void *)(uintptr_t)head, sizeof *head},
                           {(void *)(uintptr_t)bytes, len}};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};

    return conn->socket < 0 || sendmsg(conn->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
           errno != EAGAIN;
}

static pair_t *pair_of(const conn_t *conn)
{
    return (pair_t *)conn->id.qp;
}

/* Sends what there is. False: the socket is full. */
static bool transmit(conn_t *conn)
{
    pair_t *pair = pair_of(conn);

    if (!pair)
        return true;
    if (pair->told != pair->got) {
        if (!put(conn, &(head_t){.kind = ACK, .number = pair->got}, NULL, 0))
            return false;
        pair->told = pair->got;
    }
    if (pair->refusal) {
        if (!put(conn, &(head_t){.kind = NAK, .number = pair->got + 1, .status = pair->refusal},
                 NULL, 0))
            return false;
        pair->refusal = 0;
    }
    while (pair->qp.state == IBV_QPS_RTS && pair->sent < pair->posted) {
        const request_t *request = &pair->sends[pair->sent % pair->cap.max_send_wr];
        const uint8_t *bytes = is_inlined(request) ? request->bytes : pointer(request->sge.addr);
        uint64_t left = request->sge.length - pair->offset;
        size_t len = left < CHUNK ? (size_t)left : CHUNK;
        head_t head = {.kind = request->wr.opcode == IBV_WR_SEND ? SEND : WRITE,
                       .address = request->wr.wr.rdma.remote_addr + pair->offset,
                       .total = left,
                       .key = request->wr.wr.rdma.rkey,
                       .is_last = len == left};

        if (!may_be_read(pair, request)) {
            complete_send(pair, pair->sent + 1, IBV_WC_LOC_PROT_ERR);
            fail_pair(pair);
            break;
        }
        if (!put(conn, &head, bytes + pair->offset, len))
            return false;
        pair->offset += len;
        if (head.is_last) {
            pair->sent++;
            pair->offset = 0;
        }
    }
    return true;
}

static void refuse(conn_t *conn, enum ibv_wc_status status)
{
    pair_of(conn)->refusal = status;
    fail_pair(pair_of(conn));
}

static void write_bytes(conn_t *conn, const head_t *head, const uint8_t *bytes, size_t len)
{
    pair_t *pair = pair_of(conn);

    if (len > 0 &&
        !region_of(pair->qp.pd, head->key, head->address, head->total, IBV_ACCESS_REMOTE_WRITE)) {
        raise_async((device_t *)conn->id.verbs, IBV_EVENT_QP_ACCESS_ERR, pair);
        refuse(conn, IBV_WC_REM_ACCESS_ERR);
        return;
    }
    if (len > 0)
        memcpy(pointer(head->address), bytes, len);
    pair->got += head->is_last;
}

/* False: there is no slot. */
static bool fill_slot(conn_t *conn, const uint8_t *bytes, size_t len)
{
    pair_t *pair = pair_of(conn);
    const slot_t *slot = &pair->slots[pair->slots_taken % pair->cap.max_recv_wr];

    if (pair->slots_taken == pair->slots_posted)
        return false;
    if (len > slot->sge.length) {
        complete_slot(pair, IBV_WC_LOC_LEN_ERR, 0);
        refuse(conn, IBV_WC_REM_INV_REQ_ERR);
    } else if (!region_of(pair->qp.pd, slot->sge.lkey, slot->sge.addr, slot->sge.length,
                          IBV_ACCESS_LOCAL_WRITE)) {
        complete_slot(pair, IBV_WC_LOC_PROT_ERR, 0);
        refuse(conn, IBV_WC_REM_OP_ERR);
    } else {
        memcpy(pointer(slot->sge.addr), bytes, len);
        complete_slot(pair, IBV_WC_SUCCESS, (uint32_t)len);
        pair->got++;
    }
    return true;
}

static void acknowledge(pair_t *pair, uint64_t number)
{
    while (pair->acked < number && pair->acked < pair->sent) {
        check_unchanged(pair, pair->acked + 1);
        complete_send(pair, pair->acked + 1, IBV_WC_SUCCESS);
    }
}

static void acknowledged(pair_t *pair, const head_t *head)
{
    if (pair->qp.state != IBV_QPS_RTS)
        return;
    if (head->kind == NAK) {
        acknowledge(pair, head->number - 1);
        complete_send(pair, head->number, (enum ibv_wc_status)head->status);
        fail_pair(pair);
    } else if (fake.late_ms > 0) {
        if (pair->told_acked <= pair->acked)
            pair->late_until = now_ms() + fake.late_ms;
        pair->told_acked = head->number;
    } else {
        acknowledge(pair, head->number);
    }
}

static void close_socket(conn_t *conn)
{
    if (conn->socket >= 0)
        close(conn->socket);
    conn->socket = -1;
    conn->waiting.is_there = false;
}

/* The peer's end is closed, and everything has been read. */
static void hang_up(conn_t *conn)
{
    conn_state_t state = conn->state;

    close_socket(conn);
    conn->state = OVER;
    conn->gone_at = now_ms();
    if (state == NEW)
        return; /* nobody has heard of it */
    if (state == CONNECTED)
        happens(conn, RDMA_CM_EVENT_DISCONNECTED, 0, NULL, 0, 0);
    else if (state != OVER)
        happens(conn, RDMA_CM_EVENT_REJECTED, CONSUMER_REJECTS, NULL, 0, REFUSED_BYTES);
}

static void is_established(conn_t *conn)
{
    conn->state = CONNECTED;
    if (conn->id.qp)
        conn->id.qp->state = IBV_QPS_RTS;
}

static void packet(conn_t *conn, const head_t *head, const uint8_t *bytes, size_t len)
{
    switch (head->kind) {
    case ASK:
        if (conn->state != NEW)
            return;
        conn->state = CALLED;
        conn->retries = head->status;
        happens(conn, RDMA_CM_EVENT_CONNECT_REQUEST, 0, bytes, len, ASKED_BYTES);
        return;
    case ANSWER:
        conn->retries = head->status;
        is_established(conn);
        (void)put(conn, &(head_t){.kind = READY}, NULL, 0);
        happens(conn, RDMA_CM_EVENT_ESTABLISHED, 0, bytes, len, ANSWERED_BYTES);
        return;
    case READY:
        conn->state = CONNECTED;
        happens(conn, RDMA_CM_EVENT_ESTABLISHED, 0, NULL, 0, 0);
        return;
    case REFUSE:
        conn->state = OVER;
        happens(conn, RDMA_CM_EVENT_REJECTED, CONSUMER_REJECTS, bytes, len, REFUSED_BYTES);
        return;
    default:
        break;
    }
    if (!pair_of(conn))
        return;
    if (head->kind == ACK || head->kind == NAK) {
        acknowledged(pair_of(conn), head);
    } else if (pair_of(conn)->qp.state != IBV_QPS_RTS) {
        return;
    } else if (head->kind == WRITE) {
        write_bytes(conn, head, bytes, len);
    } else if (!fill_slot(conn, bytes, len)) {
        conn->waiting.is_there = true;
        conn->waiting.until = conn->retries == 7
                                  ? INT64_MAX
                                  : now_ms() + (int64_t)(conn->retries + 1) * SLOT_RETRY_MS;
        conn->waiting.len = len;
        memcpy(conn->waiting.bytes, bytes, len);
    }
}

/* A message that waits for a slot lets nothing pass. True: it does not wait any more. */
static bool try_waiting(conn_t *conn)
{
    pair_t *pair = pair_of(conn);

    if (!conn->waiting.is_there)
        return true;
    if (pair && pair->qp.state == IBV_QPS_RTS &&
        !fill_slot(conn, conn->waiting.bytes, conn->waiting.len)) {
        if (now_ms() < conn->waiting.until)
            return false;
        pair->refusal = IBV_WC_RNR_RETRY_EXC_ERR; /* the sender's queue pair fails, not ours */
    }
    conn->waiting.is_there = false;
    return true;
}

static void receive(conn_t *conn)
{
    static uint8_t bytes[CHUNK];
    head_t head;
    struct iovec iov[2] = {{&head, sizeof head}, {bytes, sizeof bytes}};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};

    while (conn->socket >= 0 && try_waiting(conn)) {
        ssize_t n = recvmsg(conn->socket, &message, MSG_DONTWAIT);

        if (n >= (ssize_t)sizeof head)
            packet(conn, &head, bytes, (size_t)n - sizeof head);
        else if (n < 0 && errno == EAGAIN)
            return;
        else if (n >= 0 || errno != ECONNRESET) /* which comes before what is there to read */
            hang_up(conn);
    }
}

/* ---- the device's thread ---- */

static void watch(conn_t *conn, uint32_t interest)
{
    struct epoll_event event = {.events = interest, .data.ptr = conn};

    if (conn->socket < 0 || conn->interest == interest)
        return;
    if (epoll_ctl(fake.epoll, EPOLL_CTL_MOD, conn->socket, &event) != 0 &&
        epoll_ctl(fake.epoll, EPOLL_CTL_ADD, conn->socket, &event) != 0)
        broken("epoll");
    conn->interest = interest;
}

static conn_t *make_conn(struct rdma_event_channel *channel, void *context,
                         enum rdma_port_space space)
{
    conn_t *conn = make(sizeof *conn);

    conn->id.channel = channel;
    conn->id.context = context;
    conn->id.ps = space;
    conn->socket = -1;
    conn->next = fake.conns;
    fake.conns = conn;
    return conn;
}

static void bind_to_device(conn_t *conn, device_t *device)
{
    conn->id.verbs = &device->context;
    conn->id.port_num = 1;
    device->users++;
}

static device_t *open_device(void);

/* Who comes gets an id of his own as soon as he has said what he wants. */
static void answer_caller(conn_t *listener)
{
    int socket = accept4(listener->socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    device_t *device = socket >= 0 ? open_device() : NULL;
    conn_t *conn;

    if (!device) {
        if (socket >= 0)
            close(socket);
        return;
    }
    conn = make_conn(listener->id.channel, listener->id.context, listener->id.ps);
    conn->listener = listener;
    conn->socket = socket;
    conn->id.route.addr = listener->id.route.addr;
    bind_to_device(conn, device);
}

static void pass_time(conn_t *conn)
{
    pair_t *pair = pair_of(conn);

    if (!pair || pair->qp.state != IBV_QPS_RTS)
        return;
    if (pair->told_acked > pair->acked && now_ms() >= pair->late_until)
        acknowledge(pair, pair->told_acked);
    if (conn->socket < 0 && pair->acked < pair->posted && now_ms() > conn->gone_at + SILENCE_MS) {
        complete_send(pair, pair->acked + 1, IBV_WC_RETRY_EXC_ERR);
        fail_pair(pair);
    }
}

static void serve(conn_t *conn)
{
    bool is_full = false;

    if (conn->state == LISTENS) {
        answer_caller(conn);
        watch(conn, EPOLLIN);
        return;
    }
    receive(conn);
    pass_time(conn);
    if (conn->socket >= 0)
        is_full = !transmit(conn);
    watch(conn, (conn->waiting.is_there ? 0 : EPOLLIN) | (is_full ? EPOLLOUT : 0));
}

/* The kernel's side of a device lives until its descriptors are closed, or closed under their
 * numbers. */
static bool is_let_go(const device_t *device)
{
    struct stat stat;

    return device->users == 0 &&
           (fstat(device->context.cmd_fd, &stat) != 0 || S_ISCHR(stat.st_mode));
}

static void look_at_host(void)
{
    device_t *device = fake.device;

    if (!device)
        return;
    if (!device->is_gone && (host->is_removed || host->removals != device->removals)) {
        device->is_gone = true;
        for (conn_t *conn = fake.conns; conn; conn = conn->next)
            if (conn->id.verbs == &device->context && conn->is_users)
                happens(conn, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL, 0, 0);
    }
    if (device->is_gone)
        fake.holder->has_device = !is_let_go(device);
    if (!device->is_gone && device->is_down != host->is_down) {
        device->is_down = host->is_down;
        raise_async(device, device->is_down ? IBV_EVENT_PORT_ERR : IBV_EVENT_PORT_ACTIVE, NULL);
    }
}

static void *run_device(void *unused)
{
    struct epoll_event events[16];
    char byte;

    (void)unused;
    for (;;) {
        (void)epoll_wait(fake.epoll, events, 16, TICK_MS);
        lock();
        if (fake.is_woken && read(fake.wake[0], &byte, 1) == 1)
            fake.is_woken = false;
        look_at_host();
        for (conn_t *conn = fake.conns; conn; conn = conn->next)
            serve(conn);
        unlock(0);
    }
    return NULL;
}

/* ---- devices ---- */

/* Descriptors that a real device has in the kernel are not the process's: its limit does not
 * count. */
static void lift_limit(struct rlimit *before_p)
{
    struct rlimit limit;

    (void)getrlimit(RLIMIT_NOFILE, before_p);
    limit = *before_p;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static int open_socket(void)
{
    struct rlimit before;
    int fd;

    lift_limit(&before);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)setrlimit(RLIMIT_NOFILE, &before);
    return fd;
}

static bool start(void)
{
    struct epoll_event event = {.events = EPOLLIN};
    sigset_t all, before;
    pthread_t thread;

    if (fake.runs)
        return true;
    fake.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (fake.epoll < 0 || pipe2(fake.wake, O_CLOEXEC) != 0 ||
        epoll_ctl(fake.epoll, EPOLL_CTL_ADD, fake.wake[0], &event) != 0)
        return false;
    fake.holder = claim_holder();
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    fake.runs = pthread_create(&thread, NULL, run_device, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (fake.runs)
        pthread_detach(thread);
    return fake.runs;
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions);
static int req_notify_cq(struct ibv_cq *cq, int solicited);
static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p);
static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p);

/* As librdmacm does it: opened once, and one that is gone is closed when the next is asked for. */
static device_t *open_device(void)
{
    static struct ibv_device name = {.name = "fake0"};
    device_t *device = fake.device;

    if (device && !device->is_gone)
        return device;
    if (host->is_removed || (device && device->users > 0))
        return NULL;
    if (device) {
        close(device->context.async_fd);
        close(device->context.cmd_fd);
        device->async.reader = -1;
        mailbox_close(&device->async);
        free(device);
    }
    fake.device = device = make(sizeof *device);
    if (!mailbox_open(&device->async))
        broken("no descriptors for the device");
    device->removals = host->removals;
    device->context.device = &name;
    device->context.async_fd = device->async.reader;
    device->context.cmd_fd = fcntl(device->async.reader, F_DUPFD_CLOEXEC, 0);
    device->context.ops.poll_cq = poll_cq;
    device->context.ops.req_notify_cq = req_notify_cq;
    device->context.ops.post_send = post_send;
    device->context.ops.post_recv = post_recv;
    fake.holder->has_device = true;
    return device;
}

/* ---- orders ---- */

EXPORT bool fake_verbs_remove(void)
{
    int64_t end = now_ms() + 5000;
    bool is_held = true;

    host->removals++;
    host->is_removed = true;
    while (is_held && now_ms() < end) {
        (void)poll(NULL, 0, TICK_MS);
        is_held = false;
        for (size_t i = 0; i < sizeof host->holders / sizeof *host->holders; i++)
            is_held = is_held || (host->holders[i].has_device && is_alive(host->holders[i].pid));
    }
    return !is_held;
}

EXPORT void fake_verbs_add(void)
{
    host->is_down = false;
    host->is_removed = false;
}

EXPORT void fake_verbs_set_port(bool is_up)
{
    host->is_down = !is_up;
}

EXPORT int fake_verbs_held(void)
{
    int count = 0;

    for (size_t i = 0; i < sizeof host->holders / sizeof *host->holders; i++)
        if (is_alive(host->holders[i].pid))
            count += host->holders[i].objects;
    return count;
}

EXPORT void fake_verbs_fail_posts(int count)
{
    lock();
    fake.fail_posts = count;
    unlock(0);
}

EXPORT void fake_verbs_complete_late(int ms)
{
    lock();
    fake.late_ms = ms;
    unlock(0);
}

EXPORT void fake_verbs_raise(enum ibv_event_type type, int count)
{
    lock();
    while (fake.device && count-- > 0)
        raise_async(fake.device, type, NULL);
    unlock(0);
}

EXPORT bool fake_verbs_is_waited_for(void)
{
    bool found = false;

    lock();
    for (conn_t *conn = fake.conns; conn; conn = conn->next)
        found = found || (pair_of(conn) && pair_of(conn)->acked < pair_of(conn)->posted &&
                          pair_of(conn)->told_acked == pair_of(conn)->posted &&
                          ((queue_t *)pair_of(conn)->qp.send_cq)->is_armed);
    return unlock(found);
}

EXPORT bool fake_verbs_is_fork_safe(void)
{
    return fake.is_prepared_for_forks;
}

/* ---- libibverbs ---- */

EXPORT int ibv_fork_init(void)
{
    if (fake.runs)
        return EINVAL;
    fake.is_prepared_for_forks = true;
    return 0;
}

EXPORT const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

EXPORT const char *ibv_wc_status_str(enum ibv_wc_status status)
{
    static _Thread_local char text[32];

    snprintf(text, sizeof text, "completion status %d", (int)status);
    return text;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event_p)
{
    event_t *event;

    lock();
    event = mailbox_wait(&((device_t *)context)->async);
    if (event)
        *event_p = event->async;
    free(event);
    return unlock(event ? 0 : -1);
}

EXPORT void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    domain_t *domain = make(sizeof *domain);

    domain->pd.context = context;
    lock();
    ((device_t *)context)->users++;
    unlock(0);
    return &domain->pd;
}

static void forget_user(struct ibv_context *context)
{
    ((device_t *)context)->users--;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
    lock();
    if (((domain_t *)pd)->users > 0)
        return unlock(EBUSY);
    forget_user(pd->context);
    free(pd);
    return unlock(0);
}

/* What the kernel asks before it locks memory. */
static bool may_lock(uint64_t bytes)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{0}};
    struct rlimit limit;

    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    return limit.rlim_cur == RLIM_INFINITY || fake.locked + bytes <= limit.rlim_cur ||
           (syscall(SYS_capget, &header, data) == 0 && (data[0].effective & (1u << CAP_IPC_LOCK)));
}

static bool is_mapped(void *at, size_t len)
{
    uintptr_t from = (uintptr_t)at & ~(uintptr_t)4095;

    return madvise(pointer(from), len + ((uintptr_t)at - from), MADV_NORMAL) == 0;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t len, int access)
{
    size_t most = sizeof fake.regions / sizeof *fake.regions, index = 0;
    region_t *region;

    lock();
    while (index < most && fake.regions[index])
        index++;
    errno = index == most || !may_lock(len)                                            ? ENOMEM
            : (access & IBV_ACCESS_REMOTE_WRITE) && !(access & IBV_ACCESS_LOCAL_WRITE) ? EINVAL
            : !is_mapped(at, len)                                                      ? EFAULT
                                                                                       : 0;
    if (errno != 0) {
        unlock(0);
        return NULL;
    }
    region = fake.regions[index] = make(sizeof *region);
    region->access = access;
    region->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = at, .length = len};
    region->mr.lkey = region->mr.rkey = (uint32_t)index << 8 | (++fake.regions_made & 255);
    fake.locked += len;
    ((domain_t *)pd)->users++;
    fake.holder->objects++;
    unlock(0);
    return &region->mr;
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t len, uint64_t iova,
                                       unsigned int access)
{
    (void)iova;
    return ibv_reg_mr(pd, at, len, (int)access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
    lock();
    fake.locked -= mr->length;
    fake.regions[mr->lkey >> 8] = NULL;
    ((domain_t *)mr->pd)->users--;
    fake.holder->objects--;
    free(mr);
    return unlock(0);
}

EXPORT struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    comp_t *comp = make(sizeof *comp);

    if (!mailbox_open(&comp->events)) {
        free(comp);
        return NULL;
    }
    comp->channel.context = context;
    comp->channel.fd = comp->events.reader;
    lock();
    ((device_t *)context)->users++;
    unlock(0);
    return &comp->channel;
}

EXPORT int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    lock();
    if (channel->refcnt > 0)
        return unlock(EBUSY);
    mailbox_close(&((comp_t *)channel)->events);
    forget_user(channel->context);
    free(channel);
    return unlock(0);
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int count, void *user,
                                    struct ibv_comp_channel *channel, int vector)
{
    queue_t *queue = make(sizeof *queue);

    (void)vector;
    queue->cq =
        (struct ibv_cq){.context = context, .channel = channel, .cq_context = user, .cqe = count};
    queue->ring = make((size_t)count * sizeof *queue->ring);
    lock();
    if (channel)
        channel->refcnt++;
    ((device_t *)context)->users++;
    fake.holder->objects++;
    unlock(0);
    return &queue->cq;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
    queue_t *queue = (queue_t *)cq;

    lock();
    if (queue->users > 0)
        return unlock(EBUSY);
    if (cq->channel) {
        mailbox_forget(&((comp_t *)cq->channel)->events, cq);
        cq->channel->refcnt--;
    }
    if (queue->unacked > 0)
        broken("a completion queue is destroyed before its events are acknowledged");
    forget_user(cq->context);
    fake.holder->objects--;
    free(queue->ring);
    free(queue);
    return unlock(0);
}

EXPORT int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq_p, void **user_p)
{
    event_t *event;

    lock();
    event = mailbox_wait(&((comp_t *)channel)->events);
    if (event) {
        *cq_p = event->cq;
        *user_p = event->cq->cq_context;
        ((queue_t *)event->cq)->unacked++;
    }
    free(event);
    return unlock(event ? 0 : -1);
}

EXPORT void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int count)
{
    lock();
    ((queue_t *)cq)->unacked -= (int)count;
    unlock(0);
}

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *completions)
{
    queue_t *queue = (queue_t *)cq;
    int taken = 0;

    lock();
    for (; taken < count && queue->first < queue->end; taken++) {
        const completion_t *next = &queue->ring[queue->first++ % (uint64_t)cq->cqe];

        completions[taken] = next->wc;
        if (next->frees > next->pair->freed)
            next->pair->freed = next->frees;
    }
    return unlock(taken);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
    (void)solicited;
    lock();
    if (!cq->channel)
        broken("a completion queue without a channel is armed");
    ((queue_t *)cq)->is_armed = true;
    return unlock(0);
}

static bool is_failing(void)
{
    return fake.fail_posts > 0 && fake.fail_posts-- > 0;
}

static int check_request(const pair_t *pair, const struct ibv_send_wr *wr)
{
    bool is_inline = wr->send_flags & IBV_SEND_INLINE;

    if (is_failing() || pair->posted - pair->freed == pair->cap.max_send_wr)
        return ENOMEM;
    if ((pair->qp.state != IBV_QPS_RTS && pair->qp.state != IBV_QPS_ERR) || wr->num_sge != 1 ||
        (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_RDMA_WRITE) ||
        (is_inline && wr->sg_list->length > pair->cap.max_inline_data) ||
        (wr->opcode == IBV_WR_SEND && wr->sg_list->length > CHUNK))
        return EINVAL;
    return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p)
{
    pair_t *pair = (pair_t *)qp;
    int error = 0;

    lock();
    for (; wr && (*bad_p = wr, error = check_request(pair, wr)) == 0; wr = wr->next) {
        request_t *request = &pair->sends[pair->posted++ % pair->cap.max_send_wr];

        request->wr = *wr;
        request->sge = *wr->sg_list;
        if (is_inlined(request))
            memcpy(request->bytes, pointer(request->sge.addr), request->sge.length);
        else if (may_be_read(pair, request))
            request->sum = sum_of(pointer(request->sge.addr), request->sge.length);
    }
    if (qp->state == IBV_QPS_ERR)
        flush(pair);
    wake();
    return unlock(error);
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p)
{
    pair_t *pair = (pair_t *)qp;
    int error = 0;

    lock();
    for (; wr && error == 0; wr = wr->next) {
        *bad_p = wr;
        if (is_failing() || pair->slots_posted - pair->slots_taken == pair->cap.max_recv_wr)
            error = ENOMEM;
        else if (wr->num_sge != 1)
            error = EINVAL;
        else
            pair->slots[pair->slots_posted++ % pair->cap.max_recv_wr] =
                (slot_t){.id = wr->wr_id, .sge = *wr->sg_list};
    }
    if (qp->state == IBV_QPS_ERR)
        flush(pair);
    wake();
    return unlock(error);
}

/* ---- librdmacm ---- */

EXPORT struct rdma_event_channel *rdma_create_event_channel(void)
{
    cm_t *cm = make(sizeof *cm);

    lock();
    if (host->is_removed || !start() || !mailbox_open(&cm->events)) {
        if (host->is_removed)
            errno = ENODEV;
        free(cm);
        unlock(0);
        return NULL;
    }
    cm->channel.fd = cm->events.reader;
    unlock(0);
    return &cm->channel;
}

EXPORT void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
    lock();
    for (conn_t *conn = fake.conns; conn; conn = conn->next)
        if (conn->id.channel == channel)
            broken("an event channel is destroyed before its ids");
    mailbox_close(&((cm_t *)channel)->events);
    free(channel);
    unlock(0);
}

EXPORT int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event_p)
{
    event_t *event;

    lock();
    event = mailbox_wait(&((cm_t *)channel)->events);
    if (event) {
        ((conn_t *)event->cm.id)->unacked++;
        ((conn_t *)event->cm.id)->is_users = true;
        *event_p = &event->cm;
    }
    return unlock(event ? 0 : -1);
}

EXPORT int rdma_ack_cm_event(struct rdma_cm_event *event)
{
    lock();
    ((conn_t *)event->id)->unacked--;
    free((char *)event - offsetof(event_t, cm));
    return unlock(0);
}

EXPORT const char *rdma_event_str(enum rdma_cm_event_type type)
{
    static _Thread_local char text[32];

    snprintf(text, sizeof text, "event %d", (int)type);
    return text;
}

EXPORT int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id_p,
                          void *context, enum rdma_port_space space)
{
    lock();
    *id_p = &make_conn(channel, context, space)->id;
    ((conn_t *)*id_p)->is_users = true;
    return unlock(0);
}

static void destroy_conn(conn_t *conn)
{
    conn_t **at = &fake.conns;

    mailbox_forget(&((cm_t *)conn->id.channel)->events, conn);
    while (*at != conn)
        at = &(*at)->next;
    *at = conn->next;
    close_socket(conn);
    if (conn->id.verbs)
        forget_user(conn->id.verbs);
    free(conn);
}

EXPORT int rdma_destroy_id(struct rdma_cm_id *id)
{
    conn_t *conn = (conn_t *)id, *next;

    lock();
    if (id->qp)
        broken("an id is destroyed before its queue pair");
    if (conn->unacked > 0)
        broken("an id is destroyed before its events are acknowledged");
    for (conn_t *other = fake.conns; other; other = next) {
        next = other->next;
        if (other->listener == conn)
            other->listener = NULL;
        if (!other->listener && !other->is_users)
            destroy_conn(other);
    }
    destroy_conn(conn);
    return unlock(0);
}

/* An address is the device's, any, or nobody's. */
static bool is_any(const struct sockaddr *at)
{
    return at->sa_family == AF_INET
               ? ((const struct sockaddr_in *)(const void *)at)->sin_addr.s_addr == INADDR_ANY
               : IN6_IS_ADDR_UNSPECIFIED(
                     &((const struct sockaddr_in6 *)(const void *)at)->sin6_addr);
}

static void text_of(const struct sockaddr *at, char text[INET6_ADDRSTRLEN])
{
    const void *ip = at->sa_family == AF_INET
                         ? (const void *)&((const struct sockaddr_in *)(const void *)at)->sin_addr
                         : &((const struct sockaddr_in6 *)(const void *)at)->sin6_addr;

    if (!inet_ntop(at->sa_family, ip, text, INET6_ADDRSTRLEN))
        text[0] = 0;
}

static bool is_ours(const struct sockaddr *at)
{
    char text[INET6_ADDRSTRLEN];

    text_of(at, text);
    return strcmp(text, at->sa_family == AF_INET ? FAKE_VERBS_IPV4 : FAKE_VERBS_IPV6) == 0;
}

static uint16_t *port_at(struct sockaddr *at)
{
    return at->sa_family == AF_INET ? &((struct sockaddr_in *)(void *)at)->sin_port
                                    : &((struct sockaddr_in6 *)(void *)at)->sin6_port;
}

static void copy_address(struct sockaddr_storage *to, const struct sockaddr *from)
{
    memcpy(to, from,
           from->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
}

/* Where a listener can be reached: a name that is the host's, the address's and the port's. */
static socklen_t name_of(const char *ip, uint16_t port, struct sockaddr_un *name_p)
{
    *name_p = (struct sockaddr_un){.sun_family = AF_UNIX};
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                       (size_t)snprintf(name_p->sun_path + 1, sizeof name_p->sun_path - 1,
                                        "fake-verbs/%llx/%s/%u", (unsigned long long)host->number,
                                        ip, port));
}

static int bind_locked(conn_t *conn, struct sockaddr *at)
{
    device_t *device;

    if (!is_any(at)) {
        if (!is_ours(at))
            return fails(EADDRNOTAVAIL);
        device = open_device();
        if (!device)
            return fails(ENODEV);
        if (!conn->id.verbs)
            bind_to_device(conn, device);
    }
    copy_address(&conn->id.route.addr.src_storage, at);
    return 0;
}

EXPORT int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *at)
{
    lock();
    return unlock(bind_locked((conn_t *)id, at));
}

static int bind_socket(conn_t *conn, uint16_t port)
{
    char ip[INET6_ADDRSTRLEN];
    struct sockaddr_un name;
    socklen_t len;

    text_of(&conn->id.route.addr.src_addr, ip);
    len = name_of(ip, port, &name);
    *port_at(&conn->id.route.addr.src_addr) = htons(port);
    return bind(conn->socket, (struct sockaddr *)&name, len);
}

EXPORT int rdma_listen(struct rdma_cm_id *id, int backlog)
{
    conn_t *conn = (conn_t *)id;
    uint16_t port = ntohs(*port_at(&id->route.addr.src_addr));
    int bound;

    lock();
    conn->socket = open_socket();
    bound = conn->socket < 0 ? -1 : 0;
    if (bound == 0 && port != 0)
        bound = bind_socket(conn, port);
    else if (bound == 0)
        for (port = 32768; (bound = bind_socket(conn, port)) != 0 && port < 60999;)
            port++;
    if (bound != 0 || listen(conn->socket, backlog < 16 ? 16 : backlog) != 0)
        return unlock(-1);
    conn->state = LISTENS;
    wake();
    return unlock(0);
}

EXPORT __be16 rdma_get_src_port(struct rdma_cm_id *id)
{
    return *port_at(&id->route.addr.src_addr);
}

EXPORT int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *from, struct sockaddr *to,
                             int timeout_ms)
{
    struct sockaddr_storage ours = {.ss_family = to->sa_family};
    conn_t *conn = (conn_t *)id;

    (void)timeout_ms;
    if (to->sa_family == AF_INET)
        inet_pton(AF_INET, FAKE_VERBS_IPV4, &((struct sockaddr_in *)&ours)->sin_addr);
    else
        inet_pton(AF_INET6, FAKE_VERBS_IPV6, &((struct sockaddr_in6 *)&ours)->sin6_addr);
    lock();
    if (bind_locked(conn, from && !is_any(from) ? from : (struct sockaddr *)&ours) != 0)
        return unlock(-1);
    copy_address(&id->route.addr.dst_storage, to);
    if (is_ours(to))
        happens(conn, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL, 0, 0);
    else
        happens(conn, RDMA_CM_EVENT_ADDR_ERROR, -EHOSTUNREACH, NULL, 0, 0);
    return unlock(0);
}

EXPORT int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
    (void)timeout_ms;
    lock();
    happens((conn_t *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL, 0, 0);
    return unlock(0);
}

EXPORT int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t len)
{
    (void)id, (void)level, (void)name, (void)value, (void)len;
    return 0;
}

/* The listener of exactly this address, or of any. */
static int call(conn_t *conn)
{
    uint16_t port = ntohs(*port_at(&conn->id.route.addr.dst_addr));
    char ips[3][INET6_ADDRSTRLEN] = {"", "0.0.0.0", "::"};
    struct sockaddr_un name;
    int result = -1;

    text_of(&conn->id.route.addr.dst_addr, ips[0]);
    conn->socket = open_socket();
    if (conn->socket < 0)
        broken("no descriptor for a connection");
    for (int i = 0; i < 3 && result != 0; i++) {
        socklen_t len = name_of(ips[i], port, &name);

        result = connect(conn->socket, (struct sockaddr *)&name, len);
    }
    return result;
}

EXPORT int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    conn_t *conn = (conn_t *)id;

    lock();
    if (param->private_data_len > ASKED_BYTES)
        return unlock(fails(EINVAL));
    conn->state = CALLS;
    if (call(conn) != 0) {
        close_socket(conn);
        conn->state = OVER;
        happens(conn, RDMA_CM_EVENT_REJECTED, NOBODY_LISTENS, NULL, 0, REFUSED_BYTES);
    } else {
        (void)put(conn, &(head_t){.kind = ASK, .status = param->rnr_retry_count},
                  param->private_data, param->private_data_len);
    }
    wake();
    return unlock(0);
}

EXPORT int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
    conn_t *conn = (conn_t *)id;

    lock();
    if (conn->state != CALLED)
        return unlock(fails(EINVAL));
    conn->state = ACCEPTED;
    if (id->qp)
        id->qp->state = IBV_QPS_RTS;
    (void)put(conn, &(head_t){.kind = ANSWER, .status = param->rnr_retry_count},
              param->private_data, param->private_data_len);
    wake();
    return unlock(0);
}

EXPORT int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
    lock();
    if (((conn_t *)id)->state != CALLED)
        return unlock(fails(EINVAL));
    (void)put((conn_t *)id, &(head_t){.kind = REFUSE}, data, len);
    ((conn_t *)id)->state = OVER;
    return unlock(0);
}

EXPORT int rdma_disconnect(struct rdma_cm_id *id)
{
    conn_t *conn = (conn_t *)id;

    lock();
    if (conn->state != CONNECTED && conn->state != ACCEPTED)
        return unlock(fails(EINVAL));
    if (id->qp)
        fail_pair((pair_t *)id->qp);
    (void)shutdown(conn->socket, SHUT_RDWR); /* the device's thread reads the end */
    return unlock(0);
}

EXPORT int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    pair_t *pair;

    if (attr->cap.max_inline_data > INLINE_MAX || attr->qp_type != IBV_QPT_RC)
        return fails(EINVAL);
    pair = make(sizeof *pair);
    pair->cap = attr->cap;
    pair->cap.max_inline_data = attr->cap.max_inline_data = INLINE_MAX;
    pair->signals_all = attr->sq_sig_all;
    pair->sends = make(attr->cap.max_send_wr * sizeof *pair->sends);
    pair->slots = make(attr->cap.max_recv_wr * sizeof *pair->slots);
    pair->qp = (struct ibv_qp){.context = id->verbs,
                               .pd = pd,
                               .send_cq = attr->send_cq,
                               .recv_cq = attr->recv_cq,
                               .state = IBV_QPS_INIT,
                               .qp_type = IBV_QPT_RC};
    lock();
    pair->qp.qp_num = ++fake.pairs_made;
    ((domain_t *)pd)->users++;
    ((queue_t *)attr->send_cq)->users++;
    ((queue_t *)attr->recv_cq)->users++;
    fake.holder->objects++;
    id->qp = &pair->qp;
    return unlock(0);
}

/* What nobody has polled yet is never seen. */
static void forget_completions(struct ibv_cq *cq, const pair_t *pair)
{
    queue_t *queue = (queue_t *)cq;
    uint64_t kept = queue->first;

    for (uint64_t at = queue->first; at < queue->end; at++)
        if (queue->ring[at % (uint64_t)cq->cqe].pair != pair)
            queue->ring[kept++ % (uint64_t)cq->cqe] = queue->ring[at % (uint64_t)cq->cqe];
    queue->end = kept;
    queue->users--;
}

EXPORT void rdma_destroy_qp(struct rdma_cm_id *id)
{
    pair_t *pair = (pair_t *)id->qp;

    lock();
    forget_completions(pair->qp.send_cq, pair);
    forget_completions(pair->qp.recv_cq, pair);
    mailbox_forget(&((device_t *)id->verbs)->async, pair);
    ((domain_t *)pair->qp.pd)->users--;
    fake.holder->objects--;
    id->qp = NULL;
    free(pair->sends);
    free(pair->slots);
    free(pair);
    unlock(0);
}
