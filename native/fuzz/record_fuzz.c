/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the TLS records that a peer sends. The first byte of the input selects the suite, how the
 * rest reaches the reader, and into how many pieces it reads. The rest is passed on unchanged, in
 * pieces, or as records sealed with the right key; in the last case the reader must accept all of
 * them in order, and nothing else.
 */
#include <string.h>

#include "../link/tls/record.h"
#include "input.h"

static const uint8_t secret[BW_RECORD_SECRET_BYTES] = "what both sides have agreed on";

static struct {
    bw_record_writer_t writer;
    bw_record_reader_t reader;
    bw_buffer_t wire;
    size_t cut; /* end of the first of two pieces */
} way;

/* Reads everything available. If `expected` is NULL, no content may be returned. */
static bw_record_state_t drain(size_t step, const uint8_t *expected, size_t len)
{
    static uint8_t to[BW_RECORD_BYTES];
    size_t cut = way.cut < step ? way.cut : step;
    struct iovec iov[] = {{to, cut}, {to + cut, step - cut}};
    bw_record_state_t state;
    size_t n;

    while ((state = bw_record_take(&way.reader, iov, 2, &n)) == BW_RECORD_READ) {
        must(n > 0 && n <= step && expected && n <= len && memcmp(to, expected, n) == 0);
        expected += n;
        len -= n;
    }
    must(n == 0);
    must(state != BW_RECORD_SHORT || (bw_record_missing(&way.reader) > 0 && len == 0));
    return state;
}

/* Feeds arbitrary bytes; the first byte of `data` is the piece length. */
static void strange(const uint8_t *data, size_t size)
{
    size_t step = 1 + (size > 0 ? *data : 0);

    while (size > 0) {
        size_t n = size < step ? size : step;

        if (drain(step, NULL, 0) != BW_RECORD_SHORT)
            return;
        must(bw_record_missing(&way.reader) <= bw_buffer_room(&way.wire));
        must(bw_buffer_put(&way.wire, data, n));
        data += n;
        size -= n;
    }
}

static bool replaces_key(const uint8_t *message, size_t len)
{
    return len == 5 && memcmp(message, "\x18\0\0\1", 4) == 0;
}

/* Feeds records, each given as a type, a length and the content. Type 0 flips a bit in the next
 * record. */
static void known(const uint8_t *data, size_t size)
{
    bool is_changed = false;

    while (size >= 2) {
        uint8_t type = data[0], *to = bw_buffer_gap(&way.wire).base;
        size_t before, len = data[1];
        bool is_data = type == BW_RECORD_DATA && !is_changed;
        bw_record_state_t state;

        data += 2;
        size -= 2;
        len = len < size ? len : size;
        if (type == 0) {
            is_changed = true;
            continue;
        }
        before = bw_buffer_fill(&way.wire);
        must(bw_record_seal(&way.writer, type,
                            (struct iovec[]){{(void *)(uintptr_t)data, len / 3},
                                             {(void *)(uintptr_t)(data + len / 3), len - len / 3}},
                            2));
        must(bw_buffer_fill(&way.wire) == before + BW_RECORD_HEADER + len + 1 + BW_RECORD_TAG);
        if (is_changed)
            to[BW_RECORD_HEADER + len] ^= 4;
        state = drain(1 + len / 2, is_data ? data : NULL, is_data ? len : 0);
        must(!is_changed || state == BW_RECORD_WRONG);
        must(!is_data || state == BW_RECORD_SHORT || (len == 0 && state == BW_RECORD_FLOODED));
        if (state != BW_RECORD_SHORT)
            return;
        if (type == BW_RECORD_HANDSHAKE && replaces_key(data, len))
            must(bw_record_key_update(&way.writer.key));
        data += len;
        size -= len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned suites[] = {BW_SUITE_CHACHA20_POLY1305_SHA256,
                                      BW_SUITE_AES_128_GCM_SHA256, BW_SUITE_AES_256_GCM_SHA384};
    bw_error_t error;

    if (size < 1)
        return 0;
    if (!way.wire.data)
        must(bw_buffer_make(&way.wire, "fuzz", (uint64_t)1 << 16, &error) == BW_OK);
    way.wire.tail = way.wire.head;
    way.reader = (bw_record_reader_t){.in = &way.wire};
    way.writer.out = &way.wire;
    way.writer.limit = BW_RECORD_KEY_LIMIT;
    way.cut = data[0] >> 3;
    must(bw_record_key_open(&way.writer.key, suites[data[0] / 2 % 3], true, secret));
    must(bw_record_key_open(&way.reader.key, suites[data[0] / 2 % 3], false, secret));
    if (data[0] & 1)
        known(data + 1, size - 1);
    else
        strange(data + 1, size - 1);
    bw_record_key_close(&way.writer.key);
    bw_record_key_close(&way.reader.key);
    return 0;
}
