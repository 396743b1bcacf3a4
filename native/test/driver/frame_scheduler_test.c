/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests the frame scheduler: which frames may overtake which others, its turns and limits, and how
 * it reads frames. The last cases run random schedules, which the oracles of frame_model.h check.
 * test/frames contains frames that were recorded from real nodes.
 */
#include "../check.h"

#include "frame_model.h"

enum { A, B, C, D }; /* the processes */
enum { NO_ATOM = -1 };
#define FRAGMENT_BYTES (64 * 1024)

static bw_scheduler_t scheduler;
static model_cache_t cache;
static uint64_t small_bytes; /* size with which an unfragmented frame is queued */

static void begin(void)
{
    bw_scheduler_init(&scheduler, BW_SCHEDULER_SENDER_BYTES);
    cache = (model_cache_t){0};
    small_bytes = 100;
}

static void give(char tag, model_writer_t *writer, uint64_t bytes)
{
    bw_scheduled_t *frame = malloc(sizeof *frame);
    struct iovec iov = {writer->bytes, writer->len};

    frame->user = (void *)(uintptr_t)tag;
    if (!bw_scheduler_put(&scheduler, frame, &iov, 1, bytes))
        abort();
}

static void give_signal(char tag, unsigned process, size_t kind, unsigned fragments, int atom)
{
    model_writer_t writer = {0};

    if (atom != NO_ATOM)
        model_use_atom(&writer, (unsigned)atom);
    model_put(&writer, 131, 1);
    model_put(&writer, fragments > 0 ? 69 : 68, 1);
    if (fragments > 0) {
        model_put(&writer, model_word(process), 8);
        model_put(&writer, fragments, 8);
    }
    (void)model_put_references(&writer, &cache);
    model_put_control(&writer, kind, process, 0);
    give(tag, &writer, fragments > 0 ? FRAGMENT_BYTES : small_bytes);
}

/* Queues a signal that fits in one frame. The first use of an atom creates a new cache entry. */
static void whole(char tag, unsigned process, int atom)
{
    give_signal(tag, process, MODEL_SEND, 0, atom);
}

/* Queues a signal whose sender cannot be determined. */
static void nameless(char tag)
{
    give_signal(tag, A, 1, 0, NO_ATOM);
}

static void first(char tag, unsigned process, unsigned fragments)
{
    give_signal(tag, process, MODEL_SEND, fragments, NO_ATOM);
}

static void rest(char tag, unsigned process, unsigned fragment)
{
    model_writer_t writer = {0};

    model_put(&writer, 131, 1);
    model_put(&writer, 70, 1);
    model_put(&writer, model_word(process), 8);
    model_put(&writer, fragment, 8);
    give(tag, &writer, FRAGMENT_BYTES);
}

/* Queues the first of `fragments` fragments. The continuations get the same tag in lower case. */
static void large(char tag, unsigned process, unsigned fragments)
{
    first(tag, process, fragments);
    while (--fragments > 0)
        rest((char)(tag + 'a' - 'A'), process, fragments);
}

static char take(void)
{
    bw_scheduled_t *frame = bw_scheduler_take(&scheduler);
    char tag = frame ? (char)(uintptr_t)frame->user : 0;

    free(frame);
    return tag;
}

/* Takes all frames and returns their tags in order. */
static const char *order(void)
{
    static char tags[1024];
    size_t n = 0;

    while ((tags[n] = take()))
        n++;
    return tags;
}

static void drain(void)
{
    while (take())
        ;
}

/* Takes all frames and checks that nothing is left. */
#define CHECK_ORDER(wanted)                                                                        \
    do {                                                                                           \
        const char *tags_ = order();                                                               \
        if (strcmp(tags_, wanted) != 0) {                                                          \
            check_failed = 1;                                                                      \
            printf("FAIL %s: %s:%d: order %s, expected %s\n", check_name, __FILE__, __LINE__,      \
                   tags_, wanted);                                                                 \
            return;                                                                                \
        }                                                                                          \
        CHECK_EQ(scheduler.counts.bytes, 0);                                                       \
        CHECK_EQ(scheduler.counts.ready_bytes, 0);                                                 \
        CHECK_EQ(scheduler.by_pid.count, 0);                                                       \
        bw_scheduler_end(&scheduler);                                                              \
    } while (0)

/* ---- overtaking ---- */

static void others_pass_fragments(void)
{
    begin();
    large('A', A, 4);
    whole('1', B, NO_ATOM);
    whole('2', C, NO_ATOM);
    CHECK_ORDER("A12aaa");
}

static void own_frames_wait_and_others_pass_them(void)
{
    begin();
    large('A', A, 4);
    whole('1', A, NO_ATOM);
    whole('2', B, NO_ATOM);
    whole('3', A, NO_ATOM);
    CHECK_ORDER("A2aaa13");
}

static void a_second_message_follows_the_first(void)
{
    begin();
    large('A', A, 3);
    large('X', A, 3);
    whole('1', A, NO_ATOM);
    CHECK_ORDER("AaaXxx1");
}

