/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BYTES_H
#define BW_BYTES_H

#include <stdint.h>

/* Numbers of 1 to 8 bytes in network order. bw_put and bw_get return the address after them. */
static inline uint8_t *bw_put(uint8_t *at, uint64_t number, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, number >>= 8)
        at[i] = (uint8_t)number;
    return at + bytes;
}

static inline const uint8_t *bw_get(const uint8_t *at, uint64_t *number_p, int bytes)
{
    *number_p = 0;
    for (int i = 0; i < bytes; i++)
        *number_p = *number_p << 8 | at[i];
    return at + bytes;
}

static inline uint64_t bw_number(const void *at, int bytes)
{
    uint64_t number;

    (void)bw_get(at, &number, bytes);
    return number;
}

static inline uint64_t bw_least(uint64_t left, uint64_t right)
{
    return left < right ? left : right;
}

static inline uint64_t bw_greatest(uint64_t left, uint64_t right)
{
    return left > right ? left : right;
}

#endif
