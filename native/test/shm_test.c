/* SPDX-License-Identifier: Apache-2.0
 *
 * How two ends meet over the shm carrier, and every visitor that must be turned away. After each
 * case the process holds as many descriptors and mappings as before: rogue visitors cost nothing.
 */
#define _GNU_SOURCE
#include "check.h"
#include "rings.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sched.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define RING BW_RING_MIN_BYTES
#define PAGE 65536u /* the segment's first page holds the ring headers */
#define NOBODY 65534

/* The message of a visitor, as it stands on the wire. */
typedef struct {
    uint8_t token[BW_SHM_TOKEN_BYTES];
    uint32_t version, reserved;
    uint64_t ring_bytes;
} hello_t;

/* ---- helpers ---- */

/* Runs a case in a process of its own, for what cannot be undone: limits, users, filters. */
static void in_child(void (*run)(void))
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
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) != 1);
    if (WEXITSTATUS(status) == 2)
        SKIP("not possible here (see above)");
}

static int memory_of(uint64_t bytes, int seals)
{
    int fd = memfd_create("rogue", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd >= 0 && (ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, seals) < 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int knock_at(const bw_shm_door_t *door)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(un.sun_path, door->address, door->address_len);
    if (fd >= 0 &&
        connect(fd, (struct sockaddr *)&un,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + door->address_len)) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Sends `len` bytes and `count` descriptors to the door and goes away. */
static bool visit(const bw_shm_door_t *door, const void *bytes, size_t len, const int *fds,
                  size_t count)
{
    union {
        char bytes[CMSG_SPACE(256 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    int fd = knock_at(door);
    bool sent;

    if (fd < 0)
        return false;
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
    sent = sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)len;
    close(fd);
    return sent;
}

static bool says(const bw_error_t *error, const char *words)
{
    if (error->step && strstr(error->step, words))
        return true;
    printf("    the reason is \"%s\", expected \"...%s...\"\n",
           error->step ? error->step : "(none)", words);
    return false;
}

static bool has_bytes_to_read(bw_link_t *link, const char *bytes)
{
    bw_span_t span = {0};

    return link->ops->peek(link, &span) == BW_OK && span.len == strlen(bytes) &&
           memcmp(span.base, bytes, span.len) == 0;
}

static bool write_text(bw_link_t *link, const char *bytes)
{
    bw_span_t span = {0};

    if (link->ops->reserve(link, strlen(bytes), &span) != BW_OK || span.len < strlen(bytes))
        return false;
    memcpy(span.base, bytes, strlen(bytes));
    link->ops->commit(link, strlen(bytes));
    return true;
}

/* ---- meeting ---- */

static void both_ends_carry_bytes(void)
{
    int before = open_descriptors();
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_link_stats_t stats;
    bw_error_t error = {0};

    CHECK(open_link(RING, &joined, &accepted, &error));
    CHECK(carrier_mappings(NULL) > 0);
    CHECK_EQ(open_descriptors(), before + 4); /* two doorbells an end */
    CHECK_EQ(strcmp(joined->ops->kind, "shm"), 0);
    CHECK(write_text(joined, "there"));
    CHECK(write_text(accepted, "and back"));
    CHECK(has_bytes_to_read(accepted, "there"));
    CHECK(has_bytes_to_read(joined, "and back"));
    joined->ops->release(joined, 3);
    CHECK(has_bytes_to_read(joined, " back"));
    joined->ops->stats(joined, &stats);
    CHECK_EQ(stats.bytes_out, 5);
    CHECK_EQ(stats.bytes_in, 3);
    CHECK_EQ(stats.fill_in, 5);
    CHECK_EQ(stats.fill_out, 5);
    CHECK_EQ(stats.ring_bytes, RING);
    joined->ops->close(joined, NULL);
    CHECK(has_bytes_to_read(accepted, "there")); /* last words stay readable */
    accepted->ops->close(accepted, NULL);
    CHECK_EQ(carrier_mappings(NULL), 0);
    CHECK_EQ(open_descriptors(), before);
}

/* The polled descriptor outlives the link if the caller asks for it. */
static void close_hands_over_the_descriptor(void)
{
    int before = open_descriptors(), fd = -1;
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};

    CHECK(open_link(RING, &joined, &accepted, &error));
    CHECK(joined->ops->fd(joined) >= 0);
    joined->ops->close(joined, &fd);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) >= 0);
    CHECK_EQ(close(fd), 0);
    accepted->ops->close(accepted, NULL);
    CHECK_EQ(open_descriptors(), before);
}

static void descriptors_are_not_inherited(void)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_shm_door_t door = {.fd = -1};
    bw_error_t error = {0};

    CHECK(open_link(RING, &joined, &accepted, &error));
    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    for (int fd = 3; fd < 64; fd++) {
        char path[32], target[64] = {0};

        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) > 0 &&
            (strstr(target, "eventfd") || strstr(target, "memfd") || strstr(target, "socket")))
            CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    }
    bw_shm_door_close(&door);
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