static void the_shortest_message_goes_first(void)
{
    begin();
    large('A', A, 4);
    large('B', B, 3);
    large('C', C, 2);
    CHECK_ORDER("ABCcbbaaa");
    /* Only the fragments that have not been sent count. If two messages have the same number of
     * these, the older one goes first. */
    begin();
    large('A', A, 5);
    large('D', D, 3);
    for (const char *tag = "ADdd"; *tag; tag++)
        CHECK_EQ(take(), *tag);
    for (const char *tag = "aa"; *tag; tag++)
        CHECK_EQ(take(), *tag);
    large('B', B, 4);
    large('C', C, 3);
    CHECK_ORDER("BCaaccbbb");
}

/* Once 256 KB of shorter messages have overtaken it, the message that has waited longest gets its
 * turn. */
static void a_longer_message_is_not_passed_for_ever(void)
{
    unsigned passed = 0;
    char last = 'b';

    begin();
    large('A', A, 50);
    large('B', B, 60);
    for (int turns = 0, rounds = 0; turns < 20; rounds++) {
        char tag;

        CHECK(rounds < 100);
        large('C', C, 2);
        while ((tag = take()) != 'c') {
            if (tag == 'C' || tag == 'A' || tag == 'B')
                continue;
            CHECK_EQ(passed, 4);
            CHECK(tag != last);
            last = tag;
            passed = 0;
            turns++;
        }
        passed++;
    }
    drain();
    bw_scheduler_end(&scheduler);
}

static void frames_keep_their_order_when_nobody_has_fragments(void)
{
    begin();
    for (char tag = 'a'; tag <= 'z'; tag++)
        whole(tag, (unsigned)tag % 5, tag % 3 ? NO_ATOM : tag % 8);
    CHECK_ORDER("abcdefghijklmnopqrstuvwxyz");
}

static void nobody_passes_a_new_cache_entry(void)
{
    begin();
    large('A', A, 3);
    whole('1', A, 1); /* waits for its sender's fragments and has a new entry */
    whole('2', B, 1); /* may need that entry */
    CHECK_ORDER("Aaa12");
}

static void a_new_cache_entry_passes_nobody(void)
{
    begin();
    whole('0', B, 1);
    large('A', A, 3);
    whole('1', A, 1); /* needs the entry of slot 1 */
    whole('2', B, 6); /* puts a different atom into that slot */
    whole('3', C, NO_ATOM);
    CHECK_ORDER("0Aaa123");
}

static void an_old_cache_entry_passes(void)
{
    begin();
    whole('0', B, 1);
    large('A', A, 3);
    whole('1', A, 1);
    whole('2', B, 1);
    CHECK_ORDER("0A2aa1");
}

/* The frames behind the obstacle then wait for one sender only, not for all of them. */
static void an_obstacle_is_cleared_first(void)
{
    begin();
    large('D', D, 9);
    large('A', A, 3);
    whole('1', A, 1);
    whole('2', B, 2);
    CHECK_ORDER("DAaa12dddddddd");
}

static void nobody_passes_an_unread_sender(void)
{
    begin();
    large('A', A, 3);
    whole('1', B, NO_ATOM);
    nameless('2');
    whole('3', C, NO_ATOM);
    rest('x', A, 1); /* belongs to no sequence, so its sender cannot be determined either */
    whole('4', C, NO_ATOM);
    CHECK_ORDER("A1aa23x4");
}

static void an_unread_sender_of_fragments_keeps_them_in_place(void)
{
    begin();
    large('A', A, 3);
    /* a large exit reason from a process known by name */
    give_signal('Z', B, 25, 3, NO_ATOM);
    rest('z', B, 2);
    whole('1', C, NO_ATOM);
    rest('z', B, 1);
    whole('2', C, NO_ATOM);
    CHECK_ORDER("AaaZz1z2");
}

static void what_no_node_writes_keeps_its_place(void)
{
    static const char *strange[] = {"\x70\x83h", "\x83G", "\x83",
                                    "\x83"
                                    "D\x05",
                                    "\x83"
                                    "F1234567"};

    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        model_writer_t writer = {.len = strlen(strange[i])};

        memcpy(writer.bytes, strange[i], writer.len);
        begin();
        large('A', A, 3);
        give('?', &writer, writer.len);
        whole('1', B, NO_ATOM);
        CHECK_ORDER("Aaa?1");
    }
}

/* For example, a process may answer UNLINK_ID while it sends a large message. */
static void what_a_sender_says_between_fragments_stays_there(void)
{
    begin();
    first('A', A, 4);
    rest('a', A, 3);
    whole('1', A, NO_ATOM);
    rest('a', A, 2);
    rest('a', A, 1);
    whole('2', B, NO_ATOM);
    CHECK_ORDER("A2a1aa");
    /* Such a signal counts as part of the unfinished message, and no sender is held because of an
     * unfinished message. */
    begin();
    first('A', A, 100);
    rest('a', A, 99);
    whole('1', A, NO_ATOM);
    for (unsigned fragment = 98; fragment > 0; fragment--)
        rest('a', A, fragment);
    CHECK_EQ(scheduler.counts.held, 0);
    CHECK_EQ(strlen(order()), 101);
    bw_scheduler_end(&scheduler);
}

/* ERTS sends a single fragment if it expected to need several but did not need them in the end. */
static void a_first_fragment_may_be_the_last(void)
{
    begin();
    first('A', A, 1);
    whole('1', A, NO_ATOM);
    CHECK_EQ(scheduler.by_pid.count, 1);
    CHECK_ORDER("A1");
}

