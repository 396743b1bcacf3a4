/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how two ends connect over the shm carrier; link_test covers the bytes that they then carry.
 * After each case the process must have as many descriptors and mappings as before.
 */
#include "../peers.h"

#include <signal.h>
#include <sys/stat.h>

/* ---- connection ---- */

static void listeners_differ(void)
{
    bw_shm_listener_t first = {.fd = -1}, second = {.fd = -1};
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_listen(NULL, &first, &error), BW_OK);
    CHECK_EQ(bw_shm_listen(NULL, &second, &error), BW_OK);
    CHECK(first.address_len > 8 && first.address[0] == 0);
    CHECK(first.address_len != second.address_len ||
          memcmp(first.address, second.address, first.address_len) != 0);
    CHECK(memcmp(first.token, second.token, sizeof first.token) != 0);
    bw_shm_listener_close(&first);
    CHECK_EQ(first.fd, -1);
    bw_shm_listener_close(&first); /* no effect on a closed listener */
    bw_shm_listener_close(&second);
}

static void nobody_came(void)
{
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    CHECK_EQ(bw_shm_accept(&listener, RING, &link, &error), BW_REFUSED);
    CHECK(says(&error, "nobody"));
    CHECK(link == NULL);
    bw_shm_listener_close(&listener);
}

/* Two peers that connect to the same listener get two separate links. */
static void two_links_do_not_mix(void)
{
    int before = open_descriptors();
    bw_link_t *joined[2] = {0}, *accepted[2] = {0};
    bw_shm_listener_t listener = {.fd = -1};
    bw_error_t error = {0};

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(bw_shm_connect(listener.address, listener.address_len, listener.token, RING,
                                &joined[i], &error),
                 BW_OK);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(bw_shm_accept(&listener, RING, &accepted[i], &error), BW_OK);
    CHECK(write_text(joined[0], "zero"));
    CHECK(write_text(joined[1], "one"));
    CHECK(has_bytes_to_read(accepted[0], "zero"));
    CHECK(has_bytes_to_read(accepted[1], "one"));
    for (int i = 0; i < 2; i++) {
        joined[i]->ops->close(joined[i], NULL);
        accepted[i]->ops->close(accepted[i], NULL);
    }
    bw_shm_listener_close(&listener);
    CHECK_EQ(open_descriptors(), before);
}

/* ---- ends that are killed ---- */

/* If a connecting process is killed before the listener accepts, either its complete link is queued
 * or nothing is. */
