/* SPDX-License-Identifier: Apache-2.0 */
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "../token.h"
#include "inside.h"

#define HELLO_VERSION 1u
/* How many peers one call rejects at most, so that no clients can hold up a scheduler. */
#define PEERS_MAX 32

/* The connecting side's message. Its descriptors are the memory, its own eventfd and the peer's. */
typedef struct {
    uint8_t token[BW_TOKEN_BYTES];
    uint32_t version;
    uint32_t reserved;
    uint64_t ring_bytes;
} hello_t;

static_assert(sizeof(hello_t) == 32, "the layout is part of the protocol");

enum { FD_MEMORY, FD_CONNECTOR_EVENT, FD_LISTENER_EVENT, FD_COUNT };

static_assert(FD_COUNT <= BW_SHM_DESCRIPTORS, "a message has room for all");

static void close_all(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fds[i] >= 0) {
            close(fds[i]);
            fds[i] = -1;
        }
}

static bw_status_t unix_socket(int *fd_p, bw_error_t *error_p)
{
    *fd_p = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd_p < 0)
        return bw_fail_system(error_p, "unix socket", errno);
    return BW_OK;
}

/* Reads the numbers at the start of a file in /proc and returns how many there were. */
static int read_numbers(const char *path, unsigned long numbers[3])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), count = 0;
    char text[128], *at = text, *end;
    ssize_t n;

    if (fd < 0)
        return 0;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    for (; count < 3; count++, at = end) {
        numbers[count] = strtoul(at, &end, 10);
        if (end == at)
            break;
    }
    return count;
}

/* The kernel shows this uid for every user that our user namespace does not map. A process with
 * this uid can tell itself apart from those users only if the namespace maps all users. */
static bool may_be_anybody(uid_t uid)
{
    unsigned long unknown[3], map[3];

    if (read_numbers("/proc/sys/kernel/overflowuid", unknown) < 1)
        unknown[0] = 65534;
    if (uid != unknown[0])
        return false;
    return read_numbers("/proc/self/uid_map", map) != 3 || map[0] != 0 || map[2] != UINT32_MAX;
}

bool bw_shm_same_user(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid() &&
           !may_be_anybody(peer.uid);
}

#ifndef SO_PEERPIDFD /* Linux 6.5; it also works for a peer in another pid namespace */
#define SO_PEERPIDFD 77
#endif

/* Returns a pidfd of the process at the other end, or -1 if the system cannot provide one. In that
 * case the exit of that process goes unnoticed. */
static int process_of(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(int);
    int process;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &process, &len) == 0)
        return process;
    len = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.pid <= 0)
        return -1;
    return (int)syscall(SYS_pidfd_open, peer.pid, 0);
}

static socklen_t socket_address(const uint8_t *address, size_t len, struct sockaddr_un *un_p)
{
    *un_p = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(un_p->sun_path, address, len);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static bool random_bytes(void *at, size_t len)
{
    return getrandom(at, len, 0) == (ssize_t)len;
}

/* Returns the length of the name without a terminating NUL, or 0 if the name does not fit. */
static size_t listener_name(const char *dir, const uint8_t id[8], uint8_t *address)
{
    char name[BW_ADDRESS_MAX];
    int len =
        snprintf(name, sizeof name, "%s%sbeamway-%02x%02x%02x%02x%02x%02x%02x%02x", dir ? dir : "@",
                 dir ? "/" : "", id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7]);

    if (len < 0 || (size_t)len >= sizeof name)
        return 0;
    memcpy(address, name, (size_t)len);
    if (!dir)
        address[0] = 0;
    return (size_t)len;
}

/* Another user who can write to the directory can remove our socket and so prevent a link, but
 * nothing more, because that user has neither our uid nor the token. A directory that belongs to
 * us, or a sticky one such as /tmp, is as good as a private one. */
