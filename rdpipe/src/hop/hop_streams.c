/* SPDX-License-Identifier: Apache-2.0 */
#include "hop_streams.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bundle.h"
#include "socket.h"

#define JOIN_MS 15000
#define RETRY_MS 100 /* pause between two attempts to join */
#define THREADS_MAX 16u

struct rd_joiners {
    pthread_t threads[THREADS_MAX];
    unsigned count, wanted;
    _Atomic unsigned begun; /* how many streams the producer's threads have begun to join */
    int stop;               /* an eventfd */
    int listener;           /* the consumer's duplicate of its listener, or -1 at the producer */
    struct sockaddr_storage to;
    socklen_t to_len;
    bw_link_t *link;
    bool encrypts;
    const char *congestion;
    uint8_t hello[RD_HELLO_BYTES];
    rd_key_t key;
};

bool rd_joiners_add(bw_link_t *link, bool encrypts, rd_proved_t *proved)
{
    bool done;

    if (!encrypts) {
        rd_tls_free(proved->tls);
        proved->tls = NULL;
    }
    done = rd_bundle_add(link, proved->fd, proved->tls);
    *proved = (rd_proved_t){.fd = -1};
    return done;
}

/* Runs in the consumer's thread. Accepts the streams of this hop until all have joined. */
static void *let_in(void *argument)
{
    rd_joiners_t *joiners = argument;
    int64_t deadline = rd_now_ms() + JOIN_MS;
    rd_peers_t *peers = rd_peers_open(joiners->listener, &joiners->key);
    unsigned joined = 0;
    rd_why_t ignored;
    rd_proved_t proved = {.fd = -1};

    if (!peers)
        return NULL;
    while (joined < joiners->wanted &&
           rd_peers_await(peers, joiners->stop, deadline, &proved, &ignored)) {
        uint8_t hello[RD_HELLO_BYTES], yes = 1;

        rd_tune(proved.fd);
        if (rd_tls_read_all(proved.tls, hello, sizeof hello, joiners->stop,
                            rd_now_ms() + RD_PROOF_MS, &ignored) &&
            memcmp(hello, joiners->hello, sizeof hello) == 0 &&
            rd_tls_write_all(proved.tls, &yes, 1, joiners->stop, rd_now_ms() + RD_PROOF_MS,
                             &ignored)) {
            joined++;
            (void)rd_joiners_add(joiners->link, joiners->encrypts, &proved);
        }
        rd_proved_drop(&proved);
    }
    (void)rd_peers_close(peers);
    close(joiners->listener); /* no more connections are expected */
    joiners->listener = -1;
    return NULL;
}

static bool join_one(const rd_joiners_t *joiners, int64_t deadline)
{
    bool is_cut = true;
    rd_why_t ignored;

    while (is_cut && rd_left_ms(deadline) > 0) {
        rd_proved_t proved = {.fd = -1};
        uint8_t yes = 0;

        if (rd_connect_to((const struct sockaddr *)&joiners->to, joiners->to_len, joiners->stop,
                          deadline, &proved.fd) != 0)
            return false;
        rd_tune(proved.fd);
        if (rd_set_congestion(proved.fd, joiners->congestion, &ignored) &&
            rd_prove(&proved, "", &joiners->key, joiners->stop, deadline, &is_cut, &ignored) &&
            rd_tls_write_all(proved.tls, joiners->hello, sizeof joiners->hello, joiners->stop,
                             deadline, &ignored) &&
            rd_tls_read_all(proved.tls, &yes, 1, joiners->stop, deadline, &ignored) && yes == 1) {
            rd_widen(proved.fd);
            (void)rd_joiners_add(joiners->link, joiners->encrypts, &proved);
            return true;
        }
        rd_proved_drop(&proved);
        if (rd_wait(-1, 0, joiners->stop, rd_now_ms() + RETRY_MS) == RD_STOPPED)
            return false;
    }
    return false;
}

/* Runs in each of the producer's threads, which joins one stream at a time. */
static void *join_some(void *argument)
{
    rd_joiners_t *joiners = argument;
    int64_t deadline = rd_now_ms() + JOIN_MS;

    while (atomic_fetch_add(&joiners->begun, 1) < joiners->wanted && join_one(joiners, deadline))
        ;
    return NULL;
}

rd_joiners_t *rd_joiners_start(const rd_hop_t *hop, int socket, int listener, const void *hello,
                               unsigned wanted, const rd_key_t *key)
{
    rd_joiners_t *joiners = calloc(1, sizeof *joiners);
    unsigned threads = listener >= 0 ? 1 : wanted < THREADS_MAX ? wanted : THREADS_MAX;

    if (!joiners)
        return NULL;
    *joiners = (rd_joiners_t){.wanted = wanted,
                              .stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                              .listener = listener < 0 ? -1 : fcntl(listener, F_DUPFD_CLOEXEC, 3),
                              .to_len = sizeof joiners->to,
                              .link = hop->link,
                              .encrypts = hop->terms.flags & RD_TERM_TLS,
                              .congestion = hop->terms.congestion,
                              .key = *key};
    memcpy(joiners->hello, hello, RD_HELLO_BYTES);
    if (joiners->stop < 0 || (listener >= 0 && joiners->listener < 0) ||
        getpeername(socket, (struct sockaddr *)&joiners->to, &joiners->to_len) < 0)
        threads = 0;
    while (joiners->count < threads &&
           pthread_create(&joiners->threads[joiners->count], NULL,
                          listener < 0 ? join_some : let_in, joiners) == 0)
        joiners->count++;
    return joiners;
}

void rd_joiners_end(rd_joiners_t *joiners)
{
    if (!joiners)
        return;
    (void)eventfd_write(joiners->stop, 1);
    for (unsigned i = 0; i < joiners->count; i++)
        (void)pthread_join(joiners->threads[i], NULL);
    rd_key_wipe(&joiners->key);
    close(joiners->stop);
    rd_close(&joiners->listener);
    free(joiners);
}