static void a_sequence_that_begins_anew_is_the_new_one(void)
{
    begin();
    first('A', A, 9);
    rest('a', A, 8);
    first('X', A, 3);
    rest('x', A, 2);
    rest('x', A, 1);
    CHECK_ORDER("AaXxx");
}

/* A process may reuse the sequence ID of one that has exited. */
static void a_sequence_that_another_begins_is_its_own(void)
{
    model_writer_t writer = {0};

    begin();
    first('A', A, 9);
    rest('a', A, 8);
    model_put(&writer, 131, 1);
    model_put(&writer, 69, 1);
    model_put(&writer, model_word(A), 8);
    model_put(&writer, 3, 8);
    model_put(&writer, 0, 1);
    model_put_control(&writer, MODEL_SEND, B, 0);
    give('B', &writer, FRAGMENT_BYTES);
    rest('b', A, 2);
    rest('b', A, 1);
    whole('2', B, NO_ATOM);
    whole('1', A, NO_ATOM);
    CHECK_EQ(scheduler.by_pid.count, 2);
    CHECK_ORDER("ABbb2a1");
}

static void a_tick_waits_for_nobody(void)
{
    model_writer_t writer = {0};

    begin();
    large('A', A, 3);
    whole('1', A, 1);
    give('.', &writer, 0);
    CHECK_EQ(take(), 'A');
    whole('2', B, NO_ATOM);
    CHECK_ORDER("aa1.2"); /* it follows a new entry, as any frame may; the next one does not: */
    begin();
    large('A', A, 3);
    whole('1', A, NO_ATOM);
    give('.', &writer, 0);
    CHECK_ORDER("A.aa1");
}

static void fragments_have_their_turn_beside_endless_frames(void)
{
    int frames = 0;

    begin();
    small_bytes = 1000;
    large('A', A, 4);
    CHECK_EQ(take(), 'A');
    for (int turn = 0; turn < 3; turn++) {
        for (frames = 0; frames < 1000; frames++) {
            whole('1', B, NO_ATOM);
            if (take() == 'a')
                break;
        }
        CHECK(frames > 200 && frames < 300);
        CHECK_EQ(take(), '1');
    }
    CHECK_ORDER("");
}

/* ---- classes ---- */

static uint64_t key(unsigned process)
{
    return (uint64_t)(process % 2) << 32 | (100 + process / 2);
}

static void give_class(unsigned process, bw_class_t class)
{
    if (!bw_scheduler_set_class(&scheduler, key(process), class))
        abort();
}

/* A has class control, B normal, C bulk. */
static void begin_with_classes(void)
{
    begin();
    give_class(A, BW_CLASS_CONTROL);
    give_class(C, BW_CLASS_BULK);
}

/* Once no process has a class, the scheduler must not have a record of any process. */
static void end_classes(void)
{
    give_class(A, BW_CLASS_NORMAL);
    give_class(C, BW_CLASS_NORMAL);
    CHECK_EQ(scheduler.by_pid.count, 0);
    CHECK_EQ(scheduler.classed, 0);
    bw_scheduler_end(&scheduler);
}

#define CHECK_CLASSES(wanted)                                                                      \
    do {                                                                                           \
        CHECK_EQ(strcmp(order(), wanted), 0);                                                      \
        CHECK_EQ(scheduler.counts.bytes + scheduler.counts.ready_bytes, 0);                        \
        CHECK_IN(end_classes());                                                                   \
    } while (0)

static void classes_go_in_their_order(void)
{
    CHECK_IN(begin_with_classes());
    whole('3', C, NO_ATOM);
    whole('2', B, NO_ATOM);
    whole('1', A, NO_ATOM);
    whole('4', C, NO_ATOM);
    whole('2', D, NO_ATOM);
    whole('1', A, NO_ATOM);
    CHECK_CLASSES("112234");
}

/* A small frame even passes large messages of a higher class. */
static void a_small_frame_passes_large_ones_of_any_class(void)
{
    CHECK_IN(begin_with_classes());
    large('A', A, 3);
    large('B', B, 3);
    whole('3', C, NO_ATOM);
    whole('2', D, NO_ATOM);
    CHECK_CLASSES("AB23aabb");
}

static void each_class_has_its_share(void)
{
    unsigned counts[3] = {0};

    CHECK_IN(begin_with_classes());
    small_bytes = 1024;
    for (int i = 0; i < 4000; i++) {
        whole('3', C, NO_ATOM);
        whole('2', B, NO_ATOM);
        whole('1', A, NO_ATOM);
    }
    for (int round = 1; round <= 4; round++) {
        for (int i = 0; i < 7 * 64; i++)
            counts[take() - '1']++;
        CHECK(counts[0] == round * 256u && counts[1] == round * 128u && counts[2] == round * 64u);
    }
    drain();
    CHECK_IN(end_classes());
}

/* Large messages get their share even during a flood of small frames of the highest class. */
static void large_messages_have_their_share_too(void)
{
    uint64_t small = 0, large_ones = 0;

    CHECK_IN(begin_with_classes());
    small_bytes = 1024;
    large('B', B, 40);
    large('C', C, 40);
    for (int i = 0; i < 5000; i++) {
        whole('1', A, NO_ATOM);
        if (take() == '1')
            small += 1024;
        else
            large_ones += FRAGMENT_BYTES;
    }
    CHECK(large_ones * 4 > small * 3 - 1024 * 1024);
    CHECK(large_ones * 4 < small * 3 + 1024 * 1024);
    drain();
    CHECK_IN(end_classes());
}

