/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what a copy creates, what it leaves behind when it is interrupted, and how it resumes. */
#include "pipe_copies.h"

#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

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

/* The resolution of times on the simulated file system, or 0 for that of the real one. */
static int64_t time_step_ns;

static void cut(struct timespec *time)
{
    time->tv_sec -= time->tv_sec % (time_step_ns > 1000000000 ? 2 : 1);
    time->tv_nsec -= time->tv_nsec % time_step_ns;
}

int fstatat(int parent, const char *name, struct stat *is_p, int flags)
{
    long status = syscall(SYS_newfstatat, parent, name, is_p, flags);

    if (status == 0 && time_step_ns > 0) {
        cut(&is_p->st_mtim);
        cut(&is_p->st_ctim);
        cut(&is_p->st_atim);
    }
    return (int)status;
}

int fstatfs(int fd, struct statfs *is_p)
{
    long status = syscall(SYS_fstatfs, fd, is_p);

    if (time_step_ns > 1000000000)
        is_p->f_type = MSDOS_SUPER_MAGIC;
    return (int)status;
}

/* ---- copies ---- */

static _Atomic uint64_t bytes_read, bytes_read_max = UINT64_MAX;

ssize_t pread(int fd, void *data, size_t len, off_t at)
{
    ssize_t n = syscall(SYS_pread64, fd, data, len, at);

    bytes_read += n > 0 ? (uint64_t)n : 0;
    if (bytes_read < bytes_read_max)
        return n;
    errno = EIO; /* otherwise the test would take minutes */
    return -1;
}

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
    CHECK_EQ(copy("./from/.", "/proc/self/cwd/to"), 0); /* into the directory, a second time */
    CHECK(run("diff -r --no-dereference from to"));
    CHECK(run("test -z \"$(find . -name '*rdcp-part*')\""));
}

static void a_tree_is_not_copied_into_itself(void)
{
    static const char *const excluded[] = {"sub"};
    rd_copy_t source = copy_of("from"), target = copy_of("from/sub");

    CHECK_IN(fresh());
    CHECK(run("mkdir -p from/sub from/other && echo 1 >from/other/one"));
    target.name = "from";
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(!is_there("from/sub/from"));
    CHECK(run("grep -q 'a directory is not copied into itself' said"));
    CHECK_EQ(copy("from", "from/new"), RD_COPY_FAILED); /* the copy would be created there */
    CHECK(run("test -z \"$(ls -A from | grep new)\""));
    /* This also fails if that directory already exists. */
    CHECK(mkdir("from/sub/from", 0755) == 0);
    CHECK_EQ(copy_all(source, target), RD_COPY_FAILED);
    CHECK(!is_there("from/sub/from/sub/from") && run("rm -r from/sub/from from/sub/.*part"));
    /* But the tree can be copied into a directory that is excluded from the copy. */
    source.excluded = excluded;
    source.exclusions = 1;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r from/other from/sub/from/other && test ! -e from/sub/from/sub"));
}

/* The copy lacks only the directory into which the tree is copied, and the message names that
 * directory. */
static void a_copy_into_its_source_takes_the_rest(void)
{
    static const char *const excluded[] = {"middle"};
    static const char *const paths[] = {"from", "other"}, *const names[] = {"from", "other"};
    rd_copy_t source = copy_of("from"), target = copy_of("from/middle/to");
    uint64_t kept, left_out;

    CHECK_IN(fresh());
    CHECK(run("mkdir -p from/first from/middle/deep from/next && cd from && echo 1 >first/one && "
              "echo 2 >middle/deep/two && echo 3 >next/three && echo 4 >top"));
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(
        run("test \"$(grep -c . said)\" = 2 && "
            "grep -q '^rdcp: from/middle/to/middle: a directory is not copied into itself' said"));
    CHECK(run(
        "grep -q 'to: not created, because 1 of its files or directories .* is in .to.rdcp-part "
        "there, and the "
        "next copy to this target resumes it' said"));
    CHECK(run("cd from/middle/.to.rdcp-part && test \"$(find * | sort | xargs)\" = "
              "'first first/one next next/three top'"));
    /* Do what the message advises. */
    source.excluded = excluded;
    source.exclusions = 1;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK_EQ(bytes_packed(&kept), 0);
    CHECK_EQ(kept, 3);
    CHECK(run("diff -r from/first from/middle/to/first && diff -r from/next from/middle/to/next && "
              "cmp from/top from/middle/to/top && test ! -e from/middle/to/middle"));
    /* The same tree as one of two sources, whose files are counted separately. */
    CHECK(run("mkdir other && echo 5 >other/five"));
    source = (rd_copy_t){.host = "", .paths = paths, .sources = 2, .recursive = true};
    target = (rd_copy_t){
        .host = "", .path = "from/middle", .names = names, .sources = 2, .recursive = true};
    source.preserve = target.preserve = true;
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
        CHECK(run("diff -r other from/middle/other && grep -q '^rdcp: from/middle/from/middle: "
                  "a directory' said"));
        CHECK_EQ(bytes_and_files_packed(&kept, &left_out), round == 0 ? 8 : 0);
        CHECK_EQ(left_out, round == 0 ? 0 : 4);
    }
}