static void doors_differ(void)
{
    bw_shm_door_t first = {.fd = -1}, second = {.fd = -1};
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_door_open(NULL, &first, &error), BW_OK);
    CHECK_EQ(bw_shm_door_open(NULL, &second, &error), BW_OK);
    CHECK(first.address_len > 8 && first.address[0] == 0);
    CHECK(first.address_len != second.address_len ||
          memcmp(first.address, second.address, first.address_len) != 0);
    CHECK(memcmp(first.token, second.token, sizeof first.token) != 0);
    bw_shm_door_close(&first);
    CHECK_EQ(first.fd, -1);
    bw_shm_door_close(&first); /* safe on a closed one */
    bw_shm_door_close(&second);
}

static void nobody_came(void)
{
    bw_shm_door_t door = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    CHECK_EQ(bw_shm_accept(&door, RING, &link, &error), BW_REFUSED);
    CHECK(says(&error, "nobody"));
    CHECK(link == NULL);
    bw_shm_door_close(&door);
}

/* Two who join one door are two links. */
static void two_links_do_not_mix(void)
{
    int before = open_descriptors();
    bw_link_t *joined[2] = {0}, *accepted[2] = {0};
    bw_shm_door_t door = {.fd = -1};
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(bw_shm_join(door.address, door.address_len, door.token, RING, &joined[i], &error),
                 BW_OK);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(bw_shm_accept(&door, RING, &accepted[i], &error), BW_OK);
    CHECK(write_text(joined[0], "zero"));
    CHECK(write_text(joined[1], "one"));
    CHECK(has_bytes_to_read(accepted[0], "zero"));
    CHECK(has_bytes_to_read(accepted[1], "one"));
    for (int i = 0; i < 2; i++) {
        joined[i]->ops->close(joined[i], NULL);
        accepted[i]->ops->close(accepted[i], NULL);
    }
    bw_shm_door_close(&door);
    CHECK_EQ(open_descriptors(), before);
}

/* ---- who joins badly ---- */

static void join_arguments(void)
{
    static const uint64_t sizes[] = {0,
                                     1,
                                     RING - 1,
                                     RING + 1,
                                     3 * RING,
                                     2 * BW_RING_MAX_BYTES,
                                     UINT64_MAX,
                                     (uint64_t)-1,
                                     1000000000000ull};
    int before = open_descriptors();
    bw_shm_door_t door = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_EQ(bw_shm_join(door.address, door.address_len, door.token, sizes[i], &link, &error),
                 BW_INVALID);
    CHECK_EQ(bw_shm_join(door.address, 0, door.token, RING, &link, &error), BW_INVALID);
    CHECK_EQ(bw_shm_join(door.address, BW_SHM_ADDRESS_MAX + 1, door.token, RING, &link, &error),
             BW_INVALID);
    CHECK_EQ(bw_shm_join(door.address, SIZE_MAX, door.token, RING, &link, &error), BW_INVALID);
    CHECK(link == NULL);
    bw_shm_door_close(&door);
    CHECK_EQ(open_descriptors(), before);
}