static bw_status_t check_dir(const char *dir, bw_error_t *error_p)
{
    struct stat st;

    if (stat(dir, &st) < 0)
        return bw_fail(error_p, BW_SYSTEM, "socket_dir", errno);
    if (!S_ISDIR(st.st_mode))
        return bw_fail(error_p, BW_SYSTEM, "socket_dir", ENOTDIR);
    if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX) && st.st_uid != geteuid())
        return bw_fail(error_p, BW_REFUSED,
                       "socket_dir belongs to another user and all may write to it", 0);
    return BW_OK;
}

/* The name exists until the listener closes. Only our user may connect. */
static bw_status_t bind_socket(int fd, const char *dir, const bw_shm_listener_t *listener,
                               bw_error_t *error_p)
{
    struct sockaddr_un un;
    socklen_t un_len = socket_address(listener->address, listener->address_len, &un);

    if ((!dir || fchmod(fd, 0600) == 0) && bind(fd, (struct sockaddr *)&un, un_len) == 0)
        return BW_OK;
    return bw_fail(error_p, BW_SYSTEM,
                   dir ? "making a socket in socket_dir" : "bind of the unix socket", errno);
}

bw_status_t bw_shm_listen(const char *dir, bw_shm_listener_t *listener_p, bw_error_t *error_p)
{
    bw_shm_listener_t listener = {.fd = -1};
    uint8_t id[8];
    bw_status_t status;
    int fd;

    listener_p->fd = -1;
    if (!random_bytes(id, sizeof id) || !random_bytes(listener.token, sizeof listener.token))
        return bw_fail(error_p, BW_SYSTEM, "getrandom", errno);
    listener.address_len = listener_name(dir, id, listener.address);
    if (listener.address_len == 0)
        return bw_fail(error_p, BW_INVALID, "socket_dir is too long for a unix socket",
                       ENAMETOOLONG);
    if (dir && (status = check_dir(dir, error_p)) != BW_OK)
        return status;
    status = unix_socket(&fd, error_p);
    if (status != BW_OK)
        return status;
    status = bind_socket(fd, dir, &listener, error_p);
    if (status != BW_OK) {
        close(fd);
        return status;
    }
    listener.fd = fd;
    if (listen(fd, BW_SHM_BACKLOG) < 0) {
        bw_fail(error_p, BW_SYSTEM, "listen on the unix socket", errno);
        bw_shm_listener_close(&listener);
        return BW_SYSTEM;
    }
    *listener_p = listener;
    return BW_OK;
}

void bw_shm_listener_close(bw_shm_listener_t *listener)
{
    char path[BW_ADDRESS_MAX + 1] = {0};

    if (listener->fd < 0)
        return;
    memcpy(path, listener->address, listener->address_len);
    if (path[0] != 0)
        (void)unlink(path);
    close(listener->fd);
    listener->fd = -1;
    memset(listener->token, 0, sizeof listener->token);
}

bool bw_shm_send(int fd, const void *bytes, size_t len, const int *fds, size_t count)
{
    union {
        char bytes[CMSG_SPACE(BW_SHM_DESCRIPTORS * sizeof(int))];
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
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)len;
}

bw_status_t bw_shm_receive(int fd, void *bytes, size_t len, int flags, int *fds, size_t most,
                           size_t *count_p)
{
    union {
        char bytes[CMSG_SPACE(BW_SHM_DESCRIPTORS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = bytes, .iov_len = len};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC | flags);
    size_t count = 0;

    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? BW_AGAIN : BW_REFUSED;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message); cmsg; cmsg = CMSG_NXTHDR(&message, cmsg)) {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;
        /* The kernel may put one more descriptor into the buffer's padding. */
        for (size_t at = CMSG_LEN(0); at + sizeof(int) <= cmsg->cmsg_len; at += sizeof(int)) {
            int one;

            memcpy(&one, (char *)cmsg + at, sizeof one);
            if (count++ < most)
                fds[count - 1] = one;
            else
                close(one);
        }
    }
    if (count == 0 &&
        message.msg_flags & MSG_CTRUNC) /* truncated although there was room for the descriptors */
        return BW_LIMIT;
    if (n == 0 && count == 0) /* an empty message may carry descriptors as well */
        return BW_REFUSED;
    if (n == (ssize_t)len && count <= most && !(message.msg_flags & (MSG_CTRUNC | MSG_TRUNC))) {
        *count_p = count;
        return BW_OK;
    }
    close_all(fds, count < most ? count : most);
    return BW_CORRUPT;
}