static void times_and_modes(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0750) == 0 && mkdir("from/dir", 01555) == 0);
    put_file("from/one", "first");
    CHECK(chmod("from/one", 06751) == 0);
    CHECK(run("touch -d '2001-02-03 04:05:06.789' from/one from/dir from"));
    source.preserve = target.preserve = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("test \"$(stat -c '%a %y' to to/dir)\" = \"$(stat -c '%a %y' from from/dir)\""));
    CHECK(run("test \"$(stat -c '%a' to/one)\" = 751"));
    CHECK(run("test \"$(stat -c '%y' to/one)\" = \"$(stat -c '%y' from/one)\""));
}

/* A private file stays private, and a script stays executable. */
static void a_file_that_is_there_keeps_its_mode(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(run("mkdir from to && echo new | tee from/key from/script >from/other && "
              "echo older | tee to/key >to/script && chmod 644 from/* && chmod 600 to/key && "
              "chmod 777 to/script"));
    target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r from to && test \"$(cd to; stat -c %a key script | xargs)\" = '600 777'"));
    source.preserve = target.preserve = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("test \"$(cd to; stat -c %a key script | xargs)\" = '644 644'"));
}

static void directories_keep_the_group_of_their_place(void)
{
    CHECK_IN(fresh());
    CHECK(run("mkdir -p from/deep place && chmod g+s place"));
    CHECK_EQ(copy("from", "place/new"), 0);
    CHECK(run("test -g place/new && test -g place/new/deep"));
    /* A copy that resumes a part. */
    CHECK(run("mkdir -p place/.next.rdcp-part/deep"));
    CHECK_EQ(copy("from", "place/next"), 0);
    CHECK(run("test -g place/next && test -g place/next/deep"));
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

/* Only the data of a large sparse image is read, and the image is recognized even if a file system
 * has stored its zeros. */
static void holes_are_not_read_for(const rd_digest_key_t *key)
{
    uint8_t sparse[RD_DIGEST_BYTES], full[RD_DIGEST_BYTES], other[RD_DIGEST_BYTES];
    uint64_t size = 3u << 20;
    int fd, stored;

    CHECK_IN(fresh());
    fd = open("sparse", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)1 << 38) == 0 && pwrite(fd, "ab", 2, 1 << 20) == 2);
    bytes_read = 0;
    bytes_read_max = 4 << 20;
    CHECK(rd_digest_file(key, fd, (uint64_t)1 << 38, other));
    bytes_read_max = UINT64_MAX;
    CHECK(run("head -c 1048576 /dev/zero >full && printf ab >>full && head -c 2097150 /dev/zero "
              ">>full"));
    stored = open("full", O_RDWR);
    for (uint64_t len = size - 1; len <= size; len++) { /* also where a block is incomplete */
        CHECK(rd_digest_file(key, fd, len, sparse) && rd_digest_file(key, stored, len, full));
        CHECK(memcmp(sparse, full, sizeof full) == 0);
        CHECK(memcmp(sparse, other, sizeof other) != 0);
        memcpy(other, sparse, sizeof other);
    }
    /* The same bytes at a different offset, and zeros alone, have different digests. */
    CHECK(pwrite(stored, "\0\0", 2, 1 << 20) == 2 && rd_digest_file(key, stored, size, full));
    CHECK(memcmp(full, other, sizeof other) != 0);
    CHECK(pwrite(stored, "ab", 2, 2 << 20) == 2 && rd_digest_file(key, stored, size, sparse));
    CHECK(memcmp(sparse, other, sizeof other) != 0 && memcmp(sparse, full, sizeof full) != 0);
    CHECK(!rd_digest_file(key, stored, size + 1, full)); /* the file is shorter */
    close(fd);
    close(stored);
}

