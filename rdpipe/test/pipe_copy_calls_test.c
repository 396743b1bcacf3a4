/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how many system calls a small file costs at the target. A child runs one part of the copy,
 * and its parent counts the calls with ptrace, which sees all of them. Calls that do not depend on
 * the number of files are subtracted. */
#include "pipe_copies.h"

#include <sys/ptrace.h>

#define FEW 20
#define MANY 520
#define MORE (MANY - FEW)

/* Returns how many system calls the part makes, or -1 if this system does not let us count them. */
static long calls_of(int (*part)(const rd_copy_t *), const rd_copy_t *target)
{
    long stops = 0, signal = 0;
    int status;
    pid_t child = fork();

    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
            _exit(99);
        (void)raise(SIGSTOP);
        _exit(part(target));
    }
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status) ||
        ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)PTRACE_O_TRACESYSGOOD) < 0)
        return -1;
    while (ptrace(PTRACE_SYSCALL, child, NULL, (void *)signal) == 0 &&
           waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
        bool is_call = WSTOPSIG(status) == (SIGTRAP | 0x80);

        stops += is_call;
        signal = is_call ? 0 : WSTOPSIG(status);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? stops / 2 : -2;
}

/* Creates the directories "few" and "many", whose files contain this text. */
static bool make_files(const char *text)
{
    char command[400];

    (void)snprintf(command, sizeof command,
                   "umask 022; mkdir -p few many; for i in $(seq %d); do echo %s >few/$i; done; "
                   "for i in $(seq %d); do echo %s >many/$i; done",
                   FEW, text, MANY, text);
    return run(command);
}

/* Returns the calls per additional file, in tenths. The directories are copied to "TO-few" and
 * "TO-many". */
static long tenths_for(int (*part)(const rd_copy_t *), const char *to, bool preserve)
{
    static const char *const trees[] = {"few", "many"};
    long calls[2];

    for (size_t i = 0; i < 2; i++) {
        char path[64];
        rd_copy_t source = copy_of(trees[i]), target = copy_of(path);

        (void)snprintf(path, sizeof path, "%s-%s", to, trees[i]);
        source.preserve = target.preserve = preserve;
        target.no_directory = true;
        if (list(&source) != 0)
            return -2;
        if (part == have) {
            calls[i] = calls_of(have, &target);
        } else {
            if (have(&target) != 0 || pack(&source) != 0)
                return -2;
            calls[i] = calls_of(unpack, &target);
        }
        if (calls[i] < 0)
            return calls[i];
    }
    return (calls[1] - calls[0]) * 10 / MORE;
}

#define CHECK_CALLS(got, most)                                                                     \
    do {                                                                                           \
        long tenths_ = (got);                                                                      \
                                                                                                   \
        if (tenths_ == -1)                                                                         \
            SKIP("ptrace: it is not allowed here");                                                \
        CHECK(tenths_ > 0);                                                                        \
        if (tenths_ > 10 * (most))                                                                 \
            printf("%ld.%ld calls for a file\n", tenths_ / 10, tenths_ % 10);                      \
        CHECK(tenths_ <= 10 * (most));                                                             \
    } while (0)

static void a_file_of_a_new_tree(void)
{
    beside_us = UINT_MAX;
    CHECK_IN(fresh());
    CHECK(make_files("one"));
    CHECK_CALLS(tenths_for(unpack, "kept", true), 5);
    CHECK(run("diff -r few kept-few && diff -r many kept-many"));
    CHECK_CALLS(tenths_for(unpack, "plain", false), 5);
    CHECK(run("diff -r few plain-few && diff -r many plain-many"));
}

static void a_file_of_a_tree_that_is_there(void)
{
    beside_us = UINT_MAX;
    for (int preserve = 0; preserve < 2; preserve++) {
        CHECK_IN(fresh());
        CHECK(make_files("one") && run("mkdir to-few to-many"));
        CHECK_CALLS(tenths_for(unpack, "to", preserve), 8); /* new files */
        CHECK(run("diff -r few to-few && diff -r many to-many"));
        CHECK(make_files("another"));
        CHECK_CALLS(tenths_for(unpack, "to", preserve), 8); /* changed files */
        CHECK(run("diff -r few to-few && diff -r many to-many"));
    }
}

/* If root replaces a file, the new file keeps the owner of the old one. */
static void a_file_of_another_user(void)
{
    beside_us = UINT_MAX;
    if (geteuid() != 0)
        SKIP("root: to give files away");
    CHECK_IN(fresh());
    CHECK(make_files("one") && run("cp -a few to-few && cp -a many to-many"));
    CHECK(run("chown -R 1:1 to-few to-many && chmod 640 to-many/7") && make_files("another"));
    CHECK_CALLS(tenths_for(unpack, "to", false), 8);
    CHECK(run("diff -r few to-few && diff -r many to-many"));
    CHECK(
        run("test -z \"$(find to-many -type f ! -name 7 ! \\( -user 1 -group 1 -perm 644 \\))\""));
    CHECK(run("test \"$(stat -c '%u:%g %a' to-many/7)\" = '1:1 640'"));
}

/* An unchanged file costs one look-up of the file and one of its part, in case there is one. */
static void a_file_that_has_not_changed(void)
{
    beside_us = UINT_MAX;
    CHECK_IN(fresh());
    CHECK(make_files("one") && run("cp -a few to-few && cp -a many to-many"));
    CHECK_CALLS(tenths_for(have, "to", true), 2);
}

static const check_case_t cases[] = {
    {"a file of a new tree", a_file_of_a_new_tree},
    {"a file of a tree that is there", a_file_of_a_tree_that_is_there},
    {"a file of another user", a_file_of_another_user},
    {"a file that has not changed", a_file_that_has_not_changed},
};

CHECK_MAIN(cases)
