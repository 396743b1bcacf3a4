/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the frame decoder: every limit of a header, headers that no correct peer writes, and
 * incomplete frames.
 */
#include "../check.h"

#include <stdbool.h>
#include <stdlib.h>

#include "../../link/frame.h"

static void put(uint8_t *at, uint32_t len, uint16_t magic, uint16_t kind)
{
    memcpy(at, &len, 4);
    memcpy(at + 4, &magic, 2);
    memcpy(at + 6, &kind, 2);
}

static void sizes_are_padded_to_eight(void)
{
    static const struct {
        uint32_t len;
        uint64_t size;
    } table[] = {
        {0, 8},
        {1, 16},
        {7, 16},
        {8, 16},
        {9, 24},
        {4096, 4104},
        {65535, 65544},
        {65536, 65544},
        {65537, 65552},
        {INT32_MAX - 7, 0x80000000ull},
        {INT32_MAX, 0x80000008ull},
        {UINT32_MAX, 0x100000008ull}, /* must not overflow, although no such frame is valid */
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        CHECK_EQ(bw_frame_size(table[i].len), table[i].size);
}

/* Headers given as fields; `avail` is more than any of these frames needs. */
static void headers(void)
{
    static const struct {
        uint32_t len;
        uint16_t magic, kind;
        bool valid;
    } table[] = {
        {1, BW_FRAME_MAGIC, BW_FRAME_DATA, true},
        {100, BW_FRAME_MAGIC, BW_FRAME_DATA, true},
        {BW_FRAME_MAX_BYTES, BW_FRAME_MAGIC, BW_FRAME_DATA, true},
        {0, BW_FRAME_MAGIC, BW_FRAME_TICK, true},
        {0, BW_FRAME_MAGIC, 3, false},
        {0, BW_FRAME_MAGIC, BW_FRAME_DATA, false},
        {1, BW_FRAME_MAGIC, BW_FRAME_TICK, false},
        {BW_LOAD_BYTES, BW_FRAME_MAGIC, BW_FRAME_TICK, true},
        {BW_LOAD_BYTES - 1, BW_FRAME_MAGIC, BW_FRAME_TICK, false},
        {BW_LOAD_BYTES, BW_FRAME_MAGIC, BW_FRAME_LOAD, false}, /* only valid in packets */
        {UINT32_MAX, BW_FRAME_MAGIC, BW_FRAME_TICK, false},
        {BW_FRAME_MAX_BYTES + 1u, BW_FRAME_MAGIC, BW_FRAME_DATA, false},
        {0x80000000u, BW_FRAME_MAGIC, BW_FRAME_DATA, false},
        {UINT32_MAX - 7, BW_FRAME_MAGIC, BW_FRAME_DATA, false},
        {UINT32_MAX, BW_FRAME_MAGIC, BW_FRAME_DATA, false},
        {1, BW_FRAME_MAGIC, 0, false},
        {1, BW_FRAME_MAGIC, 3, false},
        {0, BW_FRAME_MAGIC, 0, false},
        {0, BW_FRAME_MAGIC, 4, false},
        {1, BW_FRAME_MAGIC, 0x0101, false},
        {0, BW_FRAME_MAGIC, 0x0200, false}, /* a tick in the other byte order */
        {1, BW_FRAME_MAGIC, UINT16_MAX, false},
        {1, 0, BW_FRAME_DATA, false},
        {1, BW_FRAME_MAGIC ^ 1, BW_FRAME_DATA, false},
        {1, (uint16_t)(BW_FRAME_MAGIC << 8 | BW_FRAME_MAGIC >> 8), BW_FRAME_DATA, false},
        {1, UINT16_MAX, BW_FRAME_DATA, false},
        {0, 0, 0, false}, /* memory that was released reads as zeros */
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        uint8_t header[BW_FRAME_HEADER_BYTES];
        bw_frame_t frame = {.len = 4711};
        bw_frame_state_t state;

        put(header, table[i].len, table[i].magic, table[i].kind);
        state = bw_frame_parse(header, sizeof header, &frame);
        if (table[i].valid) {
            CHECK_EQ(state, table[i].len == 0 ? BW_FRAME_WHOLE : BW_FRAME_PART);
            CHECK_EQ(frame.len, table[i].len);
            CHECK_EQ(frame.kind, table[i].kind);
            CHECK_EQ(frame.size, bw_frame_size(table[i].len));
        } else {
            CHECK_EQ(state, BW_FRAME_CORRUPT);
            CHECK_EQ(frame.len, 4711);
        }
    }
}

/* Tries every possible number of readable bytes for small frames. The memory ends right after those
 * bytes, so that the address sanitizer detects reads past the end. */
static void every_length_that_can_be_there(void)
{
    for (uint32_t len = 0; len < 40; len++)
        for (size_t avail = 0; avail < 64; avail++) {
            bw_frame_kind_t kind = len == 0 ? BW_FRAME_TICK : BW_FRAME_DATA;
            uint8_t header[BW_FRAME_HEADER_BYTES], *at = malloc(avail > 0 ? avail : 1);
            bw_frame_t frame;
            bw_frame_state_t state, wanted = BW_FRAME_WHOLE;

            CHECK(at != NULL);
            bw_frame_put_header(header, kind, len);
            memset(at, 0xFF, avail);
            memcpy(at, header, avail < sizeof header ? avail : sizeof header);
            state = bw_frame_parse(at, avail, &frame);
            free(at);
            if (avail < sizeof header)
                wanted = BW_FRAME_SHORT;
            else if (avail < bw_frame_size(len))
                wanted = BW_FRAME_PART;
            CHECK_EQ(state, wanted);
        }
}

/* Tries all 65,536 values of magic with a valid kind, and all values of kind with the right
 * magic. */
static void only_one_magic_and_two_kinds(void)
{
    unsigned valid = 0;

    for (uint32_t value = 0; value <= UINT16_MAX; value++)
        for (uint32_t len = 0; len < 2; len++) {
            uint8_t header[BW_FRAME_HEADER_BYTES];
            bw_frame_t frame;

            put(header, len, BW_FRAME_MAGIC, (uint16_t)value);
            valid += bw_frame_parse(header, sizeof header, &frame) != BW_FRAME_CORRUPT;
            put(header, len, (uint16_t)value, BW_FRAME_DATA);
            valid += bw_frame_parse(header, sizeof header, &frame) != BW_FRAME_CORRUPT;
        }
    CHECK_EQ(valid, 3); /* a tick, and one byte of data, which is valid in both loops */
}

static void what_is_put_is_parsed(void)
{
    static const uint32_t lens[] = {1, 255, 256, 65535, 65536, 1u << 24, BW_FRAME_MAX_BYTES};

    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        uint8_t header[BW_FRAME_HEADER_BYTES];
        bw_frame_t frame;

        bw_frame_put_header(header, BW_FRAME_DATA, lens[i]);
        CHECK_EQ(bw_frame_parse(header, sizeof header, &frame), BW_FRAME_PART);
        CHECK_EQ(frame.len, lens[i]);
        CHECK_EQ(bw_frame_parse(header, (size_t)frame.size - 1, &frame), BW_FRAME_PART);
        CHECK_EQ(bw_frame_parse(header, (size_t)frame.size, &frame), BW_FRAME_WHOLE);
    }
}

static const check_case_t cases[] = {
    {"sizes_are_padded_to_eight", sizes_are_padded_to_eight},
    {"headers", headers},
    {"every_length_that_can_be_there", every_length_that_can_be_there},
    {"only_one_magic_and_two_kinds", only_one_magic_and_two_kinds},
    {"what_is_put_is_parsed", what_is_put_is_parsed},
};

CHECK_MAIN(cases)
