/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PIPE_BYTES (1024 * 1024) /* fs.pipe-max-size of most systems */
#define PIPE_LEAST (128 * 1024)
#define SHORT_BYTES 4096 /* a pipe that is ready accepts this much without blocking (PIPE_BUF) */

static void enlarge(int fd)
{
    for (int bytes = PIPE_BYTES; bytes >= PIPE_LEAST; bytes /= 2)
        if (fcntl(fd, F_GETPIPE_SZ) >= bytes || fcntl(fd, F_SETPIPE_SZ, bytes) >= 0)
            return;
}

static int reopen(int fd, int mode)
{
    char path[32];

    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, mode | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

/* Memory devices (major 1 in Linux's list of devices) that never block. */
static bool is_memory(const struct stat *is)
{
    unsigned which = minor(is->st_rdev);

    return S_ISCHR(is->st_mode) && major(is->st_rdev) == 1 &&
           (which == 3 || which == 5 || which == 7); /* null, zero, full */
}

rd_end_t rd_end_of(int fd, bool for_writing)
{
    rd_end_t end = {.fd = fd};
    struct stat is;
    int flags = fcntl(fd, F_GETFL), own;

    if (fstat(fd, &is) < 0)
        return end;
    end.always_ready =
        S_ISREG(is.st_mode) || S_ISBLK(is.st_mode) || S_ISDIR(is.st_mode) || is_memory(&is);
    end.is_socket = S_ISSOCK(is.st_mode);
    end.is_terminal = isatty(fd);
    end.is_nonblocking = flags >= 0 && (flags & O_NONBLOCK) != 0;
    if (S_ISFIFO(is.st_mode))
        enlarge(fd);
    if (end.is_nonblocking || !(S_ISFIFO(is.st_mode) || end.is_terminal))
        return end;
    own = reopen(fd, for_writing ? O_WRONLY : O_RDONLY);
    if (own < 0)
        return end;
    if (dup3(own, fd, O_CLOEXEC) == fd)
        end.is_nonblocking = true;
    close(own);
    return end;
}

static bool is_ready(const rd_end_t *end, short events)
{
    struct pollfd polled = {.fd = end->fd, .events = events};

    return end->always_ready || end->is_nonblocking || poll(&polled, 1, 0) > 0;
}

ssize_t rd_end_read(const rd_end_t *end, void *data, size_t len)
{
    if (!is_ready(end, POLLIN)) {
        errno = EAGAIN;
        return -1;
    }
    return read(end->fd, data, len);
}

ssize_t rd_end_write(const rd_end_t *end, const void *data, size_t len)
{
    if (end->is_socket)
        return send(end->fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (!is_ready(end, POLLOUT)) {
        errno = EAGAIN;
        return -1;
    }
    if (!end->always_ready && !end->is_nonblocking && len > SHORT_BYTES)
        len = SHORT_BYTES;
    return write(end->fd, data, len);
}

uint64_t rd_end_size(const rd_end_t *end)
{
    struct stat is;
    off_t at;

    if (!end->always_ready || fstat(end->fd, &is) < 0 || !S_ISREG(is.st_mode))
        return 0;
    at = lseek(end->fd, 0, SEEK_CUR);
    return at < 0 || at > is.st_size ? 0 : (uint64_t)(is.st_size - at);
}

bool rd_end_close(rd_end_t *end)
{
    int fd = end->fd;

    end->fd = -1;
    return fd < 0 || close(fd) == 0 || errno == EINTR;
}

void rd_let_go_of(int fd)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

    if (nothing >= 0)
        (void)dup3(nothing, fd, 0);
    if (nothing >= 0)
        close(nothing);
}
