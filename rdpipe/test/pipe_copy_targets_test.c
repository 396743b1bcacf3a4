/* SPDX-License-Identifier: Apache-2.0 */
/* Tests copies to several targets: what each gets, and that none can harm another. */
#include "pipe_copies.h"

#define TARGETS 3u

static rd_copy_t source, target[TARGETS];
static const char *const paths[TARGETS] = {"to0", "to1", "to2"};

static void begin(void)
{
    CHECK_IN(fresh());
    source = copy_of("from");
    for (unsigned i = 0; i < TARGETS; i++) {
        target[i] = copy_of(paths[i]);
        target[i].no_directory = true;
        target[i].target = i;
        target[i].targets = TARGETS;
        target[i].deletes_max = 100;
    }
    CHECK(run("mkdir -p from/dir && echo 1 >from/one && echo 22 >from/dir/two && echo 333 "
              ">from/three && touch -d 2001-02-03 from/one from/dir/two from/three"));
}

static void preserve(void)
{
    source.preserve = true;
    for (unsigned i = 0; i < TARGETS; i++)
        target[i].preserve = true;
}

/* Works like rdcp's pipeline: each `have` reads the output of the one before it. `statuses`
 * receives the exit statuses of all parts at the targets. */
static int copy_to_all(int statuses[TARGETS])
{
    int status = list(&source);

    for (unsigned i = 0; i < TARGETS; i++) {
        statuses[i] = have(&target[i]);
        if (rename(HAD, LISTED) < 0)
            abort();
    }
    if (rename(LISTED, HAD) < 0)
        abort();
    status |= pack(&source);
    for (unsigned i = 0; i < TARGETS; i++)
        statuses[i] |= unpack(&target[i]);
    return status;
}

static int copy_to_all_well(void)
{
    int statuses[TARGETS], status = copy_to_all(statuses);

    for (unsigned i = 0; i < TARGETS; i++)
        status |= statuses[i];
    return status;
}

static bool all_are_same(void)
{
    return run("for i in 0 1 2; do diff -r --no-dereference from to$i || exit 1; done; "
               "test -z \"$(find . -name '*rdcp-*')\"");
}

static void each_gets_everything(void)
{
    uint64_t kept, left_out;

    CHECK_IN(begin());
    CHECK_IN(preserve());
    CHECK_EQ(copy_to_all_well(), 0);
    CHECK_EQ(bytes_packed(&kept), 9);
    CHECK(all_are_same());
    CHECK_EQ(copy_to_all_well(), 0);
    CHECK_EQ(bytes_and_files_packed(&kept, &left_out), 0);
    CHECK_EQ(kept, 0);
    CHECK_EQ(left_out, 3);
    CHECK(all_are_same());
}

static void what_one_lacks_is_sent_to_all(void)
{
    uint64_t kept, left_out;

    CHECK_IN(begin());
    CHECK_IN(preserve());
    CHECK_EQ(copy_to_all_well(), 0);
    /* One target lacks a file, one has a different file, and one has a file with a different
     * mode. */
    CHECK(run("rm to0/one && echo xxx >to2/three && chmod 600 to1/dir/two"));
    CHECK_EQ(copy_to_all_well(), 0);
    CHECK_EQ(bytes_and_files_packed(&kept, &left_out), 6);
    CHECK_EQ(kept, 1);
    CHECK_EQ(left_out, 0);
    CHECK(all_are_same() && run("test $(stat -c %a to1/dir/two) = $(stat -c %a from/dir/two)"));
}

static void contents_are_compared(void)
{
    uint64_t kept;

    CHECK_IN(begin());
    CHECK_EQ(copy_to_all_well(), 0);
    CHECK_EQ(copy_to_all_well(), 0);
    CHECK_EQ(bytes_packed(&kept), 0);
    CHECK_EQ(kept, 3);
    CHECK(run("echo 9 >to1/one"));
    CHECK_EQ(copy_to_all_well(), 0);
    CHECK_EQ(bytes_packed(&kept), 2);
    CHECK_EQ(kept, 2);
    CHECK(all_are_same());
}

