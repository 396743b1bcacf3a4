/* SPDX-License-Identifier: Apache-2.0 */
/* The four parts of a copy, one after the other over files, in a directory of their own. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "copy.h"

/* Streams of items that a case may look at, or write itself. */
#define LISTED "listed"
#define HAD "had"
#define PACKED "packed"

static rd_copy_t copy_of(const char *path)
{
    return (rd_copy_t){.host = "", .path = path, .name = "", .recursive = true};
}

static int open_stream(const char *name, bool for_writing)
{
    int fd = open(name, for_writing ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY, 0600);

    if (fd < 0)
        abort();
    return fd;
}

static int list(const rd_copy_t *source)
{
    int out = open_stream(LISTED, true), status = rd_copy_list(source, out);

    close(out);
    return status;
}

static int have(const rd_copy_t *target)
{
    int in = open_stream(LISTED, false), out = open_stream(HAD, true);
    int status = rd_copy_have(target, in, out);

    close(in);
    close(out);
    return status;
}

static int pack(const rd_copy_t *source)
{
    int in = open_stream(HAD, false), out = open_stream(PACKED, true);
    int status = rd_copy_pack(source, in, out);

    close(in);
    close(out);
    return status;
}

static int unpack(const rd_copy_t *target)
{
    int in = open_stream(PACKED, false), status = rd_copy_unpack(target, in);

    close(in);
    return status;
}

/* The status of the last part that failed. */
static int copy_all(rd_copy_t source, rd_copy_t target)
{
    int statuses[4] = {list(&source), have(&target), pack(&source), unpack(&target)};
    int status = 0;

    for (size_t i = 0; i < 4; i++)
        if (statuses[i] != 0)
            status = statuses[i];
    return status;
}

static int copy(const char *from, const char *to)
{
    return copy_all(copy_of(from), copy_of(to));
}

static void put_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);

    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        abort();
    close(fd);
}

static bool holds(const char *path, const char *text)
{
    char got[256];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, got, sizeof got);

    if (fd >= 0)
        close(fd);
    return n == (ssize_t)strlen(text) && memcmp(got, text, (size_t)n) == 0;
}

static bool is_there(const char *path)
{
    struct stat is;

    return lstat(path, &is) == 0;
}

static bool run(const char *command)
{
    return system(command) == 0;
}

/* In an empty directory. */
static void fresh(void)
{
    static char folder[64];

    if (*folder) {
        CHECK(chdir("/") == 0);
        CHECK(run("exec chmod -R u+rwx \"$COPY_TEST\"") && run("exec rm -rf \"$COPY_TEST\""));
    }
    (void)snprintf(folder, sizeof folder, "/tmp/copy_test-XXXXXX");
    CHECK(mkdtemp(folder) && chdir(folder) == 0);
    CHECK(setenv("COPY_TEST", folder, 1) == 0);
}

static void last(void)
{
    CHECK(chdir("/") == 0 && run("exec rm -rf \"$COPY_TEST\""));
}

/* ---- items ---- */

static void safe_paths(void)
{
    static const struct {
        const char *path;
        bool is_safe;
    } paths[] = {{"", true},      {"a", true},     {"a/b", true},   {"...", true},
                 {"..a/b", true}, {"a/..b", true}, {".a", true},    {"/", false},
                 {"/a", false},   {"a/", false},   {"a//b", false}, {".", false},
                 {"..", false},   {"a/..", false}, {"../a", false}, {"a/../b", false},
                 {"./a", false},  {"a/.", false},  {"a/./b", false}};

    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        CHECK_EQ(rd_path_is_safe(paths[i].path, strlen(paths[i].path)), paths[i].is_safe);
    CHECK(!rd_path_is_safe("a\0b", 3));
}

