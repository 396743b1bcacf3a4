/* SPDX-License-Identifier: Apache-2.0 */
#include "wire.h"

#include <string.h>

#include "../bytes.h"

#define HELLO_MAGIC 0xBEA5u
#define HELLO_VERSION 1u
#define ORDER_MARK 0x01020304u /* in the host's own order */

/* At 0: magic:16, version:16, order mark:32, token:16 bytes, ring address:64, ring bytes:64,
 * key:32, slots:16, 0:16; all in network order except the mark. */
void bw_rdma_hello_put(const bw_rdma_hello_t *hello, uint8_t at[BW_RDMA_HELLO_BYTES])
{
    uint32_t mark = ORDER_MARK;

    at = bw_put(at, HELLO_MAGIC, 2);
    at = bw_put(at, HELLO_VERSION, 2);
    memcpy(at, &mark, 4);
    memcpy(at + 4, hello->token, BW_TOKEN_BYTES);
    at = bw_put(at + 4 + BW_TOKEN_BYTES, hello->ring_address, 8);
    at = bw_put(at, hello->ring_bytes, 8);
    at = bw_put(at, hello->ring_key, 4);
    at = bw_put(at, hello->slots, 2);
    bw_put(at, 0, 2);
}

bw_status_t bw_rdma_hello_get(const uint8_t *at, size_t len, bw_rdma_hello_t *hello_p,
                              bw_error_t *error_p)
{
    uint64_t magic, version, key, slots;
    bw_rdma_hello_t hello;
    uint32_t mark;

    if (!at || len < BW_RDMA_HELLO_BYTES)
        return bw_fail(error_p, BW_REFUSED, "the peer's hello is too short", 0);
    at = bw_get(at, &magic, 2);
    at = bw_get(at, &version, 2);
    memcpy(&mark, at, 4);
    memcpy(hello.token, at + 4, BW_TOKEN_BYTES);
    at = bw_get(at + 4 + BW_TOKEN_BYTES, &hello.ring_address, 8);
    at = bw_get(at, &hello.ring_bytes, 8);
    at = bw_get(at, &key, 4);
    bw_get(at, &slots, 2);
    hello.ring_key = (uint32_t)key;
    hello.slots = (uint16_t)slots;
    if (magic != HELLO_MAGIC)
        return bw_fail(error_p, BW_REFUSED, "the peer's hello is none of Beamway's", 0);
    if (version != HELLO_VERSION)
        return bw_fail(error_p, BW_REFUSED, "the peer's version of the rdma link is another", 0);
    if (mark != ORDER_MARK)
        return bw_fail(error_p, BW_REFUSED, "the peer's processor has another byte order", 0);
    if (!bw_ring_size_is_valid(hello.ring_bytes) ||
        hello.ring_address + hello.ring_bytes < hello.ring_bytes)
        return bw_fail(error_p, BW_REFUSED, "the peer's ring size or address is not valid", 0);
    if (slots < BW_RDMA_SLOTS_MIN || slots > BW_RDMA_SLOTS_MAX)
        return bw_fail(error_p, BW_REFUSED, "the peer's number of receive slots is not valid", 0);
    *hello_p = hello;
    return BW_OK;
}
