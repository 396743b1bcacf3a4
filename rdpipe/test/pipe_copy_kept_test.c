/* SPDX-License-Identifier: Apache-2.0 */
/* Tests which attributes of files a copy preserves, which files it leaves out, and which it need
 * not read. */
#include "pipe_copies.h"

#include <endian.h>
#include <sys/xattr.h>

static bool is_one_file(const char *one, const char *other)
{
    struct stat a, b;

    return lstat(one, &a) == 0 && lstat(other, &b) == 0 && a.st_ino == b.st_ino &&
           a.st_dev == b.st_dev;
}

/* ---- hard links ---- */

static void hard_links_stay_one_file(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0 && mkdir("from/deep", 0755) == 0);
    put_file("from/a", "text");
    put_file("from/other", "text");
    CHECK(link("from/a", "from/b") == 0 && link("from/a", "from/deep/c") == 0);
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(!is_one_file("to/a", "to/b") && run("rm -r to"));
    source.hard_links = target.hard_links = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK_EQ(bytes_packed(&kept), 8);
    CHECK(is_one_file("to/a", "to/b") && is_one_file("to/a", "to/deep/c"));
    CHECK(!is_one_file("to/a", "to/other") && holds("to/deep/c", "text"));
    /* Copy again over existing files. Nothing is sent, and a removed name is linked again. */
    CHECK(unlink("to/b") == 0);
    put_file("to/b", "lone");
    CHECK_EQ(copy("from/other", "to/other"), 0);
    target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK_EQ(bytes_packed(&kept), 0);
    CHECK(is_one_file("to/a", "to/b") && is_one_file("to/a", "to/deep/c"));
    CHECK(run("test -z \"$(find . -name '*rdcp-part*')\""));
}

/* ---- owners ---- */

static void owners_are_kept_by_root(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    struct stat is;

    if (geteuid() != 0)
        SKIP("root: to give files away");
    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0 && symlink("x", "from/link") == 0);
    put_file("from/number", "text");
    put_file("from/name", "text");
    CHECK(chown("from/number", 54321, 54322) == 0 && chmod("from/number", 06751) == 0);
    CHECK(run("chown daemon:bin from/name && chown -h daemon from/link && chown bin from"));
    source.preserve = target.preserve = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(stat("to/number", &is) == 0 && is.st_uid == geteuid() && (is.st_mode & 07000) == 0);
    source.owner = target.owner = target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0); /* to existing files */
    CHECK(run("cd from && stat -c '%n %u %g %a %y' . * >../a; cd ../to && stat -c '%n %u %g %a %y' "
              ". * >../b; cmp ../a ../b"));
    CHECK(run("rm -r to"));
    CHECK_EQ(copy_all(source, target), 0); /* to new files */
    CHECK(run("cd to && stat -c '%n %u %g %a %y' . * | cmp - ../a"));
}