static void large_messages_go_by_class(void)
{
    CHECK_IN(begin_with_classes());
    large('C', C, 3);
    large('B', B, 5);
    large('A', A, 9);
    CHECK_CLASSES("ABCaaabaaaabbcabc");
}

/* The class applies to all queued frames of the process, so they keep their order. */
static void who_changes_its_class_takes_its_frames_along(void)
{
    CHECK_IN(begin_with_classes());
    whole('1', B, NO_ATOM);
    whole('2', B, NO_ATOM);
    whole('d', D, NO_ATOM);
    give_class(B, BW_CLASS_BULK);
    whole('3', B, NO_ATOM);
    whole('e', D, NO_ATOM);
    CHECK_EQ(take(), 'd');
    give_class(B, BW_CLASS_CONTROL);
    whole('4', B, NO_ATOM);
    whole('a', A, NO_ATOM);
    CHECK_EQ(scheduler.counts.ready_bytes, 600);
    CHECK_EQ(take(), '1');
    give_class(B, BW_CLASS_NORMAL);
    whole('5', B, NO_ATOM);
    CHECK_CLASSES("a23e45");
    /* This includes fragments and the frames that are queued behind them. */
    CHECK_IN(begin_with_classes());
    large('B', B, 3);
    large('D', D, 4);
    whole('1', B, NO_ATOM);
    CHECK_EQ(take(), 'B');
    CHECK_EQ(take(), 'D');
    give_class(B, BW_CLASS_BULK);
    CHECK_EQ(take(), 'b'); /* normal has used up its share of the round */
    CHECK_EQ(take(), 'd');
    give_class(B, BW_CLASS_CONTROL);
    give_class(B, BW_CLASS_BULK);
    whole('2', B, NO_ATOM);
    CHECK_EQ(take(), 'd');
    give_class(B, BW_CLASS_NORMAL);
    CHECK_CLASSES("b12d");
}

static void a_class_passes_no_barrier(void)
{
    CHECK_IN(begin_with_classes());
    whole('3', C, NO_ATOM);
    nameless('!');
    whole('4', C, NO_ATOM);
    whole('2', B, NO_ATOM);
    whole('1', A, NO_ATOM);
    give_class(B, BW_CLASS_CONTROL);
    give_class(C, BW_CLASS_CONTROL);
    give_class(C, BW_CLASS_BULK);
    CHECK_EQ(take(), '3');
    CHECK_EQ(take(), '!');
    give_class(A, BW_CLASS_BULK);
    give_class(B, BW_CLASS_NORMAL);
    CHECK_CLASSES("241");
}

static void a_class_passes_no_new_cache_entry(void)
{
    CHECK_IN(begin_with_classes());
    whole('0', D, 1);
    large('D', D, 3);
    whole('3', D, NO_ATOM);
    whole('4', C, 2); /* a new entry */
    whole('2', B, NO_ATOM);
    whole('1', A, NO_ATOM); /* may need it */
    CHECK_CLASSES("0Ddd3412");
    CHECK_IN(begin_with_classes());
    whole('0', D, 1);
    whole('3', C, NO_ATOM);
    whole('2', B, 1); /* needs the old entry */
    whole('1', A, 6); /* puts a different atom into its slot */
    CHECK_CLASSES("0321");
}

/* A sender with a class is suspended, asked about and forgotten like any other. */
static void a_sender_with_a_class_has_the_same_limit(void)
{
    bw_sender_change_t change;

    CHECK_IN(begin_with_classes());
    for (int again = 0; again < 2; again++) {
        large('C', C, 2);
        large('X', C, 20);
        CHECK(bw_scheduler_next_change(&scheduler, &change));
        CHECK(change.state == BW_SENDER_ASKED && change.patience == 1);
        CHECK(!bw_scheduler_answer(&scheduler, change.key, BW_ANSWER_NOT_SUSPENDED));
        CHECK_EQ(strlen(order()), 22);
        CHECK(!bw_scheduler_next_change(&scheduler, &change));
    }
    CHECK_EQ(scheduler.by_pid.count, 2);
    CHECK_IN(end_classes());
}

/* ---- limits and counts ---- */

static bool next_is(unsigned process, bw_sender_state_t state)
{
    bw_sender_change_t change;

    return bw_scheduler_next_change(&scheduler, &change) && change.pid == model_word(process) &&
           change.state == state;
}

/* Expects the scheduler to ask about the sender because it exceeds its limit. Returns the key for
 * the answer, or 0. */
static uint64_t asked_about(unsigned process, unsigned patience)
{
    bw_sender_change_t change;

    return bw_scheduler_next_change(&scheduler, &change) && change.pid == model_word(process) &&
                   change.state == BW_SENDER_ASKED && change.patience == patience
               ? change.key
               : 0;
}

static bool is_held_when_asked(unsigned process)
{
    uint64_t key = asked_about(process, 1);

    return key != 0 && bw_scheduler_answer(&scheduler, key, BW_ANSWER_SUSPENDED) &&
           scheduler.counts.asked == 0;
}

