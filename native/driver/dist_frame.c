/* SPDX-License-Identifier: Apache-2.0 */
#include "dist_frame.h"

#include "../link/bytes.h"

/* Tags of the external term format that may occur before the sender in a control message. */
enum {
    ATOM_CACHE_REF = 82,
    NEW_PID = 88,
    NEWER_REFERENCE = 90,
    SMALL_INTEGER = 97,
    INTEGER = 98,
    ATOM_LATIN1 = 100,
    PID = 103,
    SMALL_TUPLE = 104,
    LARGE_TUPLE = 105,
    NIL = 106,
    SMALL_BIG = 110,
    NEW_REFERENCE = 114,
    SMALL_ATOM_LATIN1 = 115,
    ATOM_UTF8 = 118,
    SMALL_ATOM_UTF8 = 119,
};

/* The index of the element of a control message that is the sender's pid; 0 if there is none. SEND
 * has no sender, and GROUP_LEADER names the leader instead of the process that sets it.
 * MONITOR_P_EXIT may have a name there instead of a pid. */
static const uint8_t sender_at[] = {
    [1] = 2,  /* LINK */
    [3] = 2,  /* EXIT */
    [4] = 2,  /* UNLINK */
    [6] = 2,  /* REG_SEND */
    [8] = 2,  /* EXIT2 */
    [13] = 2, /* EXIT_TT */
    [16] = 2, /* REG_SEND_TT */
    [18] = 2, /* EXIT2_TT */
    [19] = 2, /* MONITOR_P */
    [20] = 2, /* DEMONITOR_P */
    [21] = 2, /* MONITOR_P_EXIT */
    [22] = 2, /* SEND_SENDER */
    [23] = 2, /* SEND_SENDER_TT */
    [24] = 2, /* PAYLOAD_EXIT */
    [25] = 2, /* PAYLOAD_EXIT_TT */
    [26] = 2, /* PAYLOAD_EXIT2 */
    [27] = 2, /* PAYLOAD_EXIT2_TT */
    [28] = 2, /* PAYLOAD_MONITOR_P_EXIT */
    [29] = 3, /* SPAWN_REQUEST */
    [30] = 3, /* SPAWN_REQUEST_TT */
    [31] = 5, /* SPAWN_REPLY: from the new process, or an atom with the reason for its failure */
    [32] = 5, /* SPAWN_REPLY_TT */
    [33] = 2, /* ALIAS_SEND */
    [34] = 2, /* ALIAS_SEND_TT */
    [35] = 3, /* UNLINK_ID */
    [36] = 3, /* UNLINK_ID_ACK */
    [37] = 3, /* ALTACT_SIG_SEND, since OTP 28 */
};

/* A position in the frame. Reads beyond the end return 0 and set `is_cut`. */
typedef struct {
    const struct iovec *iov;
    int count;
    size_t offset; /* in iov[0] */
    bool is_cut;
} place_t;

static void skip_pieces(place_t *place, uint64_t bytes)
{
    while (place->count > 0 && bytes >= place->iov->iov_len - place->offset) {
        bytes -= place->iov->iov_len - place->offset;
        place->iov++;
        place->count--;
        place->offset = 0;
    }
    if (place->count > 0)
        place->offset += bytes;
    else if (bytes > 0)
        place->is_cut = true;
}

/* Returns whether the next `bytes` bytes are contiguous, which is almost always true. */
static inline bool has_in_piece(const place_t *place, uint64_t bytes)
{
    return place->count > 0 && bytes < place->iov->iov_len - place->offset;
}

static inline void skip(place_t *place, uint64_t bytes)
{
    if (has_in_piece(place, bytes))
        place->offset += bytes;
    else
        skip_pieces(place, bytes);
}

static uint64_t number_in_pieces(place_t *place, unsigned bytes)
{
    uint64_t value = 0;

    for (skip(place, 0); bytes > 0 && place->count > 0; skip(place, 0)) {
        const uint8_t *base = place->iov->iov_base;
        size_t n = bw_least(place->iov->iov_len - place->offset, bytes);

        bytes -= (unsigned)n;
        while (n-- > 0)
            value = value << 8 | base[place->offset++];
    }
    if (bytes == 0)
        return value;
    place->is_cut = true;
    return 0;
}

static inline uint64_t number(place_t *place, unsigned bytes)
{
    uint64_t value;

    if (!has_in_piece(place, bytes))
        return number_in_pieces(place, bytes);
    value = bw_number((const uint8_t *)place->iov->iov_base + place->offset, (int)bytes);
    place->offset += bytes;
    return value;
}

static void add(bw_dist_entries_t *entries, unsigned entry)
{
    if (entries)
        entries->bits[entry / 64] |= (uint64_t)1 << entry % 64;
}