/* An existing file keeps its owner, as with cp, which writes into the existing file. */
static void a_file_that_is_there_keeps_its_owner(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    if (geteuid() != 0)
        SKIP("root: to give files away");
    CHECK_IN(fresh());
    CHECK(run("echo new >from && chmod 644 from && echo old >to && chown 54321:54322 to && "
              "chmod 6640 to"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("cmp from to && test \"$(stat -c '%u %g %a' to)\" = '54321 54322 640'"));
    source.preserve = target.preserve = true; /* preserves the mode, but not the owner */
    CHECK(run("echo newer >from"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("test \"$(stat -c '%u %a' to)\" = '0 644'"));
}

/* ---- extended attributes and ACLs ---- */

/* Writes an ACL in the kernel's format: version 2, then the tag, permissions and ID of each
 * entry. */
static size_t make_acl(uint8_t *at, unsigned uid)
{
    static const uint16_t tags[][2] = {{1, 6}, {2, 4}, {4, 4}, {16, 4}, {32, 0}};
    uint32_t word = htole32(2);
    size_t len = 4;

    memcpy(at, &word, 4);
    for (size_t i = 0; i < 5; i++) {
        uint16_t tag = htole16(tags[i][0]), allowed = htole16(tags[i][1]);

        word = htole32(tags[i][0] == 2 ? uid : UINT32_MAX);
        memcpy(at + len, &tag, 2);
        memcpy(at + len + 2, &allowed, 2);
        memcpy(at + len + 4, &word, 4);
        len += 8;
    }
    return len;
}

static bool has_attribute(const char *path, const char *name, const void *value, size_t len)
{
    uint8_t got[65536];

    return lgetxattr(path, name, got, sizeof got) == (ssize_t)len && memcmp(got, value, len) == 0;
}

static void extended_attributes_are_kept(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    char large[2000];

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0 && mkdir("from/dir", 0755) == 0);
    put_file("from/one", "text");
    memset(large, 'x', sizeof large);
    if (setxattr("from/one", "user.large", large, sizeof large, 0) != 0)
        SKIP("attributes: the file system of /tmp has none");
    CHECK(setxattr("from/one", "user.empty", "", 0, 0) == 0);
    CHECK(setxattr("from/dir", "user.of dir", "a\0b", 3, 0) == 0);
    source.preserve = target.preserve = target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK_EQ(llistxattr("to/one", NULL, 0), 0);
    CHECK(setxattr("to/one", "user.other", "1", 1, 0) == 0);
    source.xattrs = target.xattrs = true;
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(copy_all(source, target), 0);
        CHECK(has_attribute("to/one", "user.large", large, sizeof large));
        CHECK(has_attribute("to/one", "user.empty", "", 0));
        CHECK(has_attribute("to/dir", "user.of dir", "a\0b", 3));
        CHECK(!has_attribute("to/one", "user.other", "1", 1)); /* the source does not have it */
        CHECK(run("test \"$(stat -c %y to/one to/dir)\" = \"$(stat -c %y from/one from/dir)\""));
        CHECK(run("rm -r to"));
    }
}

/* Copies as an unprivileged user, because modes do not restrict root. Returns the status, or 99 if
 * root could not switch to a user. */
static int copy_as_a_user(rd_copy_t source, rd_copy_t target)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0)
        _exit(geteuid() == 0 && setuid(65534) != 0 ? 99 : copy_all(source, target));
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void attributes_of_what_is_read_only(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0);
    put_file("from/one", "text");
    source.preserve = target.preserve = target.no_directory = true;
    source.xattrs = target.xattrs = true;
    for (int round = 0; round < 2; round++) { /* to new directories, and to existing ones */
        const char *value = round == 0 ? "1" : "2";

        if (setxattr("from/one", "user.one", value, 1, 0) != 0)
            SKIP("attributes: the file system of /tmp has none");
        CHECK(setxattr("from", "user.top", value, 1, 0) == 0);
        CHECK(run("chmod 440 from/one && chmod 555 from"));
        if (geteuid() == 0)
            CHECK(run("chown -R 65534 ."));
        CHECK_EQ(copy_as_a_user(source, target), 0);
        CHECK(has_attribute("to/one", "user.one", value, 1));
        CHECK(has_attribute("to", "user.top", value, 1));
        CHECK(run("test \"$(stat -c %a to/one to)\" = \"$(stat -c %a from/one from)\""));
        CHECK(run("chmod 755 from && chmod 640 from/one"));
    }
}

/* The copies go to new directories, and then to existing ones. */
static void directories_that_are_read_only(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    CHECK_IN(fresh());
    source.preserve = target.preserve = target.no_directory = true;
    for (int round = 0; round < 2; round++) {
        CHECK(run("mkdir -p from/deep && chmod 755 from from/deep && echo 1 >>from/one && "
                  "echo 2 >>from/deep/two && chmod 555 from/deep from"));
        if (geteuid() == 0)
            CHECK(run("chown -R 65534 ."));
        CHECK_EQ(copy_as_a_user(source, target), 0);
        CHECK(run("diff -r from to && test \"$(stat -c '%a %y' to to/deep)\" = "
                  "\"$(stat -c '%a %y' from from/deep)\""));
        CHECK(run("test \"$(stat -c %a to to/deep | xargs)\" = '555 555'"));
    }
}

