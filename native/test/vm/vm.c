/* SPDX-License-Identifier: Apache-2.0 */
#include "vm.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BROKEN_IN "vm"
#include "../broken.h"

#define DESCRIPTORS 64
#define ATOMS 64
#define TEXT_BYTES 512
#define NO_TIMER INT64_MAX
#define BINARY_MAX ((ErlDrvSizeT)64 << 20) /* larger ones are refused, as if memory was low */

typedef struct term {
    struct term *next;
    char text[TEXT_BYTES];
    uint8_t bytes[TEXT_BYTES];
    size_t len;
} term_t;

struct _erl_drv_port {
    pthread_mutex_t lock;
    ErlDrvData data;
    bool is_open, is_closing, is_busy;
    int64_t timer_at; /* of timers_ms; NO_TIMER: not set */
    char *queue;
    size_t queued;
    SysIOVec iov;
    char reason[64];
    term_t *terms, *heard;
    uint64_t frames, bytes;
    struct _erl_drv_port *next;
};

/* A binary as the driver knows it, and what the VM holds of it. */
typedef struct {
    int refs;
    ErlDrvBinary binary; /* last */
} kept_t;

/* What was given out, until the next round. */
typedef struct given {
    struct given *next;
    kept_t *kept;
    const uint8_t *at;
    uint64_t len, sum;
} given_t;

typedef struct job {
    struct job *next;
    ErlDrvPort port;
    void (*invoke)(void *);
    void *data;
    void (*release)(void *);
    pthread_t thread;
    bool is_started, is_done;
} job_t;

static struct {
    pthread_mutex_t lock; /* of what follows; taken after a port's */
    ErlDrvEntry *entry;
    ErlDrvPort ports;
    struct {
        int fd;
        ErlDrvPort port; /* NULL: free */
        bool is_read, is_write;
    } selected[DESCRIPTORS];
    int left[DESCRIPTORS], left_count; /* to be told to stop_select */
    int pollers;
    given_t *given;
    job_t *jobs;
    bool holds_jobs;
    int memory, binaries;
    char atoms[ATOMS][64];
} vm = {.lock = PTHREAD_MUTEX_INITIALIZER};

void (*vm_deliver)(ErlDrvPort port, const uint8_t *at, uint64_t len);
bool vm_deselects_later;
int vm_allocations_left = -1;
bool vm_loses_events;

DRIVER_INIT(beamway_drv);

static void lock(void)
{
    pthread_mutex_lock(&vm.lock);
}

static void unlock(void)
{
    pthread_mutex_unlock(&vm.lock);
}

static _Atomic int64_t skipped_ms;

static int64_t now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + 1000 * skipped_ms;
}

/* Of timers: it stands still, however long a thread is kept from running, but for vm_skip. */
static int64_t timers_ms(void)
{
    return skipped_ms;
}

void vm_skip(int ms)
{
    skipped_ms += ms;
}

/* ---- a port's life ---- */

static bool is_selected_by(ErlDrvPort port)
{
    bool found = false;

    lock();
    for (int i = 0; i < DESCRIPTORS; i++)
        found = found || vm.selected[i].port == port;
    unlock();
    return found;
}

/* The caller has the port's lock, here and below. */
static void terminate(ErlDrvPort port)
{
    port->is_open = false;
    port->timer_at = NO_TIMER;
    vm.entry->stop(port->data);
    port->timer_at = NO_TIMER;
    free(port->queue);
    port->queue = NULL;
    port->queued = 0;
    if (is_selected_by(port))
        broken("a port has stopped and its descriptor is still polled");
}

static void end_port(ErlDrvPort port, const char *reason)
{
    if (!port->is_open)
        return;
    if (port->is_closing) { /* the driver does not wait for its queue */
        terminate(port);
        return;
    }
    snprintf(port->reason, sizeof port->reason, "%s", reason);
    if (port->queued == 0) {
        terminate(port);
        return;
    }
    port->is_closing = true;
    vm.entry->flush(port->data);
}

/* After each callback. */
static void leave(ErlDrvPort port)
{
    if (port->is_open && port->is_closing && port->queued == 0)
        terminate(port);
    pthread_mutex_unlock(&port->lock);
}

/* False: the port is gone, and not locked. */
static bool enter(ErlDrvPort port)
{
    pthread_mutex_lock(&port->lock);
    if (port->is_open)
        return true;
    pthread_mutex_unlock(&port->lock);
    return false;
}

