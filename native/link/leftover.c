/* SPDX-License-Identifier: Apache-2.0 */
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define DISCARD_BYTES ((size_t)512 * 1024) /* in 0.1 ms */
#define DISCARD_ROUNDS 64
#define UNSENT_MS 1000 /* the patience with a peer that does not read */

bool bw_discard(int socket, int rounds)
{
    for (; rounds > 0; rounds--)
        if (recv(socket, NULL, DISCARD_BYTES, MSG_DONTWAIT | MSG_TRUNC) <= 0)
            return false;
    return true;
}

/* A peer that reads gets everything. */
static void send_rest(int socket, struct iovec rest, int patience_ms)
{
    struct pollfd room = {.fd = socket, .events = POLLOUT};
    ssize_t n;

    while (rest.iov_len > 0 && poll(&room, 1, patience_ms) > 0) {
        n = send(socket, rest.iov_base, rest.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return;
        if (n > 0) {
            patience_ms = UNSENT_MS;
            rest.iov_base = (char *)rest.iov_base + n;
            rest.iov_len -= (size_t)n;
        }
    }
}

void bw_leftover_free_late(bw_leftover_t *leftover, int64_t waited_ms)
{
    if (leftover->unsent.iov_len > 0) {
        send_rest(leftover->socket, leftover->unsent,
                  waited_ms < UNSENT_MS ? (int)(UNSENT_MS - waited_ms) : 0);
        (void)shutdown(leftover->socket, SHUT_WR);
    }
    for (int i = 0; i < 3; i++)
        if (leftover->map[i].iov_base)
            munmap(leftover->map[i].iov_base, leftover->map[i].iov_len);
    if (leftover->socket >= 0) {
        (void)bw_discard(leftover->socket, DISCARD_ROUNDS);
        close(leftover->socket);
    }
    *leftover = (bw_leftover_t){.fd = leftover->fd, .socket = -1};
}

void bw_leftover_free(bw_leftover_t *leftover)
{
    bw_leftover_free_late(leftover, 0);
}

void bw_leftover_give(bw_leftover_t *leftover, bw_leftover_t *left_p)
{
    if (left_p) {
        *left_p = *leftover;
        return;
    }
    bw_leftover_free(leftover);
    if (leftover->fd >= 0)
        close(leftover->fd);
}