static void holes_are_not_read(void)
{
    static const uint8_t seeds[2][RD_SEED_BYTES] = {{1}, {2}};
    rd_digest_key_t key = {.kind = RD_DIGEST_SHA256};

    holes_are_not_read_for(&key);
    key.kind = RD_DIGEST_BLAKE2B;
    holes_are_not_read_for(&key);
    for (size_t i = 0; rd_digest_has_xxh3() && i < 2; i++) {
        rd_digest_key(&key, seeds[i]);
        holes_are_not_read_for(&key);
    }
}

/* A large image that has not changed is copied again, with all four parts. */
static void a_second_copy_does_not_read_holes(void)
{
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(run("truncate -s 256G from && echo text | dd of=from conv=notrunc bs=1M seek=5000 "
              "status=none"));
    for (unsigned round = 0; round < 2; round++) {
        int status;

        bytes_read = 0;
        bytes_read_max = 4 << 20;
        status = copy("from", "to");
        bytes_read_max = UINT64_MAX;
        CHECK_EQ(status, 0);
        CHECK(bytes_packed(&kept) < 1 << 20);
        CHECK_EQ(kept, round);
    }
}

/* A file that is digested in pieces has the same digest as when digested at once, wherever the
 * pieces begin. */
static void a_digest_in_pieces(void)
{
    static const size_t steps[] = {1, 777, 65536, 262144, 300000, 1 << 20};
    static uint8_t content[3 << 20];
    static const uint8_t seed[RD_SEED_BYTES] = {3};
    uint8_t whole[RD_DIGEST_BYTES], got[RD_DIGEST_BYTES];
    rd_digest_key_t key;
    int fd;

    rd_digest_key(&key, seed);
    key.kind = rd_digest_has_xxh3() ? RD_DIGEST_XXH3 : RD_DIGEST_SHA256;
    CHECK_IN(fresh());
    memset(content + 5000, 'a', 100);
    memset(content + (2 << 20) + 17, 'b', 400000);
    fd = open("file", O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, content, sizeof content) == (ssize_t)sizeof content);
    CHECK(rd_digest_file(&key, fd, sizeof content, whole));
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        rd_digest_t *digest = rd_digest_open(&key);

        CHECK(digest != NULL);
        /* Zeros alternate between bytes and holes. */
        for (size_t at = 0, n; at < sizeof content; at += n) {
            n = sizeof content - at < steps[i] ? sizeof content - at : steps[i];
            if (at % 2 == 0 && content[at] == 0 &&
                memcmp(content + at, content + at + 1, n - 1) == 0)
                rd_digest_skip(digest, n);
            else
                rd_digest_add(digest, content + at, n);
        }
        CHECK(rd_digest_end(digest, got) && memcmp(got, whole, sizeof whole) == 0);
    }
    close(fd);
}

/* Timestamps have a resolution of 2 s on FAT, 100 ns on SMB, and 1 s on sshfs. */
static void a_coarse_time_is_that_of_the_source(void)
{
    static const int64_t steps[] = {100, 10000000, 1000000000, 2000000000};
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    CHECK_IN(fresh());
    put_file("from", "text");
    put_file("to", "text");
    source.preserve = target.preserve = true;
    CHECK(run("touch -d '2001-02-03 04:05:07.123456789Z' from"));
    CHECK_EQ(list(&source), 0);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        CHECK(run("touch -r from to"));
        time_step_ns = steps[i];
        bytes_read = 0;
        CHECK_EQ(have(&target), 0);
        CHECK_EQ(bytes_read, 0);
        /* A time that differs still counts as different, however coarse the resolution is. */
        CHECK(run("touch -d '2001-02-03 04:05:04Z' to"));
        CHECK_EQ(have(&target), 0);
        CHECK(bytes_read > 0);
        time_step_ns = 0;
    }
    /* If the file system can store finer times, a coarse time counts as different. */
    CHECK(run("touch -d '2001-02-03 04:05:07Z' to"));
    bytes_read = 0;
    CHECK_EQ(have(&target), 0);
    CHECK(bytes_read > 0);
}

/* ---- resuming ---- */

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

