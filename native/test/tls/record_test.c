/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests records of TLS 1.3: the example from RFC 8448, records exchanged with libssl, and records
 * that must be rejected.
 */
#include <fcntl.h>
#include <sys/socket.h>

#include "../check.h"
#include "libssl_end.h"

#include "../../link/socket_link.h"
#include "../../link/tls/record.h"

static const unsigned suites[] = {BW_SUITE_AES_128_GCM_SHA256, BW_SUITE_AES_256_GCM_SHA384,
                                  BW_SUITE_CHACHA20_POLY1305_SHA256};
static const char *const suite_names[] = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384",
                                          "TLS_CHACHA20_POLY1305_SHA256"};
#define SUITES 3

/* RFC 8448, section 3: the first record of application data from the client. */
static const uint8_t example_secret[BW_RECORD_SECRET_BYTES] = {
    0x9e, 0x40, 0x64, 0x6c, 0xe7, 0x9a, 0x7f, 0x9d, 0xc0, 0x5a, 0xf8, 0x88, 0x9b, 0xce, 0x65, 0x52,
    0x87, 0x5a, 0xfa, 0x0b, 0x06, 0xdf, 0x00, 0x87, 0xf7, 0x92, 0xeb, 0xb7, 0xc1, 0x75, 0x04, 0xa5};
static const uint8_t example[] = {
    0x17, 0x03, 0x03, 0x00, 0x43, 0xa2, 0x3f, 0x70, 0x54, 0xb6, 0x2c, 0x94, 0xd0, 0xaf, 0xfa,
    0xfe, 0x82, 0x28, 0xba, 0x55, 0xcb, 0xef, 0xac, 0xea, 0x42, 0xf9, 0x14, 0xaa, 0x66, 0xbc,
    0xab, 0x3f, 0x2b, 0x98, 0x19, 0xa8, 0xa5, 0xb4, 0x6b, 0x39, 0x5b, 0xd5, 0x4a, 0x9a, 0x20,
    0x44, 0x1e, 0x2b, 0x62, 0x97, 0x4e, 0x1f, 0x5a, 0x62, 0x92, 0xa2, 0x97, 0x70, 0x14, 0xbd,
    0x1e, 0x3d, 0xea, 0xe6, 0x3a, 0xee, 0xbb, 0x21, 0x69, 0x49, 0x15, 0xe4};

/* ---- one direction, without a connection ---- */

static struct {
    bw_record_writer_t from;
    bw_record_reader_t to;
    bw_buffer_t wire;
} way;

static void open_way(unsigned suite)
{
    bw_error_t error;

    memset(&way, 0, sizeof way);
    way.to.in = way.from.out = &way.wire;
    way.from.limit = BW_RECORD_KEY_LIMIT;
    CHECK_EQ(bw_buffer_make(&way.wire, "test", 1 << 17, &error), BW_OK);
    CHECK(bw_record_key_open(&way.from.key, suite, true, example_secret));
    CHECK(bw_record_key_open(&way.to.key, suite, false, example_secret));
}

static void close_way(void)
{
    bw_record_key_close(&way.from.key);
    bw_record_key_close(&way.to.key);
    bw_buffer_free(&way.wire);
}

static uint8_t *end_of_wire(void)
{
    return bw_buffer_gap(&way.wire).base;
}

static bool seal(bw_record_writer_t *writer, uint8_t type, const void *content, size_t len)
{
    struct iovec piece = {(void *)(uintptr_t)content, len};

    return bw_record_seal(writer, type, &piece, 1);
}

/* Seals a record, sends it, and returns its position. */
static uint8_t *put(uint8_t type, const void *content, size_t len)
{
    uint8_t *at = end_of_wire();

    if (!seal(&way.from, type, content, len))
        abort();
    return at;
}

/* Sends bytes unchanged. */
static void put_raw(const void *bytes, size_t len)
{
    CHECK(bw_buffer_put(&way.wire, bytes, len));
}

