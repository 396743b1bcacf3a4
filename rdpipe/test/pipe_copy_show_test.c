/* SPDX-License-Identifier: Apache-2.0 */
/* Tests a dry run: what it shows, and that it changes nothing. */
#include "pipe_copies.h"

static rd_copy_t source, target;

static void begin(void)
{
    CHECK_IN(fresh());
    source = copy_of("from");
    target = copy_of("to");
    source.dry_run = target.dry_run = target.no_directory = true;
    source.deletes_max = target.deletes_max = 100;
}

static int dry_run(void)
{
    int own = begin_hearing();
    int statuses[4] = {list(&source), have(&target), pack(&source), show(&target)};

    end_hearing(own);
    return status_of(statuses);
}

static bool is_shown(const char *lines)
{
    const char *got = text_of("shown");

    if (strcmp(got, lines) != 0)
        (void)fprintf(stderr, "shown:\n%s", got);
    return strcmp(got, lines) == 0;
}

static void what_is_new_changed_and_deleted(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from/new from/dir to/dir to/old && echo 1 >from/new/one && "
              "echo same | tee from/same >to/same && echo 22 >from/longer && echo 2 >to/longer && "
              "echo aa >from/other && echo bb >to/other && ln -s a from/link && "
              "ln -s a from/kept && ln -s a to/kept && ln -s b to/link && echo 3 >to/old/three && "
              "ln -s nowhere to/dir/x && ln -s y to/file && echo file >from/file && "
              "echo 1 >from/'a\nb'"));
    source.deletes = target.deletes = true;
    CHECK_IN(note_state());
    CHECK_EQ(dry_run(), 0);
    CHECK(is_shown("new a\\x0ab (2 bytes)\n"
                   "changed file (was a symbolic link)\n"
                   "changed link (symbolic link to a, was to b)\n"
                   "changed longer (size 2 to 3)\n"
                   "new new/ (directory)\n"
                   "new new/one (2 bytes)\n"
                   "changed other (content)\n"
                   "deleted dir/x (not at the source)\n"
                   "deleted old/three (not at the source)\n"
                   "deleted old/ (not at the source)\n"));
    CHECK(is_state_unchanged());
    /* After the copy is done, nothing is left to do. */
    source.dry_run = target.dry_run = false;
    CHECK_EQ(copy_all(source, target), 0);
    CHECK(run("diff -r --no-dereference from to"));
    source.dry_run = target.dry_run = true;
    CHECK_EQ(dry_run(), 0);
    CHECK(is_shown(""));
}

static void what_p_would_set(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from/dir to/dir && echo 1 | tee from/a from/b from/c to/a to/b >to/c && "
              "chmod 755 from from/dir to && chmod 700 to/dir && chmod 644 from/* && "
              "chmod 755 from/dir && chmod 600 to/a && chmod 644 to/b to/c && "
              "touch -d 2001-02-03 from/* to/* from to && touch -d 2002-02-03 to/b"));
    source.preserve = target.preserve = true;
    CHECK_IN(note_state());
    CHECK_EQ(dry_run(), 0);
    CHECK(is_shown("changed a (mode 600 to 644)\n"
                   "changed b (time)\n"
                   "changed dir/ (mode 700 to 755)\n"));
    CHECK(is_state_unchanged());
    source.preserve = target.preserve = false;
    CHECK_EQ(dry_run(), 0);
    CHECK(is_shown(""));
}

