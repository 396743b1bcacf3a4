/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MERCY_MS 1000                 /* time between SIGTERM and SIGKILL */
#define WORD_MAX ((size_t)100 * 1024) /* the longest argument; less than MAX_ARG_STRLEN */

/* Runs between fork and exec, so it may call only async-signal-safe functions. The parent writes to
 * `go` once the guard knows the process; if the parent dies instead, `go` is closed. `script` is a
 * file with the command, or NULL. */
static _Noreturn void run(const char *command, const char *script, int in, int out, const int go[2])
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigset_t none;
    char byte;

    (void)setpgid(0, 0);
    close(go[1]);
    /* If the guards are killed along with the agent, this still terminates the shell, but not the
     * processes that it has started, which the guards would also have killed. */
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    for (int sig = 1; sig < NSIG; sig++)
        (void)sigaction(sig, &standard, NULL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (read(go[0], &byte, 1) != 1)
        _exit(125);
    if (dup2(in, 0) < 0 || dup2(out, 1) < 0)
        _exit(125);
    if (script)
        (void)execl("/bin/sh", "sh", script, (char *)NULL);
    else
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++)
        rd_close(&pair[i]);
}

/* Creates a pipe between the command and us, or opens /dev/null. */
static bool open_pair(bool is_wanted, bool we_write, int pair[2])
{
    if (is_wanted)
        return pipe2(pair, O_CLOEXEC) == 0;
    pair[!we_write] = open("/dev/null", O_RDWR | O_CLOEXEC);
    return pair[!we_write] >= 0;
}

/* Creates a file in memory that the command's shell can open as `name`, which is valid until the
 * descriptor is closed. Returns -1 with errno on failure. */
static int make_script(const char *command, char name[32])
{
    int fd = memfd_create("rdpipe-command", 0);

    if (fd >= 0 && dprintf(fd, "%s", command) < 0)
        rd_close(&fd);
    (void)snprintf(name, 32, "/proc/self/fd/%d", fd);
    return fd;
}

bool rd_child_start(rd_child_t *child_p, const char *command, rd_guard_t *guard, rd_end_t *stdin_p,
                    rd_end_t *stdout_p, rd_why_t *why)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, go[2] = {-1, -1};
    pid_t pid = -1;
    char name[32];
    bool is_long = strlen(command) > WORD_MAX;
    int script = is_long ? make_script(command, name) : -1;
    bool done = (script >= 0 || !is_long) && open_pair(stdin_p != NULL, true, in) &&
                open_pair(stdout_p != NULL, false, out) && pipe2(go, O_CLOEXEC) == 0;

    if (done)
        pid = fork();
    if (pid == 0)
        run(command, is_long ? name : NULL, in[0], out[1], go);
    rd_close(&script);
    if (pid > 0)
        (void)setpgid(pid, pid);
    done = pid > 0 && rd_guard_group(guard, pid, in[1]) && write(go[1], "g", 1) == 1;
    if (!done) {
        (void)rd_because(why, "cannot start a command: %s", strerror(errno));
        close_pair(in);
        close_pair(out);
        close_pair(go);
        return false;
    }
    close(in[0]);
    close(out[1]);
    close_pair(go);
    if (stdin_p)
        *stdin_p = rd_end_of(in[1], true);
    if (stdout_p)
        *stdout_p = rd_end_of(out[0], false);
    *child_p = (rd_child_t){.pid = pid};
    return true;
}

static void look_whether_gone(rd_child_t *child, rd_guard_t *guard)
{
    if (!child->is_over || child->is_gone || kill(-child->pid, 0) == 0)
        return;
    child->is_gone = true;
    rd_guard_forget(guard, child->pid);
}

bool rd_child_reap(rd_child_t *child, rd_guard_t *guard)
{
    int status;

    if (child->pid == 0 || child->is_over ||
        waitpid(child->pid, &status, WNOHANG | WUNTRACED) != child->pid)
        return false;
    if (WIFSTOPPED(status)) {
        child->wants_terminal |= WSTOPSIG(status) == SIGTTIN || WSTOPSIG(status) == SIGTTOU;
        return false;
    }
    child->is_over = true;
    child->is_killed = WIFSIGNALED(status);
    child->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    look_whether_gone(child, guard);
    return true;
}

void rd_child_signal(const rd_child_t *child, int sig)
{
    if (child->pid > 0 && !child->is_gone)
        (void)kill(-child->pid, sig);
}

void rd_child_end(rd_child_t *child)
{
    if (child->pid == 0 || child->kill_at != 0)
        return;
    rd_child_signal(child, SIGTERM);
    rd_child_signal(child, SIGCONT);
    child->kill_at = rd_now_ms() + MERCY_MS;
}

int rd_child_tick(rd_child_t *child, rd_guard_t *guard)
{
    look_whether_gone(child, guard);
    if (child->pid == 0 || child->kill_at == 0 || child->is_gone)
        return -1;
    if (rd_left_ms(child->kill_at) > 0)
        return rd_left_ms(child->kill_at) + 1;
    rd_child_signal(child, SIGKILL);
    child->kill_at = rd_now_ms() + MERCY_MS;
    return MERCY_MS;
}
