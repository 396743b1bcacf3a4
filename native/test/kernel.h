/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_KERNEL_H
#define BW_TEST_KERNEL_H

/*
 * What the system does with a send of the code under test: it takes all, a part, nothing, or fails.
 * A program that includes this is linked with --wrap=send,--wrap=sendmsg,--wrap=epoll_ctl. One
 * link.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define KERNEL_TAKES_ALL INT_MAX

static struct {
    /* Of the next call of this thread: how many bytes it takes, or an error below 0. NULL: all. */
    int (*answer)(void);
    pthread_t thread;
    uint64_t calls; /* that were asked about */
    int epoll;      /* what tells of room, and what for */
    struct epoll_event of_socket;
} kernel;

int __real_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
ssize_t __real_send(int fd, const void *bytes, size_t len, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t len, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);

int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
    if (event && event->events & EPOLLOUT) {
        kernel.epoll = epoll;
        kernel.of_socket = *event;
    }
    return __real_epoll_ctl(epoll, what, fd, event);
}

static inline int kernel_answers(int fd)
{
    int answer = KERNEL_TAKES_ALL;

    if (!kernel.answer || !pthread_equal(kernel.thread, pthread_self()))
        return answer;
    kernel.calls++;
    answer = kernel.answer();
    if (answer == -EAGAIN) /* it tells of room, as it does when there was none */
        (void)__real_epoll_ctl(kernel.epoll, EPOLL_CTL_MOD, fd, &kernel.of_socket);
    else if (answer < 0 &&
             answer != -EINTR) /* nothing goes any more, and what had come can be read */
        (void)shutdown(fd, SHUT_RDWR);
    return answer;
}

ssize_t __wrap_send(int fd, const void *bytes, size_t len, int flags)
{
    int answer = kernel_answers(fd);

    if (answer >= 0)
        return __real_send(fd, bytes, (size_t)answer < len ? (size_t)answer : len, flags);
    errno = -answer;
    return -1;
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    int answer = kernel_answers(fd);
    struct msghdr part = *message;
    struct iovec iov;

    if (answer == KERNEL_TAKES_ALL)
        return __real_sendmsg(fd, message, flags);
    if (answer < 0) {
        errno = -answer;
        return -1;
    }
    while (part.msg_iovlen > 1 && part.msg_iov->iov_len == 0) {
        part.msg_iov++;
        part.msg_iovlen--;
    }
    iov = *part.msg_iov;
    iov.iov_len = (size_t)answer < iov.iov_len ? (size_t)answer : iov.iov_len;
    part.msg_iov = &iov;
    part.msg_iovlen = 1;
    return __real_sendmsg(fd, &part, flags);
}

#endif