static bw_record_state_t take_to(uint8_t *to, size_t len, size_t *got_p)
{
    struct iovec iov = {to, len};

    return bw_record_take(&way.to, &iov, 1, got_p);
}

static bw_record_state_t take(void)
{
    uint8_t got[64];
    size_t n;

    return take_to(got, sizeof got, &n);
}

static void the_example_of_the_rfc(void)
{
    uint8_t content[50], got[64];
    size_t n;

    for (size_t i = 0; i < sizeof content; i++)
        content[i] = (uint8_t)i;
    CHECK_IN(open_way(BW_SUITE_AES_128_GCM_SHA256));
    CHECK(memcmp(put(BW_RECORD_DATA, content, sizeof content), example, sizeof example) == 0);
    CHECK_EQ(bw_buffer_fill(&way.wire), sizeof example);
    CHECK_EQ(take_to(got, sizeof got, &n), BW_RECORD_READ);
    CHECK(n == sizeof content && memcmp(got, content, n) == 0);
    close_way();
}

static void other_suites_are_refused(void)
{
    bw_record_key_t key;

    CHECK(!bw_record_key_open(&key, 0x1304, true, example_secret));
    bw_record_key_close(&key);
}

static uint8_t large[BW_RECORD_BYTES], got_large[BW_RECORD_BYTES];

static void fill_large(void)
{
    for (size_t i = 0; i < sizeof large; i++)
        large[i] = (uint8_t)(i * 13 + i / 256);
}

/* The content is read in steps smaller than a record, and all at once. */
static void content_comes_out_as_it_went_in(void)
{
    fill_large();
    for (int i = 0; i < 2 * SUITES; i++) {
        size_t step = i & 1 ? sizeof large : 1000, at = 0, n = 0;

        CHECK_IN(open_way(suites[i / 2]));
        (void)put(BW_RECORD_DATA, large, sizeof large);
        while (take_to(got_large + at, bw_least(step, sizeof large - at), &n) == BW_RECORD_READ &&
               (at += n) < sizeof large)
            continue;
        CHECK(at == sizeof large && memcmp(got_large, large, at) == 0);
        CHECK_EQ(bw_buffer_fill(&way.wire), 0);
        CHECK_EQ(take(), BW_RECORD_SHORT);
        close_way();
    }
}

/* A record's content is decrypted into two buffers, wherever the first one ends. */
static void content_goes_to_pieces(void)
{
    static const size_t cuts[] = {0, 1, 15, 16, 17, 4000, 16383, 16384};

    fill_large();
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        struct iovec iov[] = {{got_large, cuts[i]}, {NULL, 0}, {got_large + cuts[i], 1 << 14}};
        size_t n;

        memset(got_large, 0, sizeof got_large);
        iov[2].iov_len = sizeof got_large - cuts[i];
        CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
        (void)put(BW_RECORD_DATA, large, sizeof large);
        CHECK_EQ(bw_record_take(&way.to, iov, 3, &n), BW_RECORD_READ);
        CHECK(n == sizeof large && memcmp(got_large, large, n) == 0);
        close_way();
    }
}

/* A record made from several pieces equals one made from a single piece; a piece that is already at
 * its position in the record is encrypted in place. */
static void content_comes_from_pieces(void)
{
    static const size_t cuts[] = {0, 1, 16, 4000, 16383, 16384};

    fill_large();
    for (size_t i = 0; i < 2 * sizeof cuts / sizeof *cuts; i++) {
        size_t cut = cuts[i / 2], n;
        struct iovec iov[] = {{large, cut}, {NULL, 0}, {large + cut, sizeof large - cut}};
        uint8_t *place;

        CHECK_IN(open_way(suites[i % SUITES]));
        place = bw_record_place(&way.from);
        CHECK(place);
        if (i & 1)
            iov[0].iov_base = memcpy(place, large, cut);
        CHECK(bw_record_seal(&way.from, BW_RECORD_DATA, iov, 3));
        CHECK_EQ(take_to(got_large, sizeof got_large, &n), BW_RECORD_READ);
        CHECK(n == sizeof large && memcmp(got_large, large, n) == 0);
        close_way();
    }
}

