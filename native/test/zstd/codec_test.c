/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the libzstd codec: unpacking returns what was packed, later pieces are packed with
 * reference to earlier ones, and the reader survives bytes that no packer writes. */
#include "../check.h"

#include <zstd.h>

#include "../../link/zstd/zstd.h"
#include "../chance.h"

#define PIECE_MAX ((size_t)200000)

static const bw_codec_t *codec = &bw_zstd_codec;
static uint8_t plain[PIECE_MAX], packed[2 * PIECE_MAX], unpacked[PIECE_MAX + 1];

/* Fills the buffer with table rows, or with bytes that look random. */
static void fill(size_t len, bool is_text)
{
    size_t at = 0;

    while (is_text && at + 80 < len)
        at += (size_t)snprintf((char *)plain + at, 80,
                               "{\"id\":%u,\"name\":\"user%u\",\"online\":true,\"room\":\"%u\"}\n",
                               any(100000), any(1000), any(10));
    for (; at < len; at++)
        plain[at] = (uint8_t)any(256);
}

static bool unpack(bw_unpacker_t *unpacker, size_t len, size_t *made_p)
{
    *made_p = 0;
    for (size_t at = 0; at < len;) {
        size_t n = 1 + any(5000), made = 0;

        n = n < len - at ? n : len - at;
        if (!codec->unpack(unpacker, packed + at, n, unpacked + *made_p, sizeof unpacked - *made_p,
                           &made))
            return false;
        *made_p += made;
        at += n;
    }
    return true;
}

/* Packs and unpacks. Sets *packed_p to the number of packed bytes. */
static void through(bw_packer_t *packer, bw_unpacker_t *unpacker, size_t len, size_t *packed_p)
{
    size_t cut = any((uint32_t)len + 1), made = 0, more = 0, come;
    struct iovec iov[] = {{plain, cut / 2}, {NULL, 0}, {plain + cut / 2, cut - cut / 2}};
    struct iovec rest = {plain + cut, len - cut};
    size_t room = codec->bound(len);

    CHECK(codec->pack(packer, iov, 3, false, packed, room, &made));
    CHECK(codec->pack(packer, &rest, 1, true, packed + made, room - made, &more));
    *packed_p = made + more;
    CHECK(*packed_p > 0 && *packed_p <= room);
    CHECK(unpack(unpacker, *packed_p, &come));
    CHECK_EQ(come, len);
    CHECK(memcmp(plain, unpacked, len) == 0);
}

static void what_is_packed_comes_back(void)
{
    chance = 1;
    for (int i = 0; i < 20; i++) {
        bw_packer_t *packer = codec->open_packer();
        bw_unpacker_t *unpacker = codec->open_unpacker();

        CHECK(packer && unpacker);
        for (int piece = 0; piece < 50; piece++) {
            size_t len = 1 + any(any(5) == 0 ? PIECE_MAX : 2000), bytes;

            fill(len, any(3) > 0);
            CHECK_IN(through(packer, unpacker, len, &bytes));
        }
        codec->close_packer(packer);
        codec->close_unpacker(unpacker);
    }
}

static void pieces_remember_what_came_before(void)
{
    bw_packer_t *packer = codec->open_packer();
    bw_unpacker_t *unpacker = codec->open_unpacker();
    size_t first = 0, later = 0, bytes;

    chance = 2;
    for (int piece = 0; piece < 100; piece++) {
        fill(400, true);
        CHECK_IN(through(packer, unpacker, 64, &bytes)); /* within the first row */
        first = piece == 0 ? bytes : first;
        later += piece >= 50 ? bytes : 0;
    }
    CHECK(later / 50 < first / 2);
    codec->close_packer(packer);
    codec->close_unpacker(unpacker);
}

/* Returns whether the bytes are rejected as the first piece, or unpack to `room` bytes or more,
 * which is too many. */
