/* SPDX-License-Identifier: Apache-2.0 */

#include "closing.h"
#include "async_job.h"

#include <time.h>
#include <unistd.h>

static void free_later(void *data)
{
    closing_t *later = data;
    struct timespec now;
    int64_t waited_ms;

    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* the VM's clock may be read only on schedulers */
    waited_ms = (now.tv_sec - later->closed.tv_sec) * 1000;
    waited_ms += (now.tv_nsec - later->closed.tv_nsec) / 1000000;
    bw_leftover_free_late(&later->left, waited_ms);
}

void close_link(ErlDrvPort port, bw_link_t *link, bool is_selected)
{
    bw_leftover_t left;
    closing_t *later;

    link->ops->close(link, &left);
    if (is_selected)
        driver_select(port, (ErlDrvEvent)(intptr_t)left.fd,
                      ERL_DRV_READ | ERL_DRV_WRITE | ERL_DRV_USE, 0);
    else if (left.fd >= 0)
        close(left.fd);
    later = driver_alloc(sizeof *later);
    if (!later) {
        bw_leftover_free(&left);
        return;
    }
    later->kind = ASYNC_CLOSING;
    later->left = left;
    (void)clock_gettime(CLOCK_MONOTONIC, &later->closed);
    if (driver_async(port, NULL, free_later, later, driver_free) < 0) {
        free_later(later);
        driver_free(later);
    }
}
