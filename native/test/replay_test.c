/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that the replay of a corpus (../fuzz/replay.c) fails if an input fails, and that it names
 * the input.
 */
#define main replay_main
#include "../fuzz/replay.c"
#undef main

#include "check.h"
#include "said.h"

#include <signal.h>
#include <sys/stat.h>

/* A fuzz target that fails in a different way for each of several inputs. */
int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    if (size == 5 && memcmp(input, "abort", 5) == 0)
        abort();
    if (size == 5 && memcmp(input, "crash", 5) == 0)
        raise(SIGSEGV);
    if (size == 4 && memcmp(input, "exit", 4) == 0)
        exit(7);
    while (size == 4 && memcmp(input, "hang", 4) == 0)
        pause();
    return 0;
}

static void write_input(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    CHECK(file);
    CHECK(fputs(text, file) >= 0);
    CHECK_EQ(fclose(file), 0);
}

static int replay_two(const void *nothing)
{
    char *argv[] = {"replay", "named", "reached", NULL};

    (void)nothing;
    (void)signal(SIGALRM, SIG_DFL);
    replay_seconds = 1;
    return replay_main(3, argv);
}

/* Replays three inputs in a new directory; the second one contains this text (or is missing). */
static void replays(const char *text, int wanted_status, const char *wanted)
{
    char scratch[] = "/tmp/replay_test.XXXXXX", remove[64];
    int status;

    CHECK(mkdtemp(scratch) && chdir(scratch) == 0);
    CHECK_EQ(mkdir("named", 0700), 0);
    CHECK_EQ(mkdir("reached", 0700), 0);
    if (text) {
        CHECK_IN(write_input("named/a", "good"));
        CHECK_IN(write_input("reached/b", text));
        CHECK_IN(write_input("reached/c", ""));
    }
    status = status_of(replay_two, NULL);
    CHECK_EQ(chdir("/"), 0);
    snprintf(remove, sizeof remove, "rm -r '%s'", scratch);
    CHECK_EQ(system(remove), 0);
    CHECK(says(wanted));
    CHECK_EQ(status, wanted_status);
}

static void all_inputs_are_one_case(void)
{
    CHECK_IN(replays("good", 0, "ok   3 inputs\n1 passed, 0 failed, 0 skipped\n"));
}

static void a_check_that_fails(void)
{
    CHECK_IN(replays("abort", 1, "FAIL reached/b: Aborted\n0 passed, 1 failed, 0 skipped\n"));
}

static void a_crash(void)
{
    CHECK_IN(replays("crash", 1, "FAIL reached/b: "));
}

static void an_exit(void)
{
    CHECK_IN(replays("exit", 1, "FAIL reached/b: status 7\n"));
}

static void a_call_that_does_not_end(void)
{
    CHECK_IN(replays("hang", 1, "FAIL reached/b: Alarm clock\n"));
}

static void no_inputs(void)
{
    CHECK_IN(replays(NULL, 1, "FAIL named: no inputs\n"));
}

static const check_case_t cases[] = {
    {"all_inputs_are_one_case", all_inputs_are_one_case},
    {"a_check_that_fails", a_check_that_fails},
    {"a_crash", a_crash},
    {"an_exit", an_exit},
    {"a_call_that_does_not_end", a_call_that_does_not_end},
    {"no_inputs", no_inputs},
};

CHECK_MAIN(cases)
