/* SPDX-License-Identifier: Apache-2.0 */
#include "inside.h"

#include <time.h>

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
    pthread_mutex_t lock;
    ErlDrvPort ports;
    job_t *jobs;
    bool holds_jobs;
} vm = {.lock = PTHREAD_MUTEX_INITIALIZER};

ErlDrvEntry *vm_entry;
bool vm_loses_events;

DRIVER_INIT(beamway_drv);

void vm_lock(void)
{
    pthread_mutex_lock(&vm.lock);
}

void vm_unlock(void)
{
    pthread_mutex_unlock(&vm.lock);
}

static _Atomic int64_t skipped_ms, stopped_us;

static int64_t now_us(void)
{
    struct timespec now;

    if (stopped_us != 0)
        return stopped_us + 1000 * skipped_ms;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + 1000 * skipped_ms;
}

void vm_stop_clock(bool on)
{
    stopped_us = 0;
    if (on)
        stopped_us = now_us() - 1000 * skipped_ms;
}

/* The time used for timers. Only vm_skip advances it, so a thread may be preempted without
 * affecting them. */
static int64_t timers_ms(void)
{
    return skipped_ms;
}

void vm_skip(int ms)
{
    skipped_ms += ms;
}

/* ---- a port's life ---- */

/* The caller holds the port's lock, here and below. */
static void terminate(ErlDrvPort port)
{
    port->is_open = false;
    port->timer_at = NO_TIMER;
    vm_entry->stop(port->data);
    port->timer_at = NO_TIMER;
    free(port->queue);
    port->queue = NULL;
    port->queued = 0;
    if (vm_is_selected_by(port))
        broken("a port has stopped and its descriptor is still polled");
}

static void end_port(ErlDrvPort port, const char *reason)
{
    if (!port->is_open)
        return;
    if (port->is_closing) { /* the driver does not wait for its queue to empty */
        terminate(port);
        return;
    }
    snprintf(port->reason, sizeof port->reason, "%s", reason);
    if (port->queued == 0) {
        terminate(port);
        return;
    }
    port->is_closing = true;
    vm_entry->flush(port->data);
}

void vm_leave(ErlDrvPort port)
{
    if (port->is_open && port->is_closing && port->queued == 0)
        terminate(port);
    pthread_mutex_unlock(&port->lock);
}

bool vm_enter(ErlDrvPort port)
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
    vm_lock();
    if (!vm_entry)
        vm_entry = driver_init();
    port->next = vm.ports;
    vm.ports = port;
    vm_unlock();
    pthread_mutex_lock(&port->lock);
    port->is_open = true;
    port->data = vm_entry->start(port, (char *)"beamway_drv");
    if (port->data == ERL_DRV_ERROR_GENERAL) {
        port->is_open = false;
        snprintf(port->reason, sizeof port->reason, "start");
    }
    vm_leave(port);
    return port;
}

void vm_close(ErlDrvPort port)
{
    if (!vm_enter(port))
        return;
    if (!port->is_closing)
        end_port(port, "normal");
    vm_leave(port);
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
    vm_lock();
    while (*at != port)
        at = &(*at)->next;
    *at = port->next;
    for (job_t *job = vm.jobs; job; job = job->next)
        if (job->port == port)
            job->port = NULL;
    vm_unlock();
    while (vm_heard(port))
        ;
    free(port->heard);
    pthread_mutex_destroy(&port->lock);
    free(port);
}

/* A port that has failed does not flush anything. */
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

/* ---- calls by the program ---- */