static bool nothing_changed(void)
{
    bw_sender_change_t change;

    return !bw_scheduler_next_change(&scheduler, &change);
}

static void one_message_holds_nobody(void)
{
    begin();
    large('A', A, 200);
    CHECK(nothing_changed());
    CHECK_EQ(scheduler.counts.bytes, 200 * FRAGMENT_BYTES);
    CHECK_EQ(scheduler.counts.continuation_bytes, 199 * FRAGMENT_BYTES);
    CHECK_EQ(scheduler.counts.ready_bytes, FRAGMENT_BYTES);
    CHECK_EQ(strlen(order()), 200);
    CHECK(nothing_changed());
    bw_scheduler_end(&scheduler);
}

static void who_sends_on_is_held_until_it_drains(void)
{
    begin();
    large('A', A, 40);
    large('B', B, 40);
    large('X', A, 16); /* 1 MB in addition to the unfinished message */
    CHECK(nothing_changed());
    whole('1', A, NO_ATOM);
    CHECK_EQ(scheduler.counts.asked, 1);
    CHECK(is_held_when_asked(A));
    CHECK_EQ(scheduler.counts.held, 1);
    CHECK(nothing_changed());
    whole('1', A, NO_ATOM);
    for (int left = 39; left > 0; left -= take() == 'a')
        CHECK(nothing_changed());
    /* The second message is now the unfinished one, and only 200 bytes follow it. */
    CHECK(next_is(A, BW_SENDER_FREE));
    CHECK(nothing_changed());
    CHECK_EQ(scheduler.counts.held, 0);
    (void)order();
    CHECK(nothing_changed());
    CHECK_EQ(scheduler.by_pid.count, 0);
    bw_scheduler_end(&scheduler);
}

static void who_drains_to_half_is_released(void)
{
    begin();
    small_bytes = 100 * 1024;
    large('A', A, 2);
    for (int i = 0; i < 11; i++)
        whole('1', A, NO_ATOM); /* each frame is a message */
    CHECK(is_held_when_asked(A));
    for (int left = 11; left > 6; left--) {
        CHECK(nothing_changed());
        while (take() != '1')
            ;
    }
    CHECK(next_is(A, BW_SENDER_FREE)); /* one is unfinished, and the five after it make 500 KB */
    CHECK_ORDER("111111");
}

static void a_change_that_nobody_has_read_is_no_news(void)
{
    begin();
    large('A', A, 2);
    large('X', A, 20);
    CHECK_EQ(scheduler.counts.asked, 1);
    CHECK_EQ(strlen(order()), 22);
    CHECK_EQ(scheduler.counts.asked, 0);
    CHECK_EQ(scheduler.by_pid.count, 1);
    CHECK(nothing_changed());
    CHECK_EQ(scheduler.by_pid.count, 0);
    bw_scheduler_end(&scheduler);
}

/* The sender's limit doubles, up to eight times the original. After that the question stays open
 * until half of the queue has been sent. */
static void who_is_not_suspended_goes_on(void)
{
    uint64_t key;

    begin();
    large('A', A, 2);
    for (unsigned patience = 1; patience < BW_SCHEDULER_PATIENCE; patience *= 2) {
        large('X', A, 16 * patience + 1);
        key = asked_about(A, patience);
        CHECK(key != 0);
        CHECK(!bw_scheduler_answer(&scheduler, key, BW_ANSWER_NOT_SUSPENDED));
        CHECK_EQ(scheduler.counts.asked, 0);
        CHECK(nothing_changed());
    }
    large('X', A, 16 * BW_SCHEDULER_PATIENCE);
    for (int again = 0; again < 3; again++) {
        key = asked_about(A, BW_SCHEDULER_PATIENCE);
        CHECK(key != 0);
        CHECK(!bw_scheduler_answer(&scheduler, key, BW_ANSWER_NOT_SUSPENDED));
        CHECK_EQ(scheduler.counts.asked, 1);
    }
    CHECK_EQ(scheduler.counts.held, 0);
    (void)order();
    CHECK_EQ(scheduler.counts.asked, 0);
    CHECK(nothing_changed());
    CHECK_EQ(scheduler.by_pid.count, 0);
    /* too late: the scheduler no longer knows the sender */
    CHECK(!bw_scheduler_answer(&scheduler, key, BW_ANSWER_SUSPENDED));
    bw_scheduler_end(&scheduler);
}

/* The frames of a process that has exited are still sent, and the scheduler does not ask about it
 * again. */
static void who_is_gone_has_no_limit(void)
{
    uint64_t key;

    begin();
    large('A', A, 2);
    large('X', A, 20);
    key = asked_about(A, 1);
    CHECK(key != 0);
    CHECK(!bw_scheduler_answer(&scheduler, key, BW_ANSWER_GONE));
    CHECK_EQ(scheduler.counts.asked, 0);
    CHECK(nothing_changed());
    (void)order();
    CHECK(nothing_changed());
    CHECK_EQ(scheduler.by_pid.count, 0);
    bw_scheduler_end(&scheduler);
}