/* A peer may pad its records with zeros, up to the limit of a record. */
static void padding_is_left_out(void)
{
    static uint8_t padded[BW_RECORD_BYTES + 1] = "hello";
    struct iovec iov[] = {{got_large, 3}, {got_large + 3, sizeof got_large - 3}};
    size_t n;

    for (size_t len = 6; len < sizeof padded;
         len = len * 2 < BW_RECORD_BYTES ? len * 2 : len + 8192) {
        memset(padded, 0, sizeof padded);
        memcpy(padded, "hello", 5);
        padded[5] = BW_RECORD_DATA;
        CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
        (void)put(0, padded, len);
        CHECK_EQ(bw_record_take(&way.to, iov, 2, &n), BW_RECORD_READ);
        CHECK(n == 5 && memcmp(got_large, "hello", 5) == 0);
        (void)put(0, padded, len);
        CHECK_EQ(take_to(got_large, 5, &n), BW_RECORD_READ); /* in place */
        CHECK(n == 5 && memcmp(got_large, "hello", 5) == 0);
        CHECK_EQ(bw_buffer_fill(&way.wire), 0);
        close_way();
    }
}

static void says_what_is_missing(void)
{
    uint64_t whole;

    CHECK_IN(open_way(BW_SUITE_AES_128_GCM_SHA256));
    (void)put(BW_RECORD_DATA, "hello", 5);
    whole = way.wire.head;
    for (way.wire.head = 0; way.wire.head < whole; way.wire.head++) {
        CHECK_EQ(take(), BW_RECORD_SHORT);
        CHECK_EQ(bw_record_missing(&way.to),
                 (way.wire.head < BW_RECORD_HEADER ? BW_RECORD_HEADER : whole) - way.wire.head);
    }
    CHECK_EQ(take(), BW_RECORD_READ);
    close_way();
}

static void each_changed_byte_is_noticed(void)
{
    for (size_t i = 0; i < BW_RECORD_HEADER + 5 + 1 + BW_RECORD_TAG; i++) {
        bw_record_state_t state;

        CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
        put(BW_RECORD_DATA, "hello", 5)[i] ^= 1;
        state = take();
        CHECK(state == BW_RECORD_WRONG || (i >= 3 && i < 5 && state == BW_RECORD_SHORT));
        CHECK(state == BW_RECORD_SHORT || way.to.reason);
        CHECK_EQ(take(), state);
        close_way();
    }
}

/* Records that are replayed, omitted, reordered, or sent in the other direction. */
static void order_is_kept(void)
{
    uint8_t records[2][64];
    size_t bytes;

    CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
    (void)put(BW_RECORD_DATA, "first", 5);
    bytes = bw_buffer_fill(&way.wire);
    (void)put(BW_RECORD_DATA, "other", 5);
    CHECK_EQ(bw_buffer_get(&way.wire, records[0], bytes), bytes);
    CHECK_EQ(bw_buffer_get(&way.wire, records[1], bytes), bytes);
    for (int i = 0; i < 4; i++) {
        int first = i & 1, second = i >> 1;

        bw_record_key_close(&way.to.key);
        memset(&way.to, 0, sizeof way.to);
        way.to.in = &way.wire;
        way.wire.tail = way.wire.head;
        CHECK(bw_record_key_open(&way.to.key, BW_SUITE_AES_256_GCM_SHA384, false, example_secret));
        CHECK_IN(put_raw(records[first], bytes));
        CHECK_IN(put_raw(records[second], bytes));
        CHECK_EQ(take(), first == 0 ? BW_RECORD_READ : BW_RECORD_WRONG);
        CHECK_EQ(take(), first == 0 && second == 1 ? BW_RECORD_READ : BW_RECORD_WRONG);
        CHECK_EQ(take(), first == 0 && second == 1 ? BW_RECORD_SHORT : BW_RECORD_WRONG);
    }
    close_way();
}