static void items_are_read_as_written(void)
{
    static rd_item_t item = {.kind = RD_ITEM_LINK, .mode = 0777, .mtime_s = -5, .mtime_ns = 7};
    static rd_item_t got;
    uint8_t at[RD_ITEM_MAX];
    size_t len, bytes = 0;

    (void)strcpy(item.path, "a/b");
    (void)strcpy(item.target, "../c");
    len = rd_item_put(at, &item);
    for (size_t avail = 0; avail < len; avail++)
        CHECK_EQ(rd_item_parse(at, avail, &got, &bytes), RD_ITEM_SHORT);
    CHECK_EQ(rd_item_parse(at, len, &got, &bytes), RD_ITEM_WHOLE);
    CHECK_EQ(bytes, len);
    CHECK(strcmp(got.path, "a/b") == 0 && strcmp(got.target, "../c") == 0);
    CHECK(got.mtime_s == -5 && got.mtime_ns == 7 && got.mode == 0777);
    at[RD_ITEM_BYTES + 1] = '.';
    at[RD_ITEM_BYTES] = '.';
    at[RD_ITEM_BYTES + 2] = '/';
    CHECK_EQ(rd_item_parse(at, len, &got, &bytes), RD_ITEM_CORRUPT);
    at[0] = 99;
    CHECK_EQ(rd_item_parse(at, len, &got, &bytes), RD_ITEM_CORRUPT);
}

/* ---- copies ---- */

static void a_file_and_a_tree(void)
{
    CHECK_IN(fresh());
    CHECK(mkdir("from", 0750) == 0 && mkdir("from/deep", 0755) == 0 &&
          mkdir("from/none", 0700) == 0);
    put_file("from/one", "first");
    put_file("from/deep/two", "second");
    put_file("from/empty", "");
    CHECK(symlink("../one", "from/deep/link") == 0);
    CHECK_EQ(copy("from/one", "single"), 0);
    CHECK(holds("single", "first"));
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(run("diff -r --no-dereference from to"));
    CHECK(!is_there(".to.rdcp-part"));
    CHECK_EQ(copy("./from/.", "/proc/self/cwd/to"), 0); /* into it, all of it again */
    CHECK(run("diff -r --no-dereference from to"));
    CHECK(run("test -z \"$(find . -name '*rdcp-part*')\""));
}

static void times_and_modes(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0750) == 0 && mkdir("from/dir", 0555) == 0);
    put_file("from/one", "first");
    CHECK(chmod("from/one", 06751) == 0);
    CHECK(run("touch -d '2001-02-03 04:05:06.789' from/one from/dir from"));
    source.preserve = target.preserve = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("test \"$(stat -c '%a %y' to to/dir)\" = \"$(stat -c '%a %y' from from/dir)\""));
    CHECK(run("test \"$(stat -c '%a' to/one)\" = 751"));
    CHECK(run("test \"$(stat -c '%y' to/one)\" = \"$(stat -c '%y' from/one)\""));
}

static void holes_stay_holes(void)
{
    struct stat is;
    int fd;

    CHECK_IN(fresh());
    fd = open("from", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && pwrite(fd, "a", 1, 50 << 20) == 1 && pwrite(fd, "b", 1, 10 << 20) == 1);
    CHECK(ftruncate(fd, 100 << 20) == 0 && fstat(fd, &is) == 0);
    close(fd);
    if ((uint64_t)is.st_blocks * 512 > 10 << 20)
        SKIP("holes: the file system of /tmp has none");
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(run("cmp from to"));
    CHECK(stat("to", &is) == 0);
    CHECK((uint64_t)is.st_blocks * 512 < 10 << 20);
}

/* ---- going on ---- */

/* Bytes of content in the packed stream. */
static uint64_t bytes_packed(uint64_t *kept_p)
{
    static rd_item_t item;
    rd_items_in_t in;
    rd_why_t why;
    uint64_t bytes = 0;
    int fd = open_stream(PACKED, false);

    *kept_p = 0;
    if (!rd_items_in_open(&in, fd, NULL))
        abort();
    while (rd_items_next(&in, &item, &why)) {
        bytes += item.kind == RD_ITEM_DATA ? item.size : 0;
        *kept_p += item.kind == RD_ITEM_KEEP;
    }
    rd_items_in_close(&in);
    close(fd);
    return bytes;
}

static void what_is_there_is_not_sent_again(void)
{
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0 && mkdir(".to.rdcp-part", 0700) == 0);
    put_file("from/whole", "whole file");
    put_file("from/part", "the beginning and the end");
    put_file("from/wrong", "the beginning and the end");
    put_file("from/other", "same length");
    put_file(".to.rdcp-part/whole", "whole file");
    put_file(".to.rdcp-part/.part.rdcp-part", "the beginning");
    put_file(".to.rdcp-part/.wrong.rdcp-part", "another beginning");
    put_file(".to.rdcp-part/other", "SAME length");
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(run("diff -r from to"));
    CHECK_EQ(bytes_packed(&kept), strlen(" and the end") + 25 + 11);
    CHECK_EQ(kept, 1);
}

