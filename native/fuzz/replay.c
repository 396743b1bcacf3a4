/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs a fuzz target on each file of its committed corpus, without libFuzzer: a case a file.
 * usage: replay DIRECTORY (the default is compiled in)
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static int replay(const char *dir, const char *name)
{
    static uint8_t input[1 << 20];
    char path[1024];
    size_t size;
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    file = fopen(path, "rb");
    if (!file) {
        printf("FAIL %s: cannot be read\n", path);
        return 0;
    }
    size = fread(input, 1, sizeof input, file);
    fclose(file);
    printf("run  %s\n", name); /* before: a crash is the last one named */
    fflush(stdout);
    LLVMFuzzerTestOneInput(input, size);
    return 1;
}

int main(int argc, char **argv)
{
    const char *dir_name = argc > 1 ? argv[1] : CORPUS;
    int passed = 0, failed = 0;
    DIR *dir = opendir(dir_name);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)) != NULL)
        if (entry->d_name[0] != '.') {
            int fine = replay(dir_name, entry->d_name);

            passed += fine;
            failed += !fine;
        }
    if (dir)
        closedir(dir);
    if (passed == 0)
        printf("FAIL %s: no corpus\n", dir_name);
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0 || passed == 0;
}
