/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that --atomic either replaces a tree completely or leaves it untouched. */
#include "pipe_copies.h"

#include <sched.h>
#include <sys/syscall.h>

/* Simulates a file system that cannot exchange names or has no hard links, or a copy that dies at
 * the rename with this number. */
static bool has_no_exchange, has_no_links;
static int dies_at;

static void count_rename(void)
{
    if (dies_at > 0 && --dies_at == 0)
        _exit(99);
}

int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    if (has_no_exchange && flags != 0) {
        errno = EINVAL;
        return -1;
    }
    count_rename();
    return (int)syscall(SYS_renameat2, from, old, to, new, flags);
}

int renameat(int from, const char *old, int to, const char *new)
{
    count_rename();
    return (int)syscall(SYS_renameat2, from, old, to, new, 0);
}

int linkat(int from, const char *old, int to, const char *new, int flags)
{
    if (has_no_links) {
        errno = EPERM;
        return -1;
    }
    return (int)syscall(SYS_linkat, from, old, to, new, flags);
}

static rd_copy_t source, target;

/* Creates a source, and an older copy of it. */
static void begin(void)
{
    CHECK_IN(fresh());
    has_no_exchange = has_no_links = false;
    dies_at = 0;
    source = copy_of("from");
    target = copy_of("to");
    target.no_directory = true;
    source.atomic = target.atomic = true;
    source.preserve = target.preserve = true;
    source.deletes_max = target.deletes_max = 100;
    CHECK(
        run("mkdir -p from/dir/deep from/new && echo same >from/same && echo 1 >from/dir/same && "
            "echo 2 >from/dir/deep/same && echo new >from/dir/changed && echo 3 >from/new/one && "
            "ln -s same from/link && cp -a from to && rm -r to/new && echo old >to/dir/changed && "
            "echo mine >to/mine && mkdir -p to/my/own && echo mine >to/my/own/file && "
            "chmod 750 to/my && ln -s out to/my/link && touch -d 2001-02-03 to/my/own/file "
            "to/my/own to/my && "
            "ln to/same same && stat -c %i to >inode"));
}

static bool is_new_tree(void)
{
    return run("test $(stat -c %i to) != $(cat inode)");
}

static bool nothing_is_left(void)
{
    return run("test -z \"$(find . -name '*rdcp-*')\"");
}

/* ---- a tree that is replaced ---- */

static void a_tree_is_replaced_as_a_whole(void)
{
    uint64_t kept;

    CHECK_IN(begin());
    CHECK_EQ(copy_all(source, target), 0);
    CHECK_EQ(bytes_packed(&kept), 6); /* the new file and the changed one */
    CHECK(is_new_tree() && nothing_is_left());
    CHECK(run("test same -ef to/same && diff -r --no-dereference -x mine -x my from to"));
    CHECK(holds("to/mine", "mine\n") && holds("to/my/own/file", "mine\n"));
    CHECK(run("test \"$(stat -c '%a %Y' to/my)\" = \"750 $(date -d 2001-02-03 +%s)\" && "
              "test $(readlink to/my/link) = out"));
    CHECK(run("for dir in . dir dir/deep; do "
              "test \"$(stat -c '%a %Y' from/$dir)\" = \"$(stat -c '%a %Y' to/$dir)\" || exit 1; "
              "done"));
}

static void what_only_the_old_tree_has_goes_with_delete(void)
{
    CHECK_IN(begin());
    source.deletes = target.deletes = true;
    target.json = true;
    source.excluded = target.excluded = (const char *const[]){"my/own/"};
    source.exclusions = target.exclusions = 1;
    CHECK_EQ(copy_and_hear(source, target), 0);
    CHECK(was_said("\"deleted\": [\"mine\", \"my/link\"]}"));
    CHECK(is_new_tree() && nothing_is_left() && !is_there("to/mine") && !is_there("to/my/link"));
    CHECK(holds("to/my/own/file", "mine\n")); /* it is excluded */
    source.exclusions = target.exclusions = 0;
    target.deletes_max = source.deletes_max = 2;
    CHECK_IN(note_state());
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(was_said("nothing is deleted, because more than 2 files") && is_state_unchanged());
    target.deletes_max = source.deletes_max = 3;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r --no-dereference from to") && nothing_is_left());
}