/* Returns whether a reference is a new entry. `all` and `renewed` may be NULL. */
static bool read_cache_references(place_t *place, bw_dist_entries_t *all,
                                  bw_dist_entries_t *renewed)
{
    uint8_t flags[128];
    unsigned count = (unsigned)number(place, 1);
    bool has_new = false, is_long;

    if (count == 0)
        return false;
    for (unsigned i = 0; i <= count / 2; i++)
        flags[i] = (uint8_t)number(place, 1);
    is_long = flags[count / 2] >> (count % 2 * 4) & 1;
    for (unsigned i = 0; i < count; i++) {
        unsigned flag = flags[i / 2] >> (i % 2 * 4);
        unsigned entry = (flag & 7) << 8 | (unsigned)number(place, 1);

        add(all, entry);
        if (flag & 8) {
            add(renewed, entry);
            has_new = true;
            skip(place, number(place, is_long ? 2 : 1));
        }
    }
    return has_new;
}

static bool skip_atom(place_t *place)
{
    switch (number(place, 1)) {
    case ATOM_CACHE_REF:
        skip(place, 1);
        return true;
    case SMALL_ATOM_UTF8:
    case SMALL_ATOM_LATIN1:
        skip(place, number(place, 1));
        return true;
    case ATOM_UTF8:
    case ATOM_LATIN1:
        skip(place, number(place, 2));
        return true;
    default:
        return false;
    }
}

static bool read_pid(place_t *place, uint64_t *pid_p)
{
    uint64_t tag = number(place, 1), id;

    if ((tag != NEW_PID && tag != PID) || !skip_atom(place))
        return false;
    id = number(place, 4);
    *pid_p = number(place, 4) << 32 | id;
    skip(place, tag == NEW_PID ? 4 : 1); /* skips the creation */
    return true;
}

/* Handles only the terms that may precede a sender: numbers, references and pids. */
static bool skip_term(place_t *place)
{
    place_t start = *place;
    uint64_t words, pid;

    switch (number(place, 1)) {
    case SMALL_INTEGER:
        skip(place, 1);
        return true;
    case INTEGER:
        skip(place, 4);
        return true;
    case SMALL_BIG:
        skip(place, number(place, 1) + 1);
        return true;
    case NEWER_REFERENCE:
        words = number(place, 2);
        if (!skip_atom(place))
            return false;
        skip(place, 4 + 4 * words);
        return true;
    case NEW_REFERENCE:
        words = number(place, 2);
        if (!skip_atom(place))
            return false;
        skip(place, 1 + 4 * words);
        return true;
    default:
        *place = start;
        return read_pid(place, &pid);
    }
}

static void read_control_message(place_t *place, bw_dist_frame_t *frame)
{
    uint64_t tag = number(place, 1), arity, operation;
    unsigned at;

    if (tag != SMALL_TUPLE && tag != LARGE_TUPLE)
        return;
    arity = number(place, tag == SMALL_TUPLE ? 1 : 4);
    if (number(place, 1) != SMALL_INTEGER)
        return;
    operation = number(place, 1);
    at = operation < sizeof sender_at ? sender_at[operation] : 0;
    if (at == 0 || arity < at)
        return;
    for (unsigned element = 2; element < at; element++)
        if (!skip_term(place))
            return;
    frame->has_sender = read_pid(place, &frame->sender) && !place->is_cut;
}

bw_dist_frame_t bw_dist_frame_read(const struct iovec *iov, int count)
{
    bw_dist_frame_t frame = {.kind = BW_DIST_UNKNOWN};
    place_t place = {.iov = iov, .count = count};
    uint64_t version, header;

    skip(&place, 0);
    if (place.count == 0)
        return (bw_dist_frame_t){.kind = BW_DIST_TICK};
    version = number(&place, 1);
    header = number(&place, 1);
    if (version != BW_DIST_VERSION || header < BW_DIST_HEADER_WHOLE || header > BW_DIST_HEADER_REST)
        return frame;
    if (header != BW_DIST_HEADER_WHOLE) {
        frame.sequence = number(&place, 8);
        frame.fragment = number(&place, 8);
    }
    if (header != BW_DIST_HEADER_REST) {
        frame.renews_cache = read_cache_references(&place, NULL, NULL);
        if (!place.is_cut)
            read_control_message(&place, &frame);
    }
    if (place.is_cut)
        return (bw_dist_frame_t){.kind = BW_DIST_UNKNOWN};
    frame.kind = header == BW_DIST_HEADER_WHOLE   ? BW_DIST_WHOLE
                 : header == BW_DIST_HEADER_FIRST ? BW_DIST_FIRST
                                                  : BW_DIST_REST;
    return frame;
}

bool bw_dist_entries_read(const uint8_t *frame, size_t len, bw_dist_entries_t *all_p,
                          bw_dist_entries_t *renewed_p)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)frame, .iov_len = len};
    place_t place = {.iov = &iov, .count = 1};
    uint64_t version = number(&place, 1), header = number(&place, 1);

    *all_p = *renewed_p = (bw_dist_entries_t){{0}};
    if (version != BW_DIST_VERSION ||
        (header != BW_DIST_HEADER_WHOLE && header != BW_DIST_HEADER_FIRST))
        return false;
    if (header == BW_DIST_HEADER_FIRST)
        skip(&place, 16);
    (void)read_cache_references(&place, all_p, renewed_p);
    return !place.is_cut;
}
