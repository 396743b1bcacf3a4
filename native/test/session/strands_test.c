/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests several connections that carry one stream in each direction between two ends, while the
 * network fails. Connections die (the two ends notice this at different times), join, stop
 * accepting data for a while, or transfer only part of it. The bytes written at one end must come
 * out at the other exactly once and in order.
 *
 * STRANDS_SEEDS in the environment is the number of fault schedules; the default is 500.
 */
#include "../check.h"

#include <endian.h>
#include <stdbool.h>

#include "bytes.h"
#include "../chance.h"
#include "session/strands.h"

#define RING ((uint64_t)16384)
#define WIRE_BYTES 5000
#define CONNECTIONS 40 /* per schedule, in succession */
#define NEWS (RING / 8)

/* ---- two ends and the connections between them ---- */

typedef struct {
    uint8_t bytes[WIRE_BYTES];
    size_t len;
    bool is_clogged;
} way_t;

typedef struct {
    way_t from[2];
    int place[2]; /* place at each end, or -1 if the end has noticed that the connection is dead */
    bool is_cut;
} connection_t;

typedef struct {
    bw_strands_t strands;
    uint8_t out[RING], in[RING];
    int connection[BW_STRANDS_MAX]; /* connection at each place */
    bool is_wrong;
} end_t;

static end_t ends[2];
static connection_t connections[CONNECTIONS];
static int made;

static uint8_t byte_of(int end, uint64_t position)
{
    return (uint8_t)(position * 31 + (position >> 8) * 7 + (position >> 13) + (uint64_t)end * 101);
}

static void begin(void)
{
    for (int end = 0; end < 2; end++) {
        free(ends[end].strands.in.of);
        ends[end] = (end_t){.strands = {.in_bytes = RING, .use = BW_STRANDS_MAX}};
    }
    memset(connections, 0, sizeof connections);
    made = 0;
}

static bool join(void)
{
    connection_t *connection = &connections[made];

    if (made == CONNECTIONS || ends[0].strands.live == BW_STRANDS_MAX ||
        ends[1].strands.live == BW_STRANDS_MAX)
        return false;
    for (int end = 0; end < 2; end++) {
        connection->place[end] = bw_strands_add(&ends[end].strands);
        ends[end].connection[connection->place[end]] = made;
    }
    made++;
    return true;
}

static void notice(connection_t *connection, int end)
{
    if (connection->place[end] >= 0)
        bw_strands_lost(&ends[end].strands, (unsigned)connection->place[end]);
    connection->place[end] = -1;
}

static connection_t *connection_of(int end, unsigned place)
{
    return &connections[ends[end].connection[place]];
}

/* ---- actions of an end ---- */

static void commit(int end, uint64_t most)
{
    bw_strands_t *strands = &ends[end].strands;
    uint64_t room = RING - (strands->head - strands->freed);

    for (uint64_t n = bw_least(room, most); n > 0; n--, strands->head++)
        ends[end].out[strands->head % RING] = byte_of(end, strands->head);
}

static void take(int end, uint64_t most)
{
    bw_strands_t *strands = &ends[end].strands;

    for (uint64_t n = bw_least(strands->in.head - strands->taken, most); n > 0; n--) {
        ends[end].is_wrong |=
            ends[end].in[strands->taken % RING] != byte_of(1 - end, strands->taken);
        strands->taken++;
    }
}

/* The connection accepts some of the strand's outgoing bytes. */
static void push(int end, unsigned place)
{
    bw_strand_t *strand = &ends[end].strands.strands[place];
    connection_t *connection = connection_of(end, place);
    way_t *way = &connection->from[end];
    size_t room = connection->is_cut ? 0 : WIRE_BYTES - way->len;
    size_t n = bw_least(strand->said_len + strand->left, any(4) == 0 ? any(40) : room);

    n = bw_least(n, room);
    strand->is_blocked = room == 0;
    for (size_t i = 0; i < n; i++) {
        bool is_header = strand->said_len > 0;

        way->bytes[way->len++] =
            is_header ? strand->said[strand->said_at] : ends[end].out[strand->at % RING];
        bw_strand_sent(strand, 1);
    }
}

/* Lets bytes arrive. Returns false if the end rejects them as something that a correct peer never
 * sends. */