static void a_file_and_a_new_tree(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from/dir && echo 1 >from/dir/one"));
    CHECK_EQ(dry_run(), 0);
    CHECK(is_shown("new ./ (directory)\nnew dir/ (directory)\nnew dir/one (2 bytes)\n"));
    CHECK(!is_there("to") && !is_there(".to.rdcp-part"));
    /* Copy into a directory that contains a partial copy. */
    CHECK(run("mkdir -p to/.from.rdcp-part/dir && chmod 700 to/.from.rdcp-part && "
              "echo long >from/dir/two && printf lo >to/.from.rdcp-part/dir/.two.rdcp-part && "
              "chmod 600 to/.from.rdcp-part/dir/.two.rdcp-part"));
    target.no_directory = false;
    target.name = "from";
    CHECK_IN(note_state());
    CHECK_EQ(dry_run(), 0);
    CHECK(is_shown("new from/ (directory, partly copied already)\n"
                   "new from/dir/one (2 bytes)\n"
                   "new from/dir/two (2 of 5 bytes already copied)\n"));
    CHECK(is_state_unchanged());
    /* A single file, as JSON. */
    source.path = "from/dir/one";
    target.name = "one";
    target.json = true;
    CHECK_EQ(dry_run(), 0);
    CHECK(is_shown("{\"change\": \"new\", \"path\": \"one\", \"is_directory\": false, "
                   "\"why\": \"2 bytes\"}\n"));
}

/* A useless part stays, although a copy would remove it. */
static void a_stale_part_stays(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir from to && echo 1 | tee from/one >to/one && touch -r from/one to/one && "
              "echo 1 >to/.one.rdcp-part && chmod 600 to/.one.rdcp-part"));
    CHECK_IN(note_state());
    CHECK_EQ(dry_run(), 0);
    source.preserve = target.preserve = true;
    CHECK_EQ(dry_run(), 0);
    CHECK(is_state_unchanged());
}

static void hard_links(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir from to && echo 1 >from/a && ln from/a from/b && ln from/a from/c && "
              "cp from/a to/a && ln to/a to/b && cp from/a to/c"));
    source.hard_links = target.hard_links = true;
    CHECK_EQ(dry_run(), 0);
    CHECK(is_shown("changed c (hard link to a)\n"));
}

/* If the copy would fail, so does the dry run, which then shows no deletions. */
static void what_cannot_be_done(void)
{
    CHECK_IN(begin());
    CHECK(run("mkdir -p from/a to/b && touch from/b from/fifo to/a to/old && mkfifo to/fifo"));
    source.deletes = target.deletes = true;
    CHECK_IN(note_state());
    CHECK_EQ(dry_run(), RD_COPY_FAILED);
    CHECK(was_said("to/a: already exists and is not a directory") &&
          was_said("to/b: Is a directory") &&
          was_said("to/fifo: is a FIFO, which rdcp does not replace"));
    CHECK(was_said("nothing is deleted, because the copy is incomplete"));
    CHECK(is_shown("") && is_state_unchanged());
    CHECK(run("rm -r to/* from && mkdir from && touch to/a to/b"));
    target.deletes_max = source.deletes_max = 1;
    CHECK_EQ(dry_run(), RD_COPY_FAILED);
    CHECK(was_said("nothing is deleted, because more than 1 files") && is_shown(""));
}

static void a_peer_that_sends_content(void)
{
    static const rd_item_t items[] = {{.kind = RD_ITEM_DIR, .mode = 0755},
                                      {.kind = RD_ITEM_FILE, .path = "a", .mode = 0644},
                                      {.kind = RD_ITEM_CLOSE, .has = RD_HAS_ALL},
                                      {.kind = RD_ITEM_END}};
    static const rd_item_t unasked[] = {{.kind = RD_ITEM_DIR, .mode = 0755},
                                        {.kind = RD_ITEM_DELETE, .path = "a", .mode = S_IFREG},
                                        {.kind = RD_ITEM_END}};
    int own;

    CHECK_IN(begin());
    own = begin_hearing();
    put_items(items, 4);
    CHECK_EQ(show(&target), RD_COPY_FAILED);
    end_hearing(own);
    CHECK(was_said("the other side sent file content in a dry run"));
    put_items(unasked, 3);
    CHECK_EQ(show(&target), RD_COPY_FAILED);
    CHECK(!is_there("to"));
}

static const check_case_t cases[] = {
    {"what is new, changed and deleted", what_is_new_changed_and_deleted},
    {"what -p would set", what_p_would_set},
    {"a file and a new tree", a_file_and_a_new_tree},
    {"a stale part stays", a_stale_part_stays},
    {"hard links", hard_links},
    {"what cannot be done", what_cannot_be_done},
    {"a peer that sends content", a_peer_that_sends_content},
};

COPIES_MAIN(cases)
