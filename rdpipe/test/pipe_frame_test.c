/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that frame headers are read as they were written, and that nothing else is accepted. */
#include "check.h"

#include "stream/rdframe.h"
#include "text.h"

#define MAX 65536u

static const rd_frame_t good[] = {
    {RD_DATA, RD_FLAG_CRC, 1, 0x12345678, 1, 0},
    {RD_DATA, 0, MAX, 0, MAX, UINT64_MAX},
    {RD_DATA, RD_FLAG_ZSTD, 10, 1, RD_BLOCK_MAX, 1ull << 40},
    {RD_END, 0, 0, 0, 255, 5000000000ull},
    {RD_DONE, 0, 0, 0, 0, 1},
    {RD_ABORT, 0, RD_TEXT_MAX, 0, RD_ABORT_QUIT, 3},
    {RD_PING, 0, 0, 0, 0, 0},
};

static void what_is_written_is_read(void)
{
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint8_t at[RD_FRAME_BYTES];
        rd_frame_t got;

        rd_frame_put(at, &good[i]);
        CHECK_EQ(rd_frame_parse(at, sizeof at, MAX, &got),
                 good[i].len > 0 ? RD_FRAME_PART : RD_FRAME_WHOLE);
        CHECK_EQ(rd_frame_parse(at, sizeof at + good[i].len, MAX, &got), RD_FRAME_WHOLE);
        CHECK_EQ(got.kind, good[i].kind);
        CHECK_EQ(got.flags, good[i].flags);
        CHECK_EQ(got.len, good[i].len);
        CHECK_EQ(got.crc, good[i].crc);
        CHECK_EQ(got.value, good[i].value);
        CHECK_EQ(got.offset, good[i].offset);
    }
}

static void a_part_of_a_header_is_short(void)
{
    uint8_t at[RD_FRAME_BYTES];
    rd_frame_t got;

    rd_frame_put(at, &good[0]);
    for (size_t avail = 0; avail < RD_FRAME_BYTES; avail++)
        CHECK_EQ(rd_frame_parse(at, avail, MAX, &got), RD_FRAME_SHORT);
}

static void nothing_else_is_taken(void)
{
    static const rd_frame_t bad[] = {
        {RD_DATA, 0, 0, 0, 0, 0},
        {RD_DATA, 0, MAX + 1, 0, MAX + 1, 0},
        {RD_DATA, 0, 5, 0, 6, 0},
        {RD_DATA, RD_FLAG_ZSTD, 5, 0, RD_BLOCK_MAX + 1, 0},
        {RD_DATA, RD_FLAG_ZSTD, 5, 0, 0, 0},
        {RD_END, 0, 1, 0, 0, 0},
        {RD_DONE, 0, 1, 0, 0, 0},
        {RD_PING, 0, 8, 0, 0, 0},
        {RD_ABORT, 0, RD_TEXT_MAX + 1, 0, 1, 0},
        {(rd_kind_t)0, 0, 0, 0, 0, 0},
        {(rd_kind_t)7, 0, 0, 0, 0, 0},
        {(rd_kind_t)255, 0, 0, 0, 0, 0},
    };
    uint8_t at[RD_FRAME_BYTES];
    rd_frame_t got;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rd_frame_put(at, &bad[i]);
        CHECK_EQ(rd_frame_parse(at, sizeof at, MAX, &got), RD_FRAME_CORRUPT);
    }
    rd_frame_put(at, &good[0]);
    at[0] ^= 1;
    CHECK_EQ(rd_frame_parse(at, sizeof at, MAX, &got), RD_FRAME_CORRUPT);
}

/* The examples are from RFC 3720, appendix B.4. */
static void the_checksum_is_crc32c(void)
{
    uint8_t zeros[32] = {0}, ones[32], up[32];

    memset(ones, 0xff, sizeof ones);
    for (size_t i = 0; i < sizeof up; i++)
        up[i] = (uint8_t)i;
    CHECK_EQ(rd_crc(zeros, 32), 0x8a9136aa);
    CHECK_EQ(rd_crc(ones, 32), 0x62a8ab43);
    CHECK_EQ(rd_crc(up, 32), 0x46dd794e);
    for (size_t len = 0; len <= 32; len++) {
        CHECK_EQ(rd_crc_by_table(0, up, len), rd_crc(up, len));
        CHECK_EQ(rd_crc_on(rd_crc(up, len), up + len, 32 - len), 0x46dd794e);
    }
}

static void numbers_and_sizes(void)
{
    static const struct {
        const char *text;
        uint64_t size; /* 0 if none */
    } sizes[] = {{"4K", 4096},       {"8M", 8u << 20}, {"65536", 65536},
                 {"1g", 1u << 30},   {"", 0},          {"K", 0},
                 {"4KB", 0},         {"-1", 0},        {" 4", 0},
                 {"0x10", 0},        {"4.5M", 0},      {"18446744073709551616", 0},
                 {"99999999999G", 0}};
    uint64_t got;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        got = 0;
        CHECK_EQ(rd_size(sizes[i].text, 1, 1ull << 40, &got), sizes[i].size > 0);
        CHECK_EQ(got, sizes[i].size);
    }
    CHECK(rd_number("0", 0, 9, &got) && got == 0);
    CHECK(!rd_number("10", 0, 9, &got));
    CHECK(!rd_number("0", 1, 9, &got));
}

static const check_case_t cases[] = {
    {"what is written is read", what_is_written_is_read},
    {"a part of a header is short", a_part_of_a_header_is_short},
    {"nothing else is taken", nothing_else_is_taken},
    {"the checksum is crc32c", the_checksum_is_crc32c},
    {"numbers and sizes", numbers_and_sizes},
};

CHECK_MAIN(cases)
