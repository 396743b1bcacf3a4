/* SPDX-License-Identifier: Apache-2.0 */
/* Tests copies of files that change during the copy, of special files, and from hostile sources. */
#include "pipe_copies.h"

#include <errno.h>
#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

static bool is_over_quota; /* parts are on a network file system on which we are over quota */

/* Behaves like such a file system: the write succeeds, and the close reports that it has failed. */
int close(int fd)
{
    static const char suffix[] = ".rdcp-part";
    char link[32], path[4096];
    ssize_t len = 0;

    if (is_over_quota) {
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        len = readlink(link, path, sizeof path);
    }
    if (syscall(SYS_close, fd) < 0)
        return -1;
    if (len < (ssize_t)strlen(suffix) ||
        memcmp(path + len - strlen(suffix), suffix, strlen(suffix)) != 0)
        return 0;
    errno = EDQUOT;
    return -1;
}

int fstatfs(int fd, struct statfs *is_p)
{
    long status = syscall(SYS_fstatfs, fd, is_p);

    if (is_over_quota)
        is_p->f_type = NFS_SUPER_MAGIC;
    return (int)status;
}

/* The name to which another copy renames "new" just before the next lock is taken, or NULL. */
static const char *new_part;

int flock(int fd, int operation)
{
    if (new_part && rename("new", new_part) < 0)
        abort();
    new_part = NULL;
    return (int)syscall(SYS_flock, fd, operation);
}

/* ---- faults at the source ---- */

/* Packs "from" in a child, and changes the file when part of it has already been sent. Until we
 * read, the child is blocked by the bytes that do not fit into the buffer and the pipe. */
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
    /* The same is true if only the rest of a partial file is sent. */
    CHECK(run("head -c 1000000 was >.to.rdcp-part && cp was from"));
    CHECK_EQ(pack_and("echo more >>from"), 0);
    CHECK_EQ(unpack(&target), 0);
    CHECK(run("cmp was to && rm to"));
    /* The same is true of a file with holes. */
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
    /* The bytes of a partial file that the target already had must not change either. */
    CHECK(run("head -c 1000000 from >.to.rdcp-part"));
    CHECK_EQ(pack_and("echo more >>from; echo newer | dd of=from conv=notrunc 2>/dev/null"),
             RD_COPY_FAILED);
    (void)unpack(&target);
    CHECK(!is_there("to"));
    CHECK_EQ(pack_and("touch from"), RD_COPY_FAILED);
    CHECK_EQ(pack_and("truncate -s 100 from"), RD_COPY_FAILED);
}

/* The size of a file reads as 0 in all of /proc, and in FUSE file systems that do not know the size
 * before the file is read. */
static void a_file_whose_size_reads_0(void)
{
    static const char *const file = "/proc/self/mountinfo";
    rd_copy_t target = copy_of("to"), source = copy_of("from");
    struct stat is;

    CHECK_IN(fresh());
    CHECK(stat(file, &is) == 0 && is.st_size == 0);
    CHECK_EQ(copy(file, "to"), 0);
    CHECK(run("cmp to /proc/self/mountinfo"));
    /* Copy it over an existing empty file, and then copy it again. */
    put_file("to", "");
    for (int round = 0; round < 2; round++) {
        CHECK_EQ(copy(file, "to"), 0);
        CHECK(run("cmp to /proc/self/mountinfo"));
    }
#ifndef __SANITIZE_ADDRESS__ /* ASan's shadow makes this file slow to read */
    /* This file is practically endless, because it has 8 bytes for each page that could exist. */
    CHECK_EQ(copy_and_hear(copy_of("/proc/self/pagemap"), copy_of("pages")), RD_COPY_FAILED);
    CHECK(run("grep -q 'more than 64 MiB of content' said"));
    CHECK(!is_there("pages") && !is_there(".pages.rdcp-part"));
#endif
    /* Copy it in a tree, together with other files. */
    CHECK(run("rm to && mkdir from"));
    put_file("from/empty", "");
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(holds("to/empty", ""));
    CHECK_EQ(copy("/proc/sys/kernel/random", "random"), 0);
    CHECK(run("cmp random/boot_id /proc/sys/kernel/random/boot_id && "
              "test -z \"$(find random -size 0)\""));
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
    CHECK_EQ(unpack(&target), RD_COPY_FAILED); /* incomplete, so it does not get its name */
    CHECK(!is_there("to") && holds(".to.rdcp-part/stays", "text"));
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(holds("to/stays", "text"));
    /* A file that is shorter than listed is copied as it is. */
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
    /* The same for a name within the target. */
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

/* The item that closes a file says that the file is incomplete, because the source noticed a
 * change. */
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

static void what_the_close_refuses_gets_no_name(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    int status;

    CHECK_IN(fresh());
    put_file("from", "what is new");
    put_file("to", "what was there");
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    is_over_quota = true;
    status = unpack(&target);
    is_over_quota = false;
    CHECK_EQ(status, RD_COPY_FAILED);
    CHECK(holds("to", "what was there") && !is_there(".to.rdcp-part"));
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(holds("to", "what is new"));
}

/* ---- items from a hostile source ---- */

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
                   {onto, 5, RD_COPY_DONE}}; /* the symbolic link is replaced, not followed */
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

