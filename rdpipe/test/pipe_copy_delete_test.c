/* SPDX-License-Identifier: Apache-2.0 */
/* Tests --delete: what it deletes, what it never deletes, and peers that lie about it. */
#include "pipe_copies.h"

#include <sched.h>

static rd_copy_t source, target;

/* Starts in an empty directory, with a copy that deletes. */
static void begin(void)
{
    CHECK_IN(fresh());
    source = copy_of("from");
    target = copy_of("to");
    target.no_directory = true;
    source.deletes = target.deletes = true;
    source.deletes_max = target.deletes_max = 100;
}

/* ---- deleted files ---- */

static void what_only_the_target_has(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from/deep/er from/empty && echo 1 >from/one && echo 2 >from/deep/er/two && "
              "mkdir -p outside to/deep/er to/old/deep to/empty/not && echo kept >outside/file && "
              "ln -s ../outside to/link && ln -s ../../outside to/old/link && "
              "echo 3 >to/three && echo 4 >to/deep/er/four && echo 5 >to/old/deep/five && "
              "echo 6 >to/empty/not/six && echo 7 >to/'new\nline'"));
    source.preserve = target.preserve = true;
    CHECK(run("touch -d 2001-02-03 from/deep/er from/empty from/deep from"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r from to"));
    CHECK(holds("outside/file", "kept\n"));
    /* Directories have their source's time, although entries were deleted from them afterwards. */
    CHECK(run("for dir in . deep deep/er empty; do "
              "test \"$(stat -c %Y from/$dir)\" = \"$(stat -c %Y to/$dir)\" || exit 1; done"));
    /* Afterwards there is nothing more to delete. */
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r from to"));
}

static void nothing_without_the_option(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir from to && echo 1 >from/one && echo 2 >to/two"));
    source.deletes = target.deletes = false;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(holds("to/one", "1\n") && holds("to/two", "2\n"));
}

/* With several sources, files are deleted only in the directories of these sources. */
static void only_in_the_directories_of_the_sources(void)
{
    static const char *const paths[] = {"one", "two"};

    CHECK_IN(begin());
    CHECK(run("mkdir -p one two to/one to/two to/three && echo 1 >one/a && echo 2 >two/b && "
              "touch to/one/x to/two/y to/three/z to/file"));
    source.paths = paths;
    target.names = paths;
    target.path = "to";
    target.no_directory = false;
    source.sources = target.sources = 2;
    target.json = true;
    CHECK_EQ(copy_and_hear(source, target), 0);
    CHECK(was_said("\"deleted\": [\"one/x\", \"two/y\"]"));
    CHECK(!is_there("to/one/x") && !is_there("to/two/y") && is_there("to/three/z") &&
          is_there("to/file"));
}

/* A new tree left by an interrupted copy may contain files that the source no longer has. */
static void in_a_part_that_is_resumed(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from .to.rdcp-part/old && chmod 700 .to.rdcp-part && echo 1 >from/one && "
              "touch .to.rdcp-part/old/two"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r from to"));
}

/* Users can delete their own files even from a directory whose mode, copied from its source, does
 * not permit writing. */
static void in_a_directory_that_is_not_writable(void)
{
    bool is_root = geteuid() == 0;
    int status;

    CHECK_IN(begin());
    CHECK(run("chmod 777 . && mkdir -p from/dir && echo 1 >from/dir/one && chmod 555 from/dir"));
    if (is_root)
        CHECK(seteuid(65534) == 0);
    source.preserve = target.preserve = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(chmod("to/dir", 0755) == 0 && mkdir("to/dir/two", 0755) == 0);
    CHECK(chmod("to/dir", 0555) == 0);
    status = copy_all(source, target);
    if (is_root)
        CHECK(seteuid(0) == 0);
    CHECK_EQ(status, 0);
    CHECK(run("diff -r from to && test $(stat -c %a to/dir) = 555"));
}

static void parts_in_what_is_deleted(void)
{
    int fd;

    CHECK_IN(begin());
    CHECK(run("mkdir -p from to/old to/busy && touch to/.a.rdcp-part to/old/.b.rdcp-part "
              "to/busy/.c.rdcp-part"));
    fd = open("to/busy/.c.rdcp-part", O_RDONLY);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    close(fd);
    CHECK(was_said("busy/.c.rdcp-part: not deleted: another rdcp is writing to it"));
    /* A part in a directory of the source stays, because the next copy may resume it. */
    CHECK(is_there("to/.a.rdcp-part") && !is_there("to/old") && is_there("to/busy/.c.rdcp-part"));
}

/* ---- files that are not deleted ---- */

static void nothing_after_an_error_at_the_source(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir from to && echo 1 >from/one && echo 2 >from/two && touch to/old"));
    /* A file that could not be listed. */
    CHECK(mkfifo("from/fifo", 0600) == 0);
    source.fail_special = true;
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(is_there("to/old") && holds("to/one", "1\n"));
    CHECK(was_said("nothing is deleted, because the copy is incomplete"));
    CHECK(unlink("from/fifo") == 0);
    /* A file that could not be read. */
    CHECK(run("rm to/two"));
    CHECK_EQ(list(&source), 0);
    CHECK(unlink("from/two") == 0);
    CHECK_EQ(have(&target), 0);
    CHECK_EQ(pack(&source), RD_COPY_FAILED);
    (void)unpack(&target);
    CHECK(is_there("to/old"));
    /* A source that has disappeared completely. */
    source.path = "nothing";
    CHECK_EQ(copy_all(source, target), RD_COPY_FAILED);
    CHECK(is_there("to/old"));
    source.path = "from";
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(!is_there("to/old"));
}

static void nothing_after_an_error_at_the_target(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from to/one && echo 1 >from/one && touch to/one/file to/old"));
    CHECK_EQ(copy_all(source, target), RD_COPY_FAILED); /* a directory is not replaced */
    CHECK(is_there("to/old") && is_there("to/one/file"));
}

/* A stream that is interrupted ends without an END item. */
static void nothing_without_the_end_of_the_stream(void)
{
    struct stat is;

    CHECK_IN(begin());
    CHECK(run("mkdir from to && echo 1 >from/one && touch to/old"));
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    CHECK(stat(PACKED, &is) == 0 && truncate(PACKED, is.st_size - RD_ITEM_BYTES) == 0);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(is_there("to/old") && holds("to/one", "1\n"));
}

static void nothing_through_a_link(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from/dir outside to && echo 1 >from/one && touch outside/file && "
              "ln -s ../outside to/dir"));
    CHECK_EQ(copy_all(source, target), RD_COPY_FAILED);
    CHECK(is_there("outside/file"));
    /* The same happens if a symbolic link replaces the directory after it was examined. */
    CHECK(run("rm to/dir && mkdir to/dir && touch to/dir/file"));
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    CHECK(run("rm -r to/dir && ln -s ../outside to/dir"));
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(is_there("outside/file"));
}

