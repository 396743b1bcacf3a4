/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the system calls of running processes without slowing them down: perf_event_open counts
 * the kernel's tracepoint raw_syscalls:sys_enter for every thread.
 *
 * usage: count_syscalls PID...
 * Prints "ready" once it counts the calls of all threads. Then, for each line on standard input, it
 * prints the current total. It exits at the end of its standard input. It needs CAP_PERFMON (root)
 * and tracefs, which it mounts in a private namespace if tracefs is not mounted. If it cannot
 * count, it prints the reason on standard error and exits with 1, so that the caller can use strace
 * instead.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
    int *fds;
    size_t count;
    size_t room;
} counters_t;

static int read_number(const char *path, uint64_t *number)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return -1;
    int found = fscanf(file, "%" SCNu64, number);
    fclose(file);
    return found == 1 ? 0 : -1;
}

/* Mounts tracefs so that only this process sees it. */
static int mount_tracefs(void)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return -1;
    return mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
}

static int read_tracepoint_id(uint64_t *id)
{
    static const char *const places[] = {
        "/sys/kernel/tracing/events/raw_syscalls/sys_enter/id",
        "/sys/kernel/debug/tracing/events/raw_syscalls/sys_enter/id",
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (read_number(places[i], id) == 0)
            return 0;
    if (mount_tracefs() == 0 && read_number(places[0], id) == 0)
        return 0;
    fprintf(stderr, "count_syscalls: cannot read %s: %s\n", places[0], strerror(errno));
    return -1;
}

static int count_thread(counters_t *counters, pid_t thread, uint64_t tracepoint)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.type = PERF_TYPE_TRACEPOINT;
    attr.size = sizeof attr;
    attr.config = tracepoint;
    attr.inherit = 1; /* also counts the threads that this thread creates */
    long fd = syscall(SYS_perf_event_open, &attr, thread, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0 && errno == ESRCH)
        return 0; /* the thread exited after the directory was read */
    if (fd < 0) {
        fprintf(stderr, "count_syscalls: perf_event_open: %s\n", strerror(errno));
        return -1;
    }
    if (counters->count == counters->room) {
        size_t room = counters->room ? 2 * counters->room : 64;
        int *fds = realloc(counters->fds, room * sizeof *fds);
        if (!fds) {
            fprintf(stderr, "count_syscalls: out of memory\n");
            return -1;
        }
        counters->fds = fds;
        counters->room = room;
    }
    counters->fds[counters->count++] = (int)fd;
    return 0;
}

static int count_process(counters_t *counters, const char *pid, uint64_t tracepoint)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/task", pid);
    DIR *threads = opendir(path);
    if (!threads) {
        fprintf(stderr, "count_syscalls: %s: %s\n", path, strerror(errno));
        return -1;
    }
    int status = 0;
    for (struct dirent *entry; status == 0 && (entry = readdir(threads));) {
        long thread = strtol(entry->d_name, NULL, 10);
        if (thread > 0)
            status = count_thread(counters, (pid_t)thread, tracepoint);
    }
    closedir(threads);
    return status;
}

static uint64_t total(const counters_t *counters)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < counters->count; i++) {
        uint64_t value;
        if (read(counters->fds[i], &value, sizeof value) == (ssize_t)sizeof value)
            sum += value;
    }
    return sum;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: count_syscalls PID...\n");
        return 2;
    }
    /* Each thread needs a descriptor, and many nodes together have more threads than the default
     * limit permits. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
    uint64_t tracepoint;
    if (read_tracepoint_id(&tracepoint))
        return 1;
    counters_t counters = {0};
    for (int i = 1; i < argc; i++)
        if (count_process(&counters, argv[i], tracepoint))
            return 1;
    if (puts("ready") < 0 || fflush(stdout))
        return 1;
    char line[16];
    while (fgets(line, sizeof line, stdin))
        if (printf("%" PRIu64 "\n", total(&counters)) < 0 || fflush(stdout))
            return 1;
    return 0;
}