/* If reading continued, the record after one that fails to authenticate would use the next nonce
 * and would be accepted. */
static void nothing_is_read_behind_a_wrong_record(void)
{
    CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
    put(BW_RECORD_DATA, "hello", 5)[7] ^= 1;
    (void)put(BW_RECORD_DATA, "hello", 5);
    CHECK_EQ(take(), BW_RECORD_WRONG);
    CHECK_EQ(take(), BW_RECORD_WRONG);
    close_way();
}

static void records_that_are_too_long_are_refused(void)
{
    static uint8_t content[BW_RECORD_BYTES + 300];
    size_t lens[] = {BW_RECORD_BYTES, BW_RECORD_BYTES + 1, BW_RECORD_BYTES + 256};
    size_t n;

    memset(content, 1, sizeof content);
    for (int i = 0; i < 3; i++) {
        CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
        (void)put(BW_RECORD_DATA, content, lens[i]);
        CHECK_EQ(take_to(got_large, sizeof got_large, &n),
                 i == 0 ? BW_RECORD_READ : BW_RECORD_WRONG);
        close_way();
    }
    /* rejected by its header alone, without waiting for the rest */
    CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
    CHECK_IN(put_raw("\x17\x03\x03\xff\xff", 5));
    CHECK_EQ(take(), BW_RECORD_WRONG);
    close_way();
}

static void what_is_no_record_is_refused(void)
{
    static const char *const headers[] = {
        "\x17\x03\x03\x00\x00",
        "\x17\x03\x03\x00\x10",
        "\x17\x02\x03\x00\x20",
        "\x14\x03\x03\x00\x01",
        "\x15\x03\x03\x00\x02",
        "\x16\x03\x03\x00\x20",
        "GET /",
    };

    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
        CHECK_IN(put_raw(headers[i], 5));
        CHECK_EQ(take(), BW_RECORD_WRONG);
        close_way();
    }
}

/* ---- key changes, and records without data ---- */

static void keys_are_replaced(void)
{
    for (int s = 0; s < SUITES; s++) {
        CHECK_IN(open_way(suites[s]));
        way.from.limit = 2;
        for (uint64_t i = 0; i < 9; i++) {
            CHECK(bw_record_place(&way.from));
            CHECK_EQ(way.from.key.number, i % 2);
            (void)put(BW_RECORD_DATA, "hello", 5);
            CHECK_EQ(take(), BW_RECORD_READ);
            CHECK_EQ(way.to.key.number, way.from.key.number);
        }
        CHECK(!way.to.is_asked);
        (void)put(BW_RECORD_HANDSHAKE, "\x18\0\0\1\1", 5);
        CHECK_EQ(take(), BW_RECORD_SHORT);
        CHECK(way.to.is_asked);
        close_way();
    }
}

/* A peer may request a new key, which is used from the next record on. */
static void a_key_is_replaced_when_asked(void)
{
    CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
    (void)put(BW_RECORD_DATA, "hello", 5);
    CHECK_EQ(take(), BW_RECORD_READ);
    way.from.is_asked = true;
    CHECK(bw_record_place(&way.from));
    CHECK(!way.from.is_asked);
    CHECK_EQ(way.from.key.number, 0);
    CHECK(bw_record_place(&way.from));
    (void)put(BW_RECORD_DATA, "hello", 5);
    CHECK_EQ(way.from.key.number, 1);
    CHECK_EQ(take(), BW_RECORD_READ);
    close_way();
}

/* However many such messages follow one another, one call processes only a few, and eventually they
 * are rejected. */