static void what_changes_its_kind_meanwhile(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from to/dir && touch to/file"));
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    CHECK(run("rmdir to/dir && echo new >to/dir && rm to/file && mkdir to/file"));
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(holds("to/dir", "new\n") && is_there("to/file"));
    /* A directory is not deleted if new files have been created in it. */
    CHECK(run("rm -r to && mkdir -p to/dir"));
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    put_file("to/dir/new", "text");
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(holds("to/dir/new", "text"));
}

static void no_more_than_the_user_allows(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from to/dir && echo 1 >from/one && touch to/dir/a to/dir/b"));
    source.deletes_max = target.deletes_max = 2;
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(was_said("nothing is deleted, because more than 2 files"));
    CHECK(is_there("to/dir/a") && is_there("to/dir/b") && holds("to/one", "1\n"));
    source.deletes_max = target.deletes_max = 3;
    target.verbose = target.json = true;
    CHECK_EQ(copy_and_hear(source, target), 0);
    CHECK(!is_there("to/dir"));
    CHECK(was_said("rdcp: to/dir/b: deleted") && was_said("3 deleted"));
    CHECK(was_said("\"deleted\": [\"dir/a\", \"dir/b\", \"dir\"]}"));
}

static void what_is_excluded_or_special(void)
{
    static const char *const patterns[] = {"*.o", "/cache/"};

    CHECK_IN(begin());
    CHECK(run("mkdir -p from/cache to/cache to/old to/sub && touch from/x.o to/a.o to/cache/file "
              "to/old/b.o to/old/c to/file to/sub/plain"));
    CHECK(mkfifo("to/fifo", 0600) == 0 && mkfifo("to/sub/fifo", 0600) == 0 &&
          mkfifo("from/file", 0600) == 0);
    source.excluded = target.excluded = patterns;
    source.exclusions = target.exclusions = 2;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(is_there("to/a.o") && is_there("to/cache/file") && is_there("to/old/b.o"));
    CHECK(!is_there("to/old/c") && is_there("to/fifo") && is_there("to/sub/fifo"));
    CHECK(is_there("to/file")); /* the source has a special file under this name */
}

