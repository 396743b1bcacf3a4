/* SPDX-License-Identifier: Apache-2.0 */
/* Tests guards: what they clean up, which orders they accept, and the input that they hold open. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#include "run/child.h"

#define LONG_MS 60000

static int signals; /* number of signals that this process has sent */

int kill(pid_t pid, int sig)
{
    signals += sig != 0;
    return (int)syscall(SYS_kill, pid, sig);
}

/* Behaves like a kernel before 5.9, or a container that forbids the call. */
int close_range(unsigned first, unsigned last, int flags)
{
    (void)first;
    (void)last;
    (void)flags;
    errno = ENOSYS;
    return -1;
}

static bool is_there(const char *path)
{
    struct stat is;

    return lstat(path, &is) == 0;
}

static bool wait_gone(pid_t pid)
{
    for (int64_t deadline = rd_now_ms() + LONG_MS; rd_left_ms(deadline) > 0;) {
        if (kill(pid, 0) < 0 && errno == ESRCH)
            return true;
        while (waitpid(-1, NULL, WNOHANG) > 0) /* including those that the command has started */
            ;
        (void)poll(NULL, 0, 5);
    }
    return false;
}

static void a_directory_is_removed(void)
{
    char path[] = "/tmp/pipe-guard-XXXXXX", file[64];
    rd_guard_t guard;
    rd_why_t why;

    CHECK(mkdtemp(path) && snprintf(file, sizeof file, "%s/file", path) > 0);
    close(open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    CHECK(rd_guard_start(&guard, &why) && rd_guard_directory(&guard, path));
    rd_guard_end(&guard);
    CHECK(!is_there(path));
}

/* A guard must not hold its creator's descriptors open, because otherwise a reader of one of the
 * creator's pipes would wait for the guard. */
static void a_guard_holds_nothing_of_its_maker(void)
{
    struct pollfd end = {.events = POLLIN};
    rd_guard_t guard;
    rd_why_t why;
    int ends[2];

    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    CHECK(rd_guard_start(&guard, &why));
    close(ends[1]);
    end.fd = ends[0];
    CHECK(poll(&end, 1, LONG_MS / 10) == 1);
    close(ends[0]);
    rd_guard_end(&guard);
}

/* Bytes without the secret have no effect when a guard receives them, whatever they look like. */
static void what_has_no_secret_is_no_order(void)
{
    char path[] = "/tmp/pipe-guard-XXXXXX", bytes[1024];
    rd_guard_t guard;
    rd_why_t why;

    CHECK(mkdtemp(path) && rd_guard_start(&guard, &why));
    for (size_t head = 0; head < 128; head += 4)
        for (size_t len = head + 256; len <= head + 264; len += 4) {
            /* a DIRECTORY order, in every layout that orders have ever had */
            memset(bytes, 0, sizeof bytes);
            bytes[head >= 8 ? head - 8 : 0] = head >= 40 ? 3 : 2;
            memcpy(bytes + head, path, sizeof path);
            for (size_t i = 0; i < RD_GUARDS; i++)
                CHECK(send(guard.of[i].fd, bytes, len, MSG_NOSIGNAL) == (ssize_t)len);
        }
    rd_guard_end(&guard);
    CHECK(is_there(path));
    CHECK(rmdir(path) == 0);
}

static void no_guard_on_a_standard_descriptor(void)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        rd_guard_t guard;
        rd_why_t why = {.text = ""};

        close(0);
        close(1);
        _exit(rd_guard_start(&guard, &why) || !strstr(why.text, "descriptor is closed"));
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Starts a process that owns guards and a command, which writes its mark when its input ends. The
 * process reports the IDs of its guards and of its command, and waits. */
static pid_t start_maker(const char *mark, pid_t told[RD_GUARDS + 1])
{
    int ends[2];
    pid_t maker;
    ssize_t n;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    maker = fork();
    if (maker == 0) {
        char command[128];
        rd_guard_t guard;
        rd_child_t child;
        rd_end_t input;
        rd_why_t why;
        pid_t ids[RD_GUARDS + 1];

        (void)snprintf(command, sizeof command, "cat >/dev/null; >%s", mark);
        if (!rd_guard_start(&guard, &why) ||
            !rd_child_start(&child, command, &guard, &input, NULL, &why))
            _exit(1);
        for (size_t i = 0; i < RD_GUARDS; i++)
            ids[i] = guard.of[i].pid;
        ids[RD_GUARDS] = child.pid;
        if (write(ends[1], ids, sizeof ids) != (ssize_t)sizeof ids)
            _exit(1);
        for (;;)
            (void)pause();
    }
    close(ends[1]);
    n = read(ends[0], told, sizeof(pid_t[RD_GUARDS + 1]));
    close(ends[0]);
    return n == (ssize_t)sizeof(pid_t[RD_GUARDS + 1]) ? maker : -1;
}

/* Whether the owner dies alone or together with one of its guards, the command is killed and never
 * sees the end of its input. */
static void a_command_sees_no_end_that_nobody_has_announced(void)
{
    char folder[] = "/tmp/pipe-guard-XXXXXX", mark[64];

    CHECK(mkdtemp(folder) && snprintf(mark, sizeof mark, "%s/mark", folder) > 0);
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0); /* orphans become our children */
    for (int round = 0; round < 10; round++)
        for (int with = -1; with < RD_GUARDS; with++) {
            pid_t ids[RD_GUARDS + 1], maker = start_maker(mark, ids);

            CHECK(maker > 0);
            if (with >= 0 && round % 2 == 0)
                CHECK(kill(ids[with], SIGKILL) == 0);
            CHECK(kill(maker, SIGKILL) == 0);
            if (with >= 0 && round % 2 == 1)
                CHECK(kill(ids[with], SIGKILL) == 0);
            CHECK(waitpid(maker, NULL, 0) == maker);
            CHECK(wait_gone(ids[RD_GUARDS]));
            for (size_t i = 0; i < RD_GUARDS; i++)
                CHECK(wait_gone(ids[i]));
            CHECK(!is_there(mark));
        }
    CHECK(rmdir(folder) == 0);
}

