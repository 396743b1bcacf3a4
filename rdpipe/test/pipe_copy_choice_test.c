/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how users select what is copied: with patterns, with the names of --files-from, and with
 * --one-file-system. */
#include "pipe_copies.h"

#include <sched.h>

#include "copy/copy_files_from.h"

static rd_copy_t source, target;

static void begin(void)
{
    CHECK_IN(fresh());
    source = copy_of("from");
    target = copy_of("to");
    target.no_directory = true;
    source.deletes_max = target.deletes_max = 100;
}

/* Returns whether find lists exactly these paths at the target, apart from its top. */
static bool has_exactly(const char *paths)
{
    char command[1000];

    (void)snprintf(command, sizeof command,
                   "test \"$(cd to && find . -mindepth 1 | LC_ALL=C sort | tr '\\n' ' ')\" = '%s'",
                   paths);
    return run(command);
}

/* ---- patterns ---- */

static void patterns_mean_what_they_mean_for_rsync(void)
{
    static const struct {
        const char *pattern, *path;
        bool is_directory, fits;
    } table[] = {
        {"a", "a", false, true},
        {"a", "b/a", false, true},
        {"a", "a/b", false, false},
        {"a", "ab", false, false},
        {"*.o", "b/x.o", false, true},
        {"*.o", "b/.o", false, true},
        {"*.o", "x.o/b", false, false},
        {"?", "b/a", false, true},
        {"/a", "a", false, true},
        {"/a", "b/a", false, false},
        {"/b/a", "b/a", false, true},
        {"b/a", "b/a", false, true},
        {"b/a", "c/b/a", false, true},
        {"b/a", "cb/a", false, false},
        {"b/a", "b/c/a", false, false},
        {"b/*", "b/c/a", false, false},
        {"b/**", "b/c/a", false, true},
        {"b/**", "x/b/c/a", false, true},
        {"/b/**/a", "b/c/d/a", false, true},
        {"/b/**", "x/b/c", false, false},
        {"/**/a", "b/c/a", false, true},
        {"b**a", "b/c/a", false, true},
        {"*/a", "b/a", false, true},
        {"*/a", "a", false, false},
        {"a/", "a", true, true},
        {"a/", "a", false, false},
        {"a/", "b/a", true, true},
        {"*/", "b/a", true, true},
        {"/a/", "b/a", true, false},
        {"a/***", "a", true, true},
        {"a/***", "a", false, false},
        {"a/***", "b/a/c/d", false, true},
        {"/a/***", "a/b", false, true},
        {"/a/***", "b/a/c", false, false},
        {"[ab]c", "ac", false, true},
        {"[!ab]c", "ac", false, false},
        {"[^ab]c", "xc", false, true},
        {"[a-c]x", "bx", false, true},
        {"[[:digit:]]x", "7x", false, true},
        {"[[:digit:]]x", "ax", false, false},
        {"[]x]a", "]a", false, true},
        {"[ab", "[ab", false, true},
        {"b[!x]a", "b/a", false, false},
        {"b?a", "b/a", false, false},
        {"a\\*", "a*", false, true},
        {"a\\*", "ab", false, false},
        {"*a*b*", "xxaxxbxx", false, true},
        {"*a*b*", "xxbxxaxx", false, false},
    };

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        rd_copy_t copy = {.excluded = &table[i].pattern, .exclusions = 1};
        bool fits = rd_copy_excludes(&copy, table[i].path, table[i].is_directory);

        if (fits != table[i].fits)
            (void)fprintf(stderr, "%s, %s\n", table[i].pattern, table[i].path);
        CHECK_EQ(fits, table[i].fits);
    }
}

/* The first matching pattern decides, and the content of an omitted directory is omitted. */
static void the_first_pattern_decides(void)
{
    static const char *const only_c[] = {"*/", "*.c", "*"};
    static const bool includes[] = {true, true, false};
    static const char *const kept[] = {"keep.o", "*.o", "/deep/"};
    static const bool first[] = {true, false, false};

    CHECK_IN(begin());
    CHECK(run("mkdir -p from/deep from/dir && "
              "touch from/a.c from/a.o from/keep.o from/deep/b.c from/dir/keep.o from/dir/b.o"));
    source.excluded = only_c;
    source.included = includes;
    source.exclusions = 3;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly("./a.c ./deep ./deep/b.c ./dir "));
    CHECK(run("rm -r to"));
    source.excluded = kept;
    source.included = first;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly("./a.c ./dir ./dir/keep.o ./keep.o "));
    /* As in rsync, a file stays omitted if only a later --include matches it. */
    CHECK(run("rm -r to"));
    source.excluded = (const char *const[]){"*.o", "keep.o"};
    source.included = (const bool[]){false, true};
    source.exclusions = 2;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly("./a.c ./deep ./deep/b.c ./dir "));
    /* The target gets nothing else, whatever it requests. */
    put_items((rd_item_t[]){{.kind = RD_ITEM_DIR, .mode = 0755},
                            {.kind = RD_ITEM_FILE, .path = "keep.o"},
                            {.kind = RD_ITEM_END}},
              3);
    CHECK(rename(PACKED, HAD) == 0);
    CHECK_EQ(pack(&source), RD_COPY_FAILED);
}