/* Addresses from an offer may hold anything. */
static void join_where_nobody_listens(void)
{
    int before = open_descriptors();
    uint8_t token[BW_SHM_TOKEN_BYTES] = {0}, address[BW_SHM_ADDRESS_MAX];
    bw_shm_door_t door = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    memcpy(address, door.address, door.address_len);
    CHECK_EQ(bw_shm_join(address, door.address_len - 1, token, RING, &link, &error), BW_REFUSED);
    bw_shm_door_close(&door);
    CHECK_EQ(bw_shm_join(address, door.address_len, token, RING, &link, &error), BW_REFUSED);
    CHECK(says(&error, "connecting"));
    CHECK_EQ(error.sys_errno, ECONNREFUSED);
    for (size_t len = 1; len <= BW_SHM_ADDRESS_MAX; len++) {
        memset(address, 0, sizeof address);
        CHECK_EQ(bw_shm_join(address, len, token, RING, &link, &error), BW_REFUSED);
        memset(address, 'x', sizeof address);
        CHECK_EQ(bw_shm_join(address, len, token, RING, &link, &error), BW_REFUSED);
    }
    memcpy(address, "/dev/null", 9);
    CHECK_EQ(bw_shm_join(address, 9, token, RING, &link, &error), BW_REFUSED);
    CHECK(link == NULL);
    CHECK_EQ(open_descriptors(), before);
}

/* ---- rogue visitors ---- */

enum { MEMORY, BELL, OTHER_BELL };

/* How one visitor differs from a good one. Numbers are added to or taken instead of the good ones.
 */
typedef struct {
    const char *name;
    const char *reason; /* words of the error */
    int token_bit;      /* flipped, if not 0 */
    uint32_t version;
    uint64_t ring_bytes, memory_bytes;
    int seals;
    int len;      /* bytes of the message, if not 0 */
    int fd_count; /* descriptors, if not 0; -1: none */
    int replace;  /* MEMORY, BELL or OTHER_BELL is replaced by ... */
    int (*with)(void);
    bw_status_t status; /* if not BW_REFUSED */
} rogue_t;

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int blocking_bell(void)
{
    return eventfd(0, EFD_CLOEXEC);
}

static int good_bell(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static int pipe_end(void)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return -1;
    close(ends[0]);
    return ends[1];
}

static int plain_file(void)
{
    FILE *file = tmpfile();
    int fd = file ? fcntl(fileno(file), F_DUPFD_CLOEXEC, 0) : -1;

    if (file)
        fclose(file);
    if (fd >= 0 && ftruncate(fd, PAGE + 2 * (off_t)RING) < 0)
        return -1;
    return fd;
}

