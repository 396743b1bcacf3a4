/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests every kind of peer that a listener must reject, other users, and directories of other
 * users. A rogue peer must not leak anything: after each of them, the process must have as many
 * descriptors and mappings as before.
 */
#include "../peers.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#define NOBODY 65534

/* ---- rogue peers ---- */

enum { MEMORY, EVENT, OTHER_EVENT };

/* How a peer deviates from a correct one. The numbers are added to the correct ones or replace
 * them. */
typedef struct {
    const char *name;
    const char *reason; /* part of the error's text */
    int token_bit;      /* bit to flip, if not 0 */
    uint32_t version;
    uint64_t ring_bytes, memory_bytes;
    int seals;
    int len;      /* length of the message, if not 0 */
    int fd_count; /* number of descriptors to send; 0 means the usual number, -1 none */
    int replace;  /* which of MEMORY, EVENT or OTHER_EVENT is replaced by ... */
    int (*with)(void);
    bw_status_t status; /* expected status, if not BW_REFUSED */
} rogue_t;

#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int blocking_event(void)
{
    return eventfd(0, EFD_CLOEXEC);
}

static int good_event(void)
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
    {.name = "memory is an eventfd", .reason = "sealed", .replace = MEMORY + 1, .with = good_event},
    {.name = "memory is a directory", .reason = "sealed", .replace = MEMORY + 1, .with = directory},
    {.name = "memory is a path", .reason = "sealed", .replace = MEMORY + 1, .with = path_only},
    {.name = "memory is read-only",
     .reason = "mmap",
     .replace = MEMORY + 1,
     .with = read_only_memory,
     .status = BW_SYSTEM},
    {.name = "event blocks", .reason = "eventfd", .replace = EVENT + 1, .with = blocking_event},
    {.name = "other event blocks",
     .reason = "eventfd",
     .replace = OTHER_EVENT + 1,
     .with = blocking_event},
    {.name = "event is a pipe", .reason = "eventfd", .replace = EVENT + 1, .with = pipe_end},
    {.name = "other event is a pipe",
     .reason = "eventfd",
     .replace = OTHER_EVENT + 1,
     .with = pipe_end},
    {.name = "event is memory", .reason = "eventfd", .replace = EVENT + 1, .with = blocking_memory},
    {.name = "event is a path", .reason = "eventfd", .replace = EVENT + 1, .with = path_only},
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

static bool send_rogue(const bw_shm_listener_t *listener, const rogue_t *rogue)
{
    struct {
        hello_t hello;
        uint8_t more[8192];
    } message = {.hello = {.version = 1, .ring_bytes = RING}};
    uint64_t memory_bytes = rogue->memory_bytes ? rogue->memory_bytes : PAGE + 2 * RING;
    int seals = rogue->seals == 0 ? ALL_SEALS : rogue->seals == -1 ? 0 : rogue->seals;
    int fds[256] = {memory_of(memory_bytes, seals), good_event(), good_event()};
    size_t len = rogue->len ? (size_t)rogue->len : sizeof(hello_t);
    size_t count = rogue->fd_count == 0 ? 3 : rogue->fd_count < 0 ? 0 : (size_t)rogue->fd_count;
    bool sent;

    memcpy(message.hello.token, listener->token, sizeof listener->token);
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
    sent = fds[0] >= 0 && fds[1] >= 0 && fds[2] >= 0 &&
           send_as_peer(listener, &message, len, fds, count);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    return sent;
}

/* Each rogue peer connects alone; no link may be established, and nothing may be leaked. */
static void rogue_peers_are_turned_away(void)
{
    bw_shm_listener_t listener = {.fd = -1};
    bw_error_t error = {0};
    int before, bad = 0;

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    before = open_descriptors();
    for (size_t i = 0; i < ROGUES; i++) {
        bw_link_t *link = NULL;
        bw_status_t wanted = rogues[i].status ? rogues[i].status : BW_REFUSED, status;
        int left;

        error = (bw_error_t){0};
        CHECK(send_rogue(&listener, &rogues[i]));
        status = bw_shm_accept(&listener, 2 * RING, &link, &error);
        if (status == BW_OK)
            link->ops->close(link, NULL);
        left = open_descriptors() - before;
        if (status == wanted && says(&error, rogues[i].reason) && left == 0 &&
            carrier_mappings(NULL) == 0)
            continue;
        bad++;
        printf("    peer \"%s\": status %d, %d descriptors left\n", rogues[i].name, (int)status,
               left);
        before += left;
    }
    CHECK_EQ(bad, 0);
    bw_shm_listener_close(&listener);
}

/* An unmodified peer is accepted, which shows that the table's model of a peer is correct. */
static void a_good_peer_comes_in(void)
{
    static const rogue_t good = {.name = "good"};
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    CHECK(send_rogue(&listener, &good));
    CHECK_EQ(bw_shm_accept(&listener, RING, &link, &error), BW_OK);
    link->ops->close(link, NULL);
    bw_shm_listener_close(&listener);
}

