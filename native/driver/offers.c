/* SPDX-License-Identifier: Apache-2.0 */
#include "offers.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct offer {
    struct offer *next;
    bw_link_t *link;
    uint64_t number;
} offer_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static offer_t *offers;
static uint64_t last_number;

uint64_t bw_offer(bw_link_t *link)
{
    offer_t *offer = malloc(sizeof *offer);
    uint64_t number;

    if (!offer)
        return 0;
    (void)pthread_mutex_lock(&lock);
    number = ++last_number;
    *offer = (offer_t){.next = offers, .link = link, .number = number};
    offers = offer;
    (void)pthread_mutex_unlock(&lock);
    return number;
}

bw_link_t *bw_offer_take(uint64_t number)
{
    offer_t **at = &offers, *taken;
    bw_link_t *link;

    (void)pthread_mutex_lock(&lock);
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    taken = *at;
    if (taken)
        *at = taken->next;
    (void)pthread_mutex_unlock(&lock);
    link = taken ? taken->link : NULL;
    free(taken);
    return link;
}