static void a_part_is_resumed_if_all_have_it(void)
{
    uint64_t kept;

    for (int all = 0; all < 2; all++) {
        CHECK_IN(begin());
        CHECK(run("rm -r from/dir from/three && head -c 100000 /dev/urandom >from/one && "
                  "mkdir to0 to1 to2"));
        CHECK(run("for i in 0 1 2; do head -c 40000 from/one >to$i/.one.rdcp-part; done; "
                  "chmod 600 to?/.one*"));
        CHECK(all || unlink("to1/.one.rdcp-part") == 0);
        CHECK_EQ(copy_to_all_well(), 0);
        CHECK_EQ(bytes_packed(&kept), all ? 60000 : 100000);
        CHECK(all_are_same());
    }
}

static void each_deletes_what_it_has(void)
{
    CHECK_IN(begin());
    CHECK_EQ(copy_to_all_well(), 0);
    CHECK(run("touch to0/a to1/b to1/c to2/a && mkfifo from/b && mkdir to2/b"));
    source.deletes = true;
    for (unsigned i = 0; i < TARGETS; i++)
        target[i].deletes = true;
    target[1].deletes_max = 0; /* a limit for this target only */
    CHECK(copy_to_all_well() != 0);
    CHECK(!is_there("to0/a") && is_there("to1/c") && !is_there("to2/a"));
    CHECK(is_there("to1/b") && is_there("to2/b")); /* the source has something of this name */
    target[1].deletes_max = 1;
    CHECK_EQ(copy_to_all_well(), 0);
    CHECK(!is_there("to1/c") && is_there("to1/b"));
}

static void a_target_that_fails_does_not_stop_the_others(void)
{
    int statuses[TARGETS];

    CHECK_IN(begin());
    CHECK(run("echo file >to1"));
    CHECK_EQ(copy_to_all(statuses), 0);
    CHECK(statuses[0] == 0 && statuses[1] != 0 && statuses[2] == 0);
    CHECK(holds("to1", "file\n") && run("diff -r from to0 && diff -r from to2"));
    /* A target that has a directory in place of a file does not stop the others either. */
    CHECK(run("rm to1 && mkdir -p to1/one"));
    CHECK_EQ(copy_to_all(statuses), 0);
    CHECK(statuses[0] == 0 && statuses[1] != 0 && statuses[2] == 0);
    CHECK(holds("to1/three", "333\n") && is_there("to1/one"));
}

/* A target can request deletions only for itself. A request for another target is ignored or
 * rejected. */
static void a_target_that_lies(void)
{
    static const rd_item_t items[] = {
        {.kind = RD_ITEM_START, .mode = RD_ITEM_VERSION},
        {.kind = RD_ITEM_DIR, .mode = 0755},
        {.kind = RD_ITEM_DELETE, .path = "mine", .mode = S_IFREG, .size = 1},
        {.kind = RD_ITEM_LEAVE, .mode = 0755},
        {.kind = RD_ITEM_END}};

    CHECK_IN(begin());
    CHECK(run("mkdir to1 to2 && touch to1/mine to2/mine"));
    target[1].deletes = target[2].deletes = true;
    put_items(items, 5);
    CHECK(rename(PACKED, LISTED) == 0);
    CHECK_EQ(have(&target[1]), RD_COPY_FAILED); /* an earlier part must not send this request */
    put_items(items, 5);
    CHECK_EQ(unpack(&target[2]), 0);
    CHECK(is_there("to1/mine") && is_there("to2/mine"));
}

static const check_case_t cases[] = {
    {"each gets everything", each_gets_everything},
    {"what one lacks is sent to all", what_one_lacks_is_sent_to_all},
    {"contents are compared", contents_are_compared},
    {"a part is resumed if all have it", a_part_is_resumed_if_all_have_it},
    {"each deletes what it has", each_deletes_what_it_has},
    {"a target that fails does not stop the others", a_target_that_fails_does_not_stop_the_others},
    {"a target that lies", a_target_that_lies},
};

COPIES_MAIN(cases)