static void without_p(void)
{
    uint64_t kept;

    CHECK_IN(begin());
    source.preserve = target.preserve = false;
    CHECK(run("chmod 600 to/dir/changed to/same && chmod 700 to/dir && chmod 711 to"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK_EQ(bytes_packed(&kept), 6);
    CHECK(is_new_tree() && nothing_is_left() && run("test same -ef to/same"));
    CHECK(run("diff -r --no-dereference -x mine -x my from to"));
    /* As without --atomic, existing files keep their mode. */
    CHECK(run("test \"$(stat -c %a to to/dir to/dir/changed to/same | tr '\\n' ' ')\" = "
              "'711 700 600 600 '"));
}

/* A file in the old tree may also have hard links elsewhere, and the copy must not change the file
 * that they refer to. */
static void what_has_other_names_is_not_changed(void)
{
    CHECK_IN(begin());
    CHECK(run("cp -al to snapshot && chmod 700 from/same && touch -d 2003-04-05 from/dir/same && "
              "cp -a to before"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r --no-dereference -x mine -x my from to && "
              "test \"$(stat -c '%a %Y' from/same from/dir/same)\" = "
              "\"$(stat -c '%a %Y' to/same to/dir/same)\""));
    CHECK(run("test \"$(cd snapshot && find . -type f -printf '%p %m %T@\\n' | sort)\" = "
              "\"$(cd before && find . -type f -printf '%p %m %T@\\n' | sort)\""));
    CHECK(run("! test to/same -ef snapshot/same && test to/dir/deep/same -ef "
              "snapshot/dir/deep/same"));
}

static void owners_and_attributes(void)
{
    if (geteuid() != 0)
        SKIP("root: to give files away");
    CHECK_IN(begin());
    source.owner = source.xattrs = source.acls = source.hard_links = true;
    target.owner = target.xattrs = target.acls = target.hard_links = true;
    CHECK(run("chown 4321:4322 from/dir/same && ln from/dir/deep/same from/dir/deep/twin"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("test same -ef to/same && test $(stat -c %u to/dir/same) = 4321 && "
              "test to/dir/deep/same -ef to/dir/deep/twin"));
    CHECK(run("stat -c %i to/dir/same >was"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("test $(stat -c %i to/dir/same) = $(cat was)"));
}

static void several_sources(void)
{
    static const char *const paths[] = {"one", "two"};

    CHECK_IN(begin());
    CHECK(run("rm -r to && mkdir -p one two to/one to/other && echo 1 >one/a && echo 2 >two/b && "
              "touch to/one/x to/other/y"));
    source.paths = paths;
    target.names = paths;
    target.no_directory = false;
    source.sources = target.sources = 2;
    source.deletes = target.deletes = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r one to/one && diff -r two to/two && ls to/other/y >/dev/null"));
    CHECK(nothing_is_left());
}

static void a_new_tree(void)
{
    CHECK_IN(begin());
    CHECK(run("rm -r to"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r --no-dereference from to") && nothing_is_left());
    /* Copy into a directory that contains the tree, and to a target without a name. */
    target.no_directory = false;
    target.name = "";
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(was_said("to: --atomic needs the name of the directory that it replaces"));
}

static void a_dry_run(void)
{
    CHECK_IN(begin());
    source.deletes = target.deletes = true;
    source.dry_run = target.dry_run = true;
    CHECK(run("touch -r from to && touch -r from/dir to/dir"));
    CHECK_IN(note_state());
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    CHECK_EQ(show(&target), 0);
    CHECK(strstr(text_of("shown"), "changed dir/changed ("));
    CHECK(strstr(text_of("shown"), "new new/one (2 bytes)\n"));
    CHECK(strstr(text_of("shown"), "deleted mine ("));
    CHECK(is_state_unchanged() && nothing_is_left());
}

/* ---- file systems that cannot exchange names or have no hard links ---- */

static void without_an_exchange(void)
{
    CHECK_IN(begin());
    has_no_exchange = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(is_new_tree() && nothing_is_left());
    CHECK(run("diff -r --no-dereference -x mine -x my from to") && is_there("to/my/own/file"));
}

static void without_hard_links(void)
{
    CHECK_IN(begin());
    has_no_links = true;
    CHECK(run("rm to/my/link && truncate -s 5000000 from/sparse && echo x >>from/sparse && "
              "cp -a from/sparse to/sparse && cp -a from/sparse to/my/sparse"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(is_new_tree() && nothing_is_left() && !run("test same -ef to/same"));
    CHECK(run("diff -r --no-dereference -x mine -x my from to && cmp from/sparse to/my/sparse"));
    CHECK(run("test $(du -k to/sparse | cut -f1) -lt 1000"));
}

/* ---- a tree that stays as it was ---- */

/* No matter which process dies, and at which rename, the name always refers to the old tree or to
 * the new one. */
static void a_copy_that_dies(void)
{
    for (int exchange = 0; exchange < 2; exchange++) {
        bool has_died = true;

        for (int at = 1; has_died; at++) {
            pid_t child;
            int status;
            bool is_new;

            CHECK_IN(begin());
            CHECK_IN(note_state());
            has_no_exchange = exchange == 0;
            CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
            child = fork();
            if (child == 0) {
                dies_at = at;
                _exit(unpack(&target));
            }
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
            has_died = WEXITSTATUS(status) == 99;
            CHECK(has_died || WEXITSTATUS(status) == 0);
            CHECK(at < 30);
            if (is_there("to")) {
                is_new = is_new_tree();
                CHECK(is_new ? run("diff -r --no-dereference -x mine -x my from to") &&
                                   is_there("to/my/own/file")
                             : is_state_unchanged());
            } else {
                CHECK(has_no_exchange && run("mv .to.rdcp-old to") && is_state_unchanged());
                CHECK(run("mv to .to.rdcp-old"));
            }
            CHECK_EQ(copy_all(source, target), 0);
            CHECK(run("diff -r --no-dereference -x mine -x my from to") && nothing_is_left());
            CHECK(is_there("to/my/own/file"));
        }
    }
}

static void a_stream_that_is_cut_off(void)
{
    struct stat is;
    uint64_t kept;

    CHECK_IN(begin());
    CHECK_IN(note_state());
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    CHECK(stat(PACKED, &is) == 0 && truncate(PACKED, is.st_size - RD_ITEM_BYTES) == 0);
    CHECK_EQ(unpack(&target), RD_COPY_FAILED);
    CHECK(is_state_unchanged() && is_there(".to.rdcp-part/dir/changed"));
    /* The next copy does not send the files again, and removes those that the source no longer
     * has. */
    CHECK(run("rm -r from/new from/link && touch .to.rdcp-part/dir/.gone.rdcp-part"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK_EQ(bytes_packed(&kept), 0);
    CHECK(!is_there("to/new") && nothing_is_left() && run("rm to/link"));
    CHECK(run("diff -r --no-dereference -x mine -x my from to"));
}

static void an_error_at_the_source(void)
{
    CHECK_IN(begin());
    CHECK_IN(note_state());
    CHECK(mkfifo("from/fifo", 0600) == 0);
    source.fail_special = true;
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(was_said("not replaced, because 1 of its files or directories could not be copied"));
    CHECK(is_state_unchanged());
}

static void what_cannot_be_replaced(void)
{
    static const char *const changes[] = {"mkfifo to/new", "mkdir to/link && touch to/link/x",
                                          "echo x >to/new",
                                          "rm to/dir/changed && mkdir "
                                          "to/dir/changed"};

    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        CHECK_IN(begin());
        CHECK(run(i == 1 ? "rm to/link" : "true") && run(changes[i]));
        CHECK_IN(note_state());
        CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
        CHECK(is_state_unchanged());
    }
}

static void a_mount_point(void)
{
    if (unshare(CLONE_NEWNS) < 0 || !run("mount --make-rprivate / 2>/dev/null"))
        SKIP("root: to mount");
    for (int round = 0; round < 2; round++) {
        CHECK_IN(begin());
        CHECK(run("mkdir -p to/dir/disk && mount -t tmpfs -o size=64k tmpfs to/dir/disk && "
                  "touch to/dir/disk/file"));
        source.deletes = target.deletes = round == 1;
        CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
        CHECK(was_said("dir/disk: is a mount point, which --atomic cannot move"));
        CHECK(is_there("to/dir/disk/file") && !is_new_tree());
        CHECK(run("umount to/dir/disk"));
    }
}

static void a_tree_that_another_program_replaces(void)
{
    CHECK_IN(begin());
    CHECK(list(&source) == 0 && have(&target) == 0 && pack(&source) == 0);
    CHECK(run("mv to away && mkdir to && touch to/other"));
    CHECK_EQ(unpack_and_hear(&target), RD_COPY_FAILED);
    CHECK(is_there("to/other") && is_there("away/mine"));
}

/* ---- hostile peers ---- */

static void items_that_lie(void)
{
    static const struct {
        rd_item_t item;
        const char *said;
    } lies[] = {
        {{.kind = RD_ITEM_KEEP, .path = "out/file", .size = 6}, "out/file: No such file"},
        {{.kind = RD_ITEM_KEEP, .path = "nothing"}, "nothing: changed while being copied"},
        {{.kind = RD_ITEM_KEEP, .path = "same", .size = 6}, "same: changed while being copied"},
        {{.kind = RD_ITEM_KEEP, .path = "out", .size = 10}, "out: changed while being copied"},
        {{.kind = RD_ITEM_KEEP, .path = "../same", .size = 5}, "names a path outside the tree"},
        {{.kind = RD_ITEM_DELETE, .path = "../to", .has = RD_HAS_PART}, "names a path outside"},
        {{.kind = RD_ITEM_DELETE, .path = "mine", .mode = S_IFREG}, "--delete was not given"},
    };
    rd_item_t items[3] = {TOP, TOP, END};

    CHECK_IN(begin());
    CHECK(run("mkdir outside && echo hello >outside/file && ln -s ../outside to/out"));
    CHECK_IN(note_state());
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        items[1] = lies[i].item;
        put_items(items, 3);
        CHECK_EQ(unpack_and_hear(&target), RD_COPY_FAILED);
        CHECK(was_said(lies[i].said));
        CHECK(is_state_unchanged());
    }
    /* Items may remove something immediately only in a new tree. */
    target.atomic = false;
    items[1] = (rd_item_t){.kind = RD_ITEM_DELETE, .path = "mine", .has = RD_HAS_PART};
    put_items(items, 3);
    CHECK_EQ(unpack_and_hear(&target), RD_COPY_FAILED);
    CHECK(was_said("asks to remove 'mine', but there is no new tree") && is_state_unchanged());
}

/* Another user has created an entry with the name that the old tree would get. */
static void what_has_the_name_of_the_old_tree(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir outside && touch outside/file && ln -s outside .to.rdcp-old"));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(is_there("outside/file") && is_new_tree() && nothing_is_left());
}

static const check_case_t cases[] = {
    {"a tree is replaced as a whole", a_tree_is_replaced_as_a_whole},
    {"what only the old tree has goes with --delete", what_only_the_old_tree_has_goes_with_delete},
    {"without -p", without_p},
    {"what has other names is not changed", what_has_other_names_is_not_changed},
    {"owners and attributes", owners_and_attributes},
    {"several sources", several_sources},
    {"a new tree", a_new_tree},
    {"a dry run", a_dry_run},
    {"without an exchange", without_an_exchange},
    {"without hard links", without_hard_links},
    {"a copy that dies", a_copy_that_dies},
    {"a stream that is cut off", a_stream_that_is_cut_off},
    {"an error at the source", an_error_at_the_source},
    {"what cannot be replaced", what_cannot_be_replaced},
    {"a mount point", a_mount_point},
    {"a tree that another program replaces", a_tree_that_another_program_replaces},
    {"items that lie", items_that_lie},
    {"what has the name of the old tree", what_has_the_name_of_the_old_tree},
};

COPIES_MAIN(cases)