/* The question stays open while the sender drains and fills the link again. */
static void a_question_is_asked_once(void)
{
    uint64_t key;

    begin();
    small_bytes = 100 * 1024;
    large('A', A, 2);
    for (int i = 0; i < 11; i++)
        whole('1', A, NO_ATOM);
    key = asked_about(A, 1);
    CHECK(key != 0);
    for (int left = 11; left > 6; left--)
        while (take() != '1')
            ;
    CHECK_EQ(scheduler.counts.asked, 0);
    CHECK(nothing_changed());
    for (int i = 0; i < 6; i++)
        whole('1', A, NO_ATOM);
    CHECK_EQ(scheduler.counts.asked, 1);
    CHECK(nothing_changed());
    CHECK(bw_scheduler_answer(&scheduler, key, BW_ANSWER_SUSPENDED));
    CHECK(nothing_changed());
    (void)order();
    CHECK(next_is(A, BW_SENDER_FREE));
    bw_scheduler_end(&scheduler);
}

/* A sender that was suspended before is not asked about again while it still has queued frames. */
static void who_was_suspended_is_held_at_once(void)
{
    begin();
    small_bytes = 100 * 1024;
    large('A', A, 2);
    for (int i = 0; i < 11; i++)
        whole('1', A, NO_ATOM);
    CHECK(is_held_when_asked(A));
    for (int left = 11; left > 6; left--)
        while (take() != '1')
            ;
    CHECK(next_is(A, BW_SENDER_FREE));
    for (int i = 0; i < 6; i++)
        whole('1', A, NO_ATOM);
    CHECK(next_is(A, BW_SENDER_HELD));
    (void)order();
    CHECK(next_is(A, BW_SENDER_FREE));
    CHECK_EQ(scheduler.by_pid.count, 0);
    bw_scheduler_end(&scheduler);
}

static void a_peer_that_takes_nothing_has_nobody_held(void)
{
    uint64_t key;

    begin();
    large('A', A, 2);
    large('X', A, 20);
    CHECK(is_held_when_asked(A));
    large('B', B, 2);
    large('Y', B, 20);
    key = asked_about(B, 1);
    CHECK(key != 0);
    bw_scheduler_hold_nobody(&scheduler, true);
    CHECK_EQ(scheduler.counts.held + scheduler.counts.asked, 0);
    CHECK(next_is(A, BW_SENDER_FREE));
    CHECK(nothing_changed());
    CHECK(!bw_scheduler_answer(&scheduler, key, BW_ANSWER_SUSPENDED));
    large('X', A, 20);
    CHECK(nothing_changed());
    bw_scheduler_hold_nobody(&scheduler, false);
    whole('1', A, NO_ATOM);
    CHECK(next_is(A, BW_SENDER_HELD));
    (void)order();
    CHECK(next_is(A, BW_SENDER_FREE));
    bw_scheduler_end(&scheduler);
}

static void behind_a_barrier_senders_are_held_too(void)
{
    begin();
    large('A', A, 2);
    nameless('0');
    large('B', B, 40);
    CHECK(is_held_when_asked(B));
    CHECK_EQ(take(), 'A');
    CHECK_EQ(take(), 'a');
    CHECK(nothing_changed());
    CHECK_EQ(take(), '0');
    CHECK(next_is(B, BW_SENDER_FREE));
    CHECK_EQ(strlen(order()), 40);
    CHECK(nothing_changed());
    bw_scheduler_end(&scheduler);
}

static void ready_frames_are_those_that_wait_for_room(void)
{
    begin();
    whole('1', B, NO_ATOM);
    large('A', A, 3);
    whole('2', A, NO_ATOM);
    whole('3', C, NO_ATOM);
    CHECK_EQ(scheduler.counts.ready_bytes, 200 + FRAGMENT_BYTES);
    nameless('4');
    whole('5', C, NO_ATOM);
    CHECK_EQ(scheduler.counts.ready_bytes, 400 + FRAGMENT_BYTES);
    CHECK_ORDER("1A3aa245");
}

static void ten_thousand_senders(void)
{
    enum { SENDERS = 10000, FRAGMENTS = 4 };
    unsigned firsts = 0, rests = 0;
    char tag;

    begin();
    for (unsigned process = 0; process < SENDERS; process++)
        large('A', process, FRAGMENTS);
    CHECK_EQ(scheduler.by_pid.count, SENDERS);
    while ((tag = take())) {
        firsts += tag == 'A';
        rests += tag == 'a';
    }
    CHECK_EQ(firsts, SENDERS);
    CHECK_EQ(rests, SENDERS * (FRAGMENTS - 1));
    CHECK_EQ(scheduler.by_pid.count, 0);
    CHECK(nothing_changed());
    bw_scheduler_end(&scheduler);
}

static void what_still_waits_at_the_end_is_not_lost(void)
{
    bw_scheduled_t frames[3];
    struct iovec iov;
    model_writer_t writer = {0};

    begin();
    first('A', A, 9);
    CHECK_EQ(take(), 'A');
    model_put(&writer, 131, 1);
    model_put(&writer, 70, 1);
    model_put(&writer, model_word(A), 8);
    model_put(&writer, 8, 8);
    iov = (struct iovec){writer.bytes, writer.len};
    for (int i = 0; i < 3; i++)
        CHECK(bw_scheduler_put(&scheduler, &frames[i], &iov, 1, 1));
    CHECK_EQ(bw_scheduler_take(&scheduler), (uintptr_t)&frames[0]);
    bw_scheduler_end(&scheduler); /* lets the leak check search for the sender */
    CHECK_EQ(scheduler.counts.frames, 0);
}