static bool hear(int end, unsigned place)
{
    bw_strands_t *strands = &ends[end].strands;
    bw_strand_t *strand = &strands->strands[place];
    way_t *way = &connection_of(end, place)->from[1 - end];

    for (int rounds = 0; rounds < 8 && way->len > 0 && !way->is_clogged; rounds++) {
        bw_strand_due_t due = bw_strands_due(strands, strand);
        size_t n = bw_least(due.len, way->len);

        n = any(4) == 0 ? 1 + any((uint32_t)n) : n;
        if (due.header)
            memcpy(due.header, way->bytes, n);
        for (size_t i = 0; !due.header && due.is_new && i < n; i++) {
            uint64_t position = due.at + i;

            ends[end].is_wrong |= position < strands->taken || position >= strands->taken + RING;
            ends[end].in[position % RING] = way->bytes[i];
        }
        memmove(way->bytes, way->bytes + n, way->len - n);
        way->len -= n;
        if (!bw_strands_came(strands, strand, &due, n))
            return false;
    }
    return true;
}

static void step(int end)
{
    bw_strands_t *strands = &ends[end].strands;

    take(end, any(3) == 0 ? any(8000) : 0);
    for (unsigned place = 0; place < strands->count; place++) {
        if (!strands->strands[place].is_live)
            continue;
        ends[end].is_wrong |= !hear(end, place);
        push(end, place);
    }
    (void)bw_strands_acknowledge(strands, NEWS, any(3) == 0);
    while (bw_strands_assign(strands) >= 0)
        ;
}

static void break_something(void)
{
    connection_t *connection = &connections[any((uint32_t)made)];
    way_t *way = &connection->from[any(2)];

    if (any(30) == 0) {
        connection->is_cut = true;
        connection->from[0].len = connection->from[1].len = 0;
    }
    if (connection->is_cut && any(4) == 0)
        notice(connection, (int)any(2));
    if (any(10) == 0)
        way->is_clogged = !way->is_clogged;
    if (any(40) == 0 || ends[0].strands.live == 0 || ends[1].strands.live == 0)
        (void)join();
}

static uint64_t received(const bw_strands_t *strands)
{
    return strands->in.head + bw_ranges_beyond(&strands->in);
}

static bool is_sound(void)
{
    for (int end = 0; end < 2; end++) {
        const bw_strands_t *strands = &ends[end].strands;

        if (ends[end].is_wrong || strands->taken > ends[1 - end].strands.head ||
            strands->freed > ends[1 - end].strands.taken ||
            strands->out.arrived > ends[1 - end].strands.in.head ||
            strands->out.arrived + strands->beyond > received(&ends[1 - end].strands))
            return false;
    }
    return true;
}

/* Nothing fails any more: everything arrives, even data that the writer had no room for before. */
static void arrive(void)
{
    uint64_t goal[2] = {ends[0].strands.head + 2 * RING, ends[1].strands.head + 2 * RING};

    for (int i = 0; i < made; i++) {
        connections[i].from[0].is_clogged = connections[i].from[1].is_clogged = false;
        for (int end = 0; connections[i].is_cut && end < 2; end++)
            notice(&connections[i], end);
    }
    if (ends[0].strands.live == 0) {
        made = 0;
        connections[0] = (connection_t){.is_cut = false};
        CHECK(join());
    }
    for (int round = 0; round < 20000; round++) {
        bool is_over = bw_strands_have_all(&ends[0].strands);

        for (int end = 0; end < 2; end++) {
            commit(end, goal[end] - ends[end].strands.head);
            take(end, RING);
            step(end);
        }
        /* A side that has ended no longer acknowledges. */
        if (ends[0].strands.taken == goal[1] && ends[1].strands.taken == goal[0])
            for (int end = 0; end < 2; end++)
                (void)bw_strands_end(&ends[end].strands);
        CHECK(is_sound());
        if (is_over && bw_strands_have_all(&ends[1].strands))
            break;
    }
    for (int end = 0; end < 2; end++) {
        take(end, RING);
        CHECK(bw_strands_have_all(&ends[end].strands));
        CHECK_EQ(ends[end].strands.taken, ends[1 - end].strands.head);
    }
    CHECK(is_sound());
}

static void run_schedule(uint32_t steps)
{
    CHECK_IN(begin());
    (void)join();
    for (uint32_t i = 0; i < steps; i++) {
        int end = (int)any(2);

        if (any(3) == 0)
            commit(end, any(4) == 0 ? RING : any(300));
        break_something();
        step(end);
        CHECK(is_sound());
    }
    CHECK_IN(arrive());
}