static int directory(void)
{
    return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int path_only(void)
{
    return open("/", O_PATH | O_CLOEXEC);
}

static int read_only_memory(void)
{
    char path[32];
    int fd = memory_of(PAGE + 2 * RING, ALL_SEALS), again;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    again = open(path, O_RDONLY | O_CLOEXEC);
    close(fd);
    return again;
}

static int blocking_memory(void)
{
    return memory_of(PAGE + 2 * RING, ALL_SEALS);
}

static const rogue_t rogues[] = {
    {.name = "first token bit", .reason = "token", .token_bit = 1},
    {.name = "last token bit", .reason = "token", .token_bit = 128},
    {.name = "version 0", .reason = "version", .version = UINT32_MAX},
    {.name = "version 2", .reason = "version", .version = 2},
    {.name = "ring of 0 bytes", .reason = "ring size", .ring_bytes = UINT64_MAX},
    {.name = "ring of 1 byte", .reason = "ring size", .ring_bytes = 1},
    {.name = "ring not a power of two", .reason = "ring size", .ring_bytes = RING + 4096},
    {.name = "ring above our limit",
     .reason = "ring size",
     .ring_bytes = 4 * RING,
     .memory_bytes = PAGE + 8 * RING},
    {.name = "ring of 2^63 bytes", .reason = "ring size", .ring_bytes = 1ull << 63},
    {.name = "memory too small", .reason = "wrong size", .memory_bytes = PAGE + 2 * RING - 1},
    {.name = "memory of a page", .reason = "wrong size", .memory_bytes = 4096},
    {.name = "memory too large", .reason = "wrong size", .memory_bytes = PAGE + 2 * RING + 1},
    {.name = "ring larger than the memory", .reason = "wrong size", .ring_bytes = 2 * RING},
    {.name = "no seals", .reason = "sealed", .seals = -1},
    {.name = "may shrink", .reason = "sealed", .seals = F_SEAL_GROW | F_SEAL_SEAL},
    {.name = "may grow", .reason = "sealed", .seals = F_SEAL_SHRINK | F_SEAL_SEAL},
    {.name = "seals not sealed", .reason = "sealed", .seals = F_SEAL_SHRINK | F_SEAL_GROW},
    {.name = "sealed against writing",
     .reason = "mmap",
     .seals = ALL_SEALS | F_SEAL_WRITE,
     .status = BW_SYSTEM},
    {.name = "memory is a file", .reason = "sealed", .replace = MEMORY + 1, .with = plain_file},
    {.name = "memory is a pipe", .reason = "sealed", .replace = MEMORY + 1, .with = pipe_end},
    {.name = "memory is a doorbell", .reason = "sealed", .replace = MEMORY + 1, .with = good_bell},
    {.name = "memory is a directory", .reason = "sealed", .replace = MEMORY + 1, .with = directory},
    {.name = "memory is a path", .reason = "sealed", .replace = MEMORY + 1, .with = path_only},
    {.name = "memory is read-only",
     .reason = "mmap",
     .replace = MEMORY + 1,
     .with = read_only_memory,
     .status = BW_SYSTEM},
    {.name = "bell blocks", .reason = "eventfd", .replace = BELL + 1, .with = blocking_bell},
    {.name = "other bell blocks",
     .reason = "eventfd",
     .replace = OTHER_BELL + 1,
     .with = blocking_bell},
    {.name = "bell is a pipe", .reason = "eventfd", .replace = BELL + 1, .with = pipe_end},
    {.name = "other bell is a pipe",
     .reason = "eventfd",
     .replace = OTHER_BELL + 1,
     .with = pipe_end},
    {.name = "bell is memory", .reason = "eventfd", .replace = BELL + 1, .with = blocking_memory},
    {.name = "bell is a path", .reason = "eventfd", .replace = BELL + 1, .with = path_only},
    {.name = "message of 1 byte", .reason = "not whole", .len = 1},
    {.name = "message a byte short", .reason = "not whole", .len = sizeof(hello_t) - 1},
    {.name = "message a byte long", .reason = "not whole", .len = sizeof(hello_t) + 1},
    {.name = "message of 4 KB", .reason = "not whole", .len = 4096},
    {.name = "no descriptors", .reason = "not whole", .fd_count = -1},
    {.name = "1 descriptor", .reason = "not whole", .fd_count = 1},
    {.name = "2 descriptors", .reason = "not whole", .fd_count = 2},
    {.name = "4 descriptors", .reason = "not whole", .fd_count = 4},
    {.name = "5 descriptors", .reason = "not whole", .fd_count = 5},
    {.name = "253 descriptors", .reason = "not whole", .fd_count = 253},
};

#define ROGUES (sizeof rogues / sizeof *rogues)

static bool send_rogue(const bw_shm_door_t *door, const rogue_t *rogue)
{
    struct {
        hello_t hello;
        uint8_t more[8192];
    } message = {.hello = {.version = 1, .ring_bytes = RING}};
    uint64_t memory_bytes = rogue->memory_bytes ? rogue->memory_bytes : PAGE + 2 * RING;
    int seals = rogue->seals == 0 ? ALL_SEALS : rogue->seals == -1 ? 0 : rogue->seals;
    int fds[256] = {memory_of(memory_bytes, seals), good_bell(), good_bell()};
    size_t len = rogue->len ? (size_t)rogue->len : sizeof(hello_t);
    size_t count = rogue->fd_count == 0 ? 3 : rogue->fd_count < 0 ? 0 : (size_t)rogue->fd_count;
    bool sent;

    memcpy(message.hello.token, door->token, sizeof door->token);
    if (rogue->token_bit)
        message.hello.token[(rogue->token_bit - 1) / 8] ^=
            (uint8_t)(1 << ((rogue->token_bit - 1) % 8));
    if (rogue->version)
        message.hello.version = rogue->version == UINT32_MAX ? 0 : rogue->version;
    if (rogue->ring_bytes)
        message.hello.ring_bytes = rogue->ring_bytes == UINT64_MAX ? 0 : rogue->ring_bytes;
    if (rogue->replace) {
        close(fds[rogue->replace - 1]);
        fds[rogue->replace - 1] = rogue->with();
    }
    for (size_t i = 3; i < 256; i++)
        fds[i] = fds[1];
    sent = fds[0] >= 0 && fds[1] >= 0 && fds[2] >= 0 && visit(door, &message, len, fds, count);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    return sent;
}

/* Each alone; a link that was none is no link, and nothing is left. */
static void rogue_visitors_are_turned_away(void)
{
    bw_shm_door_t door = {.fd = -1};
    bw_error_t error = {0};
    int before, bad = 0;

    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    before = open_descriptors();
    for (size_t i = 0; i < ROGUES; i++) {
        bw_link_t *link = NULL;
        bw_status_t wanted = rogues[i].status ? rogues[i].status : BW_REFUSED, status;
        int left;

        error = (bw_error_t){0};
        CHECK(send_rogue(&door, &rogues[i]));
        status = bw_shm_accept(&door, 2 * RING, &link, &error);
        if (status == BW_OK)
            link->ops->close(link, NULL);
        left = open_descriptors() - before;
        if (status == wanted && says(&error, rogues[i].reason) && left == 0 &&
            carrier_mappings(NULL) == 0)
            continue;
        bad++;
        printf("    visitor \"%s\": status %d, %d descriptors left\n", rogues[i].name, (int)status,
               left);
        before += left;
    }
    CHECK_EQ(bad, 0);
    bw_shm_door_close(&door);
}

/* The visitor's version of the table is right: with nothing changed it comes in. */
static void a_good_visitor_comes_in(void)
{
    static const rogue_t good = {.name = "good"};
    bw_shm_door_t door = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    CHECK(send_rogue(&door, &good));
    CHECK_EQ(bw_shm_accept(&door, RING, &link, &error), BW_OK);
    link->ops->close(link, NULL);
    bw_shm_door_close(&door);
}

/* Visitors who wait at the door before the right one do not keep it out. */
static void rogues_do_not_keep_the_peer_out(void)
{
    bw_shm_door_t door = {.fd = -1};
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};
    int before = open_descriptors(), silent;

    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    silent = knock_at(&door); /* comes and says nothing */
    CHECK(silent >= 0);
    for (size_t i = 0; i < 10; i++)
        CHECK(send_rogue(&door, &rogues[i]));
    CHECK_EQ(bw_shm_join(door.address, door.address_len, door.token, RING, &joined, &error), BW_OK);
    CHECK_EQ(bw_shm_accept(&door, RING, &accepted, &error), BW_OK);
    CHECK(write_text(joined, "good"));
    CHECK(has_bytes_to_read(accepted, "good"));
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
    close(silent);
    bw_shm_door_close(&door);
    CHECK_EQ(open_descriptors(), before);
}