/* A small file in a new tree is written under its final name from the beginning. A file left by a
 * killed copy, with a private mode, must not influence the final file. */
static void a_small_file_that_was_cut_off(void)
{
    CHECK_IN(fresh());
    CHECK(run("mkdir -m 700 from .to.rdcp-part && umask 022 && echo all of it >from/one && "
              "echo script >from/two && chmod 755 from/two && umask 077 && "
              "printf all >.to.rdcp-part/one && echo SCRIPT >.to.rdcp-part/two"));
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(run("diff -r from to && test \"$(cd to; stat -c %a one two | xargs)\" = '644 755'"));
}

/* Resumes the copy of a 4 MB file whose part has 3 MB; the source may be changed first. Checks how
 * many bytes are read from the source and the part: the rest of the source, which is sent, and, if
 * the part has no valid note, also the first 3 MB of each. */
static void resume_after(const char *change, bool is_known)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    struct stat is, part;
    int fd;

    CHECK_IN(fresh());
    CHECK(run("head -c 4000000 /dev/urandom >from"));
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    CHECK(stat(PACKED, &is) == 0 && truncate(PACKED, is.st_size - 1000000) == 0);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(stat(".to.rdcp-part", &part) == 0 && part.st_size > 2000000);
    fd = open(".to.rdcp-part", O_RDONLY);
    CHECK(fd >= 0);
    if (fgetxattr(fd, "user.rdcp-part", NULL, 0) < 0)
        SKIP("xattrs: the file system of /tmp has none");
    close(fd);
    CHECK(run(change));
    bytes_read = 0;
    CHECK_EQ(copy("from", "to"), 0);
    CHECK_EQ(bytes_read, 4000000 - part.st_size + (is_known ? 0 : 2 * part.st_size));
    CHECK(run("cmp from to && test ! -e .to.rdcp-part"));
    /* The note is removed when the part gets its name. */
    fd = open("to", O_RDONLY);
    CHECK(fd >= 0 && fgetxattr(fd, "user.rdcp-part", NULL, 0) < 0 && errno == ENODATA);
    close(fd);
}

static void what_a_part_notes_is_not_read_again(void)
{
    CHECK_IN(resume_after("true", true));
    CHECK_IN(resume_after("touch from", false));
    /* cp drops the note, which has the same effect as a reboot, after which a note is ignored. */
    CHECK_IN(resume_after("cp .to.rdcp-part copy && mv copy .to.rdcp-part", false));
}

/* The part of an incomplete tree stays writable, whatever its source's mode is, so that the next
 * copy can complete it. */
static void a_part_can_be_written_into_again(void)
{
    static rd_item_t items[2];
    rd_copy_t target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(mkdir(".to.rdcp-part", 0555) == 0);
    items[0] = (rd_item_t){.kind = RD_ITEM_DIR, .mode = 0555};
    items[1] = (rd_item_t){.kind = RD_ITEM_END, .size = 1}; /* something is missing */
    put_items(items, 2);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(run("test $(stat -c %a .to.rdcp-part) = 700"));
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

/* The second of two copies fails before any content is sent, and leaves the files of the first one
 * alone. */
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

/* A file with the name of a part is not copied, because its copy would be mistaken for the part of
 * another file. */
static void parts_in_the_source_are_skipped(void)
{
    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0 && symlink("one", "from/link") == 0);
    CHECK(symlink("two", "from/.link.rdcp-part") == 0);
    put_file("from/one", "text");
    put_file("from/.one.rdcp-part", "of another copy");
    put_file("from/.alone.rdcp-part", "of another copy");
    put_file("from/rdcp-part", "none");
    CHECK(run("mkdir -p from/.tree.rdcp-part/deep from/tree from/rdcp-part.d"));
    CHECK_EQ(copy_and_hear(copy_of("from"), copy_of("to")), 0);
    CHECK(run("test \"$(ls -A to)\" = \"$(printf 'link\none\nrdcp-part\nrdcp-part.d\ntree')\""));
    CHECK(holds("to/one", "text") && run("test \"$(readlink to/link)\" = one"));
    CHECK(run("test $(grep -c 'rdcp-part: is a partial copy: skipped' said) = 4"));
}