ErlDrvPort vm_open(void)
{
    ErlDrvPort port = make(sizeof *port);

    port->timer_at = NO_TIMER;
    pthread_mutex_init(&port->lock, NULL);
    lock();
    if (!vm.entry)
        vm.entry = driver_init();
    port->next = vm.ports;
    vm.ports = port;
    unlock();
    pthread_mutex_lock(&port->lock);
    port->is_open = true;
    port->data = vm.entry->start(port, (char *)"beamway_drv");
    if (port->data == ERL_DRV_ERROR_GENERAL) {
        port->is_open = false;
        snprintf(port->reason, sizeof port->reason, "start");
    }
    leave(port);
    return port;
}

void vm_close(ErlDrvPort port)
{
    if (!enter(port))
        return;
    if (!port->is_closing)
        end_port(port, "normal");
    leave(port);
}

const char *vm_reason(ErlDrvPort port)
{
    const char *reason;

    pthread_mutex_lock(&port->lock);
    reason = port->is_open ? NULL : port->reason;
    pthread_mutex_unlock(&port->lock);
    return reason;
}

void vm_forget(ErlDrvPort port)
{
    ErlDrvPort *at = &vm.ports;

    if (!vm_reason(port))
        broken("a port that lives is forgotten");
    lock();
    while (*at != port)
        at = &(*at)->next;
    *at = port->next;
    for (job_t *job = vm.jobs; job; job = job->next)
        if (job->port == port)
            job->port = NULL;
    unlock();
    while (vm_heard(port))
        ;
    free(port->heard);
    pthread_mutex_destroy(&port->lock);
    free(port);
}

/* A port that has failed flushes nothing. */
int driver_failure_atom(ErlDrvPort port, char *reason)
{
    port->queued = 0;
    end_port(port, reason);
    return 0;
}

int driver_exit(ErlDrvPort port, int error)
{
    end_port(port, error == 0 ? "normal" : strerror(error));
    return 0;
}

/* ---- what the program does ---- */

vm_reply_t vm_control(ErlDrvPort port, unsigned command, const void *data, size_t len)
{
    vm_reply_t reply = {.len = -1};
    char small[64], *at = small, *copy = make(len + 1);

    memcpy(copy, data ? data : "", data ? len : 0);
    if (enter(port)) {
        if (!port->is_closing)
            reply.len = (int)vm.entry->control(port->data, command, copy, len, &at, sizeof small);
        if (reply.len > (int)sizeof reply.bytes)
            broken("a reply is too long");
        if (reply.len >= 0 && at != small) {
            ErlDrvBinary *binary = (ErlDrvBinary *)at;

            memcpy(reply.bytes, binary->orig_bytes, (size_t)reply.len);
            driver_free_binary(binary);
        } else if (reply.len > 0) {
            memcpy(reply.bytes, small, (size_t)reply.len);
        }
        leave(port);
    }
    free(copy);
    return reply;
}

void vm_send(ErlDrvPort port, const void *bytes, size_t len)
{
    char *copy = make(len + 1);
    SysIOVec iov[3] = {{.iov_base = NULL, .iov_len = 0},
                       {.iov_base = copy, .iov_len = len / 3},
                       {.iov_base = copy + len / 3, .iov_len = len - len / 3}};
    ErlDrvBinary *none[3] = {NULL};
    ErlIOVec ev = {.vsize = 3, .size = (ErlDrvSizeT)len, .iov = iov, .binv = none};

    memcpy(copy, bytes, len);
    if (enter(port)) {
        if (!port->is_closing)
            vm.entry->outputv(port->data, &ev);
        leave(port);
    }
    free(copy);
}

/* What the driver has told of a port so far. */
#define TOLD(type, name, field)                                                                    \
    type name(ErlDrvPort port)                                                                     \
    {                                                                                              \
        pthread_mutex_lock(&port->lock);                                                           \
        type value = port->field;                                                                  \
        pthread_mutex_unlock(&port->lock);                                                         \
        return value;                                                                              \
    }

TOLD(bool, vm_is_busy, is_busy)
TOLD(size_t, vm_queued, queued)
TOLD(uint64_t, vm_frames, frames)
TOLD(uint64_t, vm_bytes, bytes)

/* ---- descriptors ---- */

