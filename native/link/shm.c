/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/*
 * The segment: one page with the two ring headers, then the data of ring 0 (from the process that
 * made it), then that of ring 1 (to it). In memory each ring's data stands twice in a row.
 * The page is as large as the largest that Linux knows (arm64); what is not touched costs nothing.
 */
#define SEGMENT_PAGE 65536u
#define VISITORS_MAX 32 /* turned away in one call, so that strangers cannot hold a scheduler */
#define SEGMENT_VERSION 1u
#define SEGMENT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

typedef struct {
    bw_ring_shared_t ring[2];
} segment_t;

static_assert(sizeof(segment_t) <= SEGMENT_PAGE, "the ring headers fit in the first page");

/* What the joining side sends, with the descriptors: memory, its own doorbell, the peer's. */
typedef struct {
    uint8_t token[BW_SHM_TOKEN_BYTES];
    uint32_t version;
    uint32_t reserved;
    uint64_t ring_bytes;
} hello_t;

static_assert(sizeof(hello_t) == 32, "the layout is part of the protocol");

enum { FD_MEMORY, FD_JOINER_BELL, FD_DOOR_BELL, FD_COUNT };

typedef struct {
    bw_link_t link; /* first: a bw_link_t pointer is a shm_link_t pointer */
    bw_tx_t tx;
    bw_rx_t rx;
    uint8_t *map;
    size_t map_bytes;
    int bell;      /* ours: polled, and hushed before we arm */
    int peer_bell; /* written to wake the peer */
    uint64_t doorbells_in, doorbells_out, stalls;
    uint64_t trimmed_at; /* outgoing position up to which memory went back */
} shm_link_t;

static shm_link_t *shm_of(bw_link_t *link)
{
    return (shm_link_t *)link;
}

