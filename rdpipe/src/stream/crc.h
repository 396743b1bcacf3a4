/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CRC_H
#define RD_CRC_H

#include <stddef.h>
#include <stdint.h>

/* crc32c (Castagnoli), computed by ISA-L if that was available at build time, else by the
 * processor's instruction or a table. */

/* Continues `crc`, the crc32c of the preceding bytes (0 if there are none), over `len` more
 * bytes. */
uint32_t rd_crc_on(uint32_t crc, const uint8_t *data, size_t len);

static inline uint32_t rd_crc(const uint8_t *data, size_t len)
{
    return rd_crc_on(0, data, len);
}

/* Like rd_crc_on, but uses only a table; for tests, and for processors without the instruction. */
uint32_t rd_crc_by_table(uint32_t crc, const uint8_t *data, size_t len);

/* Returns how it is computed: "ISA-L", "SSE 4.2" or "a table". */
const char *rd_crc_name(void);

#endif