/* With nobody in the poller it is told at once. */
int driver_select(ErlDrvPort port, ErlDrvEvent event, int mode, int on)
{
    int fd = (int)(intptr_t)event, slot = -1;
    bool is_told = false;

    lock();
    for (int i = 0; i < DESCRIPTORS; i++)
        if (vm.selected[i].port && vm.selected[i].fd == fd)
            slot = i;
    if (slot >= 0 && vm.selected[slot].port != port)
        broken("a descriptor is polled by two ports");
    if (on && fcntl(fd, F_GETFD) < 0)
        broken("a closed descriptor is to be polled");
    for (int i = 0; slot < 0 && on && i < DESCRIPTORS; i++)
        if (!vm.selected[i].port) {
            slot = i;
            vm.selected[i].is_read = vm.selected[i].is_write = false;
        }
    if (slot >= 0 && on) {
        vm.selected[slot].fd = fd;
        vm.selected[slot].port = port;
        vm.selected[slot].is_read = vm.selected[slot].is_read || mode & ERL_DRV_READ;
        vm.selected[slot].is_write = vm.selected[slot].is_write || mode & ERL_DRV_WRITE;
    } else if (slot >= 0) {
        vm.selected[slot].is_read = vm.selected[slot].is_read && !(mode & ERL_DRV_READ);
        vm.selected[slot].is_write = vm.selected[slot].is_write && !(mode & ERL_DRV_WRITE);
        if (mode & ERL_DRV_USE)
            vm.selected[slot].port = NULL;
    }
    if (!on && (mode & ERL_DRV_USE) && (vm.pollers > 0 || vm_deselects_later))
        vm.left[vm.left_count++] = fd;
    else
        is_told = !on && (mode & ERL_DRV_USE);
    unlock();
    if (is_told)
        vm.entry->stop_select(event, NULL);
    return slot < 0 && on ? -1 : 0;
}

static void tell_of_the_left(void)
{
    int fd = -1;

    do {
        lock();
        fd = vm.left_count > 0 && vm.pollers == 0 ? vm.left[--vm.left_count] : -1;
        unlock();
        if (fd >= 0)
            vm.entry->stop_select((ErlDrvEvent)(intptr_t)fd, NULL);
    } while (fd >= 0);
}

/* Whether it is still polled so; others have run since the poll. */
static bool is_polled_by(int fd, ErlDrvPort port, bool for_room)
{
    bool found = false;

    lock();
    for (int i = 0; i < DESCRIPTORS; i++)
        found = found || (vm.selected[i].port == port && vm.selected[i].fd == fd &&
                          (for_room ? vm.selected[i].is_write : vm.selected[i].is_read));
    unlock();
    return found;
}

/* Within a port's lock. */
static bool tell(ErlDrvPort port, const struct pollfd *poller)
{
    ErlDrvEvent event = (ErlDrvEvent)(intptr_t)poller->fd;
    const short ends = POLLHUP | POLLERR;
    bool found = false;

    if (poller->revents & (POLLIN | ends) && is_polled_by(poller->fd, port, false)) {
        found = true;
        vm.entry->ready_input(port->data, event);
    }
    if (port->is_open && poller->revents & (POLLOUT | ends) &&
        is_polled_by(poller->fd, port, true)) {
        found = true;
        vm.entry->ready_output(port->data, event);
    }
    return found;
}

static bool run_descriptors(int ms)
{
    struct pollfd pollers[DESCRIPTORS];
    ErlDrvPort ports[DESCRIPTORS];
    nfds_t count = 0;
    bool found = false;

    lock();
    for (int i = 0; i < DESCRIPTORS; i++)
        if (vm.selected[i].port && (vm.selected[i].is_read || vm.selected[i].is_write)) {
            ports[count] = vm.selected[i].port;
            pollers[count++] =
                (struct pollfd){.fd = vm.selected[i].fd,
                                .events = (short)((vm.selected[i].is_read ? POLLIN : 0) |
                                                  (vm.selected[i].is_write ? POLLOUT : 0))};
        }
    vm.pollers++;
    unlock();
    (void)poll(pollers, count, ms);
    lock();
    vm.pollers--;
    unlock();
    for (nfds_t i = 0; i < count; i++) {
        if (pollers[i].revents & POLLNVAL)
            broken("a descriptor was closed while it was polled");
        if (pollers[i].revents == 0 || !enter(ports[i]))
            continue;
        found = tell(ports[i], &pollers[i]) || found;
        leave(ports[i]);
    }
    return found;
}

/* ---- time ---- */

int driver_set_timer(ErlDrvPort port, unsigned long ms)
{
    port->timer_at = timers_ms() + (int64_t)ms;
    return 0;
}