static void ring_bell(int fd)
{
    uint64_t one = 1;
    ssize_t n;

    /* Fails only if the counter is full (EAGAIN): then the peer has a wake-up pending anyway. */
    do
        n = write(fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

static bw_status_t shm_reserve(bw_link_t *link, size_t want, bw_span_t *span_p)
{
    return bw_tx_reserve(&shm_of(link)->tx, want, span_p);
}

static void ring_peer(shm_link_t *shm)
{
    shm->doorbells_out++;
    ring_bell(shm->peer_bell);
}

static void shm_commit(bw_link_t *link, size_t n)
{
    if (bw_tx_commit(&shm_of(link)->tx, n))
        ring_peer(shm_of(link));
}

static bw_status_t shm_peek(bw_link_t *link, bw_span_t *span_p)
{
    return bw_rx_peek(&shm_of(link)->rx, span_p);
}

static void shm_release(bw_link_t *link, size_t n)
{
    if (bw_rx_release(&shm_of(link)->rx, n))
        ring_peer(shm_of(link));
}

static bw_status_t shm_arm_read(bw_link_t *link)
{
    return bw_rx_arm(&shm_of(link)->rx);
}

static bw_status_t shm_arm_write(bw_link_t *link, size_t room)
{
    bw_status_t status = bw_tx_arm(&shm_of(link)->tx, room);

    if (status == BW_OK)
        shm_of(link)->stalls++;
    return status;
}

static int shm_fd(const bw_link_t *link)
{
    return ((const shm_link_t *)link)->bell;
}

static void shm_hush(bw_link_t *link)
{
    uint64_t count;
    ssize_t n;

    do
        n = read(shm_of(link)->bell, &count, sizeof count);
    while (n < 0 && errno == EINTR);
    if (n == sizeof count)
        shm_of(link)->doorbells_in++;
}

static void shm_kick(bw_link_t *link)
{
    ring_bell(shm_of(link)->bell);
}

/* Only the producer punches, with the ring empty: the consumer then holds no span, and whatever is
 * written next comes from us. */
static void shm_trim(bw_link_t *link)
{
    shm_link_t *shm = shm_of(link);

    if (shm->tx.head == shm->trimmed_at || !bw_tx_is_drained(&shm->tx))
        return;
    if (madvise(shm->tx.data, shm->tx.size, MADV_REMOVE) == 0)
        shm->trimmed_at = shm->tx.head;
}

static void shm_stats(const bw_link_t *link, bw_link_stats_t *stats_p)
{
    const shm_link_t *shm = (const shm_link_t *)link;
    uint64_t tail = atomic_load(&shm->tx.shared->tail), head = atomic_load(&shm->rx.shared->head);
    uint64_t fill_out = shm->tx.head - tail, fill_in = head - shm->rx.tail;

    *stats_p = (bw_link_stats_t){
        .bytes_in = shm->rx.tail,
        .bytes_out = shm->tx.head,
        .doorbells_in = shm->doorbells_in,
        .doorbells_out = shm->doorbells_out,
        .stalls = shm->stalls,
        .ring_bytes = shm->tx.size,
        .fill_in = fill_in <= shm->rx.size ? fill_in : 0, /* the peer's word: only a figure */
        .fill_out = fill_out <= shm->tx.size ? fill_out : 0,
    };
}

static bool shm_is_finished(bw_link_t *link)
{
    return bw_rx_is_finished(&shm_of(link)->rx);
}

static void shm_close(bw_link_t *link, int *fd_p)
{
    shm_link_t *shm = shm_of(link);

    bw_tx_close(&shm->tx);
    munmap(shm->map, shm->map_bytes);
    close(shm->peer_bell);
    if (fd_p)
        *fd_p = shm->bell;
    else
        close(shm->bell);
    free(shm);
}

static const bw_link_ops_t shm_ops = {
    .kind = "shm",
    .reserve = shm_reserve,
    .commit = shm_commit,
    .peek = shm_peek,
    .release = shm_release,
    .arm_read = shm_arm_read,
    .arm_write = shm_arm_write,
    .fd = shm_fd,
    .hush = shm_hush,
    .kick = shm_kick,
    .trim = shm_trim,
    .stats = shm_stats,
    .is_finished = shm_is_finished,
    .close = shm_close,
};

/* ---- memory ---- */

static uint64_t segment_bytes(uint64_t ring_bytes)
{
    return SEGMENT_PAGE + 2 * ring_bytes;
}

static void close_all(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fds[i] >= 0) {
            close(fds[i]);
            fds[i] = -1;
        }
}

/* Maps the segment with both rings twice in a row; the memory's descriptor is not needed after. */
static bw_status_t map_segment(int memory, uint64_t ring_bytes, uint8_t **map_p, size_t *bytes_p,
                               bw_error_t *error_p)
{
    size_t bytes = SEGMENT_PAGE + 4 * ring_bytes;
    int prot = PROT_READ | PROT_WRITE;
    uint8_t *map = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct {
        uint64_t at, offset, len;
    } part[] = {
        {0, 0, SEGMENT_PAGE},
        {SEGMENT_PAGE, SEGMENT_PAGE, ring_bytes},
        {SEGMENT_PAGE + ring_bytes, SEGMENT_PAGE, ring_bytes},
        {SEGMENT_PAGE + 2 * ring_bytes, SEGMENT_PAGE + ring_bytes, ring_bytes},
        {SEGMENT_PAGE + 3 * ring_bytes, SEGMENT_PAGE + ring_bytes, ring_bytes},
    };

    if (map == MAP_FAILED)
        return bw_fail(error_p, errno == ENOMEM ? BW_LIMIT : BW_SYSTEM, "mmap of the rings", errno);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (mmap(map + part[i].at, part[i].len, prot, MAP_SHARED | MAP_FIXED, memory,
                 (off_t)part[i].offset) == MAP_FAILED) {
            int saved = errno;

            munmap(map, bytes);
            return bw_fail(error_p, saved == ENOMEM ? BW_LIMIT : BW_SYSTEM, "mmap of a ring",
                           saved);
        }
    (void)madvise(map, bytes, MADV_DONTDUMP); /* a crash dump has no use for it */
    *map_p = map;
    *bytes_p = bytes;
    return BW_OK;
}

/* Makes the link of one side over the mapped segment. `out` is the index of its outgoing ring.
 * On success the link owns both doorbells. */
static bw_status_t make_link(int memory, uint64_t ring_bytes, int out, int bell, int peer_bell,
                             shm_link_t **shm_p, bw_error_t *error_p)
{
    shm_link_t *shm = calloc(1, sizeof *shm);
    bw_status_t status;
    segment_t *segment;
    uint8_t *data[2];

    if (!shm)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    status = map_segment(memory, ring_bytes, &shm->map, &shm->map_bytes, error_p);
    if (status != BW_OK) {
        free(shm);
        return status;
    }
    segment = (segment_t *)(void *)shm->map;
    data[0] = shm->map + SEGMENT_PAGE;
    data[1] = data[0] + 2 * ring_bytes;
    shm->link.ops = &shm_ops;
    shm->bell = bell;
    shm->peer_bell = peer_bell;
    bw_tx_attach(&shm->tx, &segment->ring[out], data[out], ring_bytes, 0);
    bw_rx_attach(&shm->rx, &segment->ring[!out], data[!out], ring_bytes, 0);
    *shm_p = shm;
    return BW_OK;
}

/* Sealed memory of the right size. RLIMIT_FSIZE is looked at first: passing it is a signal. */
static bw_status_t make_memory(uint64_t ring_bytes, int *fd_p, bw_error_t *error_p)
{
    uint64_t bytes = segment_bytes(ring_bytes);
    struct rlimit limit;
    int fd;

    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes)
        return bw_fail(error_p, BW_LIMIT, "file size limit (ulimit -f) below the size of the rings",
                       EFBIG);
    fd = memfd_create("beamway", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return bw_fail(error_p, errno == EMFILE || errno == ENFILE ? BW_LIMIT : BW_SYSTEM,
                       "memfd_create", errno);
    if (ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, SEGMENT_SEALS) < 0) {
        bw_fail(error_p, BW_SYSTEM, "size and seals of the memory", errno);
        close(fd);
        return BW_SYSTEM;
    }
    *fd_p = fd;
    return BW_OK;
}