/* A joiner that is killed before the door is looked at has left its link there, or nothing. */
static void joiner_dies_at_the_door(void)
{
    bw_shm_door_t door = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    int before = open_descriptors(), status;
    pid_t pid;

    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (bw_shm_join(door.address, door.address_len, door.token, RING, &link, &error) != BW_OK ||
            !write_text(link, "last words"))
            _exit(1);
        raise(SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(bw_shm_accept(&door, RING, &link, &error), BW_OK);
    CHECK(has_bytes_to_read(link, "last words"));
    CHECK(write_text(link, "to nobody"));
    link->ops->close(link, NULL);
    bw_shm_door_close(&door);
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

/* The name goes with the process that held it. */
static void killed_door_leaves_no_name(void)
{
    bw_shm_door_t door = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    int status, ends[2];
    pid_t pid;

    CHECK_EQ(pipe(ends), 0);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (bw_shm_door_open(NULL, &door, &error) != BW_OK ||
            write(ends[1], &door, sizeof door) != sizeof door)
            _exit(1);
        raise(SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(read(ends[0], &door, sizeof door), sizeof door);
    CHECK_EQ(bw_shm_join(door.address, door.address_len, door.token, RING, &link, &error),
             BW_REFUSED);
    CHECK_EQ(error.sys_errno, ECONNREFUSED);
    close(ends[0]);
    close(ends[1]);
}

/* ---- other users ---- */

static bw_shm_door_t shared_door;

static void join_as_nobody(void)
{
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
    CHECK_EQ(bw_shm_join(shared_door.address, shared_door.address_len, shared_door.token, RING,
                         &link, &error),
             BW_REFUSED);
    CHECK(says(&error, "another user"));
}

static void visit_as_nobody(void)
{
    static const rogue_t good = {.name = "good"};

    CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
    CHECK(send_rogue(&shared_door, &good));
}

/* A visitor with the right token, memory and bells, but of another user; and a door of another. */
static void another_user_is_refused(void)
{
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    int before = open_descriptors();

    if (geteuid() != 0)
        SKIP("needs root, to become another user");
    CHECK_EQ(bw_shm_door_open(NULL, &shared_door, &error), BW_OK);
    CHECK_IN(in_child(join_as_nobody));
    CHECK_EQ(bw_shm_accept(&shared_door, RING, &link, &error), BW_REFUSED);
    CHECK_IN(in_child(visit_as_nobody));
    CHECK_EQ(bw_shm_accept(&shared_door, RING, &link, &error), BW_REFUSED);
    CHECK(says(&error, "another user"));
    CHECK(link == NULL);
    bw_shm_door_close(&shared_door);
    CHECK_EQ(open_descriptors(), before);
}

/* ---- doors in a directory ---- */

static void door_in_a_directory(void)
{
    char dir[] = "/tmp/beamway-test-XXXXXX", path[BW_SHM_ADDRESS_MAX + 1] = {0};
    bw_shm_door_t door = {.fd = -1};
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};
    struct stat status;

    CHECK(mkdtemp(dir) != NULL);
    CHECK_EQ(bw_shm_door_open(dir, &door, &error), BW_OK);
    memcpy(path, door.address, door.address_len);
    CHECK_EQ(strncmp(path, dir, strlen(dir)), 0);
    CHECK_EQ(stat(path, &status), 0);
    CHECK_EQ(status.st_mode, S_IFSOCK | 0600); /* whatever the umask */
    CHECK_EQ(bw_shm_join(door.address, door.address_len, door.token, RING, &joined, &error), BW_OK);
    CHECK_EQ(bw_shm_accept(&door, RING, &accepted, &error), BW_OK);
    bw_shm_door_close(&door);
    CHECK_EQ(stat(path, &status), -1);
    CHECK_EQ(rmdir(dir), 0);
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

static void doors_in_bad_directories(void)
{
    char dir[200];
    int before = open_descriptors();

    for (size_t len = 1; len < sizeof dir; len++) {
        bw_shm_door_t door = {.fd = -1};
        bw_error_t error = {0};
        bw_status_t status;

        memset(dir, 'n', len); /* no such directory, at every length about the limit */
        dir[len] = 0;
        status = bw_shm_door_open(dir, &door, &error);
        CHECK(status == BW_SYSTEM || status == BW_INVALID);
        CHECK(says(&error, status == BW_SYSTEM ? "socket_dir" : "too long"));
        CHECK_EQ(status == BW_INVALID, len + strlen("/beamway-0123456789abcdef") >= 108);
        CHECK_EQ(door.fd, -1);
    }
    CHECK_EQ(open_descriptors(), before);
}

static char shared_dir[] = "/tmp/beamway-test-XXXXXX";

static void open_door_there(bw_status_t wanted, const char *words)
{
    bw_shm_door_t door = {.fd = -1};
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_door_open(shared_dir, &door, &error), wanted);
    CHECK(wanted == BW_OK || says(&error, words));
    CHECK_EQ(door.fd >= 0, wanted == BW_OK);
    bw_shm_door_close(&door);
}

static void as_nobody(bw_status_t wanted, const char *words)
{
    CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
    CHECK_IN(open_door_there(wanted, words));
}

static void in_a_strangers_open_directory(void)
{
    as_nobody(BW_REFUSED, "all may write");
}

static void in_a_sticky_directory(void)
{
    as_nobody(BW_OK, "");
}

static void in_a_closed_directory(void)
{
    as_nobody(BW_SYSTEM, "making a socket in socket_dir");
}

/* Who may take the socket's name away decides whether there is a link, so it must not be anybody.
 */
static void doors_in_directories_of_others(void)
{
    if (geteuid() != 0)
        SKIP("needs root, to become another user");
    strcpy(strrchr(shared_dir, '-'), "-XXXXXX");
    CHECK(mkdtemp(shared_dir) != NULL);
    CHECK_EQ(chmod(shared_dir, 0777), 0);
    CHECK_IN(in_child(in_a_strangers_open_directory));
    CHECK_IN(open_door_there(BW_OK, "")); /* our own choice */
    CHECK_EQ(chmod(shared_dir, 01777), 0);
    CHECK_IN(in_child(in_a_sticky_directory));
    CHECK_EQ(chmod(shared_dir, 0755), 0);
    CHECK_IN(in_child(in_a_closed_directory));
    CHECK_EQ(rmdir(shared_dir), 0);
    CHECK_IN(open_door_there(BW_SYSTEM, "socket_dir"));
}

/* ---- user namespaces ---- */

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0)
        close(fd);
    return written;
}