/* ---- reading ---- */

/* Reads from a copy of exactly this size, so that the address sanitizer detects reads past its
 * end. */
static bw_dist_frame_t read_exactly(const uint8_t *bytes, size_t len, size_t cut)
{
    uint8_t *left = malloc(cut + 1), *right = malloc(len - cut + 1);
    struct iovec iov[4] = {{NULL, 0}, {left + 1, cut}, {NULL, 0}, {right + 1, len - cut}};
    bw_dist_frame_t frame;

    memcpy(left + 1, bytes, cut);
    memcpy(right + 1, bytes + cut, len - cut);
    frame = bw_dist_frame_read(iov, 4);
    free(left);
    free(right);
    return frame;
}

static void control_messages(bool is_legacy, bool is_first, unsigned atoms)
{
    for (size_t kind = 0; kind < MODEL_SIGNALS; kind++) {
        model_writer_t writer = {.is_legacy = is_legacy};
        model_cache_t own = {{0}};
        bool renews, names = model_names_sender(kind);

        for (unsigned atom = 0; atom < atoms; atom++)
            model_use_atom(&writer, atom);
        model_put(&writer, 131, 1);
        model_put(&writer, is_first ? 69 : 68, 1);
        if (is_first) {
            model_put(&writer, model_word(3), 8);
            model_put(&writer, 77, 8);
        }
        renews = model_put_references(&writer, &own);
        model_put_control(&writer, kind, 3, 1);
        for (size_t cut = 0; cut <= writer.len; cut++) {
            bw_dist_frame_t frame = read_exactly(writer.bytes, writer.len, cut);

            CHECK_EQ(frame.kind, is_first ? BW_DIST_FIRST : BW_DIST_WHOLE);
            CHECK_EQ(frame.renews_cache, renews);
            CHECK_EQ(frame.has_sender, names);
            if (names)
                CHECK_EQ(frame.sender, 1ull << 32 | 101);
            CHECK_EQ(frame.sequence, is_first ? model_word(3) : 0);
            CHECK_EQ(frame.fragment, is_first ? 77 : 0);
            /* Reading a truncated frame must give the same result as far as it goes, or no
             * result. */
            frame = read_exactly(writer.bytes, cut, 0);
            if (frame.kind == BW_DIST_WHOLE || frame.kind == BW_DIST_FIRST)
                CHECK(frame.has_sender == names && (!names || frame.sender == (1ull << 32 | 101)));
            else
                CHECK_EQ(frame.kind, cut == 0 ? BW_DIST_TICK : BW_DIST_UNKNOWN);
        }
    }
}

static void every_control_message(void)
{
    for (unsigned atoms = 0; atoms <= MODEL_ATOMS; atoms += 4)
        for (int way = 0; way < 4; way++)
            CHECK_IN(control_messages(way & 1, way & 2, atoms));
}

/* Reads one line of test/frames, whose format is described in record.erl. Returns false if the
 * result differs from the recorded one. */
static bool read_recorded(const char *line, uint64_t *sequence, uint64_t *fragment)
{
    static char hex[16384];
    static uint8_t bytes[8192];
    unsigned operation, renews, number, serial;
    unsigned long length;
    char who[32];
    bw_dist_frame_t frame;
    bool names, is_good;
    size_t len;

    if (sscanf(line, "%u %31s %u %lu %16383s", &operation, who, &renews, &length, hex) != 5)
        return false;
    names = sscanf(who, "%u.%u", &number, &serial) == 2;
    len = strlen(hex) / 2;
    for (size_t i = 0; i < len; i++)
        sscanf(hex + 2 * i, "%2hhx", &bytes[i]);
    frame = read_exactly(bytes, len, len / 3);
    if (operation == 0) {
        is_good = frame.kind == BW_DIST_REST && frame.sequence == *sequence &&
                  frame.fragment == *fragment - 1;
        *fragment = frame.fragment;
        return is_good;
    }
    is_good = *fragment <= 1 && frame.renews_cache == renews && frame.has_sender == names &&
              (!names || frame.sender == ((uint64_t)serial << 32 | number)) &&
              frame.kind == (length > 65000 ? BW_DIST_FIRST : BW_DIST_WHOLE);
    if (frame.kind == BW_DIST_FIRST) {
        /* The VM's term for the sender; the lower half contains the pid's number and serial. */
        is_good =
            is_good && (!names || (uint32_t)frame.sequence == ((serial << 15 | number) << 4 | 3));
        *sequence = frame.sequence;
        *fragment = frame.fragment;
    }
    return is_good;
}

static void frames_of_real_nodes(void)
{
    static char line[32768];
    FILE *file = fopen("test/frames/otp25.txt", "r");
    uint64_t sequence = 0, fragment = 0;
    bool all_good = true;
    int lines = 0;

    CHECK(file != NULL);
    while (fgets(line, sizeof line, file)) {
        bool is_good = line[0] == '#' || read_recorded(line, &sequence, &fragment);

        lines++;
        if (!is_good)
            printf("line %d: %.60s\n", lines, line);
        all_good &= is_good;
    }
    fclose(file);
    CHECK(all_good);
    CHECK(lines > 100);
    CHECK_EQ(fragment, 1);
}