static void floods_end(void)
{
    static const struct {
        uint8_t type;
        const char *content;
        size_t len;
    } idle[] = {{BW_RECORD_HANDSHAKE, "\x18\0\0\1", 5},
                {BW_RECORD_HANDSHAKE, "\4\0\0\2xx", 6},
                {BW_RECORD_DATA, "", 0}};

    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        for (int k = BW_RECORD_IDLE_MAX; k <= BW_RECORD_IDLE_MAX + 1; k++) {
            CHECK_IN(open_way(BW_SUITE_AES_256_GCM_SHA384));
            for (int round = 0; round < 3; round++) {
                for (int n = 0; n < k; n++) {
                    (void)put(idle[i].type, idle[i].content, idle[i].len);
                    if (i == 0)
                        CHECK(bw_record_key_update(&way.from.key));
                }
                (void)put(BW_RECORD_DATA, "hello", 5);
                CHECK_EQ(take(), k > BW_RECORD_IDLE_MAX ? BW_RECORD_FLOODED : BW_RECORD_READ);
            }
            CHECK_EQ(way.to.records, k > BW_RECORD_IDLE_MAX ? k : 3 * (BW_RECORD_IDLE_MAX + 1));
            close_way();
        }
}

/* Records that authenticate but do not contain data. */
static void what_is_no_data_ends_it(void)
{
    static const struct {
        const char *content;
        size_t len;
        uint8_t type;
        bw_record_state_t state;
    } records[] = {
        {"\1\0", 2, BW_RECORD_ALERT, BW_RECORD_ENDED},
        {"\2\24", 2, BW_RECORD_ALERT, BW_RECORD_REFUSED},
        {"\1\132", 2, BW_RECORD_ALERT, BW_RECORD_REFUSED}, /* user_canceled */
        {"\1", 1, BW_RECORD_ALERT, BW_RECORD_WRONG},
        {"\1\0\0", 3, BW_RECORD_ALERT, BW_RECORD_WRONG},
        {"", 0, BW_RECORD_ALERT, BW_RECORD_WRONG},
        {"", 0, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\x18\0\0\1\2", 5, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\x18\0\0\1", 4, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\x18\0\0\0", 4, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\x18\0\0\2\0\0", 6, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\x18\0\0\1\0\x18\0\0\1\0", 10, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\x18\0\0\1\0\4\0\0\1x", 10, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\4\0\0\1x\x18\0\0\1\0", 10, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\4\0\0\1x", 5, BW_RECORD_HANDSHAKE, BW_RECORD_SHORT},
        {"\4\0\0\2x", 5, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},
        {"\1\0\0\1x", 5, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG},  /* a ClientHello */
        {"\15\0\0\1x", 5, BW_RECORD_HANDSHAKE, BW_RECORD_WRONG}, /* a CertificateRequest */
        {"\1", 1, 20, BW_RECORD_WRONG},                          /* a ChangeCipherSpec */
        {"", 0, 0, BW_RECORD_WRONG},
        {"xxxx", 4, 24, BW_RECORD_WRONG}, /* a heartbeat */
    };

    for (size_t i = 0; i < sizeof records / sizeof *records; i++)
        for (size_t room = 1; room <= 64; room += 63) {
            bw_record_state_t wanted = records[i].state;
            uint8_t got[64];
            size_t n;

            CHECK_IN(open_way(BW_SUITE_AES_128_GCM_SHA256));
            (void)put(records[i].type, records[i].content, records[i].len);
            CHECK_EQ(take_to(got, room, &n), wanted);
            CHECK_EQ(n, 0);
            CHECK_EQ(way.to.reason != NULL, wanted > BW_RECORD_ENDED);
            (void)put(BW_RECORD_DATA, "hello", 5);
            CHECK_EQ(take(), wanted == BW_RECORD_SHORT ? BW_RECORD_READ : wanted);
            close_way();
        }
}

/* ---- libssl at the other end ---- */

