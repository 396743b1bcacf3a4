/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TOKEN_H
#define BW_TOKEN_H

#include "link.h"

/* Compares two tokens in constant time. */
static inline bool bw_token_is_same(const uint8_t *left, const uint8_t *right)
{
    uint8_t different = 0;

    for (size_t i = 0; i < BW_TOKEN_BYTES; i++)
        different |= (uint8_t)(left[i] ^ right[i]);
    return different == 0;
}

#endif
