/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_OFFERS_H
#define BW_OFFERS_H

#include <stdint.h>

#include "../link/link.h"

/*
 * Passes links from the port that created them to the port that will use them. An offered link is
 * stored here until one of the two ports takes it: normally the second one, or the port that
 * offered it if that port is closed first. Any thread may call these functions; they block only on
 * each other.
 */

/* Stores the link and returns the number under which it can be taken. Returns 0 if out of memory;
 * the caller then still owns the link. */
uint64_t bw_offer(bw_link_t *link);

/* Removes and returns a link, which the caller then owns, or returns NULL if there is none. */
bw_link_t *bw_offer_take(uint64_t number);

#endif