/* The creator of a file may have put terminal control characters into its name. */
static void names_are_shown_not_obeyed(void)
{
    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0);
    CHECK(mkfifo("from/\033[2J\302\2331m\377\n", 0600) == 0);
    CHECK_EQ(copy_and_hear(copy_of("from"), copy_of("to")), 0);
    CHECK(run("grep -qF '\\x1b[2J\\xc2\\x9b1m\\xff\\x0a: is a FIFO: skipped' said"));
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
    CHECK_EQ(copy_all(copy_of("from"), target), 0); /* as cp does */
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

/* ---- messages ---- */

static bool says(rd_copy_t source, rd_copy_t target, const char *text)
{
    char command[300];

    (void)snprintf(command, sizeof command, "test \"$(grep -v 'not created' said)\" = '%s'", text);
    return copy_and_hear(source, target) == RD_COPY_FAILED && run(command);
}

static void a_reason_names_its_path_once(void)
{
    rd_copy_t target = copy_of("link"), source = copy_of("");

    CHECK_IN(fresh());
    CHECK(run("mkdir from to && touch to/from && ln -s to link"));
    target.no_directory = true;
    CHECK(says(copy_of("from"), target, "rdcp: link: already exists and is not a directory"));
    target = (rd_copy_t){.host = "", .path = "to", .name = "from", .recursive = true};
    CHECK(says(copy_of("from"), target, "rdcp: to: from: already exists and is not a directory"));
    source.host = "h1";
    source.recursive = false; /* the directory in which a login on the host starts */
    CHECK(says(source, copy_of("x"),
               "rdcp: h1: .: is a directory; use -r to copy it and its contents"));
    /* scp would expand this. */
    source.path = "fro*";
    CHECK(says(source, copy_of("x"),
               "rdcp: h1: fro*: No such file or directory; rdcp does not expand wildcards on "
               "another host"));
    CHECK(says(copy_of("fro*"), copy_of("x"), "rdcp: fro*: No such file or directory"));
}

static void a_path_that_is_too_long_is_not_shown_in_full(void)
{
    char name[251];
    struct stat is;

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0 && chdir("from") == 0);
    for (int i = 0; i < 17; i++) {
        (void)snprintf(name, sizeof name, "%0250d", i);
        CHECK(mkdir(name, 0755) == 0 && chdir(name) == 0);
    }
    CHECK(chdir(case_folder) == 0);
    CHECK_EQ(copy_and_hear(copy_of("from"), copy_of("to")), RD_COPY_FAILED);
    CHECK(run("grep -q 'its path is longer than 4,095 bytes' said"));
    CHECK(stat("said", &is) == 0 && is.st_size < 1000);
}

static const check_case_t cases[] = {
    {"safe paths", safe_paths},
    {"items are read as written", items_are_read_as_written},
    {"a file and a tree", a_file_and_a_tree},
    {"a tree is not copied into itself", a_tree_is_not_copied_into_itself},
    {"a copy into its source takes the rest", a_copy_into_its_source_takes_the_rest},
    {"times and modes", times_and_modes},
    {"a file that is there keeps its mode", a_file_that_is_there_keeps_its_mode},
    {"directories keep the group of their place", directories_keep_the_group_of_their_place},
    {"holes stay holes", holes_stay_holes},
    {"holes are not read", holes_are_not_read},
    {"a second copy does not read holes", a_second_copy_does_not_read_holes},
    {"a digest in pieces", a_digest_in_pieces},
    {"a coarse time is that of the source", a_coarse_time_is_that_of_the_source},
    {"what is there is not sent again", what_is_there_is_not_sent_again},
    {"a small file that was cut off", a_small_file_that_was_cut_off},
    {"what a part notes is not read again", what_a_part_notes_is_not_read_again},
    {"a part can be written into again", a_part_can_be_written_into_again},
    {"a stream that is cut leaves nothing under the name",
     a_stream_that_is_cut_leaves_nothing_under_the_name},
    {"two copies do not meet", two_copies_do_not_meet},
    {"the loser of two copies is told at once", the_loser_of_two_copies_is_told_at_once},
    {"parts in the source are skipped", parts_in_the_source_are_skipped},
    {"names are shown, not obeyed", names_are_shown_not_obeyed},
    {"a reason names its path once", a_reason_names_its_path_once},
    {"a path that is too long is not shown in full", a_path_that_is_too_long_is_not_shown_in_full},
    {"a target that is no directory to copy into", a_target_that_is_no_directory_to_copy_into},
};

COPIES_MAIN(cases)
