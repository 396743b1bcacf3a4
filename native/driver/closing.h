/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CLOSING_H
#define BW_CLOSING_H

#include <stdbool.h>

#include "erl_driver.h"

#include "../link/link.h"

/* Closes a link of a port that stops (a port that lives would be told when the job is done), and
 * leaves to the async thread what takes long. With `is_selected` the VM knows the link's
 * descriptor, and drv_stop_select closes it, maybe within this call. Under the port lock. */
void close_link(ErlDrvPort port, bw_link_t *link, bool is_selected);

#endif
