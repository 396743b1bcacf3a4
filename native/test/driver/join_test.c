/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests how the driver joins fragments: what the VM gets, and in which order. join_model.h compares
 * this with a VM that gets the fragments themselves.
 */
#include "../check.h"
#include "join_model.h"

static join_frame_t frame;
static model_cache_t cache;

static void begin(void)
{
    cache = (model_cache_t){{0}};
    join_begin();
}

static void send_frame(unsigned header, uint64_t sequence, uint64_t fragment, unsigned atom,
                       unsigned atoms, uint64_t bytes)
{
    join_head(&frame, header, sequence, fragment);
    if (header != 70)
        join_references(&frame, &cache, atom, atoms);
    join_payload(&frame, bytes, (unsigned)sequence);
    join_send(frame.bytes, frame.len, frame.len + 8);
}

static void first_with(uint64_t sequence, uint64_t fragments, unsigned atom)
{
    send_frame(69, sequence, fragments, atom, 1, 3000);
}

static void first(uint64_t sequence, uint64_t fragments)
{
    send_frame(69, sequence, fragments, 0, 0, 3000);
}

static void rest(uint64_t sequence, uint64_t fragment)
{
    send_frame(70, sequence, fragment, 0, 0, 3000);
}

static void whole_with(unsigned atom)
{
    send_frame(68, 0, 0, atom, 1, 10);
}

/* Checks how many frames the VM has received, and how many of them were complete signals. */
#define CHECK_VM(frames_, whole_)                                                                  \
    do {                                                                                           \
        CHECK_EQ(join.joined.frames, (frames_));                                                   \
        CHECK_EQ(join.joined.whole, (whole_));                                                     \
        CHECK_EQ(join.joined.completed, join.plain.completed);                                     \
    } while (0)

static void fragments_become_one_frame(void)
{
    static const uint64_t sizes[] = {0, 10, 400, 494, 495, 520, 4078, 4079, 5000, 65536};

    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
        for (uint64_t piece = 1; piece <= 70000; piece = piece * 7 + 5) {
            begin();
            join_head(&frame, 69, 7, 3);
            join_references(&frame, &cache, 0, 0);
            join_payload(&frame, 4200, 1);
            join_send(frame.bytes, frame.len, piece);
            for (uint64_t fragment = 2; fragment >= 1; fragment--) {
                CHECK_VM(0, 0);
                join_head(&frame, 70, 7, fragment);
                join_payload(&frame, sizes[size], (unsigned)fragment);
                join_send(frame.bytes, frame.len, piece);
            }
            CHECK_VM(1, 1);
            CHECK_EQ(join.joined.completed, 1);
            CHECK_EQ(join.pump.joins.bytes, 0);
            join_end();
        }
}

/* The VM does not retain much more memory than the size of the signal, even if the rest of the
 * signal arrives later. */
static void memory_fits(void)
{
    begin();
    first(1, 2);
    rest(1, 1);
    CHECK_VM(1, 1);
    whole_with(0);
    first_with(2, 500, 0);
    whole_with(5);
    CHECK_VM(4, 3);
    CHECK(shim.most_given > 0 && shim.most_given < 2 * 3000 + 1000);
    join_end();
}

static void other_frames_pass(void)
{
    begin();
    first(1, 3);
    whole_with(0);
    CHECK_VM(1, 1);
    first(2, 2);
    rest(1, 2);
    rest(2, 1);
    CHECK_VM(2, 2);
    rest(1, 1);
    CHECK_VM(3, 3);
    join_end();
}

/* ---- the atom cache ---- */

/* Atoms 0 and 5 share a cache entry; 0 and 1 do not. */
static void a_renewed_entry_is_renewed_behind_its_readers(void)
{
    begin();
    whole_with(0);
    first_with(1, 4, 0);
    rest(1, 3);
    whole_with(1);
    CHECK_VM(2, 2); /* a different entry, so nothing has to be delivered before it */
    whole_with(5);
    CHECK_VM(4, 3); /* delivered as a first fragment */
    CHECK_EQ(join.pump.joins.count, 0);
    rest(1, 2);
    CHECK_VM(5, 3);
    rest(1, 1);
    CHECK_VM(6, 3);
    CHECK_EQ(join.joined.completed, 4);
    join_end();
}

