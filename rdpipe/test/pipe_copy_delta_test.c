/* SPDX-License-Identifier: Apache-2.0 */
/* Tests copies of changed files, which are sent as differences, and how each side behaves if the
 * other one does not support that or sends wrong data. */
#include "pipe_copies.h"

#include "copy/blocks.h"
#include "copy/copy_delta.h"

#define DIGEST_AT 40 /* offset of the digest in an item */
#define KERNEL_AT (DIGEST_AT + 2)
#define FAST_SHA256 16 /* offered in byte 0 of the terms, and accepted in byte 1 */

/* The first item of a stream is the START of its only source. */
static void read_terms(const char *stream, uint8_t terms[RD_DIGEST_BYTES])
{
    int fd = open(stream, O_RDONLY);

    if (fd < 0 || pread(fd, terms, RD_DIGEST_BYTES, DIGEST_AT) != RD_DIGEST_BYTES)
        abort();
    close(fd);
}

static void write_terms(const char *stream, const uint8_t terms[RD_DIGEST_BYTES])
{
    int fd = open(stream, O_WRONLY);

    if (fd < 0 || pwrite(fd, terms, RD_DIGEST_BYTES, DIGEST_AT) != RD_DIGEST_BYTES)
        abort();
    close(fd);
}

static rd_copy_t with(const char *path, rd_delta_t delta)
{
    rd_copy_t copy = copy_of(path);

    copy.delta = delta;
    return copy;
}

static int copy_with(rd_delta_t delta)
{
    return copy_all(with("from", delta), copy_of("to"));
}

/* Checks how many bytes of content were sent, that the copy succeeded, and that the files are
 * equal. */
#define CHECK_WENT(delta, condition)                                                               \
    do {                                                                                           \
        uint64_t kept_, went;                                                                      \
                                                                                                   \
        CHECK_EQ(copy_with(delta), 0);                                                             \
        went = bytes_packed(&kept_);                                                               \
        CHECK(condition);                                                                          \
        CHECK(run("cmp from to && test ! -e .to.rdcp-part"));                                      \
    } while (0)

/* ---- sent data ---- */

static void only_what_differs_goes(void)
{
    CHECK_IN(fresh());
    CHECK(run("head -c 3000000 /dev/urandom >from && cp from to"));
    /* One byte changed, bytes inserted in the middle, some removed, and some appended. */
    CHECK(run("printf x | dd of=from conv=notrunc bs=1 seek=500000 status=none"));
    CHECK_WENT(RD_DELTA_ALWAYS, went > 0 && went <= 3 * 4096);
    CHECK(run("{ head -c 1000000 to; echo more; tail -c +1000001 to; } >from"));
    CHECK_WENT(RD_DELTA_ALWAYS, went > 0 && went <= 3 * 4096);
    CHECK(run("{ head -c 1000000 to; tail -c +1300001 to; } >from"));
    CHECK_WENT(RD_DELTA_ALWAYS, went <= 3 * 4096);
    CHECK(run("head -c 100000 /dev/urandom >>from"));
    CHECK_WENT(RD_DELTA_ALWAYS, went >= 100000 && went <= 100000 + 2 * 4096);
    /* A file that has nothing in common with the old version. */
    CHECK(run("head -c 2000000 /dev/urandom >from"));
    CHECK_WENT(RD_DELTA_ALWAYS, went == 2000000);
    /* Pieces in a different order, and repeated ones. */
    CHECK(run("{ tail -c 1000000 to; cat to to; } >from"));
    CHECK_WENT(RD_DELTA_ALWAYS, went <= 6 * 4096);
    CHECK(run("{ head -c 3000000 /dev/zero | tr '\\0' a; } >to; cat to to >from"));
    CHECK_WENT(RD_DELTA_ALWAYS, went <= 2 * 4096);
}

