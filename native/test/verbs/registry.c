/* SPDX-License-Identifier: Apache-2.0 */

/* The processes that share the device, the state of this process, and the commands that tests
 * give. */

#include "inside.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>

host_t *fake_host;
fake_t fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((constructor)) static void find_host(void)
{
    const char *path = getenv("FAKE_VERBS_HOST");
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    uint64_t nothing = 0, number = 0;

    if (fd >= 0 && ftruncate(fd, sizeof *fake_host) != 0)
        broken("FAKE_VERBS_HOST");
    fake_host = mmap(NULL, sizeof *fake_host, PROT_READ | PROT_WRITE,
                     fd >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS, fd, 0);
    if (fd >= 0)
        close(fd);
    if (fake_host == MAP_FAILED || getrandom(&number, sizeof number, 0) != sizeof number)
        broken("no memory for the host");
    atomic_compare_exchange_strong(&fake_host->number, &nothing, number | 1);
}

static bool is_alive(int pid)
{
    return pid != 0 && (kill(pid, 0) == 0 || errno != ESRCH);
}

holder_t *fake_claim_holder(void)
{
    for (size_t i = 0; i < sizeof fake_host->holders / sizeof *fake_host->holders; i++) {
        int pid = fake_host->holders[i].pid;

        if (!is_alive(pid) &&
            atomic_compare_exchange_strong(&fake_host->holders[i].pid, &pid, getpid())) {
            fake_host->holders[i].objects = 0;
            fake_host->holders[i].has_device = false;
            return &fake_host->holders[i];
        }
    }
    broken("too many processes");
    return NULL;
}

/* ---- events ---- */

bool fake_mailbox_open(mailbox_t *box)
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

void fake_mailbox_put(mailbox_t *box, event_t *event)
{
    event_t **at = &box->first;

    while (*at)
        at = &(*at)->next;
    *at = event;
    if (write(box->writer, "", 1) != 1)
        broken("an event is lost");
}

event_t *fake_mailbox_wait(mailbox_t *box)
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

void fake_mailbox_forget(mailbox_t *box, const void *about)
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
        fake_mailbox_put(box, event);
    }
}

void fake_mailbox_close(mailbox_t *box)
{
    event_t *event;

    while ((event = mailbox_take(box)))
        free(event);
    close(box->reader);
    close(box->writer);
}

/* ---- commands from tests ---- */

EXPORT bool fake_verbs_remove(void)
{
    int64_t end = now_ms() + 5000;
    bool is_held = true;

    fake_host->removals++;
    fake_host->is_removed = true;
    while (is_held && now_ms() < end) {
        (void)poll(NULL, 0, TICK_MS);
        is_held = false;
        for (size_t i = 0; i < sizeof fake_host->holders / sizeof *fake_host->holders; i++)
            is_held = is_held ||
                      (fake_host->holders[i].has_device && is_alive(fake_host->holders[i].pid));
    }
    return !is_held;
}

EXPORT void fake_verbs_add(void)
{
    fake_host->is_down = false;
    fake_host->is_removed = false;
}

EXPORT void fake_verbs_set_port(bool is_up)
{
    fake_host->is_down = !is_up;
}

EXPORT int fake_verbs_held(void)
{
    int count = 0;

    for (size_t i = 0; i < sizeof fake_host->holders / sizeof *fake_host->holders; i++)
        if (is_alive(fake_host->holders[i].pid))
            count += fake_host->holders[i].objects;
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
        fake_raise_async(fake.device, type, NULL);
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
