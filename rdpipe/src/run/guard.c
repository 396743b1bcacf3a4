/* SPDX-License-Identifier: Apache-2.0 */
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

#define MERCY_MS 500 /* time between SIGTERM and SIGKILL */
#define END_MS 5000

typedef enum { GROUP, RELEASE, FORGET, DIRECTORY } what_t;

typedef struct {
    rd_key_t secret;
    what_t what;
    pid_t group;
    char path[RD_GUARD_PATH_BYTES];
} order_t;

/* `input` is the descriptor that was sent with the order, or -1 if none. */
static void obey(rd_known_t *known, const order_t *order, int input)
{
    if (order->what == DIRECTORY)
        memcpy(known->path, order->path, sizeof known->path);
    if (order->what == GROUP && known->count < RD_GUARD_GROUPS_MAX) {
        known->of[known->count].group = order->group;
        known->of[known->count++].input = input;
    }
    for (size_t i = known->count; order->what != GROUP && i-- > 0;) {
        if (known->of[i].group != order->group || order->what == DIRECTORY)
            continue;
        rd_close(&known->of[i].input);
        if (order->what == FORGET)
            known->of[i] = known->of[--known->count];
    }
}

static bool kill_all(const rd_known_t *known, int sig)
{
    bool any = false;

    for (size_t i = 0; i < known->count; i++)
        any |= kill(-known->of[i].group, sig) == 0;
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

/* Receives the next message. *input_p is the descriptor that was sent with it, or -1. */
static ssize_t receive(int fd, order_t *order_p, int *input_p)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec piece = {.iov_base = order_p, .iov_len = sizeof *order_p};
    struct msghdr message = {.msg_iov = &piece,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
    ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;

    *input_p = -1;
    if (head && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(input_p, CMSG_DATA(head), sizeof *input_p);
    return n;
}

static _Noreturn void run_guard(int fd, const rd_key_t *secret, const char *name)
{
    static rd_known_t known;
    order_t order;
    ssize_t n;
    int input;

    for (int sig = 1; sig < NSIG; sig++)
        (void)signal(sig, SIG_IGN);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_NAME, name);
    for (int other = 0; other < fd; other++)
        close(other);
    closefrom(fd + 1); /* for kernels without close_range */
    while ((n = receive(fd, &order, &input)) != 0) {
        if (n < 0 && errno != EINTR)
            break;
        if (n == (ssize_t)sizeof order && rd_key_is(&order.secret, secret))
            obey(&known, &order, input);
        else
            rd_close(&input);
    }
    clean_up(&known);
    _exit(0);
}

static bool start_one(rd_guard_t *guard, size_t i, rd_why_t *why)
{
    static const char *const names[RD_GUARDS] = {"rdpipe-guard", "rdpipe-guard-2"};
    int ends[2];
    pid_t pid;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        return rd_because(why, "socketpair: %s", strerror(errno));
    /* If the socket had the number of a standard stream, the guard would receive everything that
     * programs write to that stream. */
    pid = ends[0] > 2 && ends[1] > 2 ? fork() : -1;
    if (pid == 0)
        run_guard(ends[1], &guard->secret, names[i]);
    if (pid < 0) {
        (void)rd_because(why, "cannot start a guard: %s",
                         ends[0] > 2 ? strerror(errno) : "a standard descriptor is closed");
        close(ends[0]);
        close(ends[1]);
        return false;
    }
    close(ends[1]);
    guard->of[i].fd = ends[0];
    guard->of[i].pid = pid;
    return true;
}

bool rd_guard_start(rd_guard_t *guard_p, rd_why_t *why)
{
    bool done = true;

    *guard_p = (rd_guard_t){.lock = PTHREAD_MUTEX_INITIALIZER};
    for (size_t i = 0; i < RD_GUARDS; i++)
        guard_p->of[i].fd = -1;
    done = rd_key_random(&guard_p->secret, why);
    for (size_t i = 0; done && i < RD_GUARDS; i++)
        done = start_one(guard_p, i, why);
    if (!done)
        rd_guard_end(guard_p);
    return done;
}

static bool send_order(int fd, const order_t *order, int input)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.bytes = {0}};
    struct iovec piece = {.iov_base = (void *)(uintptr_t)order, .iov_len = sizeof *order};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};

    if (input >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        control.head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(&control.head), &input, sizeof input);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)sizeof *order;
}

static bool tell(rd_guard_t *guard, order_t *order, int input)
{
    bool done = true;

    (void)pthread_mutex_lock(&guard->lock);
    order->secret = guard->secret;
    obey(&guard->known, order, -1);
    for (size_t i = 0; i < RD_GUARDS; i++)
        done &= guard->of[i].fd >= 0 && send_order(guard->of[i].fd, order, input);
    (void)pthread_mutex_unlock(&guard->lock);
    rd_key_wipe(&order->secret);
    return done;
}

bool rd_guard_group(rd_guard_t *guard, pid_t group, int input)
{
    return tell(guard, &(order_t){.what = GROUP, .group = group}, input);
}

void rd_guard_release(rd_guard_t *guard, pid_t group)
{
    (void)tell(guard, &(order_t){.what = RELEASE, .group = group}, -1);
}

void rd_guard_forget(rd_guard_t *guard, pid_t group)
{
    (void)tell(guard, &(order_t){.what = FORGET, .group = group}, -1);
}

bool rd_guard_directory(rd_guard_t *guard, const char *path)
{
    order_t order = {.what = DIRECTORY};

    if (strlen(path) >= sizeof order.path)
        return false;
    memcpy(order.path, path, strlen(path) + 1);
    return tell(guard, &order, -1);
}

void rd_guard_end(rd_guard_t *guard)
{
    int64_t deadline = rd_now_ms() + END_MS;
    bool is_killed = false;

    (void)pthread_mutex_lock(&guard->lock);
    for (size_t i = 0; i < RD_GUARDS; i++)
        rd_close(&guard->of[i].fd);
    for (size_t i = 0; i < RD_GUARDS; i++) {
        int status = 0;

        while (guard->of[i].pid > 0 && waitpid(guard->of[i].pid, &status, WNOHANG) == 0 &&
               rd_left_ms(deadline) > 0)
            (void)poll(NULL, 0, 2);
        is_killed |= WIFSIGNALED(status);
        guard->of[i].pid = 0;
    }
    if (is_killed) /* the guard may have been killed before it had finished */
        clean_up(&guard->known);
    guard->known = (rd_known_t){.count = 0};
    (void)pthread_mutex_unlock(&guard->lock);
}
