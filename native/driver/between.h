/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BETWEEN_H
#define BW_BETWEEN_H

#include "../link/link.h"

/*
 * The link of a port that has lost its connection and waits for the next one: nothing comes, and
 * nothing goes. So the pump need not ask whether it has a link. It has no state, so all ports share
 * it; it is never closed and has no descriptor.
 */
extern bw_link_t bw_between;

#endif
