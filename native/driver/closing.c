/* SPDX-License-Identifier: Apache-2.0 */

#include "closing.h"

#include <time.h>
#include <unistd.h>

/* The async thread may have other jobs first, which the peer's time does not wait for. */
typedef struct {
    bw_leftover_t left;
    struct timespec closed;
} later_t;

static void free_later(void *data)
{
    later_t *later = data;
    struct timespec now;
    int64_t waited_ms;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* the VM's clock is for schedulers alone */
    waited_ms = (now.tv_sec - later->closed.tv_sec) * 1000;
    waited_ms += (now.tv_nsec - later->closed.tv_nsec) / 1000000;
    bw_leftover_free_late(&later->left, waited_ms);
    driver_free(later);
}

void close_link(ErlDrvPort port, bw_link_t *link, bool is_selected)
{
    bw_leftover_t left;
    later_t *later;

    link->ops->close(link, &left);
    if (is_selected)
        driver_select(port, (ErlDrvEvent)(intptr_t)left.fd, ERL_DRV_READ | ERL_DRV_USE, 0);
    else if (left.fd >= 0)
        close(left.fd);
    later = driver_alloc(sizeof *later);
    if (!later) {
        bw_leftover_free(&left);
        return;
    }
    later->left = left;
    (void)clock_gettime(CLOCK_MONOTONIC, &later->closed);
    if (driver_async(port, NULL, free_later, later, NULL) < 0)
        free_later(later);
}