static void what_is_the_same_is_not_written(void)
{
    uint64_t kept;
    struct stat is, was;

    CHECK_IN(fresh());
    CHECK(run("head -c 3000000 /dev/urandom >from && cp from to") && stat("to", &was) == 0);
    CHECK_EQ(copy_with(RD_DELTA_ALWAYS), 0);
    CHECK_EQ(bytes_packed(&kept), 0);
    CHECK_EQ(kept, 1);
    CHECK(stat("to", &is) == 0 && is.st_ino == was.st_ino);
}

/* If both sides are on the same host, files are sent in full, because memory is faster than a
 * disk. */
static void within_a_host_files_go_whole(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    uint8_t terms[RD_DIGEST_BYTES];
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(run("head -c 1000000 /dev/urandom >from && { cat from; echo more; } >to"));
    CHECK_WENT(RD_DELTA_AUTO, went == 1000000);
    CHECK(run("echo more >>to"));
    CHECK_EQ(list(&source), 0);
    read_terms(LISTED, terms);
    terms[KERNEL_AT - DIGEST_AT] ^= 1;
    write_terms(LISTED, terms);
    CHECK(have(&target) == 0 && pack(&source) == 0);
    CHECK(bytes_packed(&kept) <= 2 * 4096);
    CHECK_EQ(unpack(&target), 0);
    CHECK(run("cmp from to && echo more >>to"));
    source.delta = RD_DELTA_NEVER;
    CHECK_EQ(list(&source), 0);
    read_terms(LISTED, terms);
    terms[KERNEL_AT - DIGEST_AT] ^= 1;
    write_terms(LISTED, terms);
    CHECK(have(&target) == 0 && pack(&source) == 0);
    CHECK_EQ(bytes_packed(&kept), 1000000);
}

static void holes_are_passed(void)
{
    struct stat is;
    uint64_t kept;

    CHECK_IN(fresh());
    /* Data at the beginning, in the middle and near the end of a long hole. */
    CHECK(run("truncate -s 200G to && for at in 1 5 900; do head -c 10000000 /dev/urandom | "
              "dd of=to conv=notrunc bs=10000000 seek=$((at * 10)) iflag=fullblock status=none; "
              "done && cp --sparse=always to from"));
    CHECK(stat("to", &is) == 0);
    if ((uint64_t)is.st_blocks * 512 > 100 << 20)
        SKIP("holes: the file system of /tmp has none");
    CHECK(run("printf new | dd of=from conv=notrunc bs=1 seek=105000000 status=none"));
    CHECK_EQ(copy_with(RD_DELTA_ALWAYS), 0);
    CHECK(bytes_packed(&kept) < 12 << 20);
    CHECK(stat("to", &is) == 0 && is.st_size == (off_t)200 << 30 &&
          (uint64_t)is.st_blocks * 512 < 100 << 20);
    CHECK(run("for at in 1 5 900; do cmp -n 12000000 -i ${at}00000000 from to || exit 1; done"));
}

/* An interrupted copy leaves the beginning of the new file, and the next copy takes the rest from
 * the old version. */
static void one_that_was_cut_off_goes_on(void)
{
    rd_copy_t source = with("from", RD_DELTA_ALWAYS), target = copy_of("to");
    struct stat is;
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(run("head -c 3000000 /dev/urandom >to && { head -c 1500000 to; head -c 300000 "
              "/dev/urandom; tail -c 1500000 to; } >from"));
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    CHECK(stat(PACKED, &is) == 0 && truncate(PACKED, is.st_size - 200000) == 0);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(stat(".to.rdcp-part", &is) == 0 && is.st_size >= 1500000);
    CHECK_EQ(copy_with(RD_DELTA_ALWAYS), 0);
    CHECK(bytes_packed(&kept) <= 250000);
    CHECK(run("cmp from to && test ! -e .to.rdcp-part"));
}

