/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_PEERS_H
#define BW_TEST_PEERS_H

/* Shared by the tests of the shm carrier: simulated peers of a listener, and functions that
 * transfer bytes through a link or run a case in a separate process. */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "check.h"
#include "rings.h"

#define RING BW_RING_MIN_BYTES
#define PAGE 65536u /* the segment's first page contains the ring headers */

/* A peer's message, in wire format. */
typedef struct {
    uint8_t token[BW_TOKEN_BYTES];
    uint32_t version, reserved;
    uint64_t ring_bytes;
} hello_t;

/* Runs a case in a separate process, because limits, users and filters cannot be reset. */
static inline void in_child(void (*run)(void))
{
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        run();
        if (check_skipped)
            printf("    %s\n", check_skipped);
        fflush(stdout);
        _exit(check_failed ? 1 : check_skipped ? 2 : 0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        SKIP("not possible here (see above)");
    CHECK_EQ(WEXITSTATUS(status), 0); /* sanitizers and memcheck use other exit codes */
}

/* Sets a limit. Must be called only in a child. */
static inline void limit(int resource, rlim_t value)
{
    struct rlimit now;

    CHECK_EQ(getrlimit(resource, &now), 0);
    now.rlim_cur = value;
    CHECK_EQ(setrlimit(resource, &now), 0);
}

static inline int memory_of(uint64_t bytes, int seals)
{
    int fd = memfd_create("rogue", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline int connect_to(const bw_shm_listener_t *listener)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(un.sun_path, listener->address, listener->address_len);
    if (fd >= 0 &&
        connect(fd, (struct sockaddr *)&un,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + listener->address_len)) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Sends any bytes with any number of descriptors; bw_shm_send is limited to a few. */
static inline bool send_with(int fd, const void *bytes, size_t len, const int *fds, size_t count)
{
    union {
        char bytes[CMSG_SPACE(256 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    if (count > 0) {
        struct cmsghdr *cmsg;

        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        cmsg = CMSG_FIRSTHDR(&message);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(cmsg), fds, count * sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)len;
}

/* Sends `len` bytes and `count` descriptors to the listener and closes the connection. */
static inline bool send_as_peer(const bw_shm_listener_t *listener, const void *bytes, size_t len,
                                const int *fds, size_t count)
{
    int fd = connect_to(listener);
    bool sent = fd >= 0 && send_with(fd, bytes, len, fds, count);

    if (fd >= 0)
        close(fd);
    return sent;
}

static inline bool says(const bw_error_t *error, const char *words)
{
    if (error->step && strstr(error->step, words))
        return true;
    printf("    the reason is \"%s\", expected \"...%s...\"\n",
           error->step ? error->step : "(none)", words);
    return false;
}

static inline bool has_bytes_to_read(bw_link_t *link, const char *bytes)
{
    bw_span_t span = {0};

    return link->ops->peek(link, &span) == BW_OK && span.len == strlen(bytes) &&
           memcmp(span.base, bytes, span.len) == 0;
}

static inline bool write_text(bw_link_t *link, const char *bytes)
{
    bw_span_t span = {0};

    if (link->ops->reserve(link, strlen(bytes), &span) != BW_OK || span.len < strlen(bytes))
        return false;
    memcpy(span.base, bytes, strlen(bytes));
    link->ops->commit(link, strlen(bytes));
    return true;
}

#endif