vm_reply_t vm_control(ErlDrvPort port, unsigned command, const void *data, size_t len)
{
    vm_reply_t reply = {.len = -1};
    char small[64], *at = small, *copy = make(len + 1);

    memcpy(copy, data ? data : "", data ? len : 0);
    if (vm_enter(port)) {
        if (!port->is_closing)
            reply.len = (int)vm_entry->control(port->data, command, copy, len, &at, sizeof small);
        if (reply.len > (int)sizeof reply.bytes)
            broken("a reply is too long");
        if (reply.len >= 0 && at != small) {
            ErlDrvBinary *binary = (ErlDrvBinary *)at;

            memcpy(reply.bytes, binary->orig_bytes, (size_t)reply.len);
            driver_free_binary(binary);
        } else if (reply.len > 0) {
            memcpy(reply.bytes, small, (size_t)reply.len);
        }
        vm_leave(port);
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
    if (vm_enter(port)) {
        if (!port->is_closing)
            vm_entry->outputv(port->data, &ev);
        vm_leave(port);
    }
    free(copy);
}

/* The settings that the driver has made on a port so far. */
#define TOLD(type, name, field)                                                                    \
    type name(ErlDrvPort port)                                                                     \
    {                                                                                              \
        pthread_mutex_lock(&port->lock);                                                           \
        type value = port->field;                                                                  \
        pthread_mutex_unlock(&port->lock);                                                         \
        return value;                                                                              \
    }

TOLD(bool, vm_is_busy, is_busy)
TOLD(uint64_t, vm_frames, frames)
TOLD(uint64_t, vm_bytes, bytes)

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

/* Each timer that is due runs once per round, regardless of the time that its port has used. */
int erl_drv_consume_timeslice(ErlDrvPort port, int percent)
{
    (void)port, (void)percent;
    return 1;
}

ErlDrvTime erl_drv_monotonic_time(ErlDrvTimeUnit unit)
{
    return now_us() / (unit == ERL_DRV_USEC ? 1 : 1000);
}

static ErlDrvPort next_port(ErlDrvPort port)
{
    ErlDrvPort next;

    vm_lock();
    next = port ? port->next : vm.ports;
    vm_unlock();
    return next;
}

static bool run_timers(void)
{
    bool found = false;

    for (ErlDrvPort port = next_port(NULL); port; port = next_port(port)) {
        if (!vm_enter(port))
            continue;
        if (port->timer_at <= timers_ms()) {
            port->timer_at = NO_TIMER;
            found = true;
            vm_entry->timeout(port->data);
        }
        vm_leave(port);
    }
    return found;
}

/* ---- other threads ---- */

static void *run_job(void *arg)
{
    job_t *job = arg;

    job->invoke(job->data);
    vm_lock();
    job->is_done = true;
    vm_unlock();
    return NULL;
}

long driver_async(ErlDrvPort port, unsigned int *key, void (*invoke)(void *), void *data,
                  void (*release)(void *))
{
    job_t *job = make(sizeof *job);

    (void)key;
    *job = (job_t){.port = port, .invoke = invoke, .data = data, .release = release};
    vm_lock();
    job->next = vm.jobs;
    vm.jobs = job;
    vm_unlock();
    return 1;
}

void vm_hold_jobs(bool on)
{
    vm_lock();
    vm.holds_jobs = on;
    vm_unlock();
}

/* Starts jobs that can be started, and removes a finished one from the list. */
static job_t *take_job(void)
{
    job_t *done = NULL;

    vm_lock();
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
    vm_unlock();
    return done;
}

static bool run_jobs(void)
{
    job_t *job;
    bool found = false;

    while ((job = take_job())) {
        found = true;
        pthread_join(job->thread, NULL);
        if (job->port && vm_enter(job->port)) {
            vm_entry->ready_async(job->port->data, job->data);
            vm_leave(job->port);
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

    vm_lock();
    has = vm.jobs && !vm.holds_jobs;
    vm_unlock();
    return has;
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

/* ---- rounds ---- */

bool vm_run(int ms)
{
    bool found;

    vm_read_given();
    vm_tell_of_the_left();
    found = run_jobs();
    found = run_timers() || found;
    if (!vm_loses_events)
        found = vm_run_descriptors(found ? 0 : has_jobs() && ms > 1 ? 1 : ms) || found;
    vm_tell_of_the_left();
    vm_read_given();
    return found;
}

static bool one_lives(void)
{
    for (ErlDrvPort port = next_port(NULL); port; port = next_port(port))
        if (!vm_reason(port))
            return true;
    return false;
}

bool vm_reset(void)
{
    vm_stop_clock(false);
    vm_hold_jobs(false);
    vm_deliver = NULL;
    vm_deselects_later = vm_loses_events = false;
    vm_allocations_left = -1;
    for (ErlDrvPort port = next_port(NULL); port; port = next_port(port))
        vm_close(port);
    for (int round = 0; round < 1000 && one_lives(); round++)
        if (!vm_run(1))
            vm_skip(1000); /* time allowed for a final flush */
    if (one_lives())
        return false;
    while (next_port(NULL))
        vm_forget(next_port(NULL));
    return true;
}

bool vm_is_clean(void)
{
    int selected, left, pieces, binaries, jobs = 0, ports = 0;

    vm_read_given();
    vm_tell_of_the_left();
    while (has_jobs())
        (void)run_jobs();
    vm_count_descriptors(&selected, &left);
    vm_count_memory(&pieces, &binaries);
    for (job_t *job = vm.jobs; job; job = job->next)
        jobs++;
    for (ErlDrvPort port = vm.ports; port; port = port->next)
        ports++;
    if (selected + left + jobs + ports + pieces + binaries == 0)
        return true;
    printf("    left: %d descriptors, %d to tell, %d jobs, %d ports, %d pieces of memory, %d "
           "binaries\n",
           selected, left, jobs, ports, pieces, binaries);
    return false;
}
