/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_OFFERS_H
#define BW_OFFERS_H

#include <stdint.h>

#include "../link/link.h"

/*
 * Links on their way from the port that has made them to the port that shall use them. A link is
 * here from its offer until somebody takes it: the other port, or the one that offered it when it
 * ends. Any thread may call these; none waits but for another such call.
 */

/* The caller gives the link away: the number by which it is taken, 0: there is no memory, and the
 * link is still his. */
uint64_t bw_offer(bw_link_t *link);

/* The link of that number is the caller's; NULL: there is none. */
bw_link_t *bw_offer_take(uint64_t number);

#endif
