/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CHECK_H
#define BW_CHECK_H

/*
 * A test program is a table of cases and `CHECK_MAIN(cases)`. A case is a function; it ends at its
 * first failed CHECK, or with SKIP("why"). Arguments of the program are names: only cases whose
 * name holds one of them run. The last line of output is `N passed, N failed, N skipped`.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char *name;
    void (*run)(void);
} check_case_t;

static const char *check_name; /* of the running case */
static int check_failed;
static const char *check_skipped;

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            check_failed = 1;                                                                      \
            printf("FAIL %s: %s:%d: false: %s\n", check_name, __FILE__, __LINE__, #cond);          \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* For integers of any kind; both values are printed. */
#define CHECK_EQ(got, wanted)                                                                      \
    do {                                                                                           \
        uint64_t got_ = (uint64_t)(got), wanted_ = (uint64_t)(wanted);                             \
        if (got_ != wanted_) {                                                                     \
            check_failed = 1;                                                                      \
            printf("FAIL %s: %s:%d: %s is %" PRIu64 " (0x%" PRIx64 "), expected %s = %" PRIu64     \
                   " (0x%" PRIx64 ")\n",                                                           \
                   check_name, __FILE__, __LINE__, #got, got_, got_, #wanted, wanted_, wanted_);   \
            return;                                                                                \
        }                                                                                          \
    } while (0)

/* Ends the case if a function that it called has failed there. */
#define CHECK_IN(call)                                                                             \
    do {                                                                                           \
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

static inline int check_run(const check_case_t *cases, size_t count, int argc, char **argv)
{
    int passed = 0, failed = 0, skipped = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < count; i++) {
        if (!check_is_wanted(cases[i].name, argc, argv))
            continue;
        check_name = cases[i].name;
        check_failed = 0;
        check_skipped = NULL;
        cases[i].run();
        if (check_failed)
            failed++;
        else if (check_skipped)
            skipped++, printf("SKIP %s: %s\n", check_name, check_skipped);
        else
            passed++, printf("ok   %s\n", check_name);
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0 || passed + skipped == 0;
}

#define CHECK_MAIN(cases)                                                                          \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return check_run(cases, sizeof(cases) / sizeof *(cases), argc, argv);                      \
    }

#endif