static void nothing_is_lost_doubled_or_reordered(void)
{
    const char *text = getenv("STRANDS_SEEDS");
    unsigned seeds = text ? (unsigned)strtoul(text, NULL, 10) : 500;
    uint64_t moved = 0;

    for (unsigned seed = 1; seed <= seeds; seed++) {
        chance = seed;
        run_schedule(100 + any(300));
        if (check_failed) {
            printf("    seed %u\n", seed);
            return;
        }
        moved += ends[0].strands.taken + ends[1].strands.taken;
    }
    CHECK(moved > seeds * RING);
}

/* ---- peers that are not correct ---- */

typedef struct {
    uint8_t kind;
    uint32_t len;
    uint64_t offset, other;
} word_t;

static bool hears(bw_strands_t *strands, unsigned place, word_t word)
{
    bw_strand_t *strand = &strands->strands[place];
    bw_strand_due_t due = bw_strands_due(strands, strand);
    uint32_t len = htole32(word.len);
    uint64_t offsets[2] = {htole64(word.offset), htole64(word.other)};

    if (!due.header)
        return false;
    memset(due.header, 0, BW_STRAND_HEADER);
    due.header[0] = word.kind;
    memcpy(due.header + 4, &len, 4);
    memcpy(due.header + 8, offsets, 16);
    return bw_strands_came(strands, strand, &due, BW_STRAND_HEADER);
}

enum { CHUNK = 1, ACK, END };

/* 1,000 of 2,000 bytes have been sent, and none have been received. */
static void begin_alone(void)
{
    begin();
    (void)bw_strands_add(&ends[0].strands);
    (void)bw_strands_add(&ends[0].strands);
    commit(0, 1000);
    (void)bw_strands_assign(&ends[0].strands);
    commit(0, 1000);
}

static void a_peer_is_not_believed(void)
{
    static const word_t wrong[] = {
        {0, 0, 0, 0},
        {4, 0, 0, 0},
        {255, 0, 0, 0},
        {CHUNK, 0, 0, 0},
        {CHUNK, 1, RING, 0},
        {CHUNK, RING + 1, 0, 0},
        {CHUNK, UINT32_MAX, 0, 0},
        {CHUNK, 2, RING - 1, 0},
        {CHUNK, 1, UINT64_MAX, 0},
        {CHUNK, 4096, UINT64_MAX - 4096, 0},
        {ACK, 0, 0, 1001}, /* written but never sent */
        {ACK, 0, 0, UINT64_MAX},
        {ACK, 1001, 0, 0},
        {ACK, 1, 0, 1000},
        {ACK, UINT32_MAX, 0, 0},
        {ACK, 0, 1, 0}, /* counted as taken but not as arrived */
        {ACK, 0, UINT64_MAX, UINT64_MAX},
        {END, 0, RING + 1, 0},
        {END, 0, UINT64_MAX, 0},
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bw_strands_t *strands = &ends[0].strands;

        begin_alone();
        CHECK(!hears(strands, 1, wrong[i]));
        CHECK_EQ(strands->out.arrived, 0);
        CHECK_EQ(strands->freed, 0);
        CHECK_EQ(strands->in.head, 0);
    }
}

static void an_end_is_the_end(void)
{
    static const word_t late[] = {
        {CHUNK, 1, 0, 0}, {ACK, 0, 0, 0}, {END, 0, 10, 0}, {END, 0, 11, 0}};
    bw_strands_t *strands = &ends[0].strands;

    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        begin_alone();
        CHECK(hears(strands, 0, (word_t){END, 0, 10, 0}));
        CHECK(!hears(strands, 0, late[i]));
        begin_alone();
        CHECK(hears(strands, 0, (word_t){END, 0, 10, 0}));
        CHECK(!hears(strands, 1, (word_t){END, 0, 11, 0}));
        begin_alone();
        CHECK(hears(strands, 0, (word_t){END, 0, 10, 0}));
        CHECK(!hears(strands, 1, (word_t){CHUNK, 2, 9, 0}));
    }
}