static void access_lists_are_kept(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    uint8_t acl[64];
    size_t len = make_acl(acl, 1234);

    CHECK_IN(fresh());
    CHECK(mkdir("from", 0755) == 0);
    put_file("from/one", "text");
    put_file("from/two", "text");
    if (setxattr("from/one", "system.posix_acl_access", acl, len, 0) != 0 ||
        setxattr("from", "system.posix_acl_default", acl, len, 0) != 0)
        SKIP("attributes: the file system of /tmp has no ACLs");
    source.preserve = target.preserve = target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(!has_attribute("to/one", "system.posix_acl_access", acl, len));
    CHECK(setxattr("to/two", "system.posix_acl_access", acl, len, 0) == 0);
    source.acls = target.acls = true;
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(copy_all(source, target), 0);
        CHECK(has_attribute("to/one", "system.posix_acl_access", acl, len));
        CHECK(has_attribute("to", "system.posix_acl_default", acl, len));
        CHECK(!has_attribute("to/two", "system.posix_acl_access", acl, len));
        CHECK(run("test \"$(stat -c '%a %y' to to/one)\" = \"$(stat -c '%a %y' from from/one)\""));
        CHECK(run("rm -r to"));
    }
}

/* ---- several sources ---- */

static int copy_several(const char *const *paths, const char *const *names, size_t count,
                        const char *to)
{
    rd_copy_t source = copy_of(paths[0]), target = copy_of(to);

    source.paths = paths;
    target.names = names;
    source.sources = target.sources = count;
    return copy_and_hear(source, target);
}

static void several_sources(void)
{
    static const char *const paths[] = {"tree", "file", "more/tree2"};
    static const char *const names[] = {"tree", "file", "tree2"};

    CHECK_IN(fresh());
    CHECK(run("mkdir -p tree/deep more/tree2 to && echo 1 >tree/deep/one && echo 2 >file && "
              "echo 3 >more/tree2/three"));
    CHECK_EQ(copy_several(paths, names, 3, "to"), 0);
    CHECK(run("diff -r tree to/tree && cmp file to/file && diff -r more/tree2 to/tree2"));
    CHECK(run("test \"$(ls -A to)\" = \"$(printf 'file\\ntree\\ntree2')\""));
    CHECK_EQ(copy_several(paths, names, 3, "file"), RD_COPY_FAILED);
    CHECK_EQ(copy_several(paths, names, 3, "nowhere"), RD_COPY_FAILED);
    CHECK(!is_there("nowhere"));
    CHECK(run("test \"$(cat said)\" = 'rdcp: nowhere: is not an existing directory, which several "
              "sources need'"));
    /* An error in one source does not keep the others from getting their final names. */
    CHECK(run("rm -r to/* file"));
    CHECK_EQ(copy_several(paths, names, 3, "to"), RD_COPY_FAILED);
    CHECK(
        run("diff -r tree to/tree && diff -r more/tree2 to/tree2 && test $(ls -A to | wc -l) = 2"));
}

static void a_tree_that_is_not_whole_among_several(void)
{
    static const char *const paths[] = {"one", "two", "three"};
    rd_copy_t source = copy_of("one"), target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(run("mkdir one two three to && echo 1 >one/f && echo 2 >two/f && echo 3 >three/f"));
    source.paths = target.names = paths;
    source.sources = target.sources = 3;
    CHECK_EQ(list(&source), 0);
    CHECK(unlink("two/f") == 0);
    CHECK_EQ(have(&target), 0);
    CHECK_EQ(pack(&source), RD_COPY_FAILED);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(run("diff -r one to/one && diff -r three to/three && test ! -e to/two"));
    /* The same for an error at the target. */
    CHECK(run("rm -r to/* to/.two* && echo 2 >two/f && mkdir to/.two.rdcp-part && "
              "mkfifo to/.two.rdcp-part/f"));
    CHECK_EQ(copy_all(source, target), RD_COPY_FAILED);
    CHECK(run("diff -r one to/one && diff -r three to/three && test ! -e to/two"));
}

