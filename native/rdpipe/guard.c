/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MERCY_MS 500 /* between SIGTERM and SIGKILL */
#define END_MS 5000

typedef struct {
    enum { GROUP, FORGET, DIRECTORY } what;
    pid_t group;
    char path[RD_GUARD_PATH_BYTES];
} order_t;

static void obey(rd_known_t *known, const order_t *order)
{
    if (order->what == DIRECTORY)
        memcpy(known->path, order->path, sizeof known->path);
    if (order->what == GROUP && known->count < RD_GUARD_GROUPS_MAX)
        known->groups[known->count++] = order->group;
    for (size_t i = 0; order->what == FORGET && i < known->count; i++)
        if (known->groups[i] == order->group)
            known->groups[i] = known->groups[--known->count];
}

static bool kill_all(const rd_known_t *known, int sig)
{
    bool any = false;

    for (size_t i = 0; i < known->count; i++)
        any |= kill(-known->groups[i], sig) == 0;
    return any;
}

static void remove_directory(const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;

    if (!folder)
        return;
    while ((entry = readdir(folder)))
        (void)unlinkat(dirfd(folder), entry->d_name, 0);
    (void)closedir(folder);
    (void)rmdir(path);
}

static void clean_up(const rd_known_t *known)
{
    bool any = kill_all(known, SIGTERM);

    (void)kill_all(known, SIGCONT);
    for (int ms = 0; any && ms < MERCY_MS; ms += 10) {
        (void)poll(NULL, 0, 10);
        any = kill_all(known, 0);
    }
    (void)kill_all(known, SIGKILL);
    if (known->path[0])
        remove_directory(known->path);
}

static void close_others(int fd)
{
    if (fd > 0)
        (void)close_range(0, (unsigned)fd - 1, 0);
    (void)close_range((unsigned)fd + 1, ~0U, 0);
}

static _Noreturn void run_guard(int fd)
{
    rd_known_t known = {.count = 0};
    order_t order;
    ssize_t n;

    for (int sig = 1; sig < NSIG; sig++)
        (void)signal(sig, SIG_IGN);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_NAME, "rdpipe-guard");
    close_others(fd);
    while ((n = recv(fd, &order, sizeof order, 0)) != 0)
        if (n == (ssize_t)sizeof order)
            obey(&known, &order);
        else if (n > 0 || errno != EINTR)
            break;
    clean_up(&known);
    _exit(0);
}

bool rd_guard_start(rd_guard_t *guard_p, rd_why_t *why)
{
    int ends[2];
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return rd_because(why, "socketpair: %s", strerror(errno));
    pid = fork();
    if (pid == 0)
        run_guard(ends[1]);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return rd_because(why, "fork: %s", strerror(errno));
    }
    *guard_p = (rd_guard_t){.fd = ends[0], .pid = pid};
    return true;
}

static bool tell(rd_guard_t *guard, const order_t *order)
{
    obey(&guard->known, order);
    return guard->fd >= 0 &&
           send(guard->fd, order, sizeof *order, MSG_NOSIGNAL) == (ssize_t)sizeof *order;
}

bool rd_guard_group(rd_guard_t *guard, pid_t group)
{
    return tell(guard, &(order_t){.what = GROUP, .group = group});
}

void rd_guard_forget(rd_guard_t *guard, pid_t group)
{
    (void)tell(guard, &(order_t){.what = FORGET, .group = group});
}

bool rd_guard_directory(rd_guard_t *guard, const char *path)
{
    order_t order = {.what = DIRECTORY};

    if (strlen(path) >= sizeof order.path)
        return false;
    memcpy(order.path, path, strlen(path) + 1);
    return tell(guard, &order);
}

void rd_guard_end(rd_guard_t *guard)
{
    int64_t deadline = rd_now_ms() + END_MS;
    int status = 0;

    if (guard->fd < 0)
        return;
    close(guard->fd);
    guard->fd = -1;
    while (waitpid(guard->pid, &status, WNOHANG) == 0 && rd_left_ms(deadline) > 0)
        (void)poll(NULL, 0, 2);
    if (WIFSIGNALED(status)) /* it may have been killed before it was through */
        clean_up(&guard->known);
}