static void a_mount_point_stays(void)
{
    if (geteuid() != 0)
        SKIP("root: to mount");
    if (unshare(CLONE_NEWNS) < 0 || !run("mount --make-rprivate / 2>/dev/null"))
        SKIP("root: to mount");
    CHECK_IN(begin());
    CHECK(run("mkdir -p from to/old/disk && mount -t tmpfs -o size=64k tmpfs to/old/disk"));
    CHECK(run("touch to/old/disk/file to/old/a to/old/z"));
    CHECK_EQ(copy_and_hear(source, target), 0);
    CHECK(is_there("to/old/disk/file") && was_said("old/disk: is a mount point: not deleted"));
    CHECK(run("umount to/old/disk"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(!is_there("to/old"));
}

/* ---- hostile peers ---- */

#define LEAVE                                                                                      \
    {                                                                                              \
        .kind = RD_ITEM_LEAVE, .mode = 0755                                                        \
    }
#define DELETE(name, type)                                                                         \
    {                                                                                              \
        .kind = RD_ITEM_DELETE, .path = name, .mode = (type) | 0644                                \
    }

static void names_to_delete_that_lie(void)
{
    static const struct {
        rd_item_t items[4];
        const char *said;
    } lies[] = {
        {{TOP, DELETE("../victim", S_IFREG), LEAVE, END}, "names a path outside the tree"},
        {{TOP, DELETE("/victim", S_IFREG), LEAVE, END}, "names a path outside the tree"},
        {{TOP, DELETE("", S_IFDIR), LEAVE, END}, "is not part of a copy"},
        {{TOP, DELETE("out/file", S_IFREG), LEAVE, END}, "out/file: not deleted: "},
        {{TOP, DELETE("dir", S_IFREG), LEAVE, END}, "dir: not deleted: it was replaced"},
        {{TOP, DELETE("file", S_IFDIR), LEAVE, END}, "file: not deleted: it was replaced"},
        {{TOP, DELETE("fifo", S_IFREG), LEAVE, END}, "fifo: not deleted: it was replaced"},
        {{TOP, DELETE("fifo", S_IFIFO), LEAVE, END}, "'fifo', but not as a file, directory or"},
        {{TOP, DELETE("kept.o", S_IFREG), LEAVE, END}, "which --exclude protects"},
        {{TOP, DELETE("kept.o/file", S_IFREG), LEAVE, END}, "which --exclude protects"},
        {{TOP, DELETE("full", S_IFDIR), LEAVE, END}, "full: not deleted: Directory not empty"},
        {{DELETE("file", S_IFREG), TOP, LEAVE, END},
         "the copy does not begin with its top file or directory"},
    };
    static const rd_item_t plain[] = {TOP, DELETE("file", S_IFREG), LEAVE, END};
    static const char *const patterns[] = {"*.o"};

    CHECK_IN(begin());
    CHECK(run("mkdir -p to/dir to/full outside && touch victim outside/file to/file to/kept.o "
              "to/full/file && ln -s ../outside to/out"));
    CHECK(mkfifo("to/fifo", 0600) == 0);
    target.excluded = patterns;
    target.exclusions = 1;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        put_items(lies[i].items, 4);
        CHECK_EQ(unpack_and_hear(&target), RD_COPY_FAILED);
        CHECK(was_said(lies[i].said));
    }
    target.deletes = false;
    put_items(plain, 4);
    CHECK_EQ(unpack_and_hear(&target), RD_COPY_FAILED);
    CHECK(was_said("asks to delete 'file', but --delete was not given"));
    CHECK(run("ls victim outside/file to/file to/kept.o to/dir to/out to/fifo to/full/file "
              ">/dev/null"));
    target.deletes = true;
    put_items(plain, 4);
    CHECK_EQ(unpack_and_hear(&target), 0);
    CHECK(!is_there("to/file"));
}

/* A peer that ignores the limit sends more names than the user allows. */
static void a_peer_that_does_not_count(void)
{
    static const rd_item_t items[] = {TOP, DELETE("a", S_IFREG), DELETE("b", S_IFREG), LEAVE, END};

    CHECK_IN(begin());
    CHECK(run("mkdir to && touch to/a to/b"));
    target.deletes_max = 1;
    put_items(items, 5);
    CHECK_EQ(unpack_and_hear(&target), RD_COPY_FAILED);
    CHECK(is_there("to/a") && is_there("to/b"));
}

#define FILE_AT(name)                                                                              \
    {                                                                                              \
        .kind = RD_ITEM_FILE, .path = name, .mode = 0644                                           \
    }
#define START                                                                                      \
    {                                                                                              \
        .kind = RD_ITEM_START, .mode = RD_ITEM_VERSION                                             \
    }

static void lists_that_contradict_themselves(void)
{
    static const rd_item_t lists[][5] = {
        {START, TOP, FILE_AT("dir/file"), LEAVE, END},
        {START, TOP, {.kind = RD_ITEM_LEAVE, .path = "dir"}, LEAVE, END},
        {START, TOP, {.kind = RD_ITEM_DIR, .path = "dir"}, LEAVE, END},
        {START, TOP, {.kind = RD_ITEM_DIR, .path = "dir"}, FILE_AT("old"), END},
        {START, TOP, {.kind = RD_ITEM_DIR, .path = "dir"}, FILE_AT("dirt/old"), END},
        {START, TOP, TOP, LEAVE, END},
        {START, TOP, LEAVE, LEAVE, END},
        {START, TOP, DELETE("old", S_IFREG), LEAVE, END},
        {START, {.kind = RD_ITEM_SKIP, .path = "old"}, TOP, LEAVE, END},
    };

    CHECK_IN(begin());
    CHECK(run("mkdir -p to/dir && touch to/old to/dir/old"));
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        put_items(lists[i], 5);
        CHECK(rename(PACKED, LISTED) == 0);
        CHECK_EQ(have(&target), RD_COPY_FAILED);
    }
    target.deletes = false;
    put_items((rd_item_t[]){START, TOP, {.kind = RD_ITEM_SKIP, .path = "old"}, LEAVE, END}, 5);
    CHECK(rename(PACKED, LISTED) == 0);
    CHECK_EQ(have(&target), RD_COPY_FAILED);
}

static const check_case_t cases[] = {
    {"what only the target has", what_only_the_target_has},
    {"nothing without the option", nothing_without_the_option},
    {"only in the directories of the sources", only_in_the_directories_of_the_sources},
    {"in a part that is resumed", in_a_part_that_is_resumed},
    {"in a directory that is not writable", in_a_directory_that_is_not_writable},
    {"parts in what is deleted", parts_in_what_is_deleted},
    {"nothing after an error at the source", nothing_after_an_error_at_the_source},
    {"nothing after an error at the target", nothing_after_an_error_at_the_target},
    {"nothing without the end of the stream", nothing_without_the_end_of_the_stream},
    {"nothing through a link", nothing_through_a_link},
    {"what changes its kind meanwhile", what_changes_its_kind_meanwhile},
    {"no more than the user allows", no_more_than_the_user_allows},
    {"what is excluded or special", what_is_excluded_or_special},
    {"a mount point stays", a_mount_point_stays},
    {"names to delete that lie", names_to_delete_that_lie},
    {"a peer that does not count", a_peer_that_does_not_count},
    {"lists that contradict themselves", lists_that_contradict_themselves},
};

COPIES_MAIN(cases)