static void a_stream_that_is_cut_leaves_nothing_under_the_name(void)
{
    rd_copy_t target = copy_of("to");
    struct stat is;
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0);
    CHECK(run("head -c 3000000 /dev/urandom >from/big"));
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(stat(PACKED, &is) == 0 && run("rm -r to"));
    for (off_t len = is.st_size - 1; len > 0; len -= 700001) {
        CHECK(truncate(PACKED, len) == 0);
        CHECK_EQ(unpack(&target), RD_COPY_FAILED);
        CHECK(!is_there("to"));
    }
    CHECK(is_there(".to.rdcp-part/.big.rdcp-part"));
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(run("cmp from/big to/big"));
    CHECK(bytes_packed(&kept) < 3000000);
}

static void two_copies_do_not_meet(void)
{
    int fd;

    CHECK_IN(fresh());
    put_file("from", "text");
    fd = open(".to.rdcp-part", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_EQ(copy("from", "to"), RD_COPY_FAILED);
    CHECK(!is_there("to"));
    close(fd);
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(holds("to", "text"));
}

/* Without a byte of content on the way, and whoever won keeps what he writes. */
static void the_loser_of_two_copies_is_told_at_once(void)
{
    uint64_t kept;
    int fd;

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0 && mkdir(".to.rdcp-part", 0700) == 0);
    put_file("from/one", "text");
    put_file(".single.rdcp-part", "te");
    fd = open(".single.rdcp-part", O_RDWR);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_EQ(copy("from/one", "single"), RD_COPY_FAILED);
    CHECK_EQ(bytes_packed(&kept), 0);
    CHECK(holds(".single.rdcp-part", "te") && !is_there("single"));
    close(fd);
    fd = open(".to.rdcp-part", O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_EQ(copy("from", "to"), RD_COPY_FAILED);
    CHECK_EQ(bytes_packed(&kept), 0);
    CHECK(!is_there("to") && !is_there(".to.rdcp-part/one"));
    close(fd);
}

/* ---- the target itself ---- */

static void a_target_that_is_no_directory_to_copy_into(void)
{
    rd_copy_t target = {.host = "", .path = "to", .name = "from", .recursive = true};

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0);
    put_file("from/one", "text");
    CHECK_EQ(copy_all(copy_of("from"), target), 0);
    CHECK(holds("to/one", "text"));
    CHECK_EQ(copy_all(copy_of("from"), target), 0); /* as cp does it */
    CHECK(holds("to/from/one", "text") && run("rm -r to/from"));
    target.no_directory = true;
    put_file("from/two", "more");
    CHECK_EQ(copy_all(copy_of("from"), target), 0);
    CHECK(run("diff -r from to"));
    target.path = "to/";
    CHECK_EQ(copy_all(copy_of("from"), target), 0);
    target.path = "new";
    CHECK_EQ(copy_all(copy_of("from"), target), 0);
    CHECK(run("diff -r from to && diff -r from new"));
    CHECK_EQ(copy_all(copy_of("from/one"), target), RD_COPY_FAILED);
    CHECK(run("diff -r from new"));
}

/* ---- what goes wrong at the source ---- */

/* Packs "from" in a child and changes it meanwhile, when a piece of it is on the way: what does not
 * fit into the buffer and the pipe waits for us. */
static int pack_and(const char *change)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    int pipe_ends[2], out, status = -1;
    char some[65536];
    ssize_t n;
    pid_t child;

    if (list(&source) != 0 || have(&target) != 0 || pipe(pipe_ends) < 0)
        abort();
    child = fork();
    if (child == 0) {
        int in = open_stream(HAD, false);

        close(pipe_ends[0]);
        _exit(rd_copy_pack(&source, in, pipe_ends[1]));
    }
    close(pipe_ends[1]);
    out = open_stream(PACKED, true);
    n = read(pipe_ends[0], some, 1);
    if (!run(change))
        abort();
    do
        if (n < 0 || write(out, some, (size_t)n) != n)
            abort();
    while ((n = read(pipe_ends[0], some, sizeof some)) != 0);
    close(pipe_ends[0]);
    close(out);
    if (waitpid(child, &status, 0) != child)
        abort();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_file_that_grows_is_copied_as_long_as_it_was(void)
{
    rd_copy_t target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(run("head -c 5000000 /dev/urandom >from && cp from was"));
    CHECK_EQ(pack_and("echo more >>from"), 0);
    CHECK_EQ(unpack(&target), 0);
    CHECK(run("cmp was to && rm to"));
    /* Also the rest of one that was cut off. */
    CHECK(run("head -c 1000000 was >.to.rdcp-part && cp was from"));
    CHECK_EQ(pack_and("echo more >>from"), 0);
    CHECK_EQ(unpack(&target), 0);
    CHECK(run("cmp was to && rm to"));
    /* With holes. */
    CHECK(run("truncate -s 3000000 from && head -c 3000000 was >>from && truncate -s 9000000 from"
              " && echo end >>from && cp from was"));
    CHECK_EQ(pack_and("echo more >>from"), 0);
    CHECK_EQ(unpack(&target), 0);
    CHECK(run("cmp was to && rm to"));
}