static bool is_refused(const void *bytes, size_t len, size_t room)
{
    bw_unpacker_t *unpacker = codec->open_unpacker();
    size_t made = 0;
    bool is_read = codec->unpack(unpacker, bytes, len, unpacked, room, &made);

    codec->close_unpacker(unpacker);
    return !is_read || made == room;
}

/* Builds a frame as libzstd writes it, with one parameter changed. */
static size_t frame_with(ZSTD_cParameter parameter, int value, size_t len, ZSTD_EndDirective end)
{
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_inBuffer in = {.src = plain, .size = len};
    ZSTD_outBuffer out = {.dst = packed, .size = sizeof packed};

    (void)ZSTD_CCtx_setParameter(context, parameter, value);
    (void)ZSTD_compressStream2(context, &out, &in, end);
    (void)ZSTD_freeCCtx(context);
    return out.pos;
}

static void a_larger_window_is_refused(void)
{
    chance = 3;
    fill(PIECE_MAX, true);
    CHECK(!is_refused(
        packed, frame_with(ZSTD_c_windowLog, BW_ZSTD_WINDOW_LOG_MAX, 1000, ZSTD_e_flush), 1001));
    for (int log = BW_ZSTD_WINDOW_LOG_MAX + 1; log < 31; log++) {
        size_t len = frame_with(ZSTD_c_windowLog, log, 1000, ZSTD_e_flush);

        CHECK(len > 6);
        CHECK(is_refused(packed, 6, 1001)); /* rejected by its header alone */
        CHECK(is_refused(packed, len, 1001));
    }
}

static void what_is_larger_than_it_may_be_is_noticed(void)
{
    memset(plain, 0, sizeof plain);
    for (size_t len = 1; len < PIECE_MAX; len = 3 * len) {
        size_t bytes = frame_with(ZSTD_c_windowLog, BW_ZSTD_WINDOW_LOG, len, ZSTD_e_flush);

        CHECK(!is_refused(packed, bytes, len + 1));
        CHECK(is_refused(packed, bytes, len));
        CHECK(is_refused(packed, bytes, len / 2));
    }
}

static void what_no_packer_writes_is_refused(void)
{
    static const uint8_t skippable[] = {0x50, 0x2A, 0x4D, 0x18, 1, 0, 0, 0, 7};
    static const uint8_t of_version_7[] = {0x27, 0xB5, 0x2F, 0xFD, 0x04, 0, 0, 0};
    static const uint8_t with_dictionary[] = {0x28, 0xB5, 0x2F, 0xFD, 0x01, 0x38, 42, 0x01, 0, 0};
    size_t len;

    CHECK(is_refused(skippable, sizeof skippable, 1000));
    CHECK(is_refused(of_version_7, sizeof of_version_7, 1000));
    CHECK(is_refused(with_dictionary, sizeof with_dictionary, 1000));
    len = frame_with(ZSTD_c_windowLog, BW_ZSTD_WINDOW_LOG, 500, ZSTD_e_end);
    CHECK(is_refused(packed, len, 1000));
    chance = 4;
    /* Damaged bytes are rejected or decode to other bytes, but never to more bytes than there is
     * room for. */
    for (int i = 0; i < 1000; i++) {
        fill(2000, true);
        len = frame_with(ZSTD_c_windowLog, BW_ZSTD_WINDOW_LOG, 1000, ZSTD_e_flush);
        packed[any((uint32_t)len)] ^= (uint8_t)(1 + any(255));
        (void)is_refused(packed, len, 1001);
    }
}

static const check_case_t cases[] = {
    {"what_is_packed_comes_back", what_is_packed_comes_back},
    {"pieces_remember_what_came_before", pieces_remember_what_came_before},
    {"a_larger_window_is_refused", a_larger_window_is_refused},
    {"what_is_larger_than_it_may_be_is_noticed", what_is_larger_than_it_may_be_is_noticed},
    {"what_no_packer_writes_is_refused", what_no_packer_writes_is_refused},
};

CHECK_MAIN(cases)