static struct {
    int ends[2]; /* ours, libssl's */
    bw_tls_session_t session;
    bw_record_writer_t writer;
    bw_record_reader_t reader;
    bw_buffer_t in, out;
    libssl_end_t peer;
} both;

static void open_both(int suite, bool is_server, size_t tickets)
{
    bw_tls_terms_t terms = {.is_server = is_server, .psk_count = 1, .suites = suite_names[suite]};
    bw_tls_hands_t hands = BW_TLS_SHAKING;
    const char *step;
    bw_error_t error;
    BIO *bio;

    memset(&both, 0, sizeof both);
    terms.psks[0] = (bw_tls_psk_t){"a name", "", suites[suite], "the key of both"};
    both.reader.in = &both.in;
    both.writer.out = &both.out;
    CHECK_EQ(bw_buffer_make(&both.in, "test", 1 << 17, &error), BW_OK);
    CHECK_EQ(bw_buffer_make(&both.out, "test", 1 << 17, &error), BW_OK);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both.ends), 0);
    bio = BIO_new_socket(both.ends[0], BIO_NOCLOSE);
    CHECK(bw_tls_session_make(&both.session, &terms, bio, bio, &step));
    CHECK(libssl_open(&both.peer, both.ends[1], !is_server, &terms.psks[0], suite_names[suite],
                      tickets));
    for (int i = 0; i < 10 && hands == BW_TLS_SHAKING; i++) {
        hands = bw_tls_session_shake(&both.session, &both.reader, &both.writer);
        (void)SSL_do_handshake(both.peer.ssl);
    }
    CHECK_EQ(hands, BW_TLS_SHAKEN);
    CHECK(SSL_is_init_finished(both.peer.ssl));
    CHECK(strcmp(SSL_get_cipher_name(both.session.ssl), suite_names[suite]) == 0);
    CHECK_EQ(SSL_has_pending(both.session.ssl), 0);
    bw_tls_session_free(&both.session);
}

static void close_both(void)
{
    bw_record_key_close(&both.reader.key);
    bw_record_key_close(&both.writer.key);
    bw_buffer_free(&both.in);
    bw_buffer_free(&both.out);
    libssl_close(&both.peer);
    close(both.ends[0]);
    close(both.ends[1]);
}

static bool send_records(void)
{
    bw_socket_t socket = {.fd = both.ends[0]};

    bw_socket_push(&socket, &both.out);
    return bw_buffer_fill(&both.out) == 0;
}

static bool write_record(const uint8_t *content, size_t len)
{
    both.writer.is_asked |= both.reader.is_asked;
    both.reader.is_asked = false;
    return bw_record_place(&both.writer) && seal(&both.writer, BW_RECORD_DATA, content, len) &&
           send_records();
}

