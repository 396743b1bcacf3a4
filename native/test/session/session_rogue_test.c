/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests a link that outlives its connections against a peer that lies: the link ends with one
 * reason that names what was wrong, and nothing is leaked.
 */
#define _GNU_SOURCE
#include "session_pair.h"

/* If one of several connections carries something that a correct peer never sends, the link fails
 * with a reason that names it. */
static void a_rogue_ends_the_link(void)
{
    static const uint8_t words[][BW_STRAND_HEADER] = {
        {9},                    /* no such word */
        {1, [4] = 1, [15] = 1}, /* a chunk at a distant position */
        {1, [7] = 1},           /* a chunk that is too large */
        {2, [23] = 1},          /* acknowledges bytes that were never sent */
        {3},                    /* an end */
    };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        CHECK_IN(start_spread(2));
        CHECK(send(relays[1].ends[0], words[i], BW_STRAND_HEADER, 0) == BW_STRAND_HEADER);
        for (int round = 0; round < 100 && !vm_reason(one); round++)
            (void)vm_run(1);
        CHECK(vm_reason(one) && strcmp(vm_reason(one), "beamway_session_corrupt") == 0);
        CHECK_IN(end_schedule());
    }
}

static bool one_joins(uint64_t number)
{
    int sockets[2];
    bool has_joined = connect_sockets(0, &sockets[0], &sockets[1]) &&
                      attaches(one, COMMAND_JOIN, sockets[0], number);

    close(sockets[1]);
    return has_joined;
}

/* A connection that presents the number of a different epoch is rejected, and so is any connection
 * beyond the maximum. */
static void no_more_join_than_may(void)
{
    CHECK_IN(start_spread(2));
    CHECK(!one_joins(epoch - 1));
    CHECK_EQ(connections_of(one), 2);
    for (unsigned i = 2; i <= BW_STRIPES_MAX; i++) {
        CHECK_EQ(one_joins(epoch), i < BW_STRIPES_MAX);
        CHECK_EQ(connections_of(one), bw_least(i + 1, BW_STRIPES_MAX));
    }
    CHECK_IN(end_schedule());
}

/* Returns the reason why port `one` ends after it has read a word, and some bytes that follow it,
 * or "none". */
static const char *reason_after(bw_frame_kind_t kind, uint64_t value, const char *bytes, size_t len)
{
    uint8_t word[BW_WORD_BYTES];

    bw_word_put(word, kind, value);
    (void)!send(relays[0].ends[0], word, sizeof word, 0);
    (void)!send(relays[0].ends[0], bytes, len, 0);
    for (int round = 0; round < 100 && !vm_reason(one); round++)
        (void)vm_run(1);
    return vm_reason(one) ? vm_reason(one) : "none";
}

/* Sends enough that the peer acknowledges some of it, and all of it arrives. */
static void send_until_acknowledged(void)
{
    uint64_t bytes = 0;

    for (int frames = 0; frames < 1000 && bytes < 4 * BW_SESSION_ACK_BYTES; frames++) {
        for (int round = 0; round < PORT_ROUNDS && vm_is_busy(one); round++)
            CHECK_IN(step());
        bytes += length_of(ways[0].sent);
        CHECK_IN(send_next(0));
    }
    CHECK_IN(arrive());
    CHECK(stat_of(one, STAT_kept_bytes) < bytes);
}

static void a_word_that_lies_ends_the_link(void)
{
    static const struct {
        bw_frame_kind_t kind;
        uint64_t value;
        const char *reason;
    } words[] = {
        {BW_FRAME_ACK, (uint64_t)1 << 40, "beamway_session_corrupt"}, /* was never sent */
        {BW_FRAME_ACK, UINT64_MAX, "beamway_session_corrupt"},
        {BW_FRAME_LOAD, (uint64_t)0xFF << 56, "beamway_link_corrupt"}, /* more than 100 % */
        {BW_FRAME_END, 0, "connection_closed"},
        {BW_FRAME_ACK, 0, "none"}, /* older than the last one */
    };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *reason;

        chance = 1;
        CHECK_IN(start_linked(KEPT_BYTES));
        CHECK_IN(send_until_acknowledged());
        reason = reason_after(words[i].kind, words[i].value, "", 0);
        if (strcmp(reason, words[i].reason) != 0)
            printf("    word %zu: %s\n", i, reason);
        CHECK(strcmp(reason, words[i].reason) == 0);
        CHECK_IN(end_schedule());
    }
}

/* A position that cannot be right is rejected. The port then still has no connection, so its owner
 * decides what to do next; with the right position, nothing is lost. */