/* A hostile target can ask for files only by their path in the tree. */
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

/* A hostile target does not get files that the user has left out either, however it requests
 * them. */
static void a_source_gives_nothing_that_was_left_out(void)
{
    static const char *const patterns[] = {"secrets/", "/deep/key", "*.pem"};
    static const rd_item_t wishes[][3] = {
        {TOP, {.kind = RD_ITEM_FILE, .path = "secrets/key"}, END},
        {TOP, {.kind = RD_ITEM_FILE, .path = "deep/secrets/more/key"}, END},
        {TOP, {.kind = RD_ITEM_FILE, .path = "deep/key"}, END},
        {TOP, {.kind = RD_ITEM_FILE, .path = "deep/a.pem"}, END},
        {TOP, {.kind = RD_ITEM_LEAVE, .path = "deep/secrets/more"}, END},
        {TOP, {.kind = RD_ITEM_LINK, .path = "secrets/link", .target = "x"}, END},
        {TOP, {.kind = RD_ITEM_FILE, .path = "deep/kept"}, END}};
    size_t last = sizeof wishes / sizeof *wishes - 1;
    rd_copy_t source = copy_of("tree");
    uint64_t kept;

    CHECK_IN(fresh());
    CHECK(run("mkdir -p tree/secrets tree/deep/secrets/more && cd tree && "
              "for file in secrets/key deep/secrets/more/key deep/key deep/a.pem deep/kept; do "
              "echo hidden >$file; done; ln -s x secrets/link"));
    source.excluded = patterns;
    source.exclusions = 3;
    source.xattrs = true; /* so that directories and symbolic links are examined */
    for (size_t i = 0; i <= last; i++) {
        put_items(wishes[i], 3);
        CHECK(rename(PACKED, HAD) == 0);
        CHECK_EQ(pack(&source), i == last ? 0 : RD_COPY_FAILED);
        CHECK_EQ(bytes_packed(&kept), i == last ? 7 : 0);
    }
    /* Without -r it gets only the file that the user has named. */
    source.recursive = false;
    put_items(wishes[last], 3);
    CHECK(rename(PACKED, HAD) == 0);
    CHECK_EQ(pack(&source), RD_COPY_FAILED);
    CHECK_EQ(bytes_packed(&kept), 0);
    put_items(&wishes[last][1], 2); /* the same without a directory before it */
    CHECK(rename(PACKED, HAD) == 0);
    CHECK_EQ(pack(&source), RD_COPY_FAILED);
}

/* ---- parts that another user has left ---- */

/* In a shared directory anybody can create an entry with the name of a part. */
static void a_part_that_is_a_link_overwrites_nothing(void)
{
    CHECK_IN(fresh());
    put_file("from", "what is new");
    put_file("victim", "what was there");
    CHECK(link("victim", ".to.rdcp-part") == 0);
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(holds("to", "what is new") && holds("victim", "what was there"));
    CHECK(!is_there(".to.rdcp-part"));
    /* This holds even if the link's target is the beginning of the file. */
    put_file("victim", "what");
    CHECK(link("victim", ".to.rdcp-part") == 0);
    CHECK_EQ(copy("from", "to"), 0);
    CHECK(holds("to", "what is new") && holds("victim", "what"));
}

static void a_part_of_another_user_is_made_anew(void)
{
    static const char *const modes[] = {"chown 65534", "chmod 666"};
    struct stat is;

    for (size_t i = geteuid() == 0 ? 0 : 1; i < 2; i++) {
        char command[100];

        CHECK_IN(fresh());
        CHECK(run("chmod 1777 .")); /* like /tmp */
        put_file("from", "what is new");
        put_file(".to.rdcp-part", "what");
        CHECK(chmod(".to.rdcp-part", 0600) == 0);
        (void)snprintf(command, sizeof command, "%s .to.rdcp-part", modes[i]);
        CHECK(run(command));
        CHECK(stat(".to.rdcp-part", &is) == 0);
        CHECK_EQ(copy("from", "to"), 0);
        CHECK(holds("to", "what is new"));
        CHECK(run("test ! .to.rdcp-part -ef to && test $(stat -c %u to) = $(id -u)"));
        CHECK(stat("to", &is) == 0 && is.st_nlink == 1);
        CHECK(!is_there(".to.rdcp-part"));
    }
}