static void a_file_that_grows_and_changes_is_refused(void)
{
    rd_copy_t target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(run("head -c 5000000 /dev/urandom >from"));
    CHECK_EQ(pack_and("echo more >>from; echo new | dd of=from conv=notrunc 2>/dev/null"),
             RD_COPY_FAILED);
    (void)unpack(&target);
    CHECK(!is_there("to"));
    CHECK_EQ(pack_and("touch from"), RD_COPY_FAILED);
    CHECK_EQ(pack_and("truncate -s 100 from"), RD_COPY_FAILED);
}

static void what_is_gone_or_changed(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0);
    put_file("from/gone", "text");
    put_file("from/stays", "text");
    CHECK_EQ(list(&source), 0);
    CHECK(unlink("from/gone") == 0);
    CHECK_EQ(have(&target), 0);
    CHECK_EQ(pack(&source), RD_COPY_FAILED);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED); /* not whole: not there */
    CHECK(!is_there("to") && holds(".to.rdcp-part/stays", "text"));
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(holds("to/stays", "text"));
    /* One that the list has longer than it is now goes as it is. */
    CHECK_EQ(list(&source), 0);
    put_file("from/stays", "t");
    CHECK_EQ(have(&target) | pack(&source) | unpack(&target), 0);
    CHECK(holds("to/stays", "t"));
    CHECK_EQ(copy("nothing", "to"), RD_COPY_FAILED);
}

/* ---- devices, FIFOs and sockets ---- */

static bool is_fifo(const char *path)
{
    struct stat is;

    return lstat(path, &is) == 0 && S_ISFIFO(is.st_mode);
}

static void what_is_no_file_is_never_replaced(void)
{
    rd_copy_t into = {.host = "", .path = "dir", .name = "fifo", .recursive = true};

    CHECK_IN(fresh());
    put_file("from", "text");
    CHECK(mkfifo("fifo", 0600) == 0 && symlink("fifo", "link") == 0);
    CHECK_EQ(copy("from", "fifo"), RD_COPY_FAILED);
    CHECK(is_fifo("fifo") && !is_there(".fifo.rdcp-part"));
    CHECK_EQ(copy("from", "link"), RD_COPY_FAILED);
    CHECK(run("test -h link"));
    if (mknod("null", S_IFCHR | 0600, makedev(1, 3)) == 0) { /* as root */
        CHECK_EQ(copy("from", "null"), RD_COPY_FAILED);
        CHECK(run("test -c null"));
    }
    /* By a name within the target. */
    CHECK(mkdir("dir", 0755) == 0 && mkfifo("dir/fifo", 0600) == 0);
    CHECK_EQ(copy_all(copy_of("from"), into), RD_COPY_FAILED);
    CHECK(is_fifo("dir/fifo"));
    CHECK(mkdir("tree", 0755) == 0 && symlink("nowhere", "tree/fifo") == 0);
    put_file("tree/other", "text");
    CHECK_EQ(copy("tree", "dir"), RD_COPY_FAILED);
    CHECK(is_fifo("dir/fifo") && holds("dir/other", "text"));
    CHECK(unlink("tree/fifo") == 0);
    put_file("tree/fifo", "text");
    CHECK_EQ(copy("tree", "dir"), RD_COPY_FAILED);
    CHECK(is_fifo("dir/fifo") && run("test -z \"$(find . -name '*rdcp-part*')\""));
}

