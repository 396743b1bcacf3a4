/* SPDX-License-Identifier: Apache-2.0 */
#include "key_proof.h"

#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "socket.h"
#include "tls/psk.h"

#define CANDIDATES_MAX 256
/* How much of RD_PROOF_MS a peer gets even if other peers are waiting for its slot. */
#define GRACE_MS 1000
/* Maximum number of connections accepted in a row; in between, the connected peers are served. */
#define ACCEPTS_MAX 16
/* How long the listener is not polled after accept4 has failed because this process or its host has
 * no free descriptor. The peer stays in the listener's queue, so each poll would return
 * immediately. */
#define REST_MS 100

void rd_proved_drop(rd_proved_t *proved)
{
    rd_tls_free(proved->tls);
    rd_close(&proved->fd);
    *proved = (rd_proved_t){.fd = -1};
}

/* ---- the consumer ---- */

/* A peer that has connected. Its TLS session is created only when its first bytes arrive. */
typedef struct {
    int64_t came_ms;
    rd_proved_t is; /* `tls` is NULL if nothing has arrived */
    bool is_stuck;  /* libssl waits for room in the socket */
} candidate_t;

typedef enum { PROOF_PENDING, PROOF_FAILED, PROOF_GIVEN } proof_state_t;

static proof_state_t hear(candidate_t *candidate, const rd_key_t *key)
{
    if (!candidate->is.tls)
        candidate->is.tls = rd_tls_new(candidate->is.fd, key, true, bw_has_aes());
    if (!candidate->is.tls)
        return PROOF_FAILED;
    candidate->is_stuck = false;
    switch (rd_tls_shake(candidate->is.tls)) {
    case RD_TLS_DONE:
        return PROOF_GIVEN;
    case RD_TLS_WANTS_WRITE:
        candidate->is_stuck = true;
        return PROOF_PENDING;
    case RD_TLS_WANTS_READ:
        return PROOF_PENDING;
    default:
        return PROOF_FAILED;
    }
}

struct rd_peers {
    int listener;
    rd_key_t key;
    candidate_t of[CANDIDATES_MAX]; /* in order of arrival */
    size_t count, most;
    unsigned turned_away;
    int64_t rests_until_ms;
    int error; /* errno of the last accept4 if no descriptor was free, otherwise 0 */
};

static void remove_at(rd_peers_t *peers, size_t i)
{
    peers->count--;
    memmove(&peers->of[i], &peers->of[i + 1], (peers->count - i) * sizeof *peers->of);
}

static void turn_away(rd_peers_t *peers, size_t i)
{
    rd_proved_drop(&peers->of[i].is);
    remove_at(peers, i);
    peers->turned_away++;
}

/* Returns about half of the limit on open files, because the link also needs descriptors. */
static size_t max_candidates(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > 2 * CANDIDATES_MAX + 16)
        return CANDIDATES_MAX;
    return limit.rlim_cur > 24 ? (size_t)limit.rlim_cur / 2 - 8 : 4;
}

static bool has_room(const rd_peers_t *peers)
{
    return peers->count < peers->most || rd_left_ms(peers->of[0].came_ms + GRACE_MS) == 0;
}

static void accept_candidates(rd_peers_t *peers)
{
    for (int i = 0; i < ACCEPTS_MAX && has_room(peers); i++) {
        int fd = accept4(peers->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                peers->error = errno;
                peers->rests_until_ms = rd_now_ms() + REST_MS;
            }
            return;
        }
        peers->error = 0;
        if (peers->count == peers->most)
            turn_away(peers, 0);
        peers->of[peers->count++] = (candidate_t){.came_ms = rd_now_ms(), .is.fd = fd};
    }
}

static bool rests(const rd_peers_t *peers)
{
    return rd_left_ms(peers->rests_until_ms) > 0;
}

/* Considers only the oldest candidate, because it is the next one to be dropped. */
static int next_deadline(const rd_peers_t *peers, int64_t deadline)
{
    int64_t next = deadline;

    if (peers->count > 0)
        next = peers->of[0].came_ms + (has_room(peers) ? RD_PROOF_MS : GRACE_MS);
    if (rests(peers) && peers->rests_until_ms < next)
        next = peers->rests_until_ms;
    return rd_left_ms(next < deadline ? next : deadline);
}

rd_peers_t *rd_peers_open(int listener, const rd_key_t *key)
{
    rd_peers_t *peers = calloc(1, sizeof *peers);

    if (!peers)
        return NULL;
    peers->listener = listener;
    peers->key = *key;
    peers->most = max_candidates();
    return peers;
}

bool rd_peers_await(rd_peers_t *peers, int stop, int64_t deadline, rd_proved_t *proved_p,
                    rd_why_t *why)
{
    while (rd_left_ms(deadline) > 0) {
        struct pollfd polled[CANDIDATES_MAX + 2] = {
            {.fd = stop, .events = POLLIN},
            {.fd = has_room(peers) && !rests(peers) ? peers->listener : -1, .events = POLLIN}};

        for (size_t i = 0; i < peers->count; i++)
            polled[2 + i] = (struct pollfd){.fd = peers->of[i].is.fd,
                                            .events = peers->of[i].is_stuck ? POLLOUT : POLLIN};
        (void)poll(polled, 2 + peers->count, next_deadline(peers, deadline));
        if (polled[0].revents)
            return rd_because_of(why, RD_CAUSE_STOPPED, "stopped");
        for (size_t i = peers->count; i-- > 0;) {
            candidate_t *candidate = &peers->of[i];
            proof_state_t is = PROOF_PENDING;

            if (polled[2 + i].revents)
                is = hear(candidate, &peers->key);
            else if (rd_left_ms(candidate->came_ms + RD_PROOF_MS) == 0)
                is = PROOF_FAILED;
            if (is == PROOF_GIVEN) {
                *proved_p = candidate->is;
                remove_at(peers, i);
                return true;
            }
            if (is == PROOF_FAILED)
                turn_away(peers, i);
        }
        if (polled[1].revents)
            accept_candidates(peers);
    }
    if (peers->error != 0)
        return rd_because(why, "a peer has connected, but could not be accepted: %s",
                          strerror(peers->error));
    return rd_because_of(why, RD_CAUSE_LOST, "nobody with the key has connected in time%s",
                         peers->turned_away > 0 ? " (others have, and were turned away)" : "");
}

unsigned rd_peers_close(rd_peers_t *peers)
{
    unsigned turned_away = peers->turned_away;

    while (peers->count > 0)
        turn_away(peers, 0);
    rd_key_wipe(&peers->key);
    free(peers);
    return turned_away;
}

/* ---- the producer ---- */

bool rd_prove(rd_proved_t *proved, const char *peer, const rd_key_t *key, int stop,
              int64_t deadline, bool *is_cut_p, rd_why_t *why)
{
    rd_tls_result_t result = RD_TLS_FAILED;
    rd_why_t step;

    *is_cut_p = false;
    proved->tls = rd_tls_new(proved->fd, key, false, bw_has_aes());
    if (!proved->tls)
        return rd_because(why, "libssl has no TLS 1.3: %s", rd_tls_error(NULL));
    if (rd_tls_connect(proved->tls, stop, deadline, &result, &step))
        return true;
    if (result == RD_TLS_REFUSED)
        return rd_because(why, "%s refused the connection, because its key is different", peer);
    if (result == RD_TLS_FAILED)
        return rd_because(why, "%s does not have the key; is it another program? (%.300s)", peer,
                          step.text);
    *is_cut_p = true;
    return rd_because_of(why, step.cause, "%s: %.400s before the pipe's protocol began", peer,
                         step.text);
}