/* A released command sees the end of its input as soon as its owner closes the pipe. */
static void a_released_command_sees_its_end(void)
{
    rd_guard_t guard;
    rd_child_t child;
    rd_end_t input;
    rd_why_t why;
    int64_t deadline = rd_now_ms() + LONG_MS;

    CHECK(rd_guard_start(&guard, &why));
    CHECK(rd_child_start(&child, "cat >/dev/null; exit 7", &guard, &input, NULL, &why));
    rd_guard_release(&guard, child.pid);
    CHECK(rd_end_close(&input));
    while (!rd_child_reap(&child, &guard) && rd_left_ms(deadline) > 0)
        (void)poll(NULL, 0, 2);
    CHECK(child.is_over && !child.is_killed);
    CHECK_EQ(child.status, 7);
    rd_guard_end(&guard);
}

/* If a command cannot be registered with its guards, it is not run, and none of its processes
 * remain. */
static void a_command_without_guards_does_not_start(void)
{
    rd_guard_t guard;
    rd_child_t child = {.pid = 0};
    rd_why_t why;
    int64_t deadline = rd_now_ms() + LONG_MS;
    int status = 0;
    pid_t left = 0;

    CHECK(rd_guard_start(&guard, &why));
    for (size_t i = 0; i < RD_GUARDS; i++)
        CHECK(kill(guard.of[i].pid, SIGKILL) == 0 &&
              waitpid(guard.of[i].pid, NULL, 0) == guard.of[i].pid);
    CHECK(!rd_child_start(&child, "exit 0", &guard, NULL, NULL, &why) && child.pid == 0);
    while ((left = waitpid(-1, &status, WNOHANG)) == 0 && rd_left_ms(deadline) > 0)
        (void)poll(NULL, 0, 2);
    CHECK(left > 0 && WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 125);
    rd_guard_end(&guard);
}

/* Ends the command as an agent does, calling rd_child_tick until it is no longer needed. */
static bool ends(rd_child_t *child, rd_guard_t *guard)
{
    int64_t deadline = rd_now_ms() + 5000;

    rd_child_end(child);
    while (rd_child_tick(child, guard) >= 0 && rd_left_ms(deadline) > 0) {
        while (waitpid(-1, NULL, WNOHANG) > 0) /* orphans of the command */
            ;
        (void)poll(NULL, 0, 5);
    }
    return rd_child_tick(child, guard) < 0;
}

/* The ID of a group that has no processes left may be reused, so no signal is sent to it. */
static void a_group_that_is_gone_gets_no_signal(void)
{
    static const char *const commands[] = {"kill -9 $$", "sleep 600 & kill -9 $$"};

    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    for (size_t i = 0; i < 2; i++) {
        rd_guard_t guard;
        rd_child_t child;
        rd_why_t why;
        int64_t deadline = rd_now_ms() + LONG_MS;

        CHECK(rd_guard_start(&guard, &why));
        CHECK(rd_child_start(&child, commands[i], &guard, NULL, NULL, &why));
        while (!rd_child_reap(&child, &guard) && rd_left_ms(deadline) > 0)
            (void)poll(NULL, 0, 2);
        CHECK(child.is_killed && child.is_gone == (i == 0));
        signals = 0;
        CHECK(ends(&child, &guard));
        CHECK((signals > 0) == (i == 1));
        signals = 0;
        rd_child_signal(&child, SIGTERM);
        CHECK_EQ(signals, 0);
        rd_guard_end(&guard);
    }
}

/* A command that is too long for one argument still has normal input and output. */
static void a_command_of_any_length_runs(void)
{
    enum { LONG = 1000000 };
    static char command[LONG + 100];
    int64_t deadline = rd_now_ms() + LONG_MS;
    rd_end_t input, output;
    rd_guard_t guard;
    rd_child_t child;
    rd_why_t why;
    char got[8] = "";

    (void)snprintf(command, sizeof command, "read line; echo $line; exit $((%0*d))", LONG, 3);
    CHECK(rd_guard_start(&guard, &why));
    CHECK(rd_child_start(&child, command, &guard, &input, &output, &why));
    CHECK(rd_end_write(&input, "hello\n", 6) == 6);
    while (!rd_child_reap(&child, &guard) && rd_left_ms(deadline) > 0)
        (void)poll(NULL, 0, 2);
    CHECK_EQ(child.status, 3);
    CHECK(rd_end_read(&output, got, sizeof got) == 6 && memcmp(got, "hello\n", 6) == 0);
    CHECK(rd_end_close(&input) && rd_end_close(&output));
    rd_guard_end(&guard);
}

static const check_case_t cases[] = {
    {"a directory is removed", a_directory_is_removed},
    {"a guard holds nothing of its maker", a_guard_holds_nothing_of_its_maker},
    {"what has no secret is no order", what_has_no_secret_is_no_order},
    {"no guard on a standard descriptor", no_guard_on_a_standard_descriptor},
    {"a command sees no end that nobody has announced",
     a_command_sees_no_end_that_nobody_has_announced},
    {"a released command sees its end", a_released_command_sees_its_end},
    {"a command without guards does not start", a_command_without_guards_does_not_start},
    {"a command of any length runs", a_command_of_any_length_runs},
    {"a group that is gone gets no signal", a_group_that_is_gone_gets_no_signal},
};

CHECK_MAIN(cases)