static void one_whose_version_is_changed_meanwhile(void)
{
    rd_copy_t source = with("from", RD_DELTA_ALWAYS), target = copy_of("to");
    static const char *const changes[] = {
        "head -c 1000 /dev/urandom | dd of=to conv=notrunc bs=1000 seek=500 status=none",
        "truncate -s 1000000 to", "rm to", "rm to; mkfifo to"};
    static const char *const texts[] = {"not updated, because it changed during the copy",
                                        "refers to data beyond the end of this file",
                                        "disappeared during the copy", "is a FIFO"};

    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        char command[200];
        int own = dup(STDERR_FILENO), said, status;

        CHECK_IN(fresh());
        CHECK(run("head -c 3000000 /dev/urandom >to && { cat to; echo more; } >from"));
        CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0 && run(changes[i]));
        said = open_stream("said", true);
        CHECK(own >= 0 && dup2(said, STDERR_FILENO) >= 0);
        status = unpack(&target);
        CHECK(dup2(own, STDERR_FILENO) >= 0);
        close(said);
        close(own);
        CHECK_EQ(status, RD_COPY_FAILED);
        (void)snprintf(command, sizeof command, "grep -q '%s' said", texts[i]);
        CHECK(run(command));
        /* The next copy succeeds, unless the target is a FIFO. */
        if (i < 3) {
            CHECK(run("if cmp -s from to; then exit 1; fi"));
            CHECK_EQ(copy_with(RD_DELTA_ALWAYS), 0);
            CHECK(run("cmp from to && test ! -e .to.rdcp-part"));
        }
    }
}

/* ---- versions of rdcp without this feature ---- */

static void an_older_source(void)
{
    static const uint8_t none[RD_DIGEST_BYTES];
    rd_copy_t source = with("from", RD_DELTA_ALWAYS), target = copy_of("to");
    uint64_t kept;

    for (int same = 0; same < 2; same++) {
        CHECK_IN(fresh());
        CHECK(run("head -c 1000000 /dev/urandom >from && cp from to"));
        CHECK(same || run("printf changed | dd of=from conv=notrunc bs=1 seek=5 status=none"));
        CHECK_EQ(list(&source), 0);
        write_terms(LISTED, none);
        CHECK(have(&target) == 0 && pack(&source) == 0);
        CHECK_EQ(bytes_packed(&kept), same ? 0 : 1000000);
        CHECK_EQ(kept, same);
        CHECK_EQ(unpack(&target), 0);
        CHECK(run("cmp from to"));
    }
}

/* An older version forwards data that it does not know. */
static void an_older_target(void)
{
    static const uint8_t none[RD_DIGEST_BYTES];
    rd_copy_t source = with("from", RD_DELTA_ALWAYS), target = copy_of("to");
    uint8_t terms[RD_DIGEST_BYTES];
    uint64_t kept;

    for (int same = 0; same < 2; same++) {
        CHECK_IN(fresh());
        CHECK(run("head -c 1000000 /dev/urandom >from && cp from to"));
        CHECK(same || run("printf changed | dd of=from conv=notrunc bs=1 seek=5 status=none"));
        CHECK_EQ(list(&source), 0);
        read_terms(LISTED, terms);
        write_terms(LISTED, none);
        CHECK_EQ(have(&target), 0);
        write_terms(HAD, terms);
        CHECK_EQ(pack(&source), 0);
        CHECK_EQ(bytes_packed(&kept), same ? 0 : 1000000);
        CHECK_EQ(kept, same);
        CHECK_EQ(unpack(&target), 0);
        CHECK(run("cmp from to"));
    }
}

/* The feature bit decides which digest both sides compare. The target must reject the other one. */
static void both_sides_compare_the_same_digest(void)
{
    rd_copy_t source = with("from", RD_DELTA_ALWAYS), target = copy_of("to");
    uint8_t terms[RD_DIGEST_BYTES];

    for (int offers = 0; offers < 2; offers++)
        for (int agrees = 0; agrees < 2; agrees++) {
            CHECK_IN(fresh());
            CHECK(run("head -c 1000000 /dev/urandom >from && { cat from; echo more; } >to"));
            CHECK_EQ(list(&source), 0);
            read_terms(LISTED, terms);
            CHECK_EQ((terms[0] & FAST_SHA256) != 0, rd_digest_has_fast_sha256());
            terms[0] &= offers ? 0xff : (uint8_t)~FAST_SHA256;
            write_terms(LISTED, terms);
            CHECK_EQ(have(&target), 0);
            read_terms(HAD, terms);
            CHECK_EQ((terms[1] & FAST_SHA256) != 0, offers && rd_digest_has_fast_sha256());
            CHECK_EQ(pack(&source), 0);
            terms[1] ^= agrees ? 0 : FAST_SHA256;
            write_terms(PACKED, terms);
            CHECK_EQ(unpack(&target), agrees ? 0 : RD_COPY_FAILED);
            CHECK_EQ(run("cmp -s from to"), agrees);
        }
}