/* In a user namespace that knows one user: as that user a link is made, unless it is the number
 * by which the kernel shows all whom the namespace does not know. */
static void link_in_a_namespace_as(const char *map, bw_status_t wanted)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_shm_door_t door = {.fd = -1};
    bw_error_t error = {0};

    if (unshare(CLONE_NEWUSER) < 0)
        SKIP("user namespaces cannot be made here");
    CHECK(write_file("/proc/self/uid_map", map));
    CHECK_EQ(bw_shm_door_open(NULL, &door, &error), BW_OK);
    CHECK_EQ(bw_shm_join(door.address, door.address_len, door.token, RING, &joined, &error),
             wanted);
    if (wanted == BW_OK)
        CHECK_EQ(bw_shm_accept(&door, RING, &accepted, &error), BW_OK);
    else
        CHECK(says(&error, "another user"));
}

static void as_user_1000(void)
{
    link_in_a_namespace_as(geteuid() == 0 ? "1000 0 1" : "1000 1000 1", BW_OK);
}

static void as_the_unknown_user(void)
{
    link_in_a_namespace_as(geteuid() == 0 ? "65534 0 1" : "65534 1000 1", BW_REFUSED);
}

static void the_unknown_user_is_nobody_in_particular(void)
{
    if (geteuid() != 0 && geteuid() != 1000)
        SKIP("needs root, or user 1000");
    CHECK_IN(in_child(as_user_1000));
    CHECK_IN(in_child(as_the_unknown_user));
}