static void an_older_word_says_nothing_new(void)
{
    bw_strands_t *strands = &ends[0].strands;

    begin_alone();
    CHECK(hears(strands, 0, (word_t){ACK, 0, 400, 900}));
    CHECK(hears(strands, 1, (word_t){ACK, 0, 300, 500}));
    CHECK_EQ(strands->freed, 400);
    CHECK_EQ(strands->out.arrived, 900);
    bw_strands_lost(strands, 0);
    CHECK_EQ(strands->out.next, 900);
    CHECK(hears(strands, 1, (word_t){ACK, 0, 400, 1000}));
    CHECK_EQ(strands->out.next, 1000);
}

/* Lets a chunk of `len` bytes from `offset` on arrive. */
static bool hears_chunk(bw_strands_t *strands, unsigned place, uint32_t len, uint64_t offset)
{
    bw_strand_t *strand = &strands->strands[place];
    bool is_right = hears(strands, place, (word_t){CHUNK, len, offset, 0});

    while (is_right && strand->due > 0) {
        bw_strand_due_t due = bw_strands_due(strands, strand);

        is_right = bw_strands_came(strands, strand, &due, due.len);
    }
    return is_right;
}

/* The peer may have no more than a certain number of bytes in flight. If an ACK is lost together
 * with its connection, the peer sends these bytes again, and then waits for an ACK. */
static void bytes_that_arrive_again_are_acknowledged(void)
{
    bw_strands_t *strands = &ends[0].strands;

    begin_alone();
    bw_strand_sent(&strands->strands[0], BW_STRAND_HEADER + 1000);
    CHECK(hears_chunk(strands, 1, 3000, 0));
    CHECK_EQ(bw_strands_acknowledge(strands, 2000, false), 0);
    bw_strands_lost(strands, 0);
    CHECK_EQ(bw_strands_acknowledge(strands, 2000, false), -1);
    CHECK(hears_chunk(strands, 1, 1500, 0));
    CHECK_EQ(bw_strands_acknowledge(strands, 2000, false), -1);
    CHECK(hears_chunk(strands, 1, 2000, 1500));
    CHECK_EQ(bw_strands_acknowledge(strands, 2000, false), 1);
    bw_strand_sent(&strands->strands[1], BW_STRAND_HEADER);
    CHECK_EQ(bw_strands_acknowledge(strands, 2000, false), -1);
}

/* While one strand sends a lost segment again, the others must not have to wait. */
static void what_arrives_after_a_gap_is_not_in_flight(void)
{
    bw_strands_t *strands = &ends[0].strands;
    uint32_t len;

    begin_alone();
    CHECK_EQ(bw_strands_in_flight(strands), 1000);
    CHECK(hears(strands, 0, (word_t){ACK, 600, 0, 100}));
    CHECK_EQ(bw_strands_in_flight(strands), 300);
    CHECK(hears(strands, 1, (word_t){ACK, 800, 0, 0}));
    CHECK(hears(strands, 1, (word_t){ACK, 500, 0, 100}));
    CHECK_EQ(bw_strands_in_flight(strands), 300);
    bw_strand_sent(&strands->strands[0], BW_STRAND_HEADER + 1000);
    bw_strands_lost(strands, 1);
    CHECK_EQ(bw_strands_in_flight(strands), 0);
    CHECK_EQ(bw_strands_assign(strands), 0);
    CHECK_EQ(bw_strands_in_flight(strands), 1900); /* even if the peer has some of them */
    CHECK(hears(strands, 0, (word_t){ACK, 300, 0, 1000}));
    CHECK_EQ(bw_strands_in_flight(strands), 700);

    begin_alone();
    bw_strand_sent(&strands->strands[0], BW_STRAND_HEADER + 1000);
    CHECK(hears_chunk(strands, 1, 3000, 1000));
    CHECK_EQ(bw_strands_acknowledge(strands, 2000, false), 0);
    memcpy(&len, strands->strands[0].said + 4, sizeof len);
    CHECK_EQ(le32toh(len), 3000);
}

/* A new connection continues where the last one ended, and does not accept a position beyond what
 * was sent. */
static void a_stream_resumes_where_it_can(void)
{
    bw_outgoing_t way = {.arrived = 100};

    way.next = way.sent = 100;
    bw_outgoing_send(&way, 50);
    CHECK(!bw_outgoing_resume(&way, 99));
    CHECK(!bw_outgoing_resume(&way, 151));
    CHECK_EQ(way.next, 150);
    CHECK(bw_outgoing_resume(&way, 120));
    CHECK_EQ(way.next, 120);
    CHECK(!bw_outgoing_acknowledged(&way, 150)); /* the peer has already acknowledged 120 */
    CHECK(bw_outgoing_resume(&way, 120));
    CHECK(bw_outgoing_acknowledged(&way, 110));
    CHECK_EQ(way.arrived, 120);
    CHECK_EQ(bw_outgoing_in_flight(&way), 0);
}

