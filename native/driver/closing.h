/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CLOSING_H
#define BW_CLOSING_H

#include <stdbool.h>

#include "erl_driver.h"

#include <time.h>

#include "../link/link.h"
#include "async_job.h"

/* `closed` is when the peer's time limit began: the async thread may run other jobs first. */
typedef struct {
    async_kind_t kind;
    bw_leftover_t left;
    struct timespec closed;
} closing_t;

/* Closes a link and leaves the slow part to the async thread. If the port still exists when that
 * part is done, its ready_async callback is called with ASYNC_CLOSING and must free the job. If
 * `is_selected`, the VM knows the link's descriptor and drv_stop_select closes it, possibly within
 * this call. The caller holds the port lock. */
void close_link(ErlDrvPort port, bw_link_t *link, bool is_selected);

#endif