static void what_is_no_file_is_skipped(void)
{
    rd_copy_t source = copy_of("from");

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0 && mkfifo("from/fifo", 0600) == 0);
    put_file("from/one", "text");
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(holds("to/one", "text") && !is_there("to/fifo"));
    source.fail_special = true;
    CHECK_EQ(copy_all(source, copy_of("other")), RD_COPY_FAILED);
    CHECK(!is_there("other"));
    CHECK_EQ(copy("from/fifo", "alone"), RD_COPY_FAILED);
}

/* A file's end that says it is not whole, as the source's side does when it was changed. */
static void a_file_that_is_not_whole(void)
{
    static rd_item_t item;
    rd_copy_t target = copy_of("to");
    rd_items_out_t out;
    size_t room;
    int fd;

    CHECK_IN(fresh());
    fd = open_stream(PACKED, true);
    CHECK(rd_items_out_open(&out, fd));
    item = (rd_item_t){.kind = RD_ITEM_FILE, .mode = 0600, .size = 4};
    CHECK(rd_items_put(&out, &item));
    memcpy(rd_items_data_room(&out, &room), "abcd", 4);
    CHECK(rd_items_data_put(&out, 4));
    item = (rd_item_t){.kind = RD_ITEM_CLOSE};
    CHECK(rd_items_put(&out, &item));
    item = (rd_item_t){.kind = RD_ITEM_END, .size = 1};
    CHECK(rd_items_put(&out, &item) && rd_items_out_close(&out));
    close(fd);
    (void)unpack(&target);
    CHECK(!is_there("to") && !is_there(".to.rdcp-part"));
}

/* ---- what a hostile source sends ---- */

static void put_items(const rd_item_t *items, size_t count)
{
    int fd = open_stream(PACKED, true);
    uint8_t at[RD_ITEM_MAX];

    for (size_t i = 0; i < count; i++) {
        size_t len = rd_item_put(at, &items[i]);

        if (write(fd, at, len) != (ssize_t)len)
            abort();
    }
    close(fd);
}

#define TOP                                                                                        \
    {                                                                                              \
        .kind = RD_ITEM_DIR, .mode = 0755                                                          \
    }
#define END                                                                                        \
    {                                                                                              \
        .kind = RD_ITEM_END                                                                        \
    }
#define GOOD                                                                                       \
    {                                                                                              \
        .kind = RD_ITEM_CLOSE, .has = RD_HAS_ALL                                                   \
    }

static void nothing_leads_out_of_the_target(void)
{
    static const rd_item_t up[] = {TOP, {.kind = RD_ITEM_FILE, .path = "../evil"}, GOOD, END};
    static const rd_item_t root[] = {TOP, {.kind = RD_ITEM_FILE, .path = "/evil"}, GOOD, END};
    static const rd_item_t through[] = {TOP,
                                        {.kind = RD_ITEM_LINK, .path = "out", .target = ".."},
                                        {.kind = RD_ITEM_FILE, .path = "out/evil"},
                                        GOOD,
                                        END};
    static const rd_item_t deep[] = {TOP,
                                     {.kind = RD_ITEM_LINK, .path = "out", .target = "../.."},
                                     {.kind = RD_ITEM_DIR, .path = "out/evil", .mode = 0755},
                                     END};
    static const rd_item_t onto[] = {TOP,
                                     {.kind = RD_ITEM_LINK, .path = "file", .target = "../evil"},
                                     {.kind = RD_ITEM_FILE, .path = "file"},
                                     GOOD,
                                     END};
    static const struct {
        const rd_item_t *items;
        size_t count;
        int status;
    } streams[] = {{up, 4, RD_COPY_FAILED},
                   {root, 4, RD_COPY_FAILED},
                   {through, 5, RD_COPY_FAILED},
                   {deep, 4, RD_COPY_FAILED},
                   {onto, 5, RD_COPY_DONE}}; /* the link is replaced, not followed */
    rd_copy_t target = copy_of("box/to");

    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        CHECK_IN(fresh());
        CHECK(mkdir("box", 0755) == 0);
        put_items(streams[i].items, streams[i].count);
        CHECK_EQ(unpack(&target), streams[i].status);
        CHECK(!is_there("evil") && !is_there("box/evil") && !is_there("/evil"));
    }
}

