/* SPDX-License-Identifier: Apache-2.0 */
#include "tls.h"

#include <openssl/evp.h>

#define COST_N ((uint64_t)1 << 15)
#define COST_R 8
#define COST_P 3
#define MEMORY_BYTES ((uint64_t)64 << 20)

bw_status_t bw_tls_derive(const uint8_t *salt, size_t salt_len, const uint8_t *password, size_t len,
                          uint8_t key[BW_DERIVED_BYTES], bw_error_t *error_p)
{
    if (EVP_PBE_scrypt((const char *)password, len, salt, salt_len, COST_N, COST_R, COST_P,
                       MEMORY_BYTES, key, BW_DERIVED_BYTES) == 1)
        return BW_OK;
    return bw_fail(error_p, BW_SYSTEM, "libcrypto cannot derive a key: scrypt needs 32 MB", 0);
}