static void every_reader_goes_ahead(void)
{
    begin();
    whole_with(0);
    whole_with(1);
    first_with(1, 3, 0);
    first_with(2, 3, 1);
    first_with(3, 3, 0);
    whole_with(5);
    CHECK_VM(5, 3);
    CHECK_EQ(join.pump.joins.count, 1);
    CHECK_EQ(join.pump.joins.joins[0].sequence, 2);
    for (uint64_t sequence = 1; sequence <= 3; sequence++) {
        rest(sequence, 2);
        rest(sequence, 1);
    }
    CHECK_EQ(join.joined.completed, 6);
    join_end();
}

/* Before the signal is complete, other frames may refer to the entry that its first fragment
 * renews. */
static void a_first_fragment_that_renews_does_not_wait(void)
{
    begin();
    first_with(1, 3, 0);
    CHECK_VM(1, 0);
    whole_with(0);
    CHECK_VM(2, 1);
    rest(1, 2);
    rest(1, 1);
    CHECK_VM(4, 1);
    join_end();
}

static void a_first_fragment_that_renews_goes_behind_readers(void)
{
    begin();
    whole_with(0);
    first_with(1, 2, 0);
    first_with(2, 2, 5);
    CHECK_VM(3, 1);
    rest(1, 1);
    rest(2, 1);
    CHECK_EQ(join.joined.completed, 3);
    join_end();
}

static void a_header_that_cannot_be_read_goes_behind_all(void)
{
    static const uint8_t cut[] = {131, 68, 200, 1, 2};

    begin();
    first(1, 3);
    first(2, 3);
    join_send(cut, sizeof cut, 100);
    CHECK_VM(3, 0);
    CHECK(join.joined.is_dead);
    join_end();
}

/* ---- frames that no node writes ---- */

static void a_wrong_fragment_ends_the_link(void)
{
    static const struct {
        uint64_t sequence, fragment, bytes;
        unsigned header;
        bool is_wrong;
    } last[] = {
        {1, 1, 10, 70, true},         {1, 3, 10, 70, true},  {1, 0, 10, 70, true},
        {1, 1, 9000, 70, true},       {2, 2, 10, 70, true},  {0, 2, 10, 70, true},
        {1, 3, 3000, 69, true},       {1, 2, 0, 69, true},   {1, 2, 70000, 70, false},
        {1, UINT64_MAX, 9, 70, true}, {2, 0, 10, 69, false}, {0, 2, 10, 69, false},
    };

    for (size_t i = 0; i < sizeof last / sizeof *last; i++) {
        begin();
        first(1, 4);
        rest(1, 3);
        send_frame(last[i].header, last[i].sequence, last[i].fragment, 0, 0, last[i].bytes);
        CHECK_EQ(join.joined.is_dead, last[i].is_wrong);
        /* ERTS uses the fragment number as an index into the fragments that it has stored. */
        CHECK_EQ(join.is_refused,
                 last[i].header == 70 && last[i].sequence == 1 && last[i].fragment != 2);
        join_end();
    }
}

/* A fragment may have more bytes than ERTS ever puts into one. If they fit, it is joined; otherwise
 * the VM receives the fragments unchanged. */
static void a_fragment_may_be_too_large(void)
{
    for (uint64_t fragments = 2; fragments < 5; fragments++) {
        begin();
        first(1, fragments);
        for (uint64_t fragment = fragments - 1; fragment >= 1; fragment--)
            send_frame(70, 1, fragment, 0, 0, BW_FRAGMENT_BYTES + 1);
        CHECK_VM(2, 0); /* the fragments that fit, and then the last one */
        CHECK_EQ(join.joined.completed, 1);
        join_end();
    }
}

/* ---- bounds ---- */

static void so_many_signals_are_joined_at_a_time(void)
{
    begin();
    for (uint64_t sequence = 1; sequence <= BW_JOINS_MAX + 2; sequence++)
        first(sequence, 2);
    CHECK_EQ(join.pump.joins.count, BW_JOINS_MAX);
    CHECK_VM(2, 0);
    for (uint64_t sequence = BW_JOINS_MAX + 2; sequence >= 1; sequence--)
        rest(sequence, 1);
    CHECK_EQ(join.joined.whole, BW_JOINS_MAX);
    CHECK_EQ(join.joined.completed, BW_JOINS_MAX + 2);
    CHECK_EQ(join.pump.joins.bytes, 0);
    first(1, 2);
    rest(1, 1);
    CHECK_EQ(join.joined.whole, BW_JOINS_MAX + 1);
    join_end();
}

