/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_SAID_H
#define BW_TEST_SAID_H

/* For tests of the test harness: the test program runs in a child, whose output is read. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char said[16384];

/* Returns the exit status of a child that runs `program`, or -1 if it did not exit normally. The
 * output of the child, including a sanitizer's reports, goes to `said`. */
static inline int status_of(int (*program)(const void *), const void *given)
{
    FILE *output = tmpfile();
    int status = -1;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0) {
        (void)dup2(fileno(output), STDOUT_FILENO);
        (void)dup2(fileno(output), STDERR_FILENO);
        exit(program(given));
    }
    (void)waitpid(child, &status, 0);
    rewind(output);
    said[fread(said, 1, sizeof said - 1, output)] = '\0';
    fclose(output);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline bool says(const char *words)
{
    if (strstr(said, words))
        return true;
    printf("it said: %s\n", said);
    return false;
}

#endif