static void no_position_is_believed(void)
{
    uint64_t positions[2];
    int sockets[2];

    chance = 1;
    CHECK_IN(start_linked(KEPT_BYTES));
    CHECK_IN(send_until_acknowledged());
    CHECK_IN(cut());
    epoch++;
    CHECK_IN(detach(one, &positions[0]));
    CHECK_IN(detach(other, &positions[1]));
    const uint64_t wrong[] = {positions[1] + 1, UINT64_MAX, 0,
                              positions[1] - stat_of(one, STAT_kept_bytes) - 1};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_IN(connect_relay(&relays[0], sockets));
        CHECK(!attaches(one, COMMAND_ATTACH, sockets[0], wrong[i]));
        CHECK(!vm_reason(one));
        close(sockets[1]);
        CHECK_IN(cut());
    }
    CHECK_IN(connect_relay(&relays[0], sockets));
    CHECK(attaches(one, COMMAND_ATTACH, sockets[0], positions[1]));
    CHECK(attaches(other, COMMAND_ATTACH, sockets[1], positions[0]));
    for (int side = 0; side < 2; side++)
        CHECK_IN(send_next(side));
    CHECK_IN(arrive());
    CHECK_IN(end_schedule());
}

#ifdef BW_TEST_ZSTD

/* The peer's bytes: the header word of a unit, then its bytes. */
typedef struct {
    const char *name;
    uint64_t before, after;
    const char *bytes;
    size_t len;
} lie_t;

#define FRAME "\x28\xB5\x2F\xFD"
#define WINDOW_17 FRAME "\x00\x38"
#define RAW_8 "\x40\x00\x00" /* a block of 8 uncompressed bytes */

static const lie_t lies[] = {
    {"too large", BW_UNIT_MAX_BYTES + 1, 100, "", 0},
    {"of nothing", 0, 100, "", 0},
    {"of no bytes", 100, 0, "", 0},
    {"larger than before", 100, 5000, "", 0},
    {"garbage", 100, 4, "abcd", 4},
    {"a window of 256 MB", 100, 6, FRAME "\x00\x90", 6},
    {"a bomb", 100, 10, WINDOW_17 "\x02\x00\x10\x00", 10}, /* 128 KB of zeros */
    {"less than it says", 9, 17, WINDOW_17 RAW_8 "\0\0\0\4abcd", 17},
    {"half a packet", 8, 17, WINDOW_17 RAW_8 "\0\0\0\5abcd", 17},
    {"half a large packet", 8, 17, WINDOW_17 RAW_8 "\0\1\0\0abcd", 17},
    {"no packet", 8, 17,
     WINDOW_17 RAW_8 "\xFF\xFF\xFF\x04"
                     "abcd",
     17},
    {"an end", 8, 17, WINDOW_17 "\x41\x00\x00\0\0\0\4abcd", 17},
};

static const char *reason_of(const lie_t *lie)
{
    return reason_after(BW_FRAME_UNIT, lie->before << 32 | lie->after, lie->bytes, lie->len);
}

static void a_lie_ends_the_link(void)
{
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const char *reason;

        chance = 1;
        compresses = true;
        CHECK_IN(start_linked(KEPT_BYTES));
        reason = reason_of(&lies[i]);
        if (strcmp(reason, "beamway_compression_corrupt") != 0)
            printf("    %s: %s\n", lies[i].name, reason);
        CHECK(strcmp(reason, "beamway_compression_corrupt") == 0);
        CHECK_IN(end_schedule());
    }
}

/* A side that has not agreed to compression rejects compressed packets. */
static void nobody_compresses_unasked(void)
{
    chance = 1;
    CHECK_IN(start_linked(KEPT_BYTES));
    CHECK(strcmp(reason_of(&(lie_t){"", 8, 17, WINDOW_17 RAW_8 "\0\0\0\4abcd", 17}),
                 "beamway_compression_corrupt") == 0);
    CHECK_IN(end_schedule());
}

#endif

static const check_case_t cases[] = {
    {"a_rogue_ends_the_link", a_rogue_ends_the_link},
    {"no_more_join_than_may", no_more_join_than_may},
    {"a_word_that_lies_ends_the_link", a_word_that_lies_ends_the_link},
    {"no_position_is_believed", no_position_is_believed},
#ifdef BW_TEST_ZSTD
    {"a_lie_ends_the_link", a_lie_ends_the_link},
    {"nobody_compresses_unasked", nobody_compresses_unasked},
#endif
};

int main(int argc, char **argv)
{
    forget_relays();
    run_over(bw_carrier_named("tcp"));
    return check_run(cases, sizeof cases / sizeof *cases, argc, argv);
}