/* ---- limits of the process ---- */

static void limit(int resource, rlim_t value)
{
    struct rlimit now;

    CHECK_EQ(getrlimit(resource, &now), 0);
    now.rlim_cur = value;
    CHECK_EQ(setrlimit(resource, &now), 0);
}

/* A link between two ends of this process; says how the first failing step ended. */
static bw_status_t try_link(bw_error_t *error_p)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_shm_door_t door = {.fd = -1};
    bw_status_t status = bw_shm_door_open(NULL, &door, error_p);

    if (status == BW_OK)
        status = bw_shm_join(door.address, door.address_len, door.token, RING, &joined, error_p);
    if (status == BW_OK)
        status = bw_shm_accept(&door, RING, &accepted, error_p);
    if (joined)
        joined->ops->close(joined, NULL);
    if (accepted)
        accepted->ops->close(accepted, NULL);
    bw_shm_door_close(&door);
    return status;
}

static void with_small_files(void)
{
    bw_error_t error = {0};

    CHECK_IN(limit(RLIMIT_FSIZE, PAGE + 2 * RING - 1));
    CHECK_EQ(try_link(&error), BW_LIMIT);
    CHECK(says(&error, "ulimit -f"));
    CHECK_IN(limit(RLIMIT_FSIZE, 0));
    CHECK_EQ(try_link(&error), BW_LIMIT);
    CHECK_IN(limit(RLIMIT_FSIZE, PAGE + 2 * RING));
    CHECK_EQ(try_link(&error), BW_OK);
}

