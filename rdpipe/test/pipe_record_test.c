/* SPDX-License-Identifier: Apache-2.0 */
/* Records of TLS 1.3: the example of RFC 8448, and what is not taken. */
#include "pipe_ends.h"

#include "record.h"

/* RFC 8448, 3: the first record of application data from the client. */
static const uint8_t example_secret[RD_SECRET_BYTES] = {
    0x9e, 0x40, 0x64, 0x6c, 0xe7, 0x9a, 0x7f, 0x9d, 0xc0, 0x5a, 0xf8, 0x88, 0x9b, 0xce, 0x65, 0x52,
    0x87, 0x5a, 0xfa, 0x0b, 0x06, 0xdf, 0x00, 0x87, 0xf7, 0x92, 0xeb, 0xb7, 0xc1, 0x75, 0x04, 0xa5};
static const uint8_t example[] = {
    0x17, 0x03, 0x03, 0x00, 0x43, 0xa2, 0x3f, 0x70, 0x54, 0xb6, 0x2c, 0x94, 0xd0, 0xaf, 0xfa,
    0xfe, 0x82, 0x28, 0xba, 0x55, 0xcb, 0xef, 0xac, 0xea, 0x42, 0xf9, 0x14, 0xaa, 0x66, 0xbc,
    0xab, 0x3f, 0x2b, 0x98, 0x19, 0xa8, 0xa5, 0xb4, 0x6b, 0x39, 0x5b, 0xd5, 0x4a, 0x9a, 0x20,
    0x44, 0x1e, 0x2b, 0x62, 0x97, 0x4e, 0x1f, 0x5a, 0x62, 0x92, 0xa2, 0x97, 0x70, 0x14, 0xbd,
    0x1e, 0x3d, 0xea, 0xe6, 0x3a, 0xee, 0xbb, 0x21, 0x69, 0x49, 0x15, 0xe4};

/* Both ends of one direction. */
typedef struct {
    rd_record_key_t from;
    rd_reader_t to;
    uint8_t data[2 * RD_RECORD_MAX];
} way_t;

static way_t way;

static void open_way(bool is_aes)
{
    way.to = (rd_reader_t){.data = way.data, .size = sizeof way.data};
    CHECK(rd_record_key_open(&way.from, is_aes, true, example_secret));
    CHECK(rd_record_key_open(&way.to.key, is_aes, false, example_secret));
}

static void close_way(void)
{
    rd_record_key_close(&way.from);
    rd_record_key_close(&way.to.key);
}

/* Puts a record before the reader; where it stands. */
static uint8_t *put(uint8_t type, const void *content, size_t len)
{
    uint8_t *at = way.to.data + way.to.at + way.to.len;

    way.to.len += rd_record_seal(&way.from, type, content, len, at);
    return at;
}

static rd_record_state_t take(void)
{
    uint8_t got[64];
    size_t n;

    return rd_reader_take(&way.to, got, sizeof got, &n);
}

static void the_example_of_the_rfc(void)
{
    uint8_t content[50], sealed[RD_RECORD_ROOM], got[64];
    size_t n;

    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (uint8_t)i;
    open_way(true);
    CHECK_EQ(rd_record_seal(&way.from, RD_RECORD_DATA, content, sizeof content, sealed),
             sizeof example);
    CHECK(memcmp(sealed, example, sizeof example) == 0);
    memcpy(way.data, example, sizeof example);
    way.to.len = sizeof example;
    CHECK_EQ(rd_reader_take(&way.to, got, sizeof got, &n), RD_RECORD_READ);
    CHECK(n == sizeof content && memcmp(got, content, n) == 0);
    close_way();
}

/* In pieces, to a small buffer and to a large one, with both suites. */
static void content_comes_out_as_it_went_in(void)
{
    static uint8_t content[RD_RECORD_BYTES], got[RD_RECORD_BYTES];

    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (uint8_t)(i * 13 + i / 256);
    for (int i = 0; i < 4; i++) {
        size_t step = i & 1 ? sizeof got : 1000, at = 0, n = 0;

        open_way(i & 2);
        (void)put(RD_RECORD_DATA, content, sizeof content);
        while (rd_reader_take(&way.to, got + at, step < sizeof got - at ? step : sizeof got - at,
                              &n) == RD_RECORD_READ &&
               (at += n) < sizeof got)
            continue;
        CHECK(at == sizeof got && memcmp(got, content, at) == 0);
        CHECK_EQ(take(), RD_RECORD_SHORT);
        close_way();
    }
}