/* ---- random schedules ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t value = *state += 0x9E3779B97F4A7C15ull;

    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ value >> 27) * 0x94D049BB133111EBull;
    return value ^ value >> 31;
}

/* FRAME_SCHEDULES sets how many schedules are run. The model terminates the program if a schedule
 * violates a rule. */
static void random_schedules(void)
{
    const char *wanted = getenv("FRAME_SCHEDULES");
    int schedules = wanted ? atoi(wanted) : 1000;
    uint64_t overtaken = 0, holds = 0, shared = 0, shortened = 0;

    for (int seed = 0; seed < schedules; seed++) {
        static model_t model;
        uint64_t state = (uint64_t)seed;

        model_begin(&model);
        for (int step = 0; step < 400; step++) {
            uint64_t what = next_random(&state);

            model_step(&model, what, next_random(&state));
        }
        model_end(&model);
        overtaken += model.overtaken;
        holds += model.holds;
        shared += model.shared;
        shortened += model.shortened;
    }
    /* Make sure that the oracles had something to check. */
    CHECK(overtaken > (uint64_t)schedules * 100);
    CHECK(holds > (uint64_t)schedules);
    CHECK(shared > (uint64_t)schedules * 10);
    CHECK(shortened > (uint64_t)schedules * 10);
}

static const check_case_t cases[] = {
    {"others_pass_fragments", others_pass_fragments},
    {"own_frames_wait_and_others_pass_them", own_frames_wait_and_others_pass_them},
    {"a_second_message_follows_the_first", a_second_message_follows_the_first},
    {"the_shortest_message_goes_first", the_shortest_message_goes_first},
    {"a_longer_message_is_not_passed_for_ever", a_longer_message_is_not_passed_for_ever},
    {"frames_keep_their_order_when_nobody_has_fragments",
     frames_keep_their_order_when_nobody_has_fragments},
    {"nobody_passes_a_new_cache_entry", nobody_passes_a_new_cache_entry},
    {"a_new_cache_entry_passes_nobody", a_new_cache_entry_passes_nobody},
    {"an_old_cache_entry_passes", an_old_cache_entry_passes},
    {"an_obstacle_is_cleared_first", an_obstacle_is_cleared_first},
    {"nobody_passes_an_unread_sender", nobody_passes_an_unread_sender},
    {"an_unread_sender_of_fragments_keeps_them_in_place",
     an_unread_sender_of_fragments_keeps_them_in_place},
    {"what_no_node_writes_keeps_its_place", what_no_node_writes_keeps_its_place},
    {"what_a_sender_says_between_fragments_stays_there",
     what_a_sender_says_between_fragments_stays_there},
    {"a_first_fragment_may_be_the_last", a_first_fragment_may_be_the_last},
    {"a_sequence_that_begins_anew_is_the_new_one", a_sequence_that_begins_anew_is_the_new_one},
    {"a_sequence_that_another_begins_is_its_own", a_sequence_that_another_begins_is_its_own},
    {"a_tick_waits_for_nobody", a_tick_waits_for_nobody},
    {"fragments_have_their_turn_beside_endless_frames",
     fragments_have_their_turn_beside_endless_frames},
    {"classes_go_in_their_order", classes_go_in_their_order},
    {"a_small_frame_passes_large_ones_of_any_class", a_small_frame_passes_large_ones_of_any_class},
    {"each_class_has_its_share", each_class_has_its_share},
    {"large_messages_have_their_share_too", large_messages_have_their_share_too},
    {"large_messages_go_by_class", large_messages_go_by_class},
    {"who_changes_its_class_takes_its_frames_along", who_changes_its_class_takes_its_frames_along},
    {"a_class_passes_no_barrier", a_class_passes_no_barrier},
    {"a_class_passes_no_new_cache_entry", a_class_passes_no_new_cache_entry},
    {"a_sender_with_a_class_has_the_same_limit", a_sender_with_a_class_has_the_same_limit},
    {"one_message_holds_nobody", one_message_holds_nobody},
    {"who_sends_on_is_held_until_it_drains", who_sends_on_is_held_until_it_drains},
    {"who_drains_to_half_is_released", who_drains_to_half_is_released},
    {"a_change_that_nobody_has_read_is_no_news", a_change_that_nobody_has_read_is_no_news},
    {"who_is_not_suspended_goes_on", who_is_not_suspended_goes_on},
    {"who_is_gone_has_no_limit", who_is_gone_has_no_limit},
    {"a_question_is_asked_once", a_question_is_asked_once},
    {"who_was_suspended_is_held_at_once", who_was_suspended_is_held_at_once},
    {"a_peer_that_takes_nothing_has_nobody_held", a_peer_that_takes_nothing_has_nobody_held},
    {"behind_a_barrier_senders_are_held_too", behind_a_barrier_senders_are_held_too},
    {"ready_frames_are_those_that_wait_for_room", ready_frames_are_those_that_wait_for_room},
    {"ten_thousand_senders", ten_thousand_senders},
    {"what_still_waits_at_the_end_is_not_lost", what_still_waits_at_the_end_is_not_lost},
    {"every_control_message", every_control_message},
    {"frames_of_real_nodes", frames_of_real_nodes},
    {"random_schedules", random_schedules},
};

CHECK_MAIN(cases)
