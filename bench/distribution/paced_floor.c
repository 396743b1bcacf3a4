/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures the lower bound for `bench paced': two processes that sleep until an eventfd wakes them,
 * and that pass 64 bytes back and forth in shared memory.
 *
 * usage: paced_floor CALLS_PER_SECOND MILLISECONDS
 * Prints the CPU time of both processes per call, and the median and the 99th percentile of a
 * call's duration, in microseconds. If it fails, it prints the error and exits with 1.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 64 };

static void fail(const char *what)
{
    fprintf(stderr, "paced_floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int event(int *poller)
{
    struct epoll_event in = {.events = EPOLLIN};
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    *poller = epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0 || *poller < 0 || epoll_ctl(*poller, EPOLL_CTL_ADD, fd, &in) < 0)
        fail("eventfd");
    return fd;
}

static void ring(int fd)
{
    uint64_t one = 1;

    if (write(fd, &one, sizeof one) != sizeof one)
        fail("write");
}

/* Waits for the eventfd with epoll, as a node does. */
static void await(int poller, int fd)
{
    struct epoll_event got;
    uint64_t count;

    while (epoll_wait(poller, &got, 1, -1) < 0)
        if (errno != EINTR)
            fail("epoll_wait");
    if (read(fd, &count, sizeof count) != sizeof count)
        fail("read");
}

static double cpu_us(int who)
{
    struct rusage used;

    getrusage(who, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static int by_size(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

int main(int argc, char **argv)
{
    long rate = argc == 3 ? atol(argv[1]) : 0, ms = argc == 3 ? atol(argv[2]) : 0, calls;
    int there, back, there_poller, back_poller;
    char message[MESSAGE] = {0}, *shared;
    uint64_t due, *took;
    pid_t other;

    if (rate < 1 || rate > 100000 || ms < 1 || ms > 600000) {
        fprintf(stderr, "usage: paced_floor CALLS_PER_SECOND MILLISECONDS\n");
        return 1;
    }
    calls = rate * ms / 1000 > 0 ? rate * ms / 1000 : 1;
    took = calloc((size_t)calls, sizeof *took);
    shared = mmap(NULL, 2 * MESSAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!took || shared == MAP_FAILED)
        fail("memory");
    there = event(&there_poller);
    back = event(&back_poller);
    other = fork();
    if (other < 0)
        fail("fork");
    if (other == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (long i = 0; i < calls; i++) {
            await(there_poller, there);
            memcpy(message, shared, MESSAGE);
            memcpy(shared + MESSAGE, message, MESSAGE);
            ring(back);
        }
        _exit(0);
    }
    due = now_ns();
    for (long i = 0; i < calls; i++) {
        struct timespec until;
        uint64_t began;

        due += 1000000000u / (uint64_t)rate;
        until = (struct timespec){.tv_sec = (time_t)(due / 1000000000u),
                                  .tv_nsec = (long)(due % 1000000000u)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
            ;
        began = now_ns();
        memcpy(shared, message, MESSAGE);
        ring(there);
        await(back_poller, back);
        memcpy(message, shared + MESSAGE, MESSAGE);
        took[i] = now_ns() - began;
    }
    if (waitpid(other, NULL, 0) != other)
        fail("waitpid");
    qsort(took, (size_t)calls, sizeof *took, by_size);
    printf("%.3f %.3f %.3f\n", (cpu_us(RUSAGE_SELF) + cpu_us(RUSAGE_CHILDREN)) / (double)calls,
           (double)took[calls / 2] / 1e3, (double)took[calls * 99 / 100] / 1e3);
    return 0;
}