/* Every number of descriptors from none on: each failure is told as one and leaves nothing. */
static void with_few_descriptors(void)
{
    int before = open_descriptors(), failed = 0;
    bw_status_t status = BW_LIMIT;

    for (int more = 0; more < 20 && status != BW_OK; more++) {
        bw_error_t error = {0};

        CHECK_IN(limit(RLIMIT_NOFILE, (rlim_t)(before + more)));
        status = try_link(&error);
        CHECK(status == BW_OK || error.step != NULL);
        if (status != BW_OK && status != BW_LIMIT)
            CHECK(status == BW_REFUSED && says(&error, "ulimit -n"));
        failed += status != BW_OK;
        CHECK_IN(limit(RLIMIT_NOFILE, 256));
        CHECK_EQ(open_descriptors(), before);
        CHECK_EQ(carrier_mappings(NULL), 0);
    }
    CHECK_EQ(status, BW_OK);
    CHECK(failed >= 5); /* as many as a side needs at once */
}

static void with_little_address_space(void)
{
    bw_error_t error = {0};
    bw_link_t *joined = NULL, *accepted = NULL;
    int before = open_descriptors();

#ifdef __SANITIZE_ADDRESS__
    SKIP("the address sanitizer reserves the address space");
#endif
    CHECK_IN(limit(RLIMIT_AS, 64u << 20));
    CHECK(!open_link(BW_RING_MAX_BYTES / 8, &joined, &accepted, &error));
    CHECK(says(&error, "mmap"));
    CHECK_EQ(error.sys_errno, ENOMEM);
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(carrier_mappings(NULL), 0);
    CHECK_EQ(try_link(&error), BW_OK);
}

/* As on a kernel, or under a container's filter, that has no memfd_create. */
static void without_memfd(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    int before = open_descriptors();
    bw_error_t error = {0};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        SKIP("no seccomp here");
    CHECK_EQ(try_link(&error), BW_SYSTEM);
    CHECK(says(&error, "memfd_create"));
    CHECK_EQ(error.sys_errno, ENOSYS);
    CHECK_EQ(open_descriptors(), before);
}

static void small_files(void)
{
    in_child(with_small_files);
}

static void few_descriptors(void)
{
    in_child(with_few_descriptors);
}

static void little_address_space(void)
{
    in_child(with_little_address_space);
}

static void no_memfd(void)
{
    in_child(without_memfd);
}

static const check_case_t cases[] = {
    {"both_ends_carry_bytes", both_ends_carry_bytes},
    {"close_hands_over_the_descriptor", close_hands_over_the_descriptor},
    {"descriptors_are_not_inherited", descriptors_are_not_inherited},
    {"doors_differ", doors_differ},
    {"nobody_came", nobody_came},
    {"two_links_do_not_mix", two_links_do_not_mix},
    {"join_arguments", join_arguments},
    {"join_where_nobody_listens", join_where_nobody_listens},
    {"a_good_visitor_comes_in", a_good_visitor_comes_in},
    {"rogue_visitors_are_turned_away", rogue_visitors_are_turned_away},
    {"rogues_do_not_keep_the_peer_out", rogues_do_not_keep_the_peer_out},
    {"joiner_dies_at_the_door", joiner_dies_at_the_door},
    {"killed_door_leaves_no_name", killed_door_leaves_no_name},
    {"another_user_is_refused", another_user_is_refused},
    {"door_in_a_directory", door_in_a_directory},
    {"doors_in_bad_directories", doors_in_bad_directories},
    {"doors_in_directories_of_others", doors_in_directories_of_others},
    {"the_unknown_user_is_nobody_in_particular", the_unknown_user_is_nobody_in_particular},
    {"small_files", small_files},
    {"few_descriptors", few_descriptors},
    {"little_address_space", little_address_space},
    {"no_memfd", no_memfd},
};

CHECK_MAIN(cases)