int driver_cancel_timer(ErlDrvPort port)
{
    port->timer_at = NO_TIMER;
    return 0;
}

ErlDrvTime erl_drv_monotonic_time(ErlDrvTimeUnit unit)
{
    return now_us() / (unit == ERL_DRV_USEC ? 1 : 1000);
}

static ErlDrvPort next_port(ErlDrvPort port)
{
    ErlDrvPort next;

    lock();
    next = port ? port->next : vm.ports;
    unlock();
    return next;
}

static bool run_timers(void)
{
    bool found = false;

    for (ErlDrvPort port = next_port(NULL); port; port = next_port(port)) {
        if (!enter(port))
            continue;
        if (port->timer_at <= timers_ms()) {
            port->timer_at = NO_TIMER;
            found = true;
            vm.entry->timeout(port->data);
        }
        leave(port);
    }
    return found;
}

/* ---- other threads ---- */

static void *run_job(void *arg)
{
    job_t *job = arg;

    job->invoke(job->data);
    lock();
    job->is_done = true;
    unlock();
    return NULL;
}

long driver_async(ErlDrvPort port, unsigned int *key, void (*invoke)(void *), void *data,
                  void (*release)(void *))
{
    job_t *job = make(sizeof *job);

    (void)key;
    *job = (job_t){.port = port, .invoke = invoke, .data = data, .release = release};
    lock();
    job->next = vm.jobs;
    vm.jobs = job;
    unlock();
    return 1;
}

void vm_hold_jobs(bool on)
{
    lock();
    vm.holds_jobs = on;
    unlock();
}

/* Starts what may start, and takes one that is done off the list. */
static job_t *take_job(void)
{
    job_t *done = NULL;

    lock();
    for (job_t **at = &vm.jobs; *at; at = &(*at)->next) {
        job_t *job = *at;

        if (!job->is_started && !vm.holds_jobs) {
            job->is_started = true;
            if (pthread_create(&job->thread, NULL, run_job, job) != 0)
                broken("no thread for a job");
        }
        if (job->is_done) {
            *at = job->next;
            done = job;
            break;
        }
    }
    unlock();
    return done;
}

static bool run_jobs(void)
{
    job_t *job;
    bool found = false;

    while ((job = take_job())) {
        found = true;
        pthread_join(job->thread, NULL);
        if (job->port && enter(job->port)) {
            vm.entry->ready_async(job->port->data, job->data);
            leave(job->port);
        } else if (job->release) {
            job->release(job->data);
        }
        free(job);
    }
    return found;
}

static bool has_jobs(void)
{
    bool has;

    lock();
    has = vm.jobs && !vm.holds_jobs;
    unlock();
    return has;
}

/* ---- terms ---- */

ErlDrvTermData driver_mk_atom(char *name)
{
    ErlDrvTermData atom = 0;

    lock();
    while (atom < ATOMS - 1 && vm.atoms[atom][0] && strcmp(vm.atoms[atom], name) != 0)
        atom++;
    snprintf(vm.atoms[atom], sizeof vm.atoms[atom], "%s", name);
    unlock();
    return atom;
}

ErlDrvTermData driver_mk_port(ErlDrvPort port)
{
    return (ErlDrvTermData)port;
}

ErlDrvTermData driver_caller(ErlDrvPort port)
{
    (void)port;
    return (ErlDrvTermData)pthread_self();
}

/* Terms stand one behind the other; a tuple takes the last ones. */
static void read_terms(term_t *term, const ErlDrvTermData *data, int len)
{
    char stack[16][TEXT_BYTES];
    int top = 0;

    for (int i = 0; i < len;) {
        char *text = stack[top];
        int count, n = 0;

        switch (data[i]) {
        case ERL_DRV_ATOM:
            snprintf(text, TEXT_BYTES, "%s", vm.atoms[data[i + 1]]);
            break;
        case ERL_DRV_PORT:
            snprintf(text, TEXT_BYTES, "port");
            break;
        case ERL_DRV_PID:
            snprintf(text, TEXT_BYTES, "<%llu>", (unsigned long long)data[i + 1]);
            break;
        case ERL_DRV_UINT64:
            snprintf(text, TEXT_BYTES, "%llu",
                     (unsigned long long)*(const ErlDrvUInt64 *)data[i + 1]);
            break;
        case ERL_DRV_BUF2BINARY:
            term->len = data[i + 2] < TEXT_BYTES ? (size_t)data[i + 2] : TEXT_BYTES;
            memcpy(term->bytes, (const void *)data[i + 1], term->len);
            snprintf(text, TEXT_BYTES, "<<%llu>>", (unsigned long long)data[i + 2]);
            i++;
            break;
        case ERL_DRV_TUPLE: {
            char whole[TEXT_BYTES];

            count = (int)data[i + 1];
            top -= count;
            if (top < 0)
                broken("a term is not well formed");
            for (int j = 0; j < count; j++)
                n += snprintf(whole + n, sizeof whole - (size_t)n, "%s%s", j ? "," : "{",
                              stack[top + j]);
            snprintf(whole + n, sizeof whole - (size_t)n, "}");
            memcpy(stack[top], whole, sizeof whole);
            break;
        }
        default:
            broken("a term of an unknown kind");
        }
        i += 2;
        top++;
    }
    if (top != 1)
        broken("a term is not well formed");
    memcpy(term->text, stack[0], TEXT_BYTES);
}