/* ---- items from a hostile source ---- */

/* Unpacks a stream that begins with the answer of a target that accepts differences. */
static bool unpacks(const rd_item_t *items, size_t count)
{
    static rd_item_t all[10];
    rd_copy_t target = copy_of("to");
    rd_copy_terms_t terms;

    all[0] = (rd_item_t){.kind = RD_ITEM_START, .mode = RD_ITEM_VERSION};
    rd_copy_terms_offer(&all[0], RD_DELTA_ALWAYS);
    rd_copy_terms_answer(&all[0], &terms);
    memcpy(all + 1, items, count * sizeof *items);
    put_items(all, count + 1);
    return unpack(&target) == 0;
}

#define CHANGED(bytes)                                                                             \
    {                                                                                              \
        .kind = RD_ITEM_FILE, .mode = 0600, .size = (bytes), .has = RD_HAS_VERSION                 \
    }
#define PIECE(from, bytes)                                                                         \
    {                                                                                              \
        .kind = RD_ITEM_COPY, .offset = (from), .size = (bytes)                                    \
    }

static void a_source_that_lies(void)
{
    static const rd_item_t behind[] = {CHANGED(10), PIECE(100, 10), GOOD, END};
    static const rd_item_t across[] = {CHANGED(10), PIECE(95, 10), GOOD, END};
    static const rd_item_t far[] = {CHANGED(10), PIECE(INT64_MAX, 10), GOOD, END};
    static const rd_item_t longer[] = {CHANGED(10), PIECE(0, 11), GOOD, END};
    static const rd_item_t often[] = {CHANGED(10), PIECE(0, 10), PIECE(0, 10), GOOD, END};
    static const rd_item_t longest[] = {CHANGED(INT64_MAX), PIECE(0, INT64_MAX), GOOD, END};
    static const rd_item_t holes[] = {
        CHANGED(20), {.kind = RD_ITEM_HOLE, .size = INT64_MAX}, PIECE(0, 10), GOOD, END};
    static const rd_item_t shorter[] = {CHANGED(10), PIECE(0, 9), GOOD, END};
    static const rd_item_t wrong[] = {CHANGED(10), PIECE(0, 10), GOOD, END};
    static const rd_item_t cut[] = {CHANGED(10), PIECE(0, 10), END};
    static const rd_item_t plain[] = {
        {.kind = RD_ITEM_FILE, .mode = 0600, .size = 10}, PIECE(0, 10), GOOD, END};
    static const rd_item_t resumed[] = {
        {.kind = RD_ITEM_FILE, .mode = 0600, .size = 10, .offset = 5, .has = RD_HAS_VERSION},
        PIECE(0, 5),
        GOOD,
        END};
    static const rd_item_t alone[] = {PIECE(0, 10), END};
    static const rd_item_t names[] = {{.kind = RD_ITEM_BLOCKS, .size = 24, .offset = 2048}, END};
    static const struct {
        const rd_item_t *items;
        size_t count;
    } streams[] = {{behind, 4},  {across, 4},  {far, 4},     {longer, 4}, {often, 5},
                   {longest, 4}, {holes, 5},   {shorter, 4}, {wrong, 4},  {cut, 3},
                   {plain, 4},   {resumed, 4}, {alone, 2},   {names, 2}};
    char text[101];

    memset(text, 't', 100);
    text[100] = 0;
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        CHECK_IN(fresh());
        put_file("to", text);
        CHECK(!unpacks(streams[i].items, streams[i].count));
        CHECK(holds("to", text));
    }
    /* If the target has no file, there is nothing to copy from. */
    CHECK_IN(fresh());
    CHECK(!unpacks(wrong, 4) && !is_there("to"));
    /* The target has not requested a difference. */
    CHECK_IN(fresh());
    put_file("to", text);
    put_items(wrong, 4);
    {
        rd_copy_t target = copy_of("to");

        CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    }
    CHECK(holds("to", text));
}

