/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests what the shm carrier reports if an argument is out of range, if no process listens at an
 * address, if a limit of the process is reached, and if the system refuses a call. A failure must
 * leave nothing behind.
 */
#include "../peers.h"

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/filter.h>
#include <linux/seccomp.h>

/* ---- arguments and addresses ---- */

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
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_EQ(bw_shm_connect(listener.address, listener.address_len, listener.token, sizes[i],
                                &link, &error),
                 BW_INVALID);
    CHECK_EQ(bw_shm_connect(listener.address, 0, listener.token, RING, &link, &error), BW_INVALID);
    CHECK_EQ(
        bw_shm_connect(listener.address, BW_ADDRESS_MAX + 1, listener.token, RING, &link, &error),
        BW_INVALID);
    CHECK_EQ(bw_shm_connect(listener.address, SIZE_MAX, listener.token, RING, &link, &error),
             BW_INVALID);
    CHECK(link == NULL);
    bw_shm_listener_close(&listener);
    CHECK_EQ(open_descriptors(), before);
}

/* The addresses in an offer may contain arbitrary bytes. */
static void join_where_nobody_listens(void)
{
    int before = open_descriptors();
    uint8_t token[BW_TOKEN_BYTES] = {0}, address[BW_ADDRESS_MAX];
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    memcpy(address, listener.address, listener.address_len);
    CHECK_EQ(bw_shm_connect(address, listener.address_len - 1, token, RING, &link, &error),
             BW_REFUSED);
    bw_shm_listener_close(&listener);
    CHECK_EQ(bw_shm_connect(address, listener.address_len, token, RING, &link, &error), BW_REFUSED);
    CHECK(says(&error, "connecting"));
    CHECK_EQ(error.sys_errno, ECONNREFUSED);
    for (size_t len = 1; len <= BW_ADDRESS_MAX; len++) {
        memset(address, 0, sizeof address);
        CHECK_EQ(bw_shm_connect(address, len, token, RING, &link, &error), BW_REFUSED);
        memset(address, 'x', sizeof address);
        CHECK_EQ(bw_shm_connect(address, len, token, RING, &link, &error), BW_REFUSED);
    }
    memcpy(address, "/dev/null", 9);
    CHECK_EQ(bw_shm_connect(address, 9, token, RING, &link, &error), BW_REFUSED);
    CHECK(link == NULL);
    CHECK_EQ(open_descriptors(), before);
}

/* ---- limits of the process ---- */

/* Sets up a link between two ends in this process, and returns the result of the first step that
 * failed. */
static bw_status_t try_link(bw_error_t *error_p)
{
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_shm_listener_t listener = {.fd = -1};
    bw_status_t status = bw_shm_listen(NULL, &listener, error_p);

    if (status == BW_OK)
        status = bw_shm_connect(listener.address, listener.address_len, listener.token, RING,
                                &joined, error_p);
    if (status == BW_OK)
        status = bw_shm_accept(&listener, RING, &accepted, error_p);
    if (joined)
        joined->ops->close(joined, NULL);
    if (accepted)
        accepted->ops->close(accepted, NULL);
    bw_shm_listener_close(&listener);
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

/* Tries every limit on the number of descriptors, starting at none: each failure must be reported,
 * and must not leak anything. */
static void with_few_descriptors(void)
{
    int before = open_descriptors(), failed = 0;
    bw_status_t status = BW_LIMIT;

    for (int allowed = 0; allowed < before + 20 && status != BW_OK; allowed++) {
        bw_error_t error = {0};

        CHECK_IN(limit(RLIMIT_NOFILE, (rlim_t)allowed));
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
    CHECK(failed >= 5); /* the number that one side needs at once */
}

#ifndef __SANITIZE_ADDRESS__ /* ASan reserves the address space */
static void with_little_address_space(void)
{
    bw_error_t error = {0};
    bw_link_t *joined = NULL, *accepted = NULL;
    int before = open_descriptors();

    CHECK_IN(limit(RLIMIT_AS, 64u << 20));
    CHECK(!open_link(BW_RING_MAX_BYTES / 8, &joined, &accepted, &error));
    CHECK(says(&error, "mmap"));
    CHECK_EQ(error.sys_errno, ENOMEM);
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(carrier_mappings(NULL), 0);
    CHECK_EQ(try_link(&error), BW_OK);
}
#endif

/* Makes a system call fail from now on, as on a kernel without it or under a container's seccomp
 * filter. */
static void refuse(uint32_t system_call)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, system_call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        SKIP("seccomp: not here");
}

/* Every system call that a link needs; the reason must name the failing step. */
static const struct {
    uint32_t system_call;
    const char *step;
} needed[] = {
    {SYS_getrandom, "getrandom"},
    {SYS_socket, "unix socket"},
    {SYS_listen, "listen on the unix socket"},
    {SYS_memfd_create, "memfd_create"},
    {SYS_ftruncate, "size and seals of the memory"},
    {SYS_eventfd2, "eventfd"},
    {SYS_sendmsg, "sending the descriptors"},
    {SYS_accept4, "accept on the unix socket"},
};

static size_t missing; /* index into needed */

static void without_the_missing(void)
{
    int before = open_descriptors();
    bw_error_t error = {0};

    CHECK_IN(refuse(needed[missing].system_call));
    CHECK_EQ(try_link(&error), BW_SYSTEM);
    CHECK(says(&error, needed[missing].step));
    CHECK_EQ(error.sys_errno, ENOSYS);
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

/* valgrind uses some descriptors and memory of its own that the process cannot see. */
static bool is_under_valgrind(void)
{
    const char *preloaded = getenv("LD_PRELOAD");

    return preloaded && strstr(preloaded, "vgpreload");
}

static void small_files(void)
{
    in_child(with_small_files);
}

static void few_descriptors(void)
{
    if (is_under_valgrind())
        SKIP("no_valgrind: it takes descriptors itself");
    in_child(with_few_descriptors);
}

#ifndef __SANITIZE_ADDRESS__
static void little_address_space(void)
{
    if (is_under_valgrind())
        SKIP("no_valgrind: it needs address space itself");
    in_child(with_little_address_space);
}
#endif

static void each_system_call_missing(void)
{
    for (missing = 0; missing < sizeof needed / sizeof *needed; missing++)
        CHECK_IN(in_child(without_the_missing));
}

static const check_case_t cases[] = {
    {"join_arguments", join_arguments},
    {"join_where_nobody_listens", join_where_nobody_listens},
    {"small_files", small_files},
    {"few_descriptors", few_descriptors},
#ifndef __SANITIZE_ADDRESS__
    {"little_address_space", little_address_space},
#endif
    {"each_system_call_missing", each_system_call_missing},
};

CHECK_MAIN(cases)