bw_status_t bw_shm_reach(const uint8_t *address, size_t address_len, int *fd_p, bw_error_t *error_p)
{
    struct sockaddr_un un;
    socklen_t un_len = socket_address(address, address_len, &un);
    bw_status_t status = unix_socket(fd_p, error_p);

    if (status != BW_OK)
        return status;
    if (connect(*fd_p, (struct sockaddr *)&un, un_len) < 0)
        status = bw_fail(error_p, BW_REFUSED,
                         un.sun_path[0]
                             ? "connecting to the peer's socket in socket_dir (the same directory? "
                               "the same user?)"
                             : "connecting to the peer's unix socket (another network namespace?)",
                         errno);
    else if (!bw_shm_same_user(*fd_p))
        status = bw_fail(error_p, BW_REFUSED, "the peer runs as another user", EPERM);
    if (status != BW_OK) {
        close(*fd_p);
        *fd_p = -1;
    }
    return status;
}

bw_status_t bw_shm_connect(const uint8_t *address, size_t address_len,
                           const uint8_t token[BW_TOKEN_BYTES], uint64_t ring_bytes,
                           bw_link_t **link_p, bw_error_t *error_p)
{
    hello_t hello = {.version = HELLO_VERSION, .ring_bytes = ring_bytes};
    int fds[FD_COUNT] = {-1, -1, -1}, conn = -1, process = -1;
    bw_link_t *link = NULL;
    bw_status_t status;

    if (!bw_ring_size_is_valid(ring_bytes) || address_len == 0 || address_len > BW_ADDRESS_MAX)
        return bw_fail(error_p, BW_INVALID, "ring size or address of the offer", EINVAL);
    memcpy(hello.token, token, sizeof hello.token);
    if ((status = bw_shm_reach(address, address_len, &conn, error_p)) != BW_OK)
        return status;
    process = process_of(conn);
    if ((status = bw_shm_make_memory(ring_bytes, &fds[FD_MEMORY], error_p)) != BW_OK ||
        (status = bw_shm_make_event(&fds[FD_CONNECTOR_EVENT], error_p)) != BW_OK ||
        (status = bw_shm_make_event(&fds[FD_LISTENER_EVENT], error_p)) != BW_OK ||
        (status = bw_shm_attach(BW_SHM_MAKER, fds[FD_MEMORY], ring_bytes, fds[FD_CONNECTOR_EVENT],
                                fds[FD_LISTENER_EVENT], process, &link, error_p)) != BW_OK)
        goto close_fds;
    if (!bw_shm_send(conn, &hello, sizeof hello, fds, FD_COUNT))
        status = bw_fail(error_p, BW_SYSTEM, "sending the descriptors", errno);
    process = -1;
    fds[FD_CONNECTOR_EVENT] = fds[FD_LISTENER_EVENT] = -1; /* the link owns them */
    if (status == BW_OK)
        *link_p = link;
    else
        link->ops->close(link, NULL);

close_fds:
    close_all(fds, FD_COUNT);
    close_all(&process, 1);
    close_all(&conn, 1);
    return status;
}

/* Checks everything that the peer has sent before using any of it. */
static bw_status_t check_hello(const hello_t *hello, const int *fds,
                               const bw_shm_listener_t *listener, uint64_t max_ring_bytes,
                               bw_error_t *error_p)
{
    if (!bw_token_is_same(hello->token, listener->token))
        return bw_fail(error_p, BW_REFUSED, "the peer has no valid token", 0);
    if (hello->version != HELLO_VERSION)
        return bw_fail(error_p, BW_REFUSED, "the peer's version of the rings is another", 0);
    if (!bw_ring_size_is_valid(hello->ring_bytes) || hello->ring_bytes > max_ring_bytes)
        return bw_fail(error_p, BW_REFUSED, "the peer's ring size is not acceptable", 0);
    if (!bw_shm_is_memory(fds[FD_MEMORY], hello->ring_bytes))
        return bw_fail(error_p, BW_REFUSED, "the peer's memory is not sealed or has a wrong size",
                       0);
    if (!bw_shm_is_event(fds[FD_CONNECTOR_EVENT]) || !bw_shm_is_event(fds[FD_LISTENER_EVENT]))
        return bw_fail(error_p, BW_REFUSED, "the peer's wake-up descriptors are not eventfds", 0);
    return BW_OK;
}

