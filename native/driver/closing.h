/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CLOSING_H
#define BW_CLOSING_H

#include <stdbool.h>

#include "erl_driver.h"

#include <time.h>

#include "../link/link.h"
#include "job.h"

/* What the async thread gets: it may have other jobs first, which the peer's time does not wait
 * for.
 */
typedef struct {
    async_kind_t kind;
    bw_leftover_t left;
    struct timespec closed;
} closing_t;

/* Closes a link, and leaves to the async thread what takes long: a port that lives gets ready_async
 * with ASYNC_CLOSING then, and frees what comes with it. With `is_selected` the VM knows the link's
 * descriptor, and drv_stop_select closes it, maybe within this call. Under the port lock. */
void close_link(ErlDrvPort port, bw_link_t *link, bool is_selected);

#endif