static int hear(ErlDrvTermData port_term, ErlDrvTermData *data, int len)
{
    ErlDrvPort port = (ErlDrvPort)port_term;
    term_t *term = make(sizeof *term), **at;

    lock();
    read_terms(term, data, len);
    for (at = &port->terms; *at; at = &(*at)->next)
        ;
    *at = term;
    unlock();
    return 1;
}

int erl_drv_output_term(ErlDrvTermData port, ErlDrvTermData *data, int len)
{
    return hear(port, data, len);
}

int erl_drv_send_term(ErlDrvTermData port, ErlDrvTermData to, ErlDrvTermData *data, int len)
{
    (void)to;
    return hear(port, data, len);
}

const char *vm_heard(ErlDrvPort port)
{
    lock();
    free(port->heard);
    port->heard = port->terms;
    if (port->heard)
        port->terms = port->heard->next;
    unlock();
    return port->heard ? port->heard->text : NULL;
}

const uint8_t *vm_heard_bytes(ErlDrvPort port, size_t *len_p)
{
    *len_p = port->heard ? port->heard->len : 0;
    return port->heard ? port->heard->bytes : NULL;
}

/* ---- memory ---- */

static bool may_allocate(void)
{
    return vm_allocations_left < 0 || (vm_allocations_left > 0 && vm_allocations_left-- > 0);
}

void *driver_alloc(ErlDrvSizeT size)
{
    void *at = may_allocate() ? malloc(size) : NULL;

    lock();
    vm.memory += at != NULL;
    unlock();
    return at;
}

void driver_free(void *at)
{
    lock();
    vm.memory -= at != NULL;
    unlock();
    free(at);
}

static kept_t *kept_of(ErlDrvBinary *binary)
{
    return (kept_t *)((char *)binary - offsetof(kept_t, binary));
}

ErlDrvBinary *driver_alloc_binary(ErlDrvSizeT size)
{
    kept_t *kept = size <= BINARY_MAX && may_allocate() ? malloc(sizeof *kept + size) : NULL;

    if (!kept)
        return NULL;
    kept->refs = 1;
    kept->binary.orig_size = (ErlDrvSInt)size;
    lock();
    vm.binaries++;
    unlock();
    return &kept->binary;
}

static size_t least(ErlDrvSizeT left, ErlDrvSInt right)
{
    return (size_t)left < (size_t)right ? (size_t)left : (size_t)right;
}

/* Always to another place, as it may be. */
ErlDrvBinary *driver_realloc_binary(ErlDrvBinary *binary, ErlDrvSizeT size)
{
    ErlDrvBinary *larger = driver_alloc_binary(size);

    if (!larger)
        return NULL;
    if (kept_of(binary)->refs != 1)
        broken("a binary that others hold becomes larger");
    memcpy(larger->orig_bytes, binary->orig_bytes, (size_t)least(size, binary->orig_size));
    driver_free_binary(binary);
    return larger;
}

static void let_go(kept_t *kept)
{
    int refs;

    lock();
    refs = --kept->refs;
    vm.binaries -= refs == 0;
    unlock();
    if (refs == 0)
        free(kept);
}

void driver_free_binary(ErlDrvBinary *binary)
{
    let_go(kept_of(binary));
}

ErlDrvSInt driver_binary_inc_refc(ErlDrvBinary *binary)
{
    ErlDrvSInt refs;

    lock();
    refs = ++kept_of(binary)->refs;
    unlock();
    return refs;
}

static uint64_t sum_of(const uint8_t *at, uint64_t len)
{
    uint64_t sum = len;

    for (uint64_t i = 0; i < len; i++)
        sum = sum * 31 + at[i];
    return sum;
}

