/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_files_from.h"

#include <errno.h>

#include "copy_item.h"

/* Cannot occur in the document, because each line begins with a digit. */
#define END_OF_DOCUMENT "."

/* Like strcmp, but a slash sorts before all other bytes, so that "a/b" follows "a" and not
 * "a-b". */
static int compare_paths(const char *one, const char *other)
{
    while (*one && *one == *other) {
        one++;
        other++;
    }
    return (*one == '/' ? 1 : 2 * (unsigned char)*one) -
           (*other == '/' ? 1 : 2 * (unsigned char)*other);
}

static int compare(const void *one, const void *other)
{
    return compare_paths(*(char *const *)one, *(char *const *)other);
}

static void sort(rd_names_t *names)
{
    size_t kept = 0;

    if (names->count == 0)
        return;
    qsort(names->of, names->count, sizeof *names->of, compare);
    for (size_t i = 1; i < names->count; i++)
        if (strcmp(names->of[i], names->of[kept]) == 0)
            free(names->of[i]);
        else
            names->of[++kept] = names->of[i];
    names->count = kept + 1;
}

/* ---- reading ---- */

/* Adds a name. As with rsync, leading slashes, "." and double slashes are ignored. On failure, *why
 * is set. */
static bool add(rd_names_t *names, const char *text, size_t len, rd_why_t *why)
{
    char path[RD_PATH_BYTES];
    size_t used = 0, step;

    if (memchr(text, 0, len))
        return rd_because(why, "the line '%.200s' contains a NUL: use --from0", text);
    for (const char *at = text, *end = text + len; at < end; at += step + 1) {
        const char *slash = memchr(at, '/', (size_t)(end - at));

        step = (size_t)((slash ? slash : end) - at);
        if (step == 0 || (step == 1 && *at == '.'))
            continue;
        if (step == 2 && memcmp(at, "..", 2) == 0)
            return rd_because(why, "'%.*s' leads out of the source through '..'",
                              len > 300 ? 300 : (int)len, text);
        if (used + 1 + step >= sizeof path)
            return rd_because(why, "'%.200s...' is longer than %u bytes", text, RD_PATH_BYTES - 1);
        if (used > 0)
            path[used++] = '/';
        memcpy(path + used, at, step);
        used += step;
    }
    return rd_names_add(names, path, used) || rd_because(why, "out of memory");
}

bool rd_files_from_read(rd_names_t *names_p, const char *file, bool ends_with_nul, rd_why_t *why)
{
    bool is_input = strcmp(file, "-") == 0, done = true;
    FILE *from = is_input ? stdin : fopen(file, "re");
    char *line = NULL;
    size_t room = 0, number = 0;
    ssize_t len;
    rd_why_t reason;

    *names_p = (rd_names_t){0};
    if (!from)
        return rd_because(why, "--files-from %.200s: %s", file, strerror(errno));
    while (done && (len = getdelim(&line, &room, ends_with_nul ? 0 : '\n', from)) >= 0) {
        number++;
        if (len > 0 && line[len - 1] == (ends_with_nul ? 0 : '\n'))
            len--;
        if (len > 0 && !add(names_p, line, (size_t)len, &reason))
            done =
                rd_because(why, "--files-from %.100s: name %zu: %.380s", file, number, reason.text);
    }
    if (done && ferror(from))
        done = rd_because(why, "--files-from %.200s: %s", file, strerror(errno));
    if (!is_input)
        (void)fclose(from);
    free(line);
    sort(names_p);
    if (!done)
        rd_names_free(names_p);
    return done;
}

/* ---- passing the names from rdcp to its parts ---- */

static size_t shared_of(const char *one, const char *other)
{
    size_t len = 0;

    while (one[len] && one[len] == other[len])
        len++;
    return len;
}

/* Each line contains the number of bytes that its name has in common with the previous name, a
 * colon, and the rest of the name. */
void rd_files_from_put(FILE *to, const rd_names_t *names)
{
    (void)fputs(" 3<<'" END_OF_DOCUMENT "'\n", to);
    for (size_t i = 0; i < names->count; i++) {
        size_t shared = i > 0 ? shared_of(names->of[i - 1], names->of[i]) : 0;

        (void)fprintf(to, "%zu:", shared);
        for (const char *at = names->of[i] + shared; *at; at++)
            if (*at == '\n' || *at == '%')
                (void)fprintf(to, "%%%02x", (unsigned char)*at);
            else
                (void)fputc(*at, to);
        (void)fputc('\n', to);
    }
    (void)fputs(END_OF_DOCUMENT "\n", to);
}

/* Parses one line. Returns false if rd_files_from_put cannot have written it. */
static bool take_line(rd_names_t *names, const char *line)
{
    char path[RD_PATH_BYTES];
    const char *before = names->count > 0 ? names->of[names->count - 1] : "";
    size_t used = 0;
    unsigned long shared;
    char *at;

    errno = 0;
    shared = strtoul(line, &at, 10);
    if (at == line || *at != ':' || shared > strlen(before))
        return false;
    memcpy(path, before, shared);
    used = shared;
    for (at++; *at && *at != '\n'; at++) {
        char byte = *at;

        if (byte == '%') {
            int code = rd_hex_byte(at + 1);

            if (code < 0)
                return false;
            byte = (char)code;
            at += 2;
        }
        if (used + 1 >= sizeof path)
            return false;
        path[used++] = byte;
    }
    return rd_path_is_safe(path, used) && rd_names_add(names, path, used);
}

bool rd_files_from_take(rd_names_t *names_p, int fd, rd_why_t *why)
{
    FILE *from = fdopen(fd, "r");
    char *line = NULL;
    size_t room = 0;
    bool done = from != NULL;

    *names_p = (rd_names_t){0};
    while (done && getline(&line, &room, from) >= 0)
        done = take_line(names_p, line);
    done = done && !ferror(from);
    if (from)
        (void)fclose(from);
    free(line);
    sort(names_p);
    if (!done)
        rd_names_free(names_p);
    return done || rd_because(why, "the names of --files-from did not arrive");
}

/* ---- look-ups ---- */

bool rd_lies_in(const char *name, const char *path)
{
    size_t len = strlen(path);

    return len == 0 ? *name != 0 : strncmp(name, path, len) == 0 && name[len] == '/';
}

/* Returns the index of the first name that does not sort before `path`. */
static size_t find(const rd_names_t *names, const char *path)
{
    size_t low = 0, high = names->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (compare_paths(names->of[middle], path) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool have(const rd_names_t *names, const char *path)
{
    size_t at = find(names, path);

    return at < names->count && strcmp(names->of[at], path) == 0;
}

bool rd_files_from_hold(const rd_names_t *names, const char *path, bool is_directory,
                        bool recursive)
{
    char above[RD_PATH_BYTES];
    size_t at = find(names, path);

    if (!*path || (at < names->count && strcmp(names->of[at], path) == 0))
        return true;
    if (is_directory && at < names->count && rd_lies_in(names->of[at], path))
        return true;
    if (!recursive)
        return false;
    (void)snprintf(above, sizeof above, "%s", path);
    for (char *slash; (slash = strrchr(above, '/'));) {
        *slash = 0;
        if (have(names, above))
            return true;
    }
    return have(names, "");
}