static void no_more_than_there_are_places(void)
{
    bw_strands_t *strands = &ends[0].strands;

    begin();
    for (unsigned i = 0; i < BW_STRANDS_MAX; i++)
        CHECK_EQ(bw_strands_add(strands), i);
    CHECK_EQ(bw_strands_add(strands), -1);
    bw_strands_lost(strands, 7);
    CHECK_EQ(bw_strands_add(strands), 7);
    CHECK_EQ(bw_strands_add(strands), -1);
    CHECK_EQ(strands->live, BW_STRANDS_MAX);
}

/* Assigns ten chunks of full length, which are sent at once, and counts them at each place. */
static void assign_ten(bw_strands_t *strands, unsigned chunks[4])
{
    memset(chunks, 0, 4 * sizeof *chunks);
    for (int i = 0; i < 10; i++) {
        int place = bw_strands_assign(strands);

        CHECK(place >= 0 && place < 4);
        chunks[place]++;
        bw_strand_sent(&strands->strands[place], BW_STRAND_HEADER + BW_CHUNK_SHARE_BYTES);
    }
}

static void only_the_first_live_ones_are_used(void)
{
    bw_strands_t *strands = &ends[0].strands;
    unsigned chunks[4];

    begin();
    strands->use = 2;
    strands->head = 100 * BW_CHUNK_SHARE_BYTES;
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(bw_strands_add(strands), i);
    CHECK_IN(assign_ten(strands, chunks));
    CHECK(chunks[0] == 5 && chunks[1] == 5);
    bw_strands_lost(strands, 0);
    CHECK_IN(assign_ten(strands, chunks));
    CHECK(chunks[1] == 5 && chunks[2] == 5);
    strands->strands[1].is_blocked = strands->strands[2].is_blocked = true;
    CHECK_EQ(bw_strands_assign(strands), -1);
    strands->use = 3;
    CHECK_EQ(bw_strands_assign(strands), 3);
}

/* ---- ranges ---- */

static void ranges_are_as_a_map_of_bytes(void)
{
    enum { SIZE = 300 };

    for (unsigned seed = 1; seed <= 300; seed++) {
        bw_ranges_t ranges = {0};
        bool map[SIZE + 1] = {false};
        size_t head = 0;

        srand(seed);
        for (int step = 0; step < 60; step++) {
            size_t from = (size_t)rand() % SIZE, to = from + 1 + (size_t)rand() % 20, at;
            bool is_new, is_right = true;

            to = to < SIZE ? to : SIZE;
            CHECK(bw_ranges_add(&ranges, from, to));
            memset(map + from, true, to - from);
            while (map[head])
                head++;
            is_right = ranges.head == head;
            for (at = 0; at < SIZE; at++) {
                size_t run = bw_ranges_run(&ranges, at, SIZE - at, &is_new);

                is_right = is_right && run > 0 && is_new != map[at];
                for (size_t i = at; i < at + run; i++)
                    is_right = is_right && map[i] == map[at];
            }
            CHECK(is_right);
        }
        free(ranges.of);
    }
}

static const check_case_t cases[] = {
    {"ranges_are_as_a_map_of_bytes", ranges_are_as_a_map_of_bytes},
    {"a_stream_resumes_where_it_can", a_stream_resumes_where_it_can},
    {"no_more_than_there_are_places", no_more_than_there_are_places},
    {"only_the_first_live_ones_are_used", only_the_first_live_ones_are_used},
    {"a_peer_is_not_believed", a_peer_is_not_believed},
    {"an_end_is_the_end", an_end_is_the_end},
    {"an_older_word_says_nothing_new", an_older_word_says_nothing_new},
    {"bytes_that_arrive_again_are_acknowledged", bytes_that_arrive_again_are_acknowledged},
    {"what_arrives_after_a_gap_is_not_in_flight", what_arrives_after_a_gap_is_not_in_flight},
    {"nothing_is_lost_doubled_or_reordered", nothing_is_lost_doubled_or_reordered},
};

CHECK_MAIN(cases)
