/* SPDX-License-Identifier: Apache-2.0 */
#include "crc.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#ifndef RD_WITHOUT_ISAL
#include <isa-l.h>
#endif

#define POLYNOMIAL 0x82F63B78u /* reflected */

static uint32_t table[256];
static pthread_once_t is_made = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? POLYNOMIAL : 0);
    }
}

uint32_t rd_crc_by_table(uint32_t crc, const uint8_t *data, size_t len)
{
    (void)pthread_once(&is_made, make_table);
    crc = ~crc;
    for (size_t i = 0; i < len; i++)
        crc = crc >> 8 ^ table[(crc ^ data[i]) & 0xFF];
    return ~crc;
}

#ifndef RD_WITHOUT_ISAL

#define BY "ISA-L"
#define HAS_IT true

/* ISA-L takes the length as an int, and does not write to the data. */
static uint32_t quick(uint32_t crc, const uint8_t *data, size_t len)
{
    return ~crc32_iscsi((unsigned char *)(uintptr_t)data, (int)len, ~crc);
}

#elif defined __x86_64__

#define BY "SSE 4.2"
#define HAS_IT __builtin_cpu_supports("sse4.2")

__attribute__((target("sse4.2"))) static uint32_t quick(uint32_t crc, const uint8_t *data,
                                                        size_t len)
{
    uint64_t sum = ~crc, word;

    for (; len >= 8; data += 8, len -= 8) {
        memcpy(&word, data, 8);
        sum = __builtin_ia32_crc32di(sum, word);
    }
    for (; len > 0; data++, len--)
        sum = __builtin_ia32_crc32qi((uint32_t)sum, *data);
    return ~(uint32_t)sum;
}

#else

#define BY ""
#define HAS_IT false
#define quick rd_crc_by_table

#endif

uint32_t rd_crc_on(uint32_t crc, const uint8_t *data, size_t len)
{
    return HAS_IT ? quick(crc, data, len) : rd_crc_by_table(crc, data, len);
}

const char *rd_crc_name(void)
{
    return HAS_IT ? BY : "a table";
}