/* ---- requests from a hostile target ---- */

/* Runs pack on a stream in which these block names precede the item `next`. */
static int pack_names(bool is_agreed, uint64_t block_bytes, const void *names, size_t len,
                      const rd_item_t *next)
{
    static rd_item_t item;
    rd_copy_t source = copy_of("from");
    rd_copy_terms_t terms;
    rd_items_out_t out;
    int fd = open_stream(HAD, true);

    if (!rd_items_out_open(&out, fd))
        abort();
    item = (rd_item_t){.kind = RD_ITEM_START, .mode = RD_ITEM_VERSION};
    rd_copy_terms_offer(&item, RD_DELTA_ALWAYS);
    if (is_agreed)
        rd_copy_terms_answer(&item, &terms);
    if (!rd_items_put(&out, &item))
        abort();
    item = (rd_item_t){.kind = RD_ITEM_BLOCKS, .size = len, .offset = block_bytes};
    if (!rd_items_put_with(&out, &item, names) || !rd_items_put(&out, next))
        abort();
    item = (rd_item_t){.kind = RD_ITEM_END};
    if (!rd_items_put(&out, &item) || !rd_items_out_close(&out))
        abort();
    close(fd);
    return pack(&source);
}

static void a_target_that_lies(void)
{
    static const rd_item_t file = {.kind = RD_ITEM_FILE, .size = 1000000};
    static const rd_item_t top = {.kind = RD_ITEM_DIR};
    static uint8_t names[3 * RD_BLOCK_NAME_BYTES];
    static const uint64_t sizes[] = {0, 1, 1024, 2049, 3 << 11, 1u << 25, INT64_MAX};
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(run("head -c 1000000 /dev/zero >from && printf x >>from"));
    names[RD_BLOCK_NAME_BYTES] = 1;
    names[2 * RD_BLOCK_NAME_BYTES] = 2;
    CHECK_EQ(pack_names(true, 2048, names, sizeof names, &file), 0);
    CHECK_EQ(bytes_packed(&kept), 1000001);
    CHECK_EQ(pack_names(false, 2048, names, sizeof names, &file), RD_COPY_FAILED);
    CHECK_EQ(pack_names(true, 2048, names, sizeof names, &top), RD_COPY_FAILED);
    CHECK_EQ(pack_names(true, 2048, names, sizeof names - 1, &file), RD_COPY_FAILED);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        CHECK_EQ(pack_names(true, sizes[i], names, sizeof names, &file), RD_COPY_FAILED);
    names[2 * RD_BLOCK_NAME_BYTES] = 1; /* this block is named twice */
    CHECK_EQ(pack_names(true, 2048, names, sizeof names, &file), RD_COPY_FAILED);
    names[2 * RD_BLOCK_NAME_BYTES] = 0;
    CHECK_EQ(pack_names(true, 2048, names, sizeof names, &file), RD_COPY_FAILED);
    CHECK_EQ(bytes_packed(&kept), 0);
}

static void more_blocks_than_a_file_may_have(void)
{
    static uint8_t names[RD_VALUE_MAX / RD_BLOCK_NAME_BYTES * RD_BLOCK_NAME_BYTES];
    rd_blocks_t blocks = {0};
    uint32_t number = 0;
    rd_why_t why;
    size_t taken = 0;

    do
        for (size_t i = 0; i < sizeof names; i += RD_BLOCK_NAME_BYTES, number++)
            memcpy(names + i, &number, sizeof number); /* as on a little-endian host */
    while (rd_blocks_take(&blocks, 2048, names, sizeof names, &why) && ++taken < 1000);
    CHECK(taken == RD_BLOCKS_MAX / (RD_VALUE_MAX / RD_BLOCK_NAME_BYTES));
    CHECK(strstr(why.text, "more than 262144 blocks"));
    rd_blocks_free(&blocks);
}

