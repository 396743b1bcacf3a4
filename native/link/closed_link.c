/* SPDX-License-Identifier: Apache-2.0 */
#include "link.h"

#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

#define DISCARD_BYTES ((size_t)512 * 1024) /* takes 0.1 ms */
#define DISCARD_ROUNDS 64

bool bw_discard(int socket, int rounds)
{
    for (; rounds > 0; rounds--)
        if (recv(socket, NULL, DISCARD_BYTES, MSG_DONTWAIT | MSG_TRUNC) <= 0)
            return false;
    return true;
}

static void send_rest(int socket, struct iovec rest, int64_t closed_ms)
{
    struct pollfd room = {.fd = socket, .events = POLLOUT};
    int64_t end_ms = closed_ms + BW_LEFTOVER_MS, quiet_ms = closed_ms + BW_LEFTOVER_QUIET_MS, left;
    ssize_t n;

    do {
        left = (quiet_ms < end_ms ? quiet_ms : end_ms) - bw_clock_ms();
        if (poll(&room, 1, left > 0 ? (int)left : 0) <= 0)
            return;
        n = send(socket, rest.iov_base, rest.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return;
        if (n > 0) {
            quiet_ms = bw_clock_ms() + BW_LEFTOVER_QUIET_MS;
            rest.iov_base = (char *)rest.iov_base + n;
            rest.iov_len -= (size_t)n;
        }
    } while (rest.iov_len > 0 && bw_clock_ms() < end_ms);
}

void bw_leftover_free_late(bw_leftover_t *leftover, int64_t waited_ms)
{
    if (leftover->unsent.iov_len > 0) {
        send_rest(leftover->socket, leftover->unsent, bw_clock_ms() - waited_ms);
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