static void so_many_bytes_are_announced_at_a_time(void)
{
    static const uint64_t too_many[] = {BW_JOINS_BYTES / BW_FRAGMENT_BYTES + 1,
                                        1 << 14,
                                        (uint64_t)1 << 32,
                                        (uint64_t)1 << 48,
                                        INT64_MAX,
                                        UINT64_MAX};
    uint64_t half = BW_JOINS_BYTES / BW_FRAGMENT_BYTES / 2;

    begin();
    shim.largest = BW_JOINS_BYTES;
    for (size_t i = 0; i < sizeof too_many / sizeof *too_many; i++) {
        first(i + 1, too_many[i]);
        CHECK_EQ(join.pump.joins.bytes, 0);
        CHECK_VM(i + 1, 0);
    }
    first(100, half);
    CHECK_EQ(join.pump.joins.count, 1);
    CHECK_EQ(join.pump.joins.bytes, frame.len + (half - 1) * BW_FRAGMENT_BYTES);
    first(101, half + 2);
    CHECK_EQ(join.pump.joins.count, 1);
    first(102, half);
    CHECK_EQ(join.pump.joins.count, 2);
    join_end();
}

static void without_memory_the_vm_joins(void)
{
    begin();
    shim.largest = 100000;
    first(1, 3);
    rest(1, 2);
    rest(1, 1);
    CHECK_VM(3, 0);
    CHECK_EQ(join.joined.completed, 1);
    join_end();
}

/* ---- random peers ---- */

static void random_peer(uint64_t seed, bool is_hostile, uint64_t *whole, uint64_t *many)
{
    join_peer_t peer = {.is_hostile = is_hostile};
    uint64_t state = seed * 2 + 1;

    begin();
    for (int step = 0; step < 300 && !join.plain.is_dead; step++) {
        uint64_t what = next_random(&state);

        join_step(&peer, what, next_random(&state));
    }
    *whole += join.joined.whole - join.plain.whole;
    *many += join.many;
    join_end();
}

/* JOIN_PEERS is the number of peers of each kind. The model terminates the program if the two VMs
 * differ. */
static void random_peers(void)
{
    const char *wanted = getenv("JOIN_PEERS");
    uint64_t peers = wanted ? strtoull(wanted, NULL, 10) : 100, whole = 0, many = 0;

    for (uint64_t seed = 1; seed <= peers; seed++) {
        CHECK_IN(random_peer(seed, false, &whole, &many));
        CHECK_IN(random_peer(seed, true, &whole, &many));
    }
    /* Many signals must have been joined, and many not. */
    CHECK(whole > many / 20);
    CHECK(whole < many);
}

static const check_case_t cases[] = {
    {"fragments_become_one_frame", fragments_become_one_frame},
    {"memory_fits", memory_fits},
    {"other_frames_pass", other_frames_pass},
    {"a_renewed_entry_is_renewed_behind_its_readers",
     a_renewed_entry_is_renewed_behind_its_readers},
    {"every_reader_goes_ahead", every_reader_goes_ahead},
    {"a_first_fragment_that_renews_does_not_wait", a_first_fragment_that_renews_does_not_wait},
    {"a_first_fragment_that_renews_goes_behind_readers",
     a_first_fragment_that_renews_goes_behind_readers},
    {"a_header_that_cannot_be_read_goes_behind_all", a_header_that_cannot_be_read_goes_behind_all},
    {"a_wrong_fragment_ends_the_link", a_wrong_fragment_ends_the_link},
    {"a_fragment_may_be_too_large", a_fragment_may_be_too_large},
    {"so_many_signals_are_joined_at_a_time", so_many_signals_are_joined_at_a_time},
    {"so_many_bytes_are_announced_at_a_time", so_many_bytes_are_announced_at_a_time},
    {"without_memory_the_vm_joins", without_memory_the_vm_joins},
    {"random_peers", random_peers},
};

CHECK_MAIN(cases)