static bw_status_t make_bell(int *fd_p, bw_error_t *error_p)
{
    *fd_p = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (*fd_p < 0)
        return bw_fail(error_p, errno == EMFILE || errno == ENFILE ? BW_LIMIT : BW_SYSTEM,
                       "eventfd", errno);
    return BW_OK;
}

/* ---- meeting ---- */

static bw_status_t unix_socket(int *fd_p, bw_error_t *error_p)
{
    *fd_p = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd_p < 0)
        return bw_fail(error_p, errno == EMFILE || errno == ENFILE ? BW_LIMIT : BW_SYSTEM,
                       "unix socket", errno);
    return BW_OK;
}

static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
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

/* Length of the name, without a final 0; 0 if it does not fit. */
static size_t door_name(const char *dir, const uint8_t id[8], uint8_t *address)
{
    char name[BW_SHM_ADDRESS_MAX];
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

bw_status_t bw_shm_door_open(const char *dir, bw_shm_door_t *door_p, bw_error_t *error_p)
{
    bw_shm_door_t door = {.fd = -1};
    struct sockaddr_un un;
    socklen_t un_len;
    uint8_t id[8];
    bw_status_t status;
    int fd;

    door_p->fd = -1;
    if (!random_bytes(id, sizeof id) || !random_bytes(door.token, sizeof door.token))
        return bw_fail(error_p, BW_SYSTEM, "getrandom", errno);
    door.address_len = door_name(dir, id, door.address);
    if (door.address_len == 0)
        return bw_fail(error_p, BW_INVALID, "socket_dir is too long for a unix socket",
                       ENAMETOOLONG);
    status = unix_socket(&fd, error_p);
    if (status != BW_OK)
        return status;
    un_len = socket_address(door.address, door.address_len, &un);
    if (bind(fd, (struct sockaddr *)&un, un_len) < 0) {
        bw_fail(error_p, BW_SYSTEM, "bind of the unix socket", errno);
        close(fd);
        return BW_SYSTEM;
    }
    door.fd = fd;
    if (listen(fd, 16) < 0) {
        bw_fail(error_p, BW_SYSTEM, "listen on the unix socket", errno);
        bw_shm_door_close(&door);
        return BW_SYSTEM;
    }
    *door_p = door;
    return BW_OK;
}

void bw_shm_door_close(bw_shm_door_t *door)
{
    char path[BW_SHM_ADDRESS_MAX + 1] = {0};

    if (door->fd < 0)
        return;
    memcpy(path, door->address, door->address_len);
    if (path[0] != 0)
        (void)unlink(path);
    close(door->fd);
    door->fd = -1;
    memset(door->token, 0, sizeof door->token);
}

static bw_status_t send_hello(int fd, const hello_t *hello, const int *fds, bw_error_t *error_p)
{
    union {
        char bytes[CMSG_SPACE(FD_COUNT * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)hello, .iov_len = sizeof *hello};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message);

    cmsg->cmsg_level = SOL_SOCKET;
    cmsg->cmsg_type = SCM_RIGHTS;
    cmsg->cmsg_len = CMSG_LEN(FD_COUNT * sizeof(int));
    memcpy(CMSG_DATA(cmsg), fds, FD_COUNT * sizeof(int));
    if (sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof *hello)
        return bw_fail(error_p, BW_SYSTEM, "sending the descriptors", errno);
    return BW_OK;
}

static bw_status_t knock(const uint8_t *address, size_t address_len, int *fd_p, bw_error_t *error_p)
{
    struct sockaddr_un un;
    socklen_t un_len = socket_address(address, address_len, &un);
    bw_status_t status = unix_socket(fd_p, error_p);

    if (status != BW_OK)
        return status;
    if (connect(*fd_p, (struct sockaddr *)&un, un_len) < 0)
        status =
            bw_fail(error_p, BW_REFUSED,
                    "connecting to the peer's unix socket (another network namespace?)", errno);
    else if (!same_user(*fd_p))
        status = bw_fail(error_p, BW_REFUSED, "the peer runs as another user", EPERM);
    if (status != BW_OK) {
        close(*fd_p);
        *fd_p = -1;
    }
    return status;
}

bw_status_t bw_shm_join(const uint8_t *address, size_t address_len,
                        const uint8_t token[BW_SHM_TOKEN_BYTES], uint64_t ring_bytes,
                        bw_link_t **link_p, bw_error_t *error_p)
{
    hello_t hello = {.version = SEGMENT_VERSION, .ring_bytes = ring_bytes};
    int fds[FD_COUNT] = {-1, -1, -1}, visit = -1;
    shm_link_t *shm = NULL;
    bw_status_t status;

    if (!bw_ring_size_is_valid(ring_bytes) || address_len == 0 || address_len > BW_SHM_ADDRESS_MAX)
        return bw_fail(error_p, BW_INVALID, "ring size or address of the offer", EINVAL);
    memcpy(hello.token, token, sizeof hello.token);
    if ((status = knock(address, address_len, &visit, error_p)) != BW_OK ||
        (status = make_memory(ring_bytes, &fds[FD_MEMORY], error_p)) != BW_OK ||
        (status = make_bell(&fds[FD_JOINER_BELL], error_p)) != BW_OK ||
        (status = make_bell(&fds[FD_DOOR_BELL], error_p)) != BW_OK ||
        (status = make_link(fds[FD_MEMORY], ring_bytes, 0, fds[FD_JOINER_BELL], fds[FD_DOOR_BELL],
                            &shm, error_p)) != BW_OK)
        goto close_fds;
    bw_ring_init(shm->tx.shared, 0);
    bw_ring_init(shm->rx.shared, 0);
    status = send_hello(visit, &hello, fds, error_p);
    if (status != BW_OK) {
        munmap(shm->map, shm->map_bytes);
        free(shm);
        goto close_fds;
    }
    close(fds[FD_MEMORY]);
    close(visit);
    *link_p = &shm->link;
    return BW_OK;

close_fds:
    close_all(fds, FD_COUNT);
    if (visit >= 0)
        close(visit);
    return status;
}

#define CONTROL_FDS_MAX ((CMSG_SPACE(FD_COUNT * sizeof(int)) - CMSG_LEN(0)) / sizeof(int))

/* Reads the visitor's one message. Descriptors that came are in fds, the others stay -1. */
static bool receive_hello(int visit, hello_t *hello, int *fds)
{
    union {
        char bytes[CMSG_SPACE(FD_COUNT * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = hello, .iov_len = sizeof *hello};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(visit, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    struct cmsghdr *cmsg = n < 0 ? NULL : CMSG_FIRSTHDR(&message);
    int received[CONTROL_FDS_MAX];
    size_t count;

    if (!cmsg || cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
        return false;
    /* The kernel fills the padding of the buffer too: one more may have come than was asked for. */
    count = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(received, CMSG_DATA(cmsg), count * sizeof(int));
    for (size_t i = 0; i < count; i++)
        if (i < FD_COUNT)
            fds[i] = received[i];
        else
            close(received[i]);
    return n == (ssize_t)sizeof *hello && count == FD_COUNT &&
           !(message.msg_flags & (MSG_CTRUNC | MSG_TRUNC));
}

/* Same time for every wrong token. */
static bool same_token(const uint8_t *left, const uint8_t *right)
{
    uint8_t different = 0;

    for (size_t i = 0; i < BW_SHM_TOKEN_BYTES; i++)
        different |= (uint8_t)(left[i] ^ right[i]);
    return different == 0;
}

/* A doorbell that could block or is no eventfd would stall a scheduler thread. O_NONBLOCK belongs
 * to the open file, so its maker could still take it away: only a hostile process of our own user
 * can, and that one could as well stop or trace us. */
static bool is_bell(int fd)
{
    char path[32], target[32];
    ssize_t len;
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || !(flags & O_NONBLOCK))
        return false;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    len = readlink(path, target, sizeof target);
    return len < 0 || (len == 20 && memcmp(target, "anon_inode:[eventfd]", 20) == 0);
}

/* Checks all that the visitor brought before anything of it is used. */
static bw_status_t check_hello(const hello_t *hello, const int *fds, const bw_shm_door_t *door,
                               uint64_t max_ring_bytes, bw_error_t *error_p)
{
    struct stat memory;
    int seals;

    if (!same_token(hello->token, door->token))
        return bw_fail(error_p, BW_REFUSED, "the visitor has no valid token", 0);
    if (hello->version != SEGMENT_VERSION)
        return bw_fail(error_p, BW_REFUSED, "the visitor's version of the rings is another", 0);
    if (!bw_ring_size_is_valid(hello->ring_bytes) || hello->ring_bytes > max_ring_bytes)
        return bw_fail(error_p, BW_REFUSED, "the visitor's ring size is not acceptable", 0);
    seals = fcntl(fds[FD_MEMORY], F_GET_SEALS);
    if (seals < 0 || (seals & SEGMENT_SEALS) != SEGMENT_SEALS ||
        fstat(fds[FD_MEMORY], &memory) < 0 ||
        memory.st_size != (off_t)segment_bytes(hello->ring_bytes))
        return bw_fail(error_p, BW_REFUSED,
                       "the visitor's memory is not sealed or has a wrong size", 0);
    if (!is_bell(fds[FD_JOINER_BELL]) || !is_bell(fds[FD_DOOR_BELL]))
        return bw_fail(error_p, BW_REFUSED, "the visitor's doorbells are no eventfds", 0);
    return BW_OK;
}

static bw_status_t admit(int visit, const bw_shm_door_t *door, uint64_t max_ring_bytes,
                         bw_link_t **link_p, bw_error_t *error_p)
{
    int fds[FD_COUNT] = {-1, -1, -1};
    shm_link_t *shm = NULL;
    bw_status_t status;
    hello_t hello;

    if (!same_user(visit))
        return bw_fail(error_p, BW_REFUSED, "the visitor runs as another user", EPERM);
    if (!receive_hello(visit, &hello, fds))
        status = bw_fail(error_p, BW_REFUSED,
                         "the visitor's message is not whole (descriptor limit, ulimit -n?)", 0);
    else
        status = check_hello(&hello, fds, door, max_ring_bytes, error_p);
    if (status == BW_OK)
        status = make_link(fds[FD_MEMORY], hello.ring_bytes, 1, fds[FD_DOOR_BELL],
                           fds[FD_JOINER_BELL], &shm, error_p);
    if (status != BW_OK) {
        close_all(fds, FD_COUNT);
        return status;
    }
    close(fds[FD_MEMORY]);
    *link_p = &shm->link;
    return BW_OK;
}

bw_status_t bw_shm_accept(bw_shm_door_t *door, uint64_t max_ring_bytes, bw_link_t **link_p,
                          bw_error_t *error_p)
{
    bw_status_t status = bw_fail(error_p, BW_REFUSED, "nobody came to the unix socket", 0);

    for (int visitors = 0; visitors < VISITORS_MAX; visitors++) {
        int visit = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (visit < 0 && errno == EINTR)
            continue;
        if (visit < 0 && errno == EAGAIN)
            return status;
        if (visit < 0)
            return bw_fail(error_p, errno == EMFILE || errno == ENFILE ? BW_LIMIT : BW_SYSTEM,
                           "accept on the unix socket", errno);
        status = admit(visit, door, max_ring_bytes, link_p, error_p);
        close(visit);
        if (status == BW_OK) {
            *error_p = (bw_error_t){0};
            return BW_OK;
        }
    }
    return status;
}