static void a_tree_of_another_user_is_not_resumed(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    if (geteuid() != 0)
        SKIP("root: to give directories away");
    for (int round = 0; round < 2; round++) {
        CHECK_IN(fresh());
        CHECK(run("mkdir from .to.rdcp-part && echo 1 >from/one && chown 65534 .to.rdcp-part"));
        source.preserve = target.preserve = round == 1;
        CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
        CHECK(!is_there("to") && !is_there(".to.rdcp-part/one"));
        CHECK(run("grep -q 'partial copy belongs to another user' said"));
    }
}

/* If the part of an incomplete tree already had its source's owner, it could not be resumed. */
static void a_tree_that_is_not_whole_stays_ours(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    if (geteuid() != 0)
        SKIP("root: to give directories away");
    CHECK_IN(fresh());
    CHECK(run("mkdir from && echo 1 >from/one && mkfifo from/two && chown 65534 from && "
              "chmod 775 from"));
    source.owner = target.owner = source.preserve = target.preserve = source.fail_special = true;
    CHECK_EQ(copy_all(source, target), RD_COPY_FAILED);
    CHECK(run("test \"$(stat -c '%u %a' .to.rdcp-part)\" = \"$(id -u) 700\" && rm from/two"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("test \"$(stat -c '%u %a' to)\" = '65534 775'"));
}

/* ---- stale parts ---- */

static void a_stale_part_is_removed(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");
    int fd;

    CHECK_IN(fresh());
    CHECK(run("mkdir from && echo one >from/one && echo two >from/two && echo 3 >from/three"));
    source.preserve = target.preserve = target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0);
    put_file("to/.one.rdcp-part", "o");           /* the file has the same size and time */
    put_file("to/.two.rdcp-part", "longer than"); /* the file has the same content */
    put_file("to/.other.rdcp-part", "of another copy");
    put_file("to/.three.rdcp-part", "of a copy that runs");
    CHECK(run("chmod 600 to/.*part && touch to/two"));
    fd = open("to/.three.rdcp-part", O_RDONLY);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
    CHECK_EQ(copy_all(source, target), 0);
    close(fd);
    CHECK(!is_there("to/.one.rdcp-part") && !is_there("to/.two.rdcp-part"));
    CHECK(is_there("to/.other.rdcp-part") && is_there("to/.three.rdcp-part"));
    CHECK(run("rm to/.*part && diff -r from to"));
    /* The same for a single file. */
    put_file("to/.one.rdcp-part", "o");
    source.path = "from/one";
    target.path = "to/one";
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(!is_there("to/.one.rdcp-part"));
}

static void a_part_made_meanwhile_is_not_removed(void)
{
    rd_copy_t source = copy_of("from"), target = copy_of("to");

    CHECK_IN(fresh());
    CHECK(run("mkdir from && echo one >from/one"));
    source.preserve = target.preserve = target.no_directory = true;
    CHECK_EQ(copy_all(source, target), 0);
    put_file("to/.one.rdcp-part", "o");
    put_file("new", "of another copy");
    CHECK(run("chmod 600 to/.one.rdcp-part new"));
    new_part = "to/.one.rdcp-part";
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(!new_part && holds("to/.one.rdcp-part", "of another copy"));
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
}

static const check_case_t cases[] = {
    {"a file that grows is copied as long as it was",
     a_file_that_grows_is_copied_as_long_as_it_was},
    {"a file that grows and changes is refused", a_file_that_grows_and_changes_is_refused},
    {"a file whose size reads 0", a_file_whose_size_reads_0},
    {"what is gone or changed", what_is_gone_or_changed},
    {"what is no file is never replaced", what_is_no_file_is_never_replaced},
    {"what is no file is skipped", what_is_no_file_is_skipped},
    {"a file that is not whole", a_file_that_is_not_whole},
    {"what the close refuses gets no name", what_the_close_refuses_gets_no_name},
    {"nothing leads out of the target", nothing_leads_out_of_the_target},
    {"pieces where they do not belong", pieces_where_they_do_not_belong},
    {"a source gives nothing from outside", a_source_gives_nothing_from_outside},
    {"a source gives nothing that was left out", a_source_gives_nothing_that_was_left_out},
    {"a part that is a link overwrites nothing", a_part_that_is_a_link_overwrites_nothing},
    {"a part of another user is made anew", a_part_of_another_user_is_made_anew},
    {"a tree of another user is not resumed", a_tree_of_another_user_is_not_resumed},
    {"a tree that is not whole stays ours", a_tree_that_is_not_whole_stays_ours},
    {"a stale part is removed", a_stale_part_is_removed},
    {"a part made meanwhile is not removed", a_part_made_meanwhile_is_not_removed},
    {"long names", long_names},
};

COPIES_MAIN(cases)