static void connector_dies_before_accept(void)
{
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    int before = open_descriptors(), status;
    pid_t pid;

    CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (bw_shm_connect(listener.address, listener.address_len, listener.token, RING, &link,
                           &error) != BW_OK ||
            !write_text(link, "last words"))
            _exit(1);
        raise(SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(bw_shm_accept(&listener, RING, &link, &error), BW_OK);
    CHECK(has_bytes_to_read(link, "last words"));
    CHECK(write_text(link, "to nobody"));
    link->ops->close(link, NULL);
    bw_shm_listener_close(&listener);
    CHECK_EQ(open_descriptors(), before);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

/* Each side notices that the other has exited as soon as the process is gone, and not before.
 * `connects` selects which of the two is killed. */
static void killed_peer(bool connects)
{
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    int before = open_descriptors(), wires[2];
    pid_t pid;
    char ready;

    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wires), 0);
    if (connects)
        CHECK_EQ(bw_shm_listen(NULL, &listener, &error), BW_OK);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (connects && bw_shm_connect(listener.address, listener.address_len, listener.token, RING,
                                       &link, &error))
            _exit(1);
        if (!connects &&
            (bw_shm_listen(NULL, &listener, &error) ||
             write(wires[1], &listener, sizeof listener) != sizeof listener ||
             read(wires[1], &ready, 1) != 1 || bw_shm_accept(&listener, RING, &link, &error)))
            _exit(1);
        if (!write_text(link, "last words") || write(wires[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    if (!connects) {
        CHECK_EQ(read(wires[0], &listener, sizeof listener), sizeof listener);
        CHECK_EQ(bw_shm_connect(listener.address, listener.address_len, listener.token, RING, &link,
                                &error),
                 BW_OK);
        CHECK_EQ(write(wires[0], "", 1), 1);
        listener.fd = -1; /* the descriptor belongs to the other process */
    }
    CHECK_EQ(read(wires[0], &ready, 1), 1);
    if (connects)
        CHECK_EQ(bw_shm_accept(&listener, RING, &link, &error), BW_OK);
    CHECK(!link->ops->is_orphan(link));
    CHECK_EQ(kill(pid, SIGKILL), 0);
    for (int ms = 0; ms < 10000 && !link->ops->is_orphan(link); ms++)
        usleep(1000);
    CHECK(link->ops->is_orphan(link));
    CHECK(has_bytes_to_read(link, "last words"));
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
    CHECK(link->ops->is_orphan(link));
    link->ops->close(link, NULL);
    bw_shm_listener_close(&listener);
    close(wires[0]);
    close(wires[1]);
    CHECK_EQ(open_descriptors(), before);
}

static void a_killed_connector_leaves_an_orphan(void)
{
    killed_peer(true);
}

static void a_killed_acceptor_leaves_an_orphan(void)
{
    killed_peer(false);
}

/* The name disappears when the process that bound it exits. */
static void killed_listener_leaves_no_name(void)
{
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *link = NULL;
    bw_error_t error = {0};
    int status, ends[2];
    pid_t pid;

    CHECK_EQ(pipe(ends), 0);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        if (bw_shm_listen(NULL, &listener, &error) != BW_OK ||
            write(ends[1], &listener, sizeof listener) != sizeof listener)
            _exit(1);
        raise(SIGKILL);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(read(ends[0], &listener, sizeof listener), sizeof listener);
    CHECK_EQ(
        bw_shm_connect(listener.address, listener.address_len, listener.token, RING, &link, &error),
        BW_REFUSED);
    CHECK_EQ(error.sys_errno, ECONNREFUSED);
    close(ends[0]);
    close(ends[1]);
}

/* ---- listeners in a directory ---- */

static void listener_in_a_directory(void)
{
    char dir[] = "/tmp/beamway-test-XXXXXX", path[BW_ADDRESS_MAX + 1] = {0};
    bw_shm_listener_t listener = {.fd = -1};
    bw_link_t *joined = NULL, *accepted = NULL;
    bw_error_t error = {0};
    struct stat status;

    CHECK(mkdtemp(dir) != NULL);
    CHECK_EQ(bw_shm_listen(dir, &listener, &error), BW_OK);
    memcpy(path, listener.address, listener.address_len);
    CHECK_EQ(strncmp(path, dir, strlen(dir)), 0);
    CHECK_EQ(stat(path, &status), 0);
    CHECK_EQ(status.st_mode, S_IFSOCK | 0600); /* regardless of the umask */
    CHECK_EQ(bw_shm_connect(listener.address, listener.address_len, listener.token, RING, &joined,
                            &error),
             BW_OK);
    CHECK_EQ(bw_shm_accept(&listener, RING, &accepted, &error), BW_OK);
    bw_shm_listener_close(&listener);
    CHECK_EQ(stat(path, &status), -1);
    CHECK_EQ(rmdir(dir), 0);
    joined->ops->close(joined, NULL);
    accepted->ops->close(accepted, NULL);
}

static void listeners_in_bad_directories(void)
{
    char dir[200];
    int before = open_descriptors();

    for (size_t len = 1; len < sizeof dir; len++) {
        bw_shm_listener_t listener = {.fd = -1};
        bw_error_t error = {0};
        bw_status_t status;

        memset(dir, 'n', len); /* a missing directory, with every length close to the limit */
        dir[len] = 0;
        status = bw_shm_listen(dir, &listener, &error);
        CHECK(status == BW_SYSTEM || status == BW_INVALID);
        CHECK(says(&error, status == BW_SYSTEM ? "socket_dir" : "too long"));
        CHECK_EQ(status == BW_INVALID, len + strlen("/beamway-0123456789abcdef") >= 108);
        CHECK_EQ(listener.fd, -1);
    }
    {
        bw_shm_listener_t listener = {.fd = -1};
        bw_error_t error = {0};

        CHECK_EQ(bw_shm_listen("/dev/null", &listener, &error), BW_SYSTEM);
        CHECK_EQ(error.sys_errno, ENOTDIR);
        CHECK_EQ(listener.fd, -1);
    }
    CHECK_EQ(open_descriptors(), before);
}

static const check_case_t cases[] = {
    {"listeners_differ", listeners_differ},
    {"nobody_came", nobody_came},
    {"two_links_do_not_mix", two_links_do_not_mix},
    {"connector_dies_before_accept", connector_dies_before_accept},
    {"a_killed_connector_leaves_an_orphan", a_killed_connector_leaves_an_orphan},
    {"a_killed_acceptor_leaves_an_orphan", a_killed_acceptor_leaves_an_orphan},
    {"killed_listener_leaves_no_name", killed_listener_leaves_no_name},
    {"listener_in_a_directory", listener_in_a_directory},
    {"listeners_in_bad_directories", listeners_in_bad_directories},
};

CHECK_MAIN(cases)