/* Rogue peers that are queued at the listener before a valid one do not keep it out. */
static void rogues_do_not_keep_the_peer_out(void)
{
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};
    int before = open_descriptors(), silent;

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    silent = connect_to(&listener); /* connects but sends nothing */
    CHECK(silent >= 0);
    for (size_t i = 0; i < 10; i++)
        CHECK(send_rogue(&listener, &rogues[i]));
    CHECK_EQ(bw_shm_connect(listener.address, listener.address_len, listener.token, RING, &joined,
                            &error),
             BW_OK);
    CHECK_EQ(bw_shm_accept(&listener, RING, &accepted, &error), BW_OK);
    CHECK(write_text(joined, "good"));
    CHECK(has_bytes_to_read(accepted, "good"));
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
    close(silent);
    bw_shm_listener_close(&listener);
    CHECK_EQ(open_descriptors(), before);
}

/* ---- other users ---- */

static bw_shm_listener_t shared_listener;

static void join_as_nobody(void)
{
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
    CHECK_EQ(bw_shm_connect(shared_listener.address, shared_listener.address_len,
                            shared_listener.token, RING, &link, &error),
             BW_REFUSED);
    CHECK(says(&error, "another user"));
}

static void visit_as_nobody(void)
{
    static const rogue_t good = {.name = "good"};

    CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
    CHECK(send_rogue(&shared_listener, &good));
}

/* A peer that has the right token, memory and events but belongs to another user, and a listener
 * that belongs to another user. */
static void another_user_is_refused(void)
{
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    int before = open_descriptors();

    if (geteuid() != 0)
        SKIP("root: to become another user");
    CHECK_EQ(bw_shm_listen(NULL, &shared_listener, &error), BW_OK);
    CHECK_IN(in_child(join_as_nobody));
    CHECK_EQ(bw_shm_accept(&shared_listener, RING, &link, &error), BW_REFUSED);
    CHECK_IN(in_child(visit_as_nobody));
    CHECK_EQ(bw_shm_accept(&shared_listener, RING, &link, &error), BW_REFUSED);
    CHECK(says(&error, "another user"));
    CHECK(link == NULL);
    bw_shm_listener_close(&shared_listener);
    CHECK_EQ(open_descriptors(), before);
}

/* ---- directories of other users ---- */

static char shared_dir[] = "/tmp/beamway-test-XXXXXX";

static void listen_there(bw_status_t wanted, const char *words)
{
    bw_shm_listener_t listener = {.fd = -1};
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_listen(shared_dir, &listener, &error), wanted);
    CHECK(wanted == BW_OK || says(&error, words));
    CHECK_EQ(listener.fd >= 0, wanted == BW_OK);
    bw_shm_listener_close(&listener);
}

static void as_nobody(bw_status_t wanted, const char *words)
{
    CHECK_EQ(setresuid(NOBODY, NOBODY, NOBODY), 0);
    CHECK_IN(listen_there(wanted, words));
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

/* A user who can remove the socket's name can prevent the link, so not every directory is
 * acceptable. */
static void listeners_in_directories_of_others(void)
{
    if (geteuid() != 0)
        SKIP("root: to become another user");
    strcpy(strrchr(shared_dir, '-'), "-XXXXXX");
    CHECK(mkdtemp(shared_dir) != NULL);
    CHECK_EQ(chmod(shared_dir, 0777), 0);
    CHECK_IN(in_child(in_a_strangers_open_directory));
    CHECK_IN(listen_there(BW_OK, "")); /* chosen by the user */
    CHECK_EQ(chmod(shared_dir, 01777), 0);
    CHECK_IN(in_child(in_a_sticky_directory));
    CHECK_EQ(chmod(shared_dir, 0755), 0);
    CHECK_IN(in_child(in_a_closed_directory));
    CHECK_EQ(rmdir(shared_dir), 0);
    CHECK_IN(listen_there(BW_SYSTEM, "socket_dir"));
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

/* Tries to set up a link in a user namespace that maps a single user. This works as that user,
 * unless its uid is the one that the kernel shows for all unmapped users. */
static void link_in_a_namespace_as(const char *map, bw_status_t wanted)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_shm_listener_t listener = {.fd = -1};
    bw_error_t error = {0};

    if (unshare(CLONE_NEWUSER) < 0)
        SKIP("namespaces: user namespaces cannot be made here");
    CHECK(write_file("/proc/self/uid_map", map));
    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    CHECK_EQ(bw_shm_connect(listener.address, listener.address_len, listener.token, RING, &joined,
                            &error),
             wanted);
    if (wanted == BW_OK) {
        CHECK_EQ(bw_shm_accept(&listener, RING, &accepted, &error), BW_OK);
        joined->ops->close(joined, NULL);
        accepted->ops->close(accepted, NULL);
    } else {
        CHECK(says(&error, "another user"));
    }
    bw_shm_listener_close(&listener);
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
        SKIP("root: or user 1000");
    CHECK_IN(in_child(as_user_1000));
    CHECK_IN(in_child(as_the_unknown_user));
}

static const check_case_t cases[] = {
    {"a_good_peer_comes_in", a_good_peer_comes_in},
    {"rogue_peers_are_turned_away", rogue_peers_are_turned_away},
    {"rogues_do_not_keep_the_peer_out", rogues_do_not_keep_the_peer_out},
    {"another_user_is_refused", another_user_is_refused},
    {"listeners_in_directories_of_others", listeners_in_directories_of_others},
    {"the_unknown_user_is_nobody_in_particular", the_unknown_user_is_nobody_in_particular},
};

CHECK_MAIN(cases)