static bw_status_t admit(int conn, const bw_shm_listener_t *listener, uint64_t max_ring_bytes,
                         bw_link_t **link_p, bw_error_t *error_p)
{
    int fds[FD_COUNT] = {-1, -1, -1}, process = -1;
    bw_status_t status;
    size_t count = 0;
    hello_t hello;

    if (!bw_shm_same_user(conn))
        return bw_fail(error_p, BW_REFUSED, "the peer runs as another user", EPERM);
    if (bw_shm_receive(conn, &hello, sizeof hello, 0, fds, FD_COUNT, &count) != BW_OK ||
        count != FD_COUNT)
        status = bw_fail(error_p, BW_REFUSED,
                         "the peer's message is not whole (descriptor limit, ulimit -n?)", 0);
    else
        status = check_hello(&hello, fds, listener, max_ring_bytes, error_p);
    if (status == BW_OK) {
        process = process_of(conn);
        status =
            bw_shm_attach(BW_SHM_TAKER, fds[FD_MEMORY], hello.ring_bytes, fds[FD_LISTENER_EVENT],
                          fds[FD_CONNECTOR_EVENT], process, link_p, error_p);
    }
    if (status != BW_OK) {
        close_all(fds, FD_COUNT);
        close_all(&process, 1);
        return status;
    }
    close(fds[FD_MEMORY]);
    return BW_OK;
}

bw_status_t bw_shm_accept(bw_shm_listener_t *listener, uint64_t max_ring_bytes, bw_link_t **link_p,
                          bw_error_t *error_p)
{
    bw_status_t status = bw_fail(error_p, BW_REFUSED, "nobody came to the unix socket", 0);

    for (int peers = 0; peers < PEERS_MAX; peers++) {
        int conn = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (conn < 0 && errno == EINTR)
            continue;
        if (conn < 0 && errno == EAGAIN)
            return status;
        if (conn < 0)
            return bw_fail_system(error_p, "accept on the unix socket", errno);
        status = admit(conn, listener, max_ring_bytes, link_p, error_p);
        close(conn);
        if (status == BW_OK) {
            *error_p = (bw_error_t){0};
            return BW_OK;
        }
    }
    return status;
}

/* A link inside this process exercises everything that a host must provide. */
bw_status_t bw_shm_probe(uint64_t ring_bytes, bw_error_t *error_p)
{
    bw_link_t *connected = NULL, *accepted = NULL;
    bw_shm_listener_t listener;
    bw_status_t status;
    bw_span_t span;

    status = bw_shm_listen(NULL, &listener, error_p);
    if (status == BW_OK)
        status = bw_shm_connect(listener.address, listener.address_len, listener.token, ring_bytes,
                                &connected, error_p);
    if (status == BW_OK)
        status = bw_shm_accept(&listener, ring_bytes, &accepted, error_p);
    if (status == BW_OK) {
        status = connected->ops->reserve(connected, 8, &span);
        if (status == BW_OK) {
            memcpy(span.base, "beamway", 8);
            connected->ops->commit(connected, 8);
            status = accepted->ops->peek(accepted, &span);
        }
        if (status != BW_OK || span.len != 8 || memcmp(span.base, "beamway", 8) != 0)
            status = bw_fail(error_p, BW_SYSTEM, "memory is not shared", 0);
    }
    if (accepted)
        accepted->ops->close(accepted, NULL);
    if (connected)
        connected->ops->close(connected, NULL);
    bw_shm_listener_close(&listener);
    return status;
}
