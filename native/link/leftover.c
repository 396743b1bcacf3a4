/* SPDX-License-Identifier: Apache-2.0 */
#include "link.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define DISCARD_BYTES ((size_t)512 * 1024) /* in 0.1 ms */
#define DISCARD_ROUNDS 64

bool bw_discard(int socket, int rounds)
{
    for (; rounds > 0; rounds--)
        if (recv(socket, NULL, DISCARD_BYTES, MSG_DONTWAIT | MSG_TRUNC) <= 0)
            return false;
    return true;
}

void bw_leftover_free(bw_leftover_t *leftover)
{
    for (int i = 0; i < 2; i++)
        if (leftover->map[i].iov_base)
            munmap(leftover->map[i].iov_base, leftover->map[i].iov_len);
    if (leftover->socket >= 0) {
        (void)bw_discard(leftover->socket, DISCARD_ROUNDS);
        close(leftover->socket);
    }
    *leftover = (bw_leftover_t){.fd = leftover->fd, .socket = -1};
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
