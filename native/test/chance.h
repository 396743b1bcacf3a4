/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CHANCE_H
#define BW_CHANCE_H

/* Pseudorandom numbers for schedules that can be repeated from a seed, which the test stores in
 * `chance`. */

#include <stdint.h>

static uint64_t chance;

/* Returns a number from 0 to below - 1. */
static inline uint32_t any(uint32_t below)
{
    chance = chance * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((chance >> 33) % below);
}

#endif
