/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target on each input of its committed corpus, without libFuzzer. All inputs are one
 * case, which fails if one of them crashes, hangs, or violates the target's checks (which abort). A
 * child process runs them, so that the failure can name the input.
 * usage: replay [FOLDER]... (the default is compiled in)
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CORPUS
#define CORPUS "fuzz/corpus"
#endif

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static unsigned replay_seconds = 60; /* per input */

/* The child's progress, shared with the parent. */
typedef struct {
    int inputs;
    char running[512];
} replay_state_t;

static void replay_file(replay_state_t *state, const char *folder, const char *name)
{
    uint8_t *input = NULL;
    long size = -1;
    FILE *file;

    snprintf(state->running, sizeof state->running, "%s/%s", folder, name);
    file = fopen(state->running, "rb");
    if (file && fseek(file, 0, SEEK_END) == 0)
        size = ftell(file);
    /* Allocated with the exact size, so that sanitizers detect reads past its end. */
    if (size >= 0)
        input = malloc((size_t)size + (size == 0));
    if (!input || fseek(file, 0, SEEK_SET) != 0 ||
        fread(input, 1, (size_t)size, file) != (size_t)size)
        _exit(2);
    fclose(file);
    alarm(replay_seconds);
    LLVMFuzzerTestOneInput(input, (size_t)size);
    alarm(0);
    free(input);
    state->inputs++;
    snprintf(state->running, sizeof state->running, "the end of %s", folder);
}

static int is_input(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void replay_folder(replay_state_t *state, const char *folder)
{
    struct dirent **entries;
    int count;

    snprintf(state->running, sizeof state->running, "%s", folder);
    count = scandir(folder, &entries, is_input, alphasort);
    if (count < 0)
        _exit(2);
    for (int i = 0; i < count; i++) {
        replay_file(state, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

/* Returns the child's exit status, or the negated number of the signal that terminated it. */
static int replay(replay_state_t *state, const char **folders, int count)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        for (int i = 0; i < count; i++)
            replay_folder(state, folders[i]);
        exit(0); /* not _exit, because the leak check runs at exit */
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
    static const char *all[] = {CORPUS};
    const char **folders = argc > 1 ? (const char **)argv + 1 : all;
    int count = argc > 1 ? argc - 1 : (int)(sizeof all / sizeof *all);
    replay_state_t *state =
        mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = state == MAP_FAILED ? 1 : replay(state, folders, count);
    int is_good = status == 0 && state->inputs > 0;

    if (is_good)
        printf("ok   %d inputs\n", state->inputs);
    else if (status < 0)
        printf("FAIL %s: %s\n", state->running, strsignal(-status));
    else if (status == 2)
        printf("FAIL %s: cannot be read\n", state->running);
    else if (status > 0)
        printf("FAIL %s: status %d\n", state == MAP_FAILED ? "mmap" : state->running, status);
    else
        printf("FAIL %s: no inputs\n", folders[0]);
    printf("%d passed, %d failed, 0 skipped\n", is_good, !is_good);
    return !is_good;
}
