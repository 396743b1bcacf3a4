/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which paths the user has selected. Every part of a copy calls these functions itself, so
 * that no part has to trust another. */
#include "copy.h"

#include <fnmatch.h>

#include "copy_files_from.h"

/* ---- patterns, as in rsync ---- */

/* Returns the length of the bracket expression, or 0 if it is not closed. */
static size_t bracket_of(const char *pattern)
{
    size_t at = 1;

    if (pattern[at] == '!' || pattern[at] == '^')
        at++;
    if (pattern[at] == ']')
        at++;
    for (; pattern[at] && pattern[at] != ']'; at++) {
        const char *end =
            pattern[at] == '[' && pattern[at + 1] == ':' ? strstr(pattern + at, ":]") : NULL;

        if (end)
            at = (size_t)(end - pattern) + 1;
    }
    return pattern[at] ? at + 1 : 0;
}

static bool is_in_bracket(const char *bracket, size_t len, char byte)
{
    char one[2] = {byte, 0}, *copy = strndup(bracket, len);
    bool is = copy && byte != '/' && fnmatch(copy, one, 0) == 0;

    free(copy);
    return is;
}

/* fnmatch has no wildcard that matches slashes, so ** is handled here. */
static bool matches(const char *pattern, const char *path)
{
    for (; *pattern; pattern++, path++) {
        size_t bracket = *pattern == '[' ? bracket_of(pattern) : 0;

        if (*pattern == '*') {
            size_t stars = strspn(pattern, "*");

            for (pattern += stars; !matches(pattern, path); path++)
                if (!*path || (*path == '/' && stars == 1))
                    return false;
            return true;
        }
        if (!*path)
            return false;
        if (bracket > 0) {
            if (!is_in_bracket(pattern, bracket, *path))
                return false;
            pattern += bracket - 1;
        } else if (*pattern == '?') {
            if (*path == '/')
                return false;
        } else {
            pattern += *pattern == '\\' && pattern[1];
            if (*pattern != *path)
                return false;
        }
    }
    return !*path;
}

/* Matches the whole path if the pattern begins with a slash. Otherwise matches the end of the path:
 * only its last component if the pattern has neither a slash nor **, else as many components as the
 * pattern covers. */
static bool matches_end(const char *pattern, const char *path)
{
    const char *name = strrchr(path, '/');

    if (*pattern == '/')
        return matches(pattern + 1, path);
    if (!strchr(pattern, '/') && !strstr(pattern, "**"))
        return matches(pattern, name ? name + 1 : path);
    while (!matches(pattern, path)) {
        path = strchr(path, '/');
        if (!path)
            return false;
        path++;
    }
    return true;
}

static bool is_meant(const char *given, const char *path, bool is_directory)
{
    static const char all[] = "/***"; /* a directory with everything in it */
    size_t len = strlen(given), tail = strlen(all);
    char pattern[RD_PATH_BYTES];

    (void)snprintf(pattern, sizeof pattern, "%s", given);
    if (len > tail && strcmp(given + len - tail, all) == 0) {
        pattern[len - 1] = 0;
        if (matches_end(pattern, path))
            return true;
        pattern[len - tail] = 0; /* the directory itself */
        return is_directory && matches_end(pattern, path);
    }
    if (len > 1 && given[len - 1] == '/') {
        pattern[len - 1] = 0;
        return is_directory && matches_end(pattern, path);
    }
    return matches_end(pattern, path);
}

bool rd_copy_excludes(const rd_copy_t *copy, const char *path, bool is_directory)
{
    for (size_t i = 0; i < copy->exclusions; i++)
        if (is_meant(copy->excluded[i], path, is_directory))
            return !copy->included || !copy->included[i];
    return false;
}

bool rd_copy_omits(const rd_copy_t *copy, const char *path, bool is_directory)
{
    char above[RD_PATH_BYTES];

    if (copy->wanted ? !rd_files_from_hold(copy->wanted, path, is_directory, copy->recursive)
                     : *path && !copy->recursive)
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