static bool ignore_new(void *context, const uint8_t *at, size_t len)
{
    (void)at;
    *(uint64_t *)context += len;
    return true;
}

static bool ignore_copy(void *context, uint64_t offset, uint64_t len)
{
    (void)offset;
    *(uint64_t *)context += len;
    return true;
}

/* If every weak sum matches but no digest does, 16 MiB would be digested for each byte, so the
 * search must give up before that. */
static void a_search_that_is_in_vain_ends(void)
{
    static uint8_t names[20000 * RD_BLOCK_NAME_BYTES];
    rd_digest_key_t key = {.kind = RD_DIGEST_SHA256};
    rd_blocks_t blocks = {0};
    rd_search_t *search;
    uint64_t passed = 0;
    int64_t began = now_ms();
    rd_why_t why;

    for (uint32_t i = 0; i < 20000; i++) { /* with the weak sum of zeros, but a different digest */
        memcpy(names + i * RD_BLOCK_NAME_BYTES, &i, sizeof i);
        memcpy(names + i * RD_BLOCK_NAME_BYTES + 8, &i, sizeof i);
        names[i * RD_BLOCK_NAME_BYTES + 23] = 1;
    }
    CHECK(rd_blocks_take(&blocks, RD_BLOCK_MOST, names, sizeof names, &why));
    search = rd_search_open(
        &blocks, &key, (rd_found_t){.context = &passed, .put = ignore_new, .copy = ignore_copy});
    CHECK(search != NULL);
    for (uint64_t given = 0; given < 64u << 20;) {
        size_t room;
        uint8_t *to = rd_search_room(search, &room);

        memset(to, 0, room);
        given += room;
        CHECK(rd_search_more(search, room));
    }
    CHECK(rd_search_flush(search) && passed >= 64u << 20);
    rd_search_close(search);
    rd_blocks_free(&blocks);
    CHECK(now_ms() - began < 60000); /* without a limit it takes days */
}

static void blocks_of_all_sizes(void)
{
    static const uint64_t sizes[] = {1,        65537,       1 << 20,           100000000,
                                     1u << 31, 10000000000, (uint64_t)1 << 40, (uint64_t)1 << 42};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t bytes = rd_block_bytes(sizes[i]);

        CHECK(bytes >= RD_BLOCK_LEAST && bytes <= RD_BLOCK_MOST && (bytes & (bytes - 1)) == 0);
        CHECK(sizes[i] / bytes <= RD_BLOCKS_MAX);
    }
    CHECK_EQ(rd_block_bytes(10000000000), 131072);
    CHECK_EQ(rd_block_bytes((uint64_t)1 << 45), 0);
}

static const check_case_t cases[] = {
    {"only what differs goes", only_what_differs_goes},
    {"what is the same is not written", what_is_the_same_is_not_written},
    {"within a host files go whole", within_a_host_files_go_whole},
    {"holes are passed", holes_are_passed},
    {"one that was cut off goes on", one_that_was_cut_off_goes_on},
    {"one whose version is changed meanwhile", one_whose_version_is_changed_meanwhile},
    {"an older source", an_older_source},
    {"an older target", an_older_target},
    {"both sides compare the same digest", both_sides_compare_the_same_digest},
    {"a source that lies", a_source_that_lies},
    {"a target that lies", a_target_that_lies},
    {"more blocks than a file may have", more_blocks_than_a_file_may_have},
    {"a search that is in vain ends", a_search_that_is_in_vain_ends},
    {"blocks of all sizes", blocks_of_all_sizes},
};

CHECK_MAIN(cases)
