/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_DETACHED_LINK_H
#define BW_DETACHED_LINK_H

#include "../link/link.h"

/*
 * The link of a port that has lost its connection and waits for the next one. It neither
 * sends nor receives anything, so the pump need not check whether it has a link. It has no state
 * and no descriptor and is never closed, so all ports share it.
 */
extern bw_link_t bw_detached_link;

#endif
