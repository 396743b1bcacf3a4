/* SPDX-License-Identifier: Apache-2.0 */
#include "crc.h"

#include <pthread.h>
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

/* ISA-L takes the length as an int, and does not write to the data. */
uint32_t rd_crc_on(uint32_t crc, const uint8_t *data, size_t len)
{
    return ~crc32_iscsi((unsigned char *)(uintptr_t)data, (int)len, ~crc);
}

const char *rd_crc_name(void)
{
    return "ISA-L";
}

#elif defined __x86_64__

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *data,
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

uint32_t rd_crc_on(uint32_t crc, const uint8_t *data, size_t len)
{
    return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, data, len)
                                            : rd_crc_by_table(crc, data, len);
}

const char *rd_crc_name(void)
{
    return __builtin_cpu_supports("sse4.2") ? "SSE 4.2" : "a table";
}

#else

uint32_t rd_crc_on(uint32_t crc, const uint8_t *data, size_t len)
{
    return rd_crc_by_table(crc, data, len);
}

const char *rd_crc_name(void)
{
    return "a table";
}

#endif