static void a_source_that_has_no_target_among_several(void)
{
    static const char *const paths[] = {"one", "two", "three"};

    CHECK_IN(fresh());
    CHECK(run("mkdir one three to && echo 1 >one/f && echo 2 >two && echo 3 >three/f"));
    CHECK(run("mkfifo to/two"));
    CHECK_EQ(copy_several(paths, paths, 3, "to"), RD_COPY_FAILED);
    CHECK(run("diff -r one to/one && diff -r three to/three && test -p to/two"));
    CHECK(run("grep -qx 'rdcp: to: two is a FIFO, which rdcp does not replace' said"));
    /* The same for the first and the last source. */
    CHECK(run("rm -r to/* && touch to/one to/three"));
    CHECK_EQ(copy_several(paths, paths, 3, "to"), RD_COPY_FAILED);
    CHECK(run("cmp two to/two && test -f to/one && test -f to/three"));
    CHECK(run("test -z \"$(find . -name '*rdcp-part*')\""));
}

/* ---- files that are left out ---- */

static void patterns_leave_out(void)
{
    static const char *const patterns[] = {"*.o", "/top", "/deep/x*", "cache/", "lone"};
    rd_copy_t source = copy_of("from");

    CHECK_IN(fresh());
    CHECK(run("mkdir -p from/deep/cache from/cache from/deep/deep && cd from && "
              "touch a.o deep/b.o top deep/top deep/xa deep/deep/xa cache/f deep/cache/f "
              "kept deep/deep/cache lone"));
    source.excluded = patterns;
    source.exclusions = 5;
    CHECK_EQ(copy_all(source, copy_of("to")), 0);
    CHECK(run("cd to && test \"$(find . | sort | tr '\\n' ' ')\" = \". ./deep ./deep/deep "
              "./deep/deep/cache ./deep/deep/xa ./deep/top ./kept \""));
    /* A path that the user names explicitly is copied. */
    source.path = "from/lone";
    CHECK_EQ(copy_all(source, copy_of("alone")), 0);
    CHECK(is_there("alone"));
}

/* ---- files that are not read ---- */

static void files_of_the_same_size_and_time_are_not_read(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    uint64_t kept, left_out;

    CHECK_IN(fresh());
    CHECK(run("mkdir -p from/deep"));
    put_file("from/one", "text");
    put_file("from/two", "text");
    put_file("from/deep/three", "text");
    source.preserve = target.preserve = target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("printf TEXT >to/one && touch -r from/one to/one && chmod 600 to/one"));
    CHECK(run("printf TEXT >to/two")); /* with a different time */
    CHECK_EQ(copy_all(source, target), 0);
    CHECK_EQ(bytes_and_files_packed(&kept, &left_out), 4);
    CHECK_EQ(kept, 1); /* only its mode is set */
    CHECK_EQ(left_out, 1);
    CHECK(holds("to/one", "TEXT") && holds("to/two", "text"));
    CHECK(run("test $(stat -c %a to/one) = 640"));
    source.compare = target.compare = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(holds("to/one", "text"));
    /* Without -p, times prove nothing, because a file with this time may be a different one. */
    CHECK(run("printf TEXT >to/one && touch -r from/one to/one"));
    source = copy_of("from"), target = copy_of("to");
    target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(holds("to/one", "text"));
}

/* ---- copies that are interrupted ---- */

static void a_cut_every_tenth_of_the_way(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    uint64_t all, sent, kept;
    struct stat is;

    CHECK_IN(fresh());
    CHECK(run("mkdir -p from/deep && for i in 1 2 3 4 5 6 7 8 9; do head -c ${i}00000 /dev/urandom "
              ">from/$i; done; head -c 5000000 /dev/urandom >from/deep/big; ln from/1 from/one"));
    source.hard_links = target.hard_links = true;
    for (unsigned tenth = 1; tenth < 10; tenth++) {
        off_t len;

        CHECK_EQ(list(&source) | have(&target) | pack(&source), 0);
        all = bytes_packed(&kept);
        CHECK(stat(PACKED, &is) == 0);
        len = is.st_size / 10 * tenth;
        CHECK(truncate(PACKED, len) == 0);
        CHECK_EQ(unpack(&target), RD_COPY_FAILED);
        CHECK(!is_there("to"));
        CHECK_EQ(copy_all(source, target), 0);
        CHECK(run("diff -r from to") && is_one_file("to/1", "to/one"));
        sent = bytes_packed(&kept);
        /* Nothing is sent twice except for headers and the content of a buffer. */
        CHECK(sent <= all - (uint64_t)len + 65536);
        CHECK(run("rm -r to"));
    }
}

/* ---- items from a hostile source ---- */

