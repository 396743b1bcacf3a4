/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_KERNEL_H
#define BW_TEST_KERNEL_H

/*
 * Controls how the system handles a send by the code under test: it accepts all bytes, some or
 * none, or it fails. Programs that include this are linked with --wrap=send,--wrap=sendmsg.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define KERNEL_TAKES_ALL INT_MAX

static struct {
    /* Returns how many bytes the next call from this thread accepts, or a negative error. If this
     * is NULL, the call accepts all bytes. */
    int (*answer)(void);
    pthread_t thread;
    uint64_t calls; /* number of calls for which `answer` was consulted */
} kernel;

ssize_t __real_send(int fd, const void *bytes, size_t len, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t len, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);

static inline int kernel_answers(int fd)
{
    int answer = KERNEL_TAKES_ALL;

    if (!kernel.answer || !pthread_equal(kernel.thread, pthread_self()))
        return answer;
    kernel.calls++;
    answer = kernel.answer();
    if (answer < 0 && answer != -EAGAIN && answer != -EINTR)
        (void)shutdown(fd, SHUT_RDWR); /* what had arrived can still be read */
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
