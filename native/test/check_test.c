/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests that a case that hangs is counted as failed and reports the last check that it reached, and
 * that everything that a failed case has left behind is cleaned up before the next case.
 */
#include "check.h"

#include "said.h"

typedef struct {
    const check_case_t *three;
    const char *seconds;
} program_t;

static int run_program(const void *given)
{
    const program_t *program = given;
    char *argv[] = {"program", NULL};

    (void)setenv("TEST_SECONDS", program->seconds, 1);
    check_process = 0;
    memset(&check_sum, 0, sizeof check_sum);
    return check_run(program->three, 3, 1, argv);
}

/* Runs a program of three cases with this TEST_SECONDS. */
static int status_of_cases(const check_case_t three[3], const char *seconds)
{
    return status_of(run_program, &(program_t){three, seconds});
}

static void passes(void)
{
    CHECK(check_seconds > 0);
}

static void waits(void)
{
    CHECK_EQ(pause(), 0);
}

static void has_a_child_that_waits(void)
{
    int status;
    pid_t child = fork();

    if (child == 0)
        for (;;)
            pause();
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(WEXITSTATUS(status), 0);
}

static const check_case_t with_a_case[] = {
    {"first", passes},
    {"second", waits},
    {"third", passes},
};

static void a_case_stands_still(void)
{
    CHECK_EQ(status_of_cases(with_a_case, "5"), 1);
    CHECK(says("ok   first\nFAIL second: stands still: process "));
    CHECK(says(": pause()\n"));
    CHECK(says("/comm:"));
    CHECK(says("\n1 passed, 1 failed, 0 skipped\n"));
}

static const check_case_t with_a_child[] = {
    {"first", passes},
    {"second", has_a_child_that_waits},
    {"third", passes},
};

/* The child is terminated before the time limit of its parent's case, so the program continues. */
static void a_child_stands_still(void)
{
    CHECK_EQ(status_of_cases(with_a_child, "20"), 1);
    CHECK(says("ok   first\nFAIL second: stands still: process "));
    CHECK(says(": WEXITSTATUS(status) is 1 "));
    CHECK(says("ok   third\n2 passed, 1 failed, 0 skipped\n"));
}

static int left;

static void leaves_nothing(void)
{
    left = 0;
}

static void leaves_something(void)
{
    check_clean_up = leaves_nothing;
    left = 1;
    CHECK(false);
}

static void finds_nothing(void)
{
    CHECK_EQ(left, 0);
}

static const check_case_t with_something_left[] = {
    {"first", passes},
    {"second", leaves_something},
    {"third", finds_nothing},
};

static void what_a_failed_case_leaves_is_ended(void)
{
    CHECK_EQ(status_of_cases(with_something_left, "20"), 1);
    CHECK(says("ok   third\n2 passed, 1 failed, 0 skipped\n"));
}

static const check_case_t cases[] = {
    {"a_case_stands_still", a_case_stands_still},
    {"a_child_stands_still", a_child_stands_still},
    {"what_a_failed_case_leaves_is_ended", what_a_failed_case_leaves_is_ended},
};

CHECK_MAIN(cases)