static void links_lead_nowhere_else(void)
{
    static const char *const bad[] = {"../secret", "/etc/passwd", "out/secret", "gone", "out"};
    static rd_item_t items[3];
    rd_copy_t target = copy_of("to");

    target.hard_links = target.no_directory = true;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_IN(fresh());
        CHECK(mkdir("to", 0755) == 0 && symlink("..", "to/out") == 0);
        put_file("secret", "secret");
        items[0] = (rd_item_t){.kind = RD_ITEM_DIR, .mode = 0755};
        items[1] = (rd_item_t){.kind = RD_ITEM_HARD, .path = "mine"};
        (void)strcpy(items[1].target, bad[i]);
        items[2] = (rd_item_t){.kind = RD_ITEM_END};
        put_items(items, 3);
        CHECK_EQ(unpack(&target), RD_COPY_FAILED);
        CHECK(!is_there("to/mine"));
    }
}

static void sources_that_there_are_not(void)
{
    static const char *const names[] = {"a", "b"};
    static rd_item_t items[2];
    rd_copy_t target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(mkdir("to", 0755) == 0);
    target.names = names;
    target.sources = 2;
    items[0] = (rd_item_t){.kind = RD_ITEM_START, .mode = RD_ITEM_VERSION, .size = 2};
    items[1] = (rd_item_t){.kind = RD_ITEM_END};
    put_items(items, 2);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    items[0].size = 1;
    put_items(items, 2);
    CHECK_EQ(unpack(&target), 0);
}

/* The source sends more attributes than the target should accept into memory, and an invalid
 * owner. */
static void attributes_of_a_hostile_source(void)
{
    static rd_item_t item;
    static uint8_t value[RD_VALUE_MAX];
    rd_copy_t target = copy_of("to");
    rd_items_out_t out;
    int fd;

    target.xattrs = true;
    CHECK_IN(fresh());
    fd = open_stream(PACKED, true);
    CHECK(rd_items_out_open(&out, fd));
    for (int i = 0; i < 100; i++)
        CHECK(rd_items_attribute(&out, "user.x", value, sizeof value));
    item = (rd_item_t){.kind = RD_ITEM_END};
    CHECK(rd_items_put(&out, &item) && rd_items_out_close(&out));
    close(fd);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    target.owner = true;
    fd = open_stream(PACKED, true);
    CHECK(rd_items_out_open(&out, fd));
    CHECK(rd_items_attribute(&out, "owner", "root", 4));
    CHECK(rd_items_attribute(&out, "system.posix_acl_access", "x", 1)); /* was not requested */
    item = (rd_item_t){.kind = RD_ITEM_FILE, .mode = 04755};
    CHECK(rd_items_put(&out, &item));
    item = (rd_item_t){.kind = RD_ITEM_CLOSE, .has = RD_HAS_ALL};
    CHECK(rd_items_put(&out, &item));
    item = (rd_item_t){.kind = RD_ITEM_END};
    CHECK(rd_items_put(&out, &item) && rd_items_out_close(&out));
    close(fd);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(run("test $(stat -c %a to) = 755")); /* no set-id bit without its owner */
}

static const check_case_t cases[] = {
    {"hard links stay one file", hard_links_stay_one_file},
    {"owners are kept by root", owners_are_kept_by_root},
    {"a file that is there keeps its owner", a_file_that_is_there_keeps_its_owner},
    {"extended attributes are kept", extended_attributes_are_kept},
    {"attributes of what is read-only", attributes_of_what_is_read_only},
    {"directories that are read-only", directories_that_are_read_only},
    {"access lists are kept", access_lists_are_kept},
    {"several sources", several_sources},
    {"a tree that is not whole among several", a_tree_that_is_not_whole_among_several},
    {"a source that has no target among several", a_source_that_has_no_target_among_several},
    {"patterns leave out", patterns_leave_out},
    {"files of the same size and time are not read", files_of_the_same_size_and_time_are_not_read},
    {"a cut every tenth of the way", a_cut_every_tenth_of_the_way},
    {"links lead nowhere else", links_lead_nowhere_else},
    {"sources that there are not", sources_that_there_are_not},
    {"attributes of a hostile source", attributes_of_a_hostile_source},
};

COPIES_MAIN(cases)
