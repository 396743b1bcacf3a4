/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which clients a listener keeps until they have proved that they have the key. */
#include "pipe_ends.h"

#include "hop/key_proof.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define GOOD "a key that both sides have"

static bool is_turned_away(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

/* The oldest client is dropped only to make room for another one. */
static void nobody_gives_way_to_nobody(void)
{
    rd_key_t key = key_of(GOOD);
    rd_proved_t proved = {.fd = -1};
    struct rlimit limit, low;
    rd_peers_t *peers;
    rd_why_t why;
    uint16_t port;
    int listener = open_listener(&port), fds[5];

    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = limit;
    low.rlim_cur = 24; /* room for four clients */
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    peers = rd_peers_open(listener, &key);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(peers != NULL);
    fds[0] = connect_to(port);
    /* After this, the oldest client's guaranteed second is over. */
    CHECK(!rd_peers_await(peers, -1, rd_now_ms() + 1100, &proved, &why));
    for (int i = 1; i < 4; i++)
        fds[i] = connect_to(port);
    CHECK(!rd_peers_await(peers, -1, rd_now_ms() + 200, &proved, &why));
    CHECK(!is_turned_away(fds[0]));
    fds[4] = connect_to(port);
    CHECK(!rd_peers_await(peers, -1, rd_now_ms() + 1100, &proved, &why));
    CHECK(is_turned_away(fds[0]) && !is_turned_away(fds[1]));
    CHECK_EQ(rd_peers_close(peers), 1);
    for (int i = 0; i < 5; i++)
        close(fds[i]);
    close(listener);
}

static int64_t own_ms(void)
{
    struct timespec spent;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return spent.tv_sec * 1000 + spent.tv_nsec / 1000000;
}

/* If there is no descriptor for a client, it stays in the listener's queue, so the listener is
 * always readable and must not be polled for a while. */
static void without_a_descriptor_the_listener_rests(void)
{
    rd_key_t key = key_of(GOOD);
    rd_proved_t proved = {.fd = -1};
    struct rlimit limit, low;
    rd_why_t why = {.text = ""};
    uint16_t port;
    int listener = open_listener(&port), fd = connect_to(port), next = dup(listener);
    rd_peers_t *peers = rd_peers_open(listener, &key);
    int64_t spent_ms;
    bool done;

    CHECK(peers != NULL && fd >= 0 && next >= 0);
    close(next);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    low = limit;
    low.rlim_cur = (rlim_t)next; /* the lowest free descriptor */
    spent_ms = own_ms();
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    done = rd_peers_await(peers, -1, rd_now_ms() + 1000, &proved, &why);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    spent_ms = own_ms() - spent_ms;
    CHECK(spent_ms < 100);
    CHECK(!done && strstr(why.text, "could not be accepted: Too many open files") != NULL);
    CHECK(!is_turned_away(fd));
    /* With a descriptor the same client is accepted, and turned away because it is silent. */
    CHECK(!rd_peers_await(peers, -1, rd_now_ms() + 1000, &proved, &why));
    CHECK(strstr(why.text, "nobody with the key") != NULL);
    CHECK_EQ(rd_peers_close(peers), 0);
    CHECK(rd_wait(fd, POLLIN, -1, rd_now_ms() + LONG_MS) == RD_READY && is_turned_away(fd));
    close(fd);
    close(listener);
}

static const check_case_t cases[] = {
    {"nobody gives way to nobody", nobody_gives_way_to_nobody},
    {"without a descriptor the listener rests", without_a_descriptor_the_listener_rests},
};

CHECK_MAIN(cases)
