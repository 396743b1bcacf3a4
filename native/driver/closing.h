/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CLOSING_H
#define BW_CLOSING_H

#include <stdbool.h>

#include "erl_driver.h"

#include <time.h>

#include "../link/link.h"
#include "job.h"

/* What the async thread gets. That thread may have other jobs first, so `closed` records when the
 * peer's time began to run. */
typedef struct {
    async_kind_t kind;
    bw_leftover_t left;
    struct timespec closed;
} closing_t;

/* Closes a link, and leaves the slow part of that to the async thread. A port that is still alive
 * then gets ready_async with ASYNC_CLOSING, and frees what it was given there. If `is_selected`,
 * the VM knows the link's descriptor and has drv_stop_select close it, possibly within this call.
 * The caller holds the port lock. */
void close_link(ErlDrvPort port, bw_link_t *link, bool is_selected);

#endif