static void says_what_is_missing(void)
{
    size_t bytes;

    open_way(true);
    (void)put(RD_RECORD_DATA, "hello", 5);
    bytes = way.to.len;
    for (way.to.len = 0; way.to.len < bytes; way.to.len++) {
        CHECK_EQ(take(), RD_RECORD_SHORT);
        CHECK_EQ(rd_reader_missing(&way.to),
                 (way.to.len < RD_RECORD_HEADER ? RD_RECORD_HEADER : bytes) - way.to.len);
    }
    CHECK_EQ(take(), RD_RECORD_READ);
    close_way();
}

static void each_changed_byte_is_noticed(void)
{
    for (size_t i = 0; i < RD_RECORD_HEADER + 5 + 1 + RD_RECORD_TAG; i++) {
        rd_record_state_t state;

        open_way(true);
        put(RD_RECORD_DATA, "hello", 5)[i] ^= 1;
        state = take();
        CHECK(state == RD_RECORD_WRONG || (i >= 3 && i < 5 && state == RD_RECORD_SHORT));
        CHECK(state == RD_RECORD_SHORT || way.to.reason);
        CHECK_EQ(take(), state);
        close_way();
    }
}

static void order_is_kept(void)
{
    uint8_t first[64];
    size_t bytes;

    open_way(true);
    (void)put(RD_RECORD_DATA, "first", 5);
    bytes = way.to.len;
    memcpy(first, way.data, bytes);
    CHECK_EQ(take(), RD_RECORD_READ);
    memcpy(way.to.data + way.to.at, first, bytes); /* again */
    way.to.len = bytes;
    CHECK_EQ(take(), RD_RECORD_WRONG);
    close_way();

    open_way(true);
    (void)put(RD_RECORD_DATA, "lost", 4);
    way.to.len = 0;
    (void)put(RD_RECORD_DATA, "second", 6);
    CHECK_EQ(take(), RD_RECORD_WRONG);
    close_way();
}

static void keys_are_replaced(void)
{
    open_way(false);
    for (int i = 0; i < 3; i++) {
        size_t bytes = rd_record_seal_update(&way.from, way.to.data + way.to.at + way.to.len);

        CHECK(bytes > 0);
        way.to.len += bytes;
        CHECK_EQ(way.from.number, 0);
        (void)put(RD_RECORD_DATA, "hello", 5);
        CHECK_EQ(take(), RD_RECORD_READ);
    }
    CHECK(!way.to.is_asked);
    (void)put(RD_RECORD_HANDSHAKE, (const uint8_t[]){24, 0, 0, 1, 1}, 5);
    CHECK_EQ(take(), RD_RECORD_SHORT);
    CHECK(way.to.is_asked);
    close_way();
}

/* Records that are authentic, and no data. */
static void what_is_no_data_ends_it(void)
{
    static const struct {
        uint8_t type, content[5];
        size_t len;
        rd_record_state_t state;
    } records[] = {
        {RD_RECORD_ALERT, {1, 0}, 2, RD_RECORD_ENDED},
        {RD_RECORD_ALERT, {2, 20}, 2, RD_RECORD_REFUSED},
        {RD_RECORD_ALERT, {1}, 1, RD_RECORD_WRONG},
        {RD_RECORD_HANDSHAKE, {24, 0, 0, 1, 2}, 5, RD_RECORD_WRONG},
        {RD_RECORD_HANDSHAKE, {4, 0, 0, 1, 0}, 5, RD_RECORD_WRONG},
        {RD_RECORD_HANDSHAKE, {24, 0, 0, 1}, 4, RD_RECORD_WRONG},
        {0, {0}, 0, RD_RECORD_WRONG},
    };

    for (size_t i = 0; i < sizeof records / sizeof *records; i++) {
        open_way(true);
        (void)put(records[i].type, records[i].content, records[i].len);
        CHECK_EQ(take(), records[i].state);
        CHECK_EQ(way.to.reason == NULL, records[i].state == RD_RECORD_ENDED);
        (void)put(RD_RECORD_DATA, "hello", 5);
        CHECK_EQ(take(), records[i].state);
        close_way();
    }
}

static const check_case_t cases[] = {
    {"the example of RFC 8448", the_example_of_the_rfc},
    {"content comes out as it went in", content_comes_out_as_it_went_in},
    {"says what is missing", says_what_is_missing},
    {"each changed byte is noticed", each_changed_byte_is_noticed},
    {"order is kept", order_is_kept},
    {"keys are replaced", keys_are_replaced},
    {"what is no data ends it", what_is_no_data_ends_it},
};

int main(int argc, char **argv)
{
    check_each("", cases, sizeof cases / sizeof *cases, argc, argv);
    return check_end();
}
