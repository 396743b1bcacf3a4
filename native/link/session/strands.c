/* SPDX-License-Identifier: Apache-2.0 */
#include "strands.h"

#include <endian.h>

#include "../bytes.h"

enum { CHUNK = 1, ACK, END };

int bw_strands_add(bw_strands_t *strands)
{
    unsigned place = 0;

    while (place < strands->count && strands->strands[place].is_live)
        place++;
    if (place == BW_STRANDS_MAX)
        return -1;
    if (place == strands->count)
        strands->count++;
    strands->strands[place] = (bw_strand_t){.is_live = true};
    strands->live++;
    return (int)place;
}

void bw_strands_lost(bw_strands_t *strands, unsigned place)
{
    bw_strand_t *strand = &strands->strands[place];

    if (!strand->has_heard_end) {
        bw_outgoing_go_back(&strands->out);
        strands->again = strands->out.sent;
    }
    strands->owes_ack = true; /* the last ACK may have been lost */
    *strand = (bw_strand_t){.is_live = false};
    strands->live--;
}

/* ---- the outgoing stream ---- */

static void say(bw_strand_t *strand, uint8_t kind, uint32_t len, uint64_t offset, uint64_t other)
{
    uint32_t word = htole32(len);
    uint64_t offsets[2] = {htole64(offset), htole64(other)};

    memset(strand->said, 0, 8);
    strand->said[0] = kind;
    memcpy(strand->said + 4, &word, 4);
    memcpy(strand->said + 8, offsets, 16);
    strand->said_at = 0;
    strand->said_len = BW_STRAND_HEADER;
}

void bw_strand_sent(bw_strand_t *strand, size_t bytes)
{
    size_t of_header = bw_least(bytes, strand->said_len);

    strand->said_at += of_header;
    strand->said_len -= of_header;
    strand->at += bytes - of_header;
    strand->left -= bytes - of_header;
}

static bool is_free(const bw_strand_t *strand)
{
    return strand->is_live && !strand->is_blocked && !bw_strand_has_unsent(strand) &&
           !strand->has_said_end;
}

/* Returns the first place after the strands that may be given chunks. */
static unsigned end_of_used(const bw_strands_t *strands)
{
    unsigned place = 0;

    for (unsigned live = 0; place < strands->count && live < strands->use; place++)
        live += strands->strands[place].is_live;
    return place;
}

int bw_strands_assign(bw_strands_t *strands)
{
    uint64_t most = strands->is_one ? BW_CHUNK_BYTES : BW_CHUNK_SHARE_BYTES;
    uint64_t len = bw_least(bw_strands_unassigned(strands), most);
    unsigned end = end_of_used(strands);

    if (len == 0)
        return -1;
    if (len == most)
        strands->last++;
    for (unsigned i = 0; i < end; i++) {
        unsigned place = (strands->last + i) % end;
        bw_strand_t *strand = &strands->strands[place];

        if (!is_free(strand))
            continue;
        say(strand, CHUNK, (uint32_t)len, strands->out.next, 0);
        strand->at = strands->out.next;
        strand->left = len;
        bw_outgoing_send(&strands->out, len);
        strands->last = place;
        return (int)place;
    }
    return -1;
}

int bw_strands_acknowledge(bw_strands_t *strands, uint64_t news, bool again)
{
    uint64_t arrived = strands->in.head, beyond;

    if (strands->taken - strands->acked < news && arrived - strands->acked_all < news &&
        strands->unreported < news && !(again && strands->owes_ack && arrived > 0))
        return -1;
    for (unsigned place = 0; place < strands->count; place++) {
        if (!is_free(&strands->strands[place]))
            continue;
        beyond = bw_ranges_beyond(&strands->in);
        say(&strands->strands[place], ACK, (uint32_t)bw_least(beyond, UINT32_MAX), strands->taken,
            arrived);
        strands->acked = strands->taken;
        strands->acked_all = arrived;
        strands->unreported = 0;
        strands->owes_ack = false;
        return (int)place;
    }
    return -1;
}

bool bw_strands_end(bw_strands_t *strands)
{
    if (bw_strands_unassigned(strands) > 0)
        return false;
    for (unsigned place = 0; place < strands->count; place++)
        if (!strands->strands[place].has_said_end && bw_strand_has_unsent(&strands->strands[place]))
            return false;
    for (unsigned place = 0; place < strands->count; place++) {
        bw_strand_t *strand = &strands->strands[place];

        if (strand->is_live && !strand->has_said_end)
            say(strand, END, 0, strands->out.next, 0);
        strand->has_said_end = strand->is_live;
    }
    return true;
}

/* ---- the incoming stream ---- */

bw_strand_due_t bw_strands_due(const bw_strands_t *strands, bw_strand_t *strand)
{
    bw_strand_due_t due = {.at = strand->to};

    if (strand->due > 0)
        due.len = bw_ranges_run(&strands->in, strand->to, strand->due, &due.is_new);
    else
        due = (bw_strand_due_t){.header = strand->heard + strand->heard_len,
                                .len = BW_STRAND_HEADER - strand->heard_len};
    return due;
}

/* Returns where the room ends that the peer knows about. A correct peer sends nothing after it. */
static uint64_t end_of_room(const bw_strands_t *strands)
{
    return strands->has_total ? strands->total : strands->taken + strands->in_bytes;
}

/* Returns whether the peer can have the bytes before `position` and `beyond` more. */
static bool is_possible(const bw_outgoing_t *out, uint64_t position, uint64_t beyond)
{
    return position <= out->sent && beyond <= out->sent - position;
}

static bool take_header(bw_strands_t *strands, bw_strand_t *strand)
{
    uint32_t len;
    uint64_t offset, other;

    memcpy(&len, strand->heard + 4, 4);
    memcpy(&offset, strand->heard + 8, 8);
    memcpy(&other, strand->heard + 16, 8);
    len = le32toh(len);
    offset = le64toh(offset);
    other = le64toh(other);
    strand->heard_len = 0;
    if (strand->has_heard_end)
        return false;
    switch (strand->heard[0]) {
    case CHUNK:
        if (len == 0 || len > bw_least(BW_CHUNK_BYTES, strands->in_bytes) ||
            offset > end_of_room(strands) || end_of_room(strands) - offset < len)
            return false;
        strand->to = offset;
        strand->due = len;
        return true;
    case ACK:
        /* A newer ACK may already have arrived over another connection. */
        if (offset > other || !is_possible(&strands->out, other, len))
            return false;
        if (other > strands->out.arrived ||
            (other == strands->out.arrived && len > strands->beyond))
            strands->beyond = len;
        (void)bw_outgoing_acknowledged(&strands->out, other);
        if (offset > strands->freed)
            strands->freed = offset;
        return true;
    case END:
        if (strands->has_total ? strands->total != offset
                               : offset < strands->in.head || offset > end_of_room(strands))
            return false;
        strands->has_total = strand->has_heard_end = true;
        strands->total = offset;
        return true;
    default:
        return false;
    }
}

bool bw_strands_came(bw_strands_t *strands, bw_strand_t *strand, const bw_strand_due_t *due,
                     size_t bytes)
{
    if (due->header) {
        strand->heard_len += bytes;
        return strand->heard_len < BW_STRAND_HEADER || take_header(strands, strand);
    }
    if (due->is_new && !bw_ranges_add(&strands->in, due->at, due->at + bytes))
        return false;
    strands->unreported += bytes;
    strand->to += bytes;
    strand->due -= bytes;
    return true;
}
