/* SPDX-License-Identifier: Apache-2.0 */
#include "keepalive.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define TICK_MS 1000

static void *run(void *argument)
{
    rd_keeper_t *keeper = argument;
    struct pollfd stop = {.fd = keeper->stop, .events = POLLIN};

    while (poll(&stop, 1, TICK_MS) <= 0) {
        if (pthread_mutex_trylock(&keeper->lock) != 0)
            continue;
        for (int i = 0; i < 2; i++)
            if (keeper->of[i])
                rd_stream_keep(keeper->of[i], i == 0 ? keeper->spare : 0);
        (void)pthread_mutex_unlock(&keeper->lock);
    }
    return NULL;
}

void rd_keeper_start(rd_keeper_t *keeper, bool is_needed, rd_stream_t *one, rd_stream_t *other,
                     size_t spare)
{
    *keeper = (rd_keeper_t){.of = {one, other}, .spare = spare, .stop = -1};
    (void)pthread_mutex_init(&keeper->lock, NULL);
    (void)pthread_mutex_lock(&keeper->lock);
    if (is_needed)
        keeper->stop = eventfd(0, EFD_CLOEXEC);
    if (keeper->stop < 0 || pthread_create(&keeper->thread, NULL, run, keeper) == 0)
        return;
    close(keeper->stop);
    keeper->stop = -1;
}

void rd_keeper_stop(rd_keeper_t *keeper)
{
    (void)pthread_mutex_unlock(&keeper->lock);
    if (keeper->stop >= 0) {
        (void)eventfd_write(keeper->stop, 1);
        (void)pthread_join(keeper->thread, NULL);
        close(keeper->stop);
    }
    (void)pthread_mutex_destroy(&keeper->lock);
}
