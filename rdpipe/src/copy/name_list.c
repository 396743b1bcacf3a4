/* SPDX-License-Identifier: Apache-2.0 */
#include "name_list.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

bool rd_names_add(rd_names_t *names, const char *name, size_t len)
{
    char **of = rd_with_room(names->of, names->count, sizeof *of);

    if (!of)
        return false;
    names->of = of;
    names->of[names->count] = strndup(name, len);
    return names->of[names->count] && ++names->count;
}

static int compare(const void *one, const void *other)
{
    return strcmp(*(char *const *)one, *(char *const *)other);
}

void rd_names_sort(rd_names_t *names)
{
    if (names->count > 0)
        qsort(names->of, names->count, sizeof *names->of, compare);
}

bool rd_names_have(const rd_names_t *names, const char *name)
{
    return names->count > 0 &&
           bsearch(&name, names->of, names->count, sizeof *names->of, compare) != NULL;
}

bool rd_names_read(rd_names_t *names, int fd)
{
    DIR *dir = fdopendir(fd);
    const struct dirent *entry;
    bool done = dir != NULL;

    errno = done ? 0 : errno;
    while (done && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            !rd_names_add(names, entry->d_name, strlen(entry->d_name)))
            errno = ENOMEM, done = false;
    done = done && errno == 0;
    if (dir) {
        int error = errno;

        (void)closedir(dir);
        errno = error;
    } else {
        close(fd);
    }
    rd_names_sort(names);
    return done;
}

void rd_names_free(rd_names_t *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->of[i]);
    free(names->of);
    *names = (rd_names_t){0};
}