static void pieces_where_they_do_not_belong(void)
{
    static const rd_item_t no_top[] = {{.kind = RD_ITEM_FILE, .path = "a"}, GOOD, END};
    static const rd_item_t in_file[] = {{.kind = RD_ITEM_FILE}, {.kind = RD_ITEM_FILE}, GOOD, END};
    static const rd_item_t mixed[] = {TOP, {.kind = RD_ITEM_FILE}, GOOD, END};
    static const rd_item_t open_end[] = {{.kind = RD_ITEM_FILE, .size = 9}, END};
    static const rd_item_t shorter[] = {{.kind = RD_ITEM_FILE, .size = 9}, GOOD, END};
    static const rd_item_t hole[] = {{.kind = RD_ITEM_FILE, .size = 9},
                                     {.kind = RD_ITEM_HOLE, .size = INT64_MAX},
                                     {.kind = RD_ITEM_HOLE, .size = INT64_MAX},
                                     GOOD,
                                     END};
    static const rd_item_t offset[] = {{.kind = RD_ITEM_FILE, .size = 9, .offset = 5}, GOOD, END};
    static const struct {
        const rd_item_t *items;
        size_t count;
    } streams[] = {{no_top, 3},  {in_file, 4}, {mixed, 4}, {open_end, 2},
                   {shorter, 3}, {hole, 5},    {offset, 3}};
    rd_copy_t target = copy_of("to");

    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        CHECK_IN(fresh());
        put_items(streams[i].items, streams[i].count);
        CHECK_EQ(unpack(&target), RD_COPY_FAILED);
        CHECK(!is_there("to"));
    }
}

/* A hostile target can ask for what is listed only by its place in the tree. */
static void a_source_gives_nothing_from_outside(void)
{
    static const rd_item_t wishes[][3] = {{TOP, {.kind = RD_ITEM_FILE, .path = "../secret"}, END},
                                          {TOP, {.kind = RD_ITEM_FILE, .path = "link"}, END},
                                          {TOP, {.kind = RD_ITEM_FILE, .path = "out/secret"}, END}};
    rd_copy_t source = copy_of("tree");
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(mkdir("tree", 0755) == 0 && symlink("../secret", "tree/link") == 0 &&
          symlink("..", "tree/out") == 0);
    put_file("secret", "hidden");
    for (size_t i = 0; i < 3; i++) {
        put_items(wishes[i], 3);
        CHECK(rename(PACKED, HAD) == 0);
        CHECK_EQ(pack(&source), RD_COPY_FAILED);
        CHECK_EQ(bytes_packed(&kept), 0);
    }
}

static void long_names(void)
{
    char name[256], part[256], other[256];

    memset(name, 'n', 255);
    name[255] = 0;
    rd_part_name(name, part);
    CHECK(strlen(part) <= 255);
    name[254] = 'm';
    rd_part_name(name, other);
    CHECK(strcmp(part, other) != 0);
    CHECK_IN(fresh());
    put_file(name, "text");
    CHECK(mkdir("to", 0755) == 0);
    CHECK_EQ(copy_all(copy_of(name), (rd_copy_t){.host = "", .path = "to", .name = name}), 0);
    CHECK(chdir("to") == 0 && holds(name, "text"));
    CHECK_IN(last());
}

static const check_case_t cases[] = {
    {"safe paths", safe_paths},
    {"items are read as written", items_are_read_as_written},
    {"a file and a tree", a_file_and_a_tree},
    {"times and modes", times_and_modes},
    {"holes stay holes", holes_stay_holes},
    {"what is there is not sent again", what_is_there_is_not_sent_again},
    {"a stream that is cut leaves nothing under the name",
     a_stream_that_is_cut_leaves_nothing_under_the_name},
    {"two copies do not meet", two_copies_do_not_meet},
    {"the loser of two copies is told at once", the_loser_of_two_copies_is_told_at_once},
    {"a target that is no directory to copy into", a_target_that_is_no_directory_to_copy_into},
    {"a file that grows is copied as long as it was",
     a_file_that_grows_is_copied_as_long_as_it_was},
    {"a file that grows and changes is refused", a_file_that_grows_and_changes_is_refused},
    {"what is gone or changed", what_is_gone_or_changed},
    {"what is no file is never replaced", what_is_no_file_is_never_replaced},
    {"what is no file is skipped", what_is_no_file_is_skipped},
    {"a file that is not whole", a_file_that_is_not_whole},
    {"nothing leads out of the target", nothing_leads_out_of_the_target},
    {"pieces where they do not belong", pieces_where_they_do_not_belong},
    {"a source gives nothing from outside", a_source_gives_nothing_from_outside},
    {"long names", long_names},
};

CHECK_MAIN(cases)