/* ---- the names of --files-from ---- */

static rd_names_t names;

/* Reads the file "names" as rdcp does, and then parses the names in the form in which rdcp passes
 * them to a part. On failure, *why is set. */
static bool read_names(bool ends_with_nul, rd_why_t *why)
{
    rd_names_t first;
    FILE *to = fopen("document", "w");
    int fd;

    rd_names_free(&names);
    if (!rd_files_from_read(&first, "names", ends_with_nul, why) || !to)
        return false;
    rd_files_from_put(to, &first);
    rd_names_free(&first);
    if (fclose(to) != 0 || !run("{ printf '{ cat <&3 >taken; }'; cat document; } | sh"))
        abort();
    fd = open("taken", O_RDONLY);
    source.wanted = &names;
    source.recursive = false;
    return fd >= 0 && rd_files_from_take(&names, fd, why);
}

static void make_tree(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from/dir/deep from/dir-x from/other && ln -s dir from/link && "
              "touch from/one from/two from/dir/a from/dir/b from/dir/deep/c from/dir-x/d "
              "from/other/e from/'with\nnewline' from/100%"));
}

static void only_what_is_named(void)
{
    rd_why_t why;

    CHECK_IN(make_tree());
    put_file("names", "dir/deep/c\n/one\n\ndir-x//d\n./dir/a\none\n100%\nlink\n");
    CHECK(read_names(false, &why));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly("./100% ./dir ./dir-x ./dir-x/d ./dir/a ./dir/deep ./dir/deep/c ./link "
                      "./one "));
    /* A directory's name selects only the directory itself, or with -r also its content. */
    CHECK(run("rm -r to && printf 'dir/\\ndir/deep/c\\nother' >names"));
    CHECK(read_names(false, &why));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly("./dir ./dir/deep ./dir/deep/c ./other "));
    source.recursive = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly("./dir ./dir/a ./dir/b ./dir/deep ./dir/deep/c ./other ./other/e "));
    /* Names that end with a NUL, a newline in a name, and a pattern. */
    CHECK(run("rm -r to && printf 'with\\nnewline\\0dir/b\\0other/e\\0' >names"));
    CHECK(read_names(true, &why));
    source.excluded = (const char *const[]){"other/"};
    source.exclusions = 1;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly("./dir ./dir/b ./with newline "));
    source.exclusions = 0;
    /* The names select the whole source, and then nothing at all. */
    CHECK(run("rm -r to && echo . >names"));
    CHECK(read_names(false, &why));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly(""));
    source.recursive = true;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r --no-dereference from to && rm -r to && : >names"));
    CHECK(read_names(false, &why));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly(""));
}

static void names_that_lead_out(void)
{
    static const struct {
        const char *text, *said;
    } lists[] = {{"one\n../secret\n", "--files-from names: name 2: '../secret' leads out"},
                 {"dir/../../secret\n", "name 1: 'dir/../../secret' leads out of the source"},
                 {"..", "name 1: '..' leads out of the source"},
                 {"dir/..", "'dir/..' leads out"}};
    rd_why_t why;

    CHECK_IN(make_tree());
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        put_file("names", lists[i].text);
        CHECK(!read_names(false, &why) && strstr(why.text, lists[i].said));
    }
    CHECK(run("printf 'one\\0two\\0' >names"));
    CHECK(!read_names(false, &why) && strstr(why.text, "the line 'one' contains a NUL"));
    CHECK(run("head -c 5000 /dev/zero | tr '\\0' x >names"));
    CHECK(!read_names(false, &why) && strstr(why.text, "is longer than 4095 bytes"));
    CHECK(unlink("names") == 0 && !read_names(false, &why) && strstr(why.text, "No such file"));
    /* A symbolic link in the source does not lead out of it either. */
    put_file("names", "link/a\nlink/b\nmissing\none/x\none\n");
    CHECK(read_names(false, &why));
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(was_said("from/link: is a symbolic link, but --files-from names paths below it"));
    CHECK(was_said("from/missing: No such file"));
    CHECK(run("ls .to.rdcp-part/one >/dev/null && ! ls .to.rdcp-part/link 2>/dev/null"));
    source.path = "from/one";
    CHECK_EQ(copy_and_hear(source, target), RD_COPY_FAILED);
    CHECK(was_said("from/one: is a file, but --files-from names paths below it"));
}