static void deliver(ErlDrvPort port, const uint8_t *at, uint64_t len)
{
    if (!port->is_open)
        broken("a port that has stopped gives something");
    port->frames++;
    port->bytes += len;
    if (vm_deliver)
        vm_deliver(port, at, len);
}

int driver_output(ErlDrvPort port, char *at, ErlDrvSizeT len)
{
    deliver(port, (const uint8_t *)at, len);
    return 0;
}

/* The owner reads it later: the driver must have done with these bytes. */
int driver_output_binary(ErlDrvPort port, char *head, ErlDrvSizeT head_len, ErlDrvBinary *binary,
                         ErlDrvSizeT offset, ErlDrvSizeT len)
{
    given_t *given = make(sizeof *given);

    (void)head, (void)head_len;
    if (offset + len > (ErlDrvSizeT)binary->orig_size)
        broken("more is given than a binary has");
    *given = (given_t){
        .kept = kept_of(binary), .at = (const uint8_t *)binary->orig_bytes + offset, .len = len};
    deliver(port, given->at, len);
    given->sum = sum_of(given->at, len);
    lock();
    given->kept->refs++;
    given->next = vm.given;
    vm.given = given;
    unlock();
    return 0;
}

static void read_given(void)
{
    given_t *given, *next;

    lock();
    given = vm.given;
    vm.given = NULL;
    unlock();
    for (; given; given = next) {
        next = given->next;
        if (sum_of(given->at, given->len) != given->sum)
            broken("a binary has changed after it was given");
        let_go(given->kept);
        free(given);
    }
}

/* ---- queues and flags ---- */

ErlDrvSizeT driver_sizeq(ErlDrvPort port)
{
    return port->queued;
}

SysIOVec *driver_peekq(ErlDrvPort port, int *count_p)
{
    port->iov = (SysIOVec){.iov_base = port->queue, .iov_len = port->queued};
    *count_p = port->queued > 0;
    return &port->iov;
}

ErlDrvSizeT driver_deq(ErlDrvPort port, ErlDrvSizeT len)
{
    if (len > port->queued)
        broken("more is taken off a queue than it has");
    port->queued -= (size_t)len;
    memmove(port->queue, port->queue + len, port->queued);
    return port->queued;
}

int driver_enq(ErlDrvPort port, char *at, ErlDrvSizeT len)
{
    port->queue = realloc(port->queue, port->queued + (size_t)len + 1);
    if (!port->queue)
        broken("no memory");
    memcpy(port->queue + port->queued, at, (size_t)len);
    port->queued += (size_t)len;
    return 0;
}

int driver_enqv(ErlDrvPort port, ErlIOVec *ev, ErlDrvSizeT skip)
{
    for (int i = 0; i < ev->vsize; i++) {
        ErlDrvSizeT len = (ErlDrvSizeT)ev->iov[i].iov_len, off = skip < len ? skip : len;

        skip -= off;
        if (len > off)
            (void)driver_enq(port, (char *)ev->iov[i].iov_base + off, len - off);
    }
    return 0;
}

void set_busy_port(ErlDrvPort port, int on)
{
    port->is_busy = on;
}

void set_port_control_flags(ErlDrvPort port, int flags)
{
    (void)port, (void)flags;
}

/* ---- going around ---- */

bool vm_run(int ms)
{
    bool found;

    read_given();
    tell_of_the_left();
    found = run_jobs();
    found = run_timers() || found;
    if (!vm_loses_events)
        found = run_descriptors(found ? 0 : has_jobs() && ms > 1 ? 1 : ms) || found;
    tell_of_the_left();
    read_given();
    return found;
}

bool vm_is_clean(void)
{
    int selected = 0, jobs = 0, ports = 0;

    read_given();
    tell_of_the_left();
    while (has_jobs())
        (void)run_jobs();
    for (int i = 0; i < DESCRIPTORS; i++)
        selected += vm.selected[i].port != NULL;
    for (job_t *job = vm.jobs; job; job = job->next)
        jobs++;
    for (ErlDrvPort port = vm.ports; port; port = port->next)
        ports++;
    if (selected + vm.left_count + jobs + ports + vm.memory + vm.binaries == 0)
        return true;
    printf("    left: %d descriptors, %d to tell, %d jobs, %d ports, %d pieces of memory, %d "
           "binaries\n",
           selected, vm.left_count, jobs, ports, vm.memory, vm.binaries);
    return false;
}
