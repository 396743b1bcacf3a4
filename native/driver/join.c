/* SPDX-License-Identifier: Apache-2.0 */
#include "join.h"

#include "../link/bytes.h"
#include "dist_frame.h"

#define HEAD_FRAGMENT_AT 10 /* offset of the fragment number in a header */
#define WHOLE_AT 16         /* offset of a whole frame within a first fragment */
#define SPARE_PART 8        /* a binary may be larger than its contents by up to 1/8 */

static uint64_t sequence_of(const uint8_t *head)
{
    return bw_number(head + 2, 8);
}

static uint64_t fragment_of(const uint8_t *head)
{
    return bw_number(head + HEAD_FRAGMENT_AT, 8);
}

static bool is_first(const uint8_t *head)
{
    return head[0] == BW_DIST_VERSION && head[1] == BW_DIST_HEADER_FIRST;
}

static bool is_rest(const uint8_t *head)
{
    return head[0] == BW_DIST_VERSION && head[1] == BW_DIST_HEADER_REST;
}

static int find(const bw_joins_t *joins, uint64_t sequence)
{
    for (int i = 0; i < joins->count; i++)
        if (joins->joins[i].sequence == sequence)
            return i;
    return -1;
}

static bool has_common(const bw_dist_entries_t *left, const bw_dist_entries_t *right)
{
    for (size_t i = 0; i < sizeof left->bits / sizeof *left->bits; i++)
        if (left->bits[i] & right->bits[i])
            return true;
    return false;
}

int bw_join_begin(bw_joins_t *joins, const uint8_t head[BW_FRAGMENT_HEAD_BYTES], uint64_t len)
{
    uint64_t room = BW_JOINS_BYTES - joins->bytes, more = fragment_of(head) - 1;
    ErlDrvBinary *binary;

    /* The VM does not accept 0 as a sequence. */
    if (!is_first(head) || sequence_of(head) == 0 || more == 0 || joins->count == BW_JOINS_MAX ||
        find(joins, sequence_of(head)) >= 0 || len > room ||
        more > (room - len) / BW_FRAGMENT_BYTES)
        return -1;
    binary = driver_alloc_binary((ErlDrvSizeT)(len + more * BW_FRAGMENT_BYTES));
    if (!binary)
        return -1;
    joins->bytes += (uint64_t)binary->orig_size;
    joins->joins[joins->count] =
        (bw_join_t){.binary = binary, .sequence = sequence_of(head), .left = more};
    return joins->count++;
}

int bw_join_find(const bw_joins_t *joins, const uint8_t head[BW_FRAGMENT_HEAD_BYTES], uint64_t len)
{
    int index = is_rest(head) ? find(joins, sequence_of(head)) : -1;
    const bw_join_t *join;

    if (index < 0)
        return -1;
    join = &joins->joins[index];
    return fragment_of(head) == join->left &&
                   len - BW_FRAGMENT_HEAD_BYTES <= (uint64_t)join->binary->orig_size - join->len
               ? index
               : -1;
}

uint8_t *bw_join_gap(const bw_joins_t *joins, int index)
{
    const bw_join_t *join = &joins->joins[index];

    return (uint8_t *)join->binary->orig_bytes + join->len;
}

/* Returns whether decoding the header can be postponed until the last fragment arrives. */
static bool can_wait(const bw_join_t *join)
{
    bw_dist_entries_t all, renewed;

    return bw_dist_entries_read((const uint8_t *)join->binary->orig_bytes, (size_t)join->len, &all,
                                &renewed) &&
           !has_common(&renewed, &renewed);
}

bool bw_join_advance(bw_joins_t *joins, int index, uint64_t bytes)
{
    bw_join_t *join = &joins->joins[index];
    bool is_new = join->len == 0;

    join->len += bytes;
    if (is_new)
        return !can_wait(join);
    return --join->left == 0;
}

/* Shrinks the binary, because the last fragment may have been short, and a message in a mailbox
 * keeps the whole binary alive. Small binaries are shrunk in place. */
static ErlDrvBinary *fitted(const bw_join_t *join)
{
    ErlDrvBinary *smaller = NULL;

    if ((uint64_t)join->binary->orig_size - join->len > join->len / SPARE_PART)
        smaller = driver_realloc_binary(join->binary, (ErlDrvSizeT)join->len);
    return smaller ? smaller : join->binary;
}

bw_joined_t bw_join_take(bw_joins_t *joins, int index)
{
    bw_join_t join = joins->joins[index];
    bw_joined_t joined = {.len = (ErlDrvSizeT)join.len};
    uint8_t *bytes;

    joins->bytes -= (uint64_t)join.binary->orig_size;
    joins->joins[index] = joins->joins[--joins->count];
    joined.binary = fitted(&join);
    bytes = (uint8_t *)joined.binary->orig_bytes;
    if (join.left > 0) {
        bw_put(bytes + HEAD_FRAGMENT_AT, join.left + 1, 8);
        return joined;
    }
    bytes[WHOLE_AT] = BW_DIST_VERSION;
    bytes[WHOLE_AT + 1] = BW_DIST_HEADER_WHOLE;
    joined.offset = WHOLE_AT;
    joined.len -= WHOLE_AT;
    return joined;
}

/* Returns whether the header of a frame updates cache entries or cannot be read. For most headers
 * neither is true, so this quick check usually makes it unnecessary to parse the header. */
static bool may_renew(const uint8_t *frame, uint64_t len)
{
    uint64_t at = frame[1] == BW_DIST_HEADER_FIRST ? BW_FRAGMENT_HEAD_BYTES : 2;
    unsigned count;

    if (at >= len)
        return true;
    count = frame[at];
    if (len - at < 1 + (count + 1) / 2)
        return true;
    for (unsigned i = 0; i < count; i++)
        if (frame[at + 1 + i / 2] >> (i % 2 * 4) & 8)
            return true;
    return false;
}

static int find_reader(const bw_joins_t *joins, const bw_dist_entries_t *renewed)
{
    bw_dist_entries_t all, none;

    for (int i = 0; i < joins->count; i++) {
        const bw_join_t *join = &joins->joins[i];

        (void)bw_dist_entries_read((const uint8_t *)join->binary->orig_bytes, (size_t)join->len,
                                   &all, &none);
        if (has_common(&all, renewed))
            return i;
    }
    return -1;
}

int bw_join_ahead_of(const bw_joins_t *joins, const uint8_t *frame, uint64_t len)
{
    bw_dist_entries_t all, renewed;
    int index = -1;

    if (joins->count == 0 || len < 2)
        return -1;
    if (len >= BW_FRAGMENT_HEAD_BYTES && (is_first(frame) || is_rest(frame)))
        index = find(joins, sequence_of(frame));
    if (index >= 0 && is_rest(frame) && fragment_of(frame) != joins->joins[index].left)
        return BW_JOIN_REFUSES;
    if (index >= 0)
        return index;
    if (is_rest(frame) || !may_renew(frame, len))
        return -1;
    if (!bw_dist_entries_read(frame, (size_t)len, &all, &renewed))
        return 0; /* the VM will close the connection */
    return find_reader(joins, &renewed);
}

void bw_joins_free(bw_joins_t *joins)
{
    while (joins->count > 0)
        driver_free_binary(joins->joins[--joins->count].binary);
    joins->bytes = 0;
}
