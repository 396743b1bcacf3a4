/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CHECK_H
#define BW_CHECK_H

/*
 * A test program is a table of cases and `CHECK_MAIN(cases)`. A case is a function that ends at its
 * first failed CHECK, or with SKIP("NEED: why"), where NEED names what is missing in one word, such
 * as root. The program's arguments select the cases whose names contain one of them. TEST_LEFT_OUT
 * in the environment is a list of words; cases whose names contain one of these are skipped. The
 * time is printed for cases that take a second or more. The last line of output is `N passed, N
 * failed, N skipped`.
 *
 * If a case hangs, the program is terminated; if a process that a case has forked hangs, only that
 * process is terminated. Both report the last check that they reached, and where their threads are
 * waiting.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    const char *name;
    void (*run)(void);
} check_case_t;

static const char *check_name; /* name of the running case */
static int check_failed;
static const char *check_skipped;

/* Cleans up after a failed case, whatever state it has left behind, so that the following cases do
 * not fail as well. Set by the program or by a case. */
static void (*check_clean_up)(void);

/* The last check that this thread reached. */
static _Thread_local const char *volatile check_at = "its beginning";

#define CHECK_TEXT(line) #line
#define CHECK_PLACE(line) __FILE__ ":" CHECK_TEXT(line) ": "

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        check_at = CHECK_PLACE(__LINE__) #cond;                                                    \
        if (!(cond)) {                                                                             \
            check_failed = 1;                                                                      \
            printf("FAIL %s: %s:%d: false: %s\n", check_name, __FILE__, __LINE__, #cond);          \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Compares integers of any type, and prints both if they differ. */
#define CHECK_EQ(got, wanted)                                                                      \
    do {                                                                                           \
        check_at = CHECK_PLACE(__LINE__) #got;                                                     \
        uint64_t got_ = (uint64_t)(got), wanted_ = (uint64_t)(wanted);                             \
        if (got_ != wanted_) {                                                                     \
            check_failed = 1;                                                                      \
            printf("FAIL %s: %s:%d: %s is %" PRIu64 " (0x%" PRIx64 "), expected %s = %" PRIu64     \
                   " (0x%" PRIx64 ")\n",                                                           \
                   check_name, __FILE__, __LINE__, #got, got_, got_, #wanted, wanted_, wanted_);   \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Ends the case if a CHECK in the called function failed. */
#define CHECK_IN(call)                                                                             \
    do {                                                                                           \
        check_at = CHECK_PLACE(__LINE__) #call;                                                    \
        call;                                                                                      \
        if (check_failed || check_skipped) {                                                       \
            printf("    %s:%d: in %s\n", __FILE__, __LINE__, #call);                               \
            return;                                                                                \
        }                                                                                          \
    } while (0)

#define SKIP(why)                                                                                  \
    do {                                                                                           \
        check_skipped = (why);                                                                     \
        return;                                                                                    \
    } while (0)

static int check_is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i]))
            return 1;
    return argc < 2;
}

static inline int check_is_left_out(const char *name)
{
    const char *list = getenv("TEST_LEFT_OUT");
    char words[1024], *rest = words;

    snprintf(words, sizeof words, "%s", list ? list : "");
    for (char *word; (word = strsep(&rest, " \n"));)
        if (*word && strstr(name, word))
            return 1;
    return 0;
}

/* Totals of all cases so far. */
static struct {
    int passed, failed, skipped;
} check_sum;

/* ---- watching for processes that hang ---- */

static pid_t check_process;    /* the process that prints the totals */
static unsigned check_seconds; /* limit for one case */

/* Prints where each thread of a process is waiting in the kernel, and also any process in
 * uninterruptible sleep. Only root sees all of this. */
static inline void check_tell_where(pid_t process)
{
    char command[256];

    snprintf(command, sizeof command,
             "cd /proc/%d/task || exit; "
             "{ grep -s '' */comm */wchan */stack; grep -s State: */status; "
             "grep -ls '^State:.D' /proc/[0-9]*/status | "
             "sed -n 's/status$/comm/p;s/comm$/stack/p' | xargs -r grep -s ''; } | sed 's/^/    /'",
             (int)process);
    (void)!system(command);
}

/* Handles SIGALRM. It terminates the process, because the next case could not run in it. */
static inline void check_stands_still(int unused)
{
    (void)unused;
    dprintf(STDOUT_FILENO, "FAIL %s: stands still: process %d has come to %s\n", check_name,
            (int)getpid(), check_at);
    check_tell_where(getpid());
    if (getpid() == check_process)
        dprintf(STDOUT_FILENO, "%d passed, %d failed, %d skipped\n", check_sum.passed,
                check_sum.failed + 1, check_sum.skipped);
    _exit(1);
}

/* Gives a child less time than its parent, so that the parent can report the failure and
 * continue. */
static inline void check_bound_child(void)
{
    (void)alarm(check_seconds * 3 / 4);
}

/* A case may use two fifths of its program's time (TEST_SECONDS, see run.sh). */
static inline void check_begin(void)
{
    const char *seconds = getenv("TEST_SECONDS");

    if (check_process != 0)
        return;
    check_process = getpid();
    check_seconds = (unsigned)(seconds ? strtoul(seconds, NULL, 10) : 300) * 2 / 5;
    setvbuf(stdout, NULL, _IOLBF, 0);
    (void)signal(SIGALRM, check_stands_still);
    (void)pthread_atfork(NULL, NULL, check_bound_child);
}

/* ---- cases ---- */

static inline int64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline void check_tell_passed(int64_t ms)
{
    printf("ok   %s", check_name);
    if (ms >= 1000)
        printf(" (%.1f s)", (double)ms / 1000);
    printf("\n");
}

/* Runs the cases and prints each name after the prefix. */
static inline void check_each(const char *prefix, const check_case_t *cases, size_t count, int argc,
                              char **argv)
{
    static char name[256];

    check_begin();
    for (size_t i = 0; i < count; i++) {
        int64_t began_ms = now_ms();

        snprintf(name, sizeof name, "%s%s", prefix, cases[i].name);
        if (!check_is_wanted(name, argc, argv))
            continue;
        check_name = name;
        check_at = "its beginning";
        check_failed = 0;
        check_skipped = check_is_left_out(name) ? "left out by TEST_LEFT_OUT" : NULL;
        (void)alarm(check_seconds);
        if (!check_skipped)
            cases[i].run();
        if (check_failed && check_clean_up)
            check_clean_up();
        if (check_failed)
            check_sum.failed++;
        else if (check_skipped)
            check_sum.skipped++, printf("SKIP %s: %s\n", check_name, check_skipped);
        else
            check_sum.passed++, check_tell_passed(now_ms() - began_ms);
    }
}

/* Prints the last line and returns the program's exit status. */
static inline int check_end(void)
{
    printf("%d passed, %d failed, %d skipped\n", check_sum.passed, check_sum.failed,
           check_sum.skipped);
    check_name = "the program's end";
    (void)alarm(check_seconds);
    return check_sum.failed != 0 || check_sum.passed + check_sum.skipped == 0;
}

static inline int check_run(const check_case_t *cases, size_t count, int argc, char **argv)
{
    check_each("", cases, count, argc, argv);
    return check_end();
}

#define CHECK_MAIN(cases)                                                                          \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return check_run(cases, sizeof(cases) / sizeof *(cases), argc, argv);                      \
    }

#endif
