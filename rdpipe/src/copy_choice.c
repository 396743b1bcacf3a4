/* SPDX-License-Identifier: Apache-2.0 */
/* What the user has chosen to leave out of a copy. Every part that trusts nobody asks here. */
#include "copy.h"

#include <fnmatch.h>

/* A pattern without a slash is one of names, another one of paths from the top; one that ends with
 * a slash is of directories alone. */
bool rd_copy_excludes(const rd_copy_t *copy, const char *path, bool is_directory)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    for (size_t i = 0; i < copy->exclusions; i++) {
        const char *given = copy->excluded[i];
        size_t len = strlen(given);
        bool is_of_directories = len > 1 && given[len - 1] == '/';
        char pattern[RD_PATH_BYTES];

        if (is_of_directories && !is_directory)
            continue;
        (void)snprintf(pattern, sizeof pattern, "%.*s", (int)(len - is_of_directories), given);
        if (strchr(pattern, '/') ? fnmatch(pattern + (*pattern == '/'), path, FNM_PATHNAME) == 0
                                 : fnmatch(pattern, name, 0) == 0)
            return true;
    }
    return false;
}

bool rd_copy_omits(const rd_copy_t *copy, const char *path, bool is_directory)
{
    char above[RD_PATH_BYTES];

    if (*path && !copy->recursive)
        return true;
    if (!*path || copy->exclusions == 0)
        return false;
    for (const char *slash = path; (slash = strchr(slash, '/')); slash++) {
        (void)snprintf(above, sizeof above, "%.*s", (int)(slash - path), path);
        if (rd_copy_excludes(copy, above, true))
            return true;
    }
    return rd_copy_excludes(copy, path, is_directory);
}