static bw_record_state_t read_record(uint8_t *to, size_t most, size_t *got_p)
{
    struct iovec iov = {to, most};
    bw_record_state_t state;
    ssize_t n;

    do {
        state = bw_record_take(&both.reader, &iov, 1, got_p);
        n = state == BW_RECORD_SHORT ? recv(both.ends[0], bw_buffer_gap(&both.in).base, 65536, 0)
                                     : 0;
        both.in.head += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    return state;
}

/* Data passes in both directions; both sides change their keys, and both request a key change. */
static void talk(void)
{
    uint8_t got[BW_RECORD_BYTES];
    size_t n, m;

    both.writer.limit = 5;
    for (size_t len = 1, i = 1; len <= BW_RECORD_BYTES; len = len * 5 / 4 + 1, i++) {
        CHECK(write_record(large, len));
        CHECK_EQ(SSL_read_ex(both.peer.ssl, got, sizeof got, &n), 1);
        CHECK(n == len && memcmp(got, large, n) == 0);
        if (i % 4 == 0)
            CHECK(SSL_key_update(both.peer.ssl,
                                 i % 8 ? SSL_KEY_UPDATE_NOT_REQUESTED : SSL_KEY_UPDATE_REQUESTED));
        CHECK_EQ(SSL_write_ex(both.peer.ssl, large, len, &m), 1);
        CHECK_EQ(read_record(got, sizeof got, &n), BW_RECORD_READ);
        CHECK(n == len && memcmp(got, large, n) == 0);
        CHECK_EQ(both.reader.is_asked, i % 8 == 0);
    }
}

static void libssl_and_ours_understand_each_other(void)
{
    uint8_t got[1];
    size_t n;

    fill_large();
    for (int i = 0; i < 2 * SUITES; i++) {
        CHECK_IN(open_both(i / 2, i & 1, 0));
        CHECK_IN(talk());
        CHECK(bw_record_seal_alert(&both.writer, BW_ALERT_CLOSE_NOTIFY) && send_records());
        CHECK_EQ(SSL_read_ex(both.peer.ssl, got, 1, &n), 0);
        CHECK_EQ(SSL_get_error(both.peer.ssl, 0), SSL_ERROR_ZERO_RETURN);
        CHECK(SSL_shutdown(both.peer.ssl) >= 0);
        CHECK_EQ(read_record(got, 1, &n), BW_RECORD_ENDED);
        close_both();
    }
}

/* Servers of other implementations may send session tickets after the handshake. */
static void tickets_are_passed_over(void)
{
    fill_large();
    CHECK_IN(open_both(1, false, 2));
    CHECK_IN(talk());
    CHECK(both.reader.records > 2);
    close_both();
}

/* libssl sends an alert if our record was invalid, and we send one if its record was invalid. */
static void a_wrong_record_is_told(void)
{
    uint8_t got[8];
    size_t n;

    CHECK_IN(open_both(1, true, 0));
    CHECK(seal(&both.writer, BW_RECORD_DATA, "hello", 5));
    bw_buffer_place(&both.out, both.out.tail)[7] ^= 1;
    CHECK(send_records());
    CHECK_EQ(SSL_read_ex(both.peer.ssl, got, sizeof got, &n), 0);
    CHECK_EQ(read_record(got, sizeof got, &n), BW_RECORD_REFUSED);
    close_both();
    CHECK_IN(open_both(1, true, 0));
    CHECK(bw_record_seal_alert(&both.writer, BW_ALERT_BAD_RECORD_MAC) && send_records());
    CHECK_EQ(SSL_read_ex(both.peer.ssl, got, sizeof got, &n), 0);
    CHECK_EQ(SSL_get_error(both.peer.ssl, 0), SSL_ERROR_SSL);
    close_both();
}

static const check_case_t cases[] = {
    {"the_example_of_the_rfc", the_example_of_the_rfc},
    {"other_suites_are_refused", other_suites_are_refused},
    {"content_comes_out_as_it_went_in", content_comes_out_as_it_went_in},
    {"content_goes_to_pieces", content_goes_to_pieces},
    {"content_comes_from_pieces", content_comes_from_pieces},
    {"padding_is_left_out", padding_is_left_out},
    {"says_what_is_missing", says_what_is_missing},
    {"each_changed_byte_is_noticed", each_changed_byte_is_noticed},
    {"order_is_kept", order_is_kept},
    {"nothing_is_read_behind_a_wrong_record", nothing_is_read_behind_a_wrong_record},
    {"records_that_are_too_long_are_refused", records_that_are_too_long_are_refused},
    {"what_is_no_record_is_refused", what_is_no_record_is_refused},
    {"keys_are_replaced", keys_are_replaced},
    {"a_key_is_replaced_when_asked", a_key_is_replaced_when_asked},
    {"floods_end", floods_end},
    {"what_is_no_data_ends_it", what_is_no_data_ends_it},
    {"libssl_and_ours_understand_each_other", libssl_and_ours_understand_each_other},
    {"tickets_are_passed_over", tickets_are_passed_over},
    {"a_wrong_record_is_told", a_wrong_record_is_told},
};

CHECK_MAIN(cases)
