/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include "../link/bytes.h"

static uint32_t number_of(const uint8_t head[BW_PART_HEAD_BYTES])
{
    return (uint32_t)bw_number(head + 1, 4);
}

static uint64_t size_of(const uint8_t head[BW_PART_HEAD_BYTES])
{
    return bw_number(head + 5, 8);
}

static int find(const bw_parts_t *parts, uint32_t wanted)
{
    for (int i = 0; i < parts->count; i++)
        if (parts->wholes[i].number == wanted)
            return i;
    return -1;
}

bool bw_part_is_one(const bw_parts_t *parts, const uint8_t head[BW_PART_HEAD_BYTES], uint32_t len)
{
    return parts->mark != 0 && len >= BW_PART_HEAD_BYTES && head[0] == parts->mark &&
           (size_of(head) != len - BW_PART_HEAD_BYTES || find(parts, number_of(head)) >= 0);
}

static int begin(bw_parts_t *parts, uint32_t wanted, uint64_t size)
{
    ErlDrvBinary *binary;

    if (parts->count == BW_PARTS_MAX || size > parts->largest ||
        size > BW_PARTS_MAX_BYTES - parts->bytes)
        return BW_PARTS_WRONG;
    binary = driver_alloc_binary((ErlDrvSizeT)size);
    if (!binary)
        return BW_PARTS_NO_MEMORY;
    parts->wholes[parts->count] = (bw_whole_t){.binary = binary, .number = wanted};
    parts->bytes += size;
    return parts->count++;
}

int bw_parts_place(bw_parts_t *parts, const uint8_t head[BW_PART_HEAD_BYTES], uint32_t len)
{
    uint64_t size = size_of(head), more = len - BW_PART_HEAD_BYTES;
    int index = find(parts, number_of(head));

    if (index < 0)
        return more > size ? BW_PARTS_WRONG : begin(parts, number_of(head), size);
    if ((uint64_t)parts->wholes[index].binary->orig_size != size ||
        more > size - parts->wholes[index].len)
        return BW_PARTS_WRONG;
    return index;
}

ErlDrvBinary *bw_parts_take(bw_parts_t *parts, int index)
{
    ErlDrvBinary *binary = parts->wholes[index].binary;

    parts->bytes -= (uint64_t)binary->orig_size;
    parts->wholes[index] = parts->wholes[--parts->count];
    return binary;
}

void bw_parts_free(bw_parts_t *parts)
{
    while (parts->count > 0)
        driver_free_binary(bw_parts_take(parts, 0));
}
