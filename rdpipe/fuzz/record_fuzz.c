/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of TLS that rdpipe reads. The first byte says whether the rest goes to the reader as
 * it is, in pieces, or as records that have the right key: of these the reader must take all in
 * order, and nothing else.
 */
#include <stdlib.h>

#include "record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t secret[RD_SECRET_BYTES] = "what both sides have agreed on";

typedef struct {
    rd_record_key_t key;
    rd_reader_t reader;
    uint8_t buffer[3 * RD_RECORD_MAX];
} way_t;

/* Reads all there is. `expected` NULL: nothing may come. */
static rd_record_state_t drain(rd_reader_t *reader, size_t step, const uint8_t *expected,
                               size_t len)
{
    static uint8_t to[RD_RECORD_BYTES];
    rd_record_state_t state;
    size_t n;

    while ((state = rd_reader_take(reader, to, step, &n)) == RD_RECORD_READ) {
        if (n == 0 || n > step || !expected || n > len || memcmp(to, expected, n) != 0)
            abort();
        expected += n;
        len -= n;
    }
    if (state == RD_RECORD_SHORT && (rd_reader_missing(reader) == 0 || (expected && len > 0)))
        abort();
    return state;
}

/* Whatever comes; the first byte of `data` is the length of a piece. */
static void strange(way_t *way, const uint8_t *data, size_t size)
{
    size_t step = 1 + (size > 0 ? *data : 0);

    while (size > 0) {
        size_t room, n = size < step ? size : step;
        uint8_t *to;

        if (drain(&way->reader, step, NULL, 0) != RD_RECORD_SHORT)
            return;
        to = rd_reader_room(&way->reader, &room);
        if (room < rd_reader_missing(&way->reader))
            abort();
        n = n < room ? n : room;
        memcpy(to, data, n);
        way->reader.len += n;
        data += n;
        size -= n;
    }
}

/* Records: a type, a length, the content; of the type 0 a bit of the next one is changed. */
static void known(way_t *way, const uint8_t *data, size_t size)
{
    bool is_changed = false;

    while (size >= 2) {
        uint8_t type = data[0];
        size_t room, bytes, len = data[1];
        uint8_t *to = rd_reader_room(&way->reader, &room);
        rd_record_state_t state;

        data += 2;
        size -= 2;
        len = len < size ? len : size;
        if (type == 0) {
            is_changed = true;
            continue;
        }
        bytes = rd_record_seal(&way->key, type, data, len, to);
        if (bytes != RD_RECORD_HEADER + len + 1 + RD_RECORD_TAG)
            abort();
        if (is_changed)
            to[RD_RECORD_HEADER + len] ^= 4;
        way->reader.len += bytes;
        state = drain(&way->reader, 1 + len / 2,
                      type == RD_RECORD_DATA && !is_changed ? data : NULL, len);
        if (is_changed && state != RD_RECORD_WRONG)
            abort();
        if (type == RD_RECORD_DATA && !is_changed && state != RD_RECORD_SHORT)
            abort();
        if (state != RD_RECORD_SHORT)
            return;
        /* It was a KeyUpdate, then. */
        if (type == RD_RECORD_HANDSHAKE && !rd_record_key_update(&way->key))
            abort();
        data += len;
        size -= len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static way_t way;

    if (size < 1)
        return 0;
    way.reader = (rd_reader_t){.data = way.buffer, .size = sizeof way.buffer};
    if (!rd_record_key_open(&way.key, data[0] & 2, true, secret) ||
        !rd_record_key_open(&way.reader.key, data[0] & 2, false, secret))
        abort();
    (data[0] & 1 ? known : strange)(&way, data + 1, size - 1);
    rd_record_key_close(&way.key);
    rd_record_key_close(&way.reader.key);
    return 0;
}