/* Each part checks the names that rdcp passes to it, although rdcp has already checked them. */
static void documents_that_are_damaged(void)
{
    static const char *const documents[] = {"0:../x\n", "0:a\n5:b\n", "a\n",    "0:%zz\n",
                                            "0:/a\n",   "0:a%",       "-1:a\n", "0:a%0\n"};
    rd_why_t why;

    CHECK_IN(begin());
    rd_names_free(&names);
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        put_file("taken", documents[i]);
        CHECK(!rd_files_from_take(&names, open("taken", O_RDONLY), &why));
    }
}

static void a_target_gets_only_what_is_named(void)
{
    static const struct {
        rd_item_t wish;
        int status;
    } wishes[] = {{{.kind = RD_ITEM_FILE, .path = "dir/a"}, 0},
                  {{.kind = RD_ITEM_FILE, .path = "dir/b"}, RD_COPY_FAILED},
                  {{.kind = RD_ITEM_FILE, .path = "two"}, RD_COPY_FAILED},
                  {{.kind = RD_ITEM_LEAVE, .path = "dir"}, 0},
                  {{.kind = RD_ITEM_LEAVE, .path = "other"}, RD_COPY_FAILED},
                  {{.kind = RD_ITEM_FILE, .path = "dir-x/d"}, RD_COPY_FAILED}};
    rd_why_t why;

    CHECK_IN(make_tree());
    put_file("names", "dir/a\ndir-x\n");
    CHECK(read_names(false, &why));
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        rd_item_t items[] = {{.kind = RD_ITEM_DIR, .mode = 0755}, wishes[i].wish, END};

        put_items(items, 3);
        CHECK(rename(PACKED, HAD) == 0);
        CHECK_EQ(pack(&source), wishes[i].status);
    }
    source.recursive = true;
    put_items((rd_item_t[]){{.kind = RD_ITEM_DIR, .mode = 0755},
                            {.kind = RD_ITEM_FILE, .path = "dir-x/d"},
                            END},
              3);
    CHECK(rename(PACKED, HAD) == 0);
    CHECK_EQ(pack(&source), 0);
}

static void many_names(void)
{
    rd_why_t why;

    CHECK_IN(begin());
    CHECK(run("mkdir -p from/a-b from/a/b from/a0 && cd from && "
              "for i in $(seq 300); do touch a/$i a-b/$i a/b/$i a0/$i; done && "
              "find . -name '*7*' | sort -R >../names"));
    CHECK(read_names(false, &why));
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("(cd to && find . -type f | sort) >got && sort names | cmp - got"));
}

/* ---- one file system ---- */

static void no_other_file_system(void)
{
    rd_why_t why;

    if (unshare(CLONE_NEWNS) < 0 || !run("mount --make-rprivate / 2>/dev/null"))
        SKIP("root: to mount");
    CHECK_IN(begin());
    CHECK(run("mkdir -p from/disk from/dir to/disk && touch from/dir/a to/disk/mine to/old && "
              "mount -t tmpfs -o size=64k tmpfs from/disk && touch from/disk/b"));
    source.one_system = true;
    source.deletes = target.deletes = true;
    CHECK_EQ(copy_all(source, target), 0);
    /* The target's files below a directory that was not listed are not deleted. */
    CHECK(has_exactly("./dir ./dir/a ./disk ./disk/mine "));
    put_items((rd_item_t[]){{.kind = RD_ITEM_DIR, .mode = 0755},
                            {.kind = RD_ITEM_FILE, .path = "disk/b"},
                            END},
              3);
    CHECK(rename(PACKED, HAD) == 0);
    CHECK_EQ(pack(&source), RD_COPY_FAILED);
    source.deletes = target.deletes = false;
    put_file("names", "disk/b\ndir/a\n");
    CHECK(read_names(false, &why));
    CHECK_EQ(copy_and_hear(source, target), 0);
    CHECK(was_said("from/disk: is on another file system: the names below it are skipped"));
    source.one_system = false;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(has_exactly("./dir ./dir/a ./disk ./disk/b ./disk/mine "));
    CHECK(run("umount from/disk"));
}

static const check_case_t cases[] = {
    {"patterns mean what they mean for rsync", patterns_mean_what_they_mean_for_rsync},
    {"the first pattern decides", the_first_pattern_decides},
    {"only what is named", only_what_is_named},
    {"names that lead out", names_that_lead_out},
    {"documents that are damaged", documents_that_are_damaged},
    {"a target gets only what is named", a_target_gets_only_what_is_named},
    {"many names", many_names},
    {"no other file system", no_other_file_system},
};

COPIES_MAIN(cases)
