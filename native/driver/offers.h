/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_OFFERS_H
#define BW_OFFERS_H

#include <stdint.h>

#include "../link/link.h"

/*
 * Hands links from the port that has made them to the port that will use them. An offered link is
 * kept here until it is taken, either by that port or, when it ends, by the port that offered it.
 * Any thread may call these functions, which wait only for each other.
 */

/* Gives the link away and returns the number under which it can be taken. Returns 0 if out of
 * memory; then the link is still the caller's. */
uint64_t bw_offer(bw_link_t *link);

/* Returns the link with that number, which is now the caller's, or NULL if there is none. */
bw_link_t *bw_offer_take(uint64_t number);

#endif
