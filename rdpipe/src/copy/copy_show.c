/* SPDX-License-Identifier: Apache-2.0 */
/* The last part of a dry run, which prints what unpack would do, and changes nothing. */
#include "copy_delete.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "cli/cli.h"

#define WHY_BYTES (2 * RD_PATH_BYTES + 100)

typedef enum { NEW, CHANGED, DELETED, CHANGES } change_t;

static const char *const change_names[CHANGES] = {"new", "changed", "deleted"};

typedef struct {
    rd_copy_t copy;
    rd_complaints_t complaints;
    rd_target_t target;
    rd_beneath_t beneath;
    rd_item_t item;
    rd_items_in_t in;
    FILE *to;
    /* The entry that `find` looked up most recently. */
    int parent;
    const char *name;
    struct stat is;
    bool has_target;
    uint64_t changes[CHANGES]; /* number of changes shown, by kind */
    rd_deletions_t deletions;
} show_t;

/* ---- lines ---- */

static void put_path(show_t *show, const char *path, bool is_directory)
{
    const char *into = show->complaints.into;
    const char *top = into ? into : !*path && !is_directory ? show->target.name : "";
    char whole[RD_PATH_BYTES + 300];

    (void)snprintf(whole, sizeof whole, "%s%s%s", top, *top && *path ? "/" : "", path);
    if (!*whole)
        (void)snprintf(whole, sizeof whole, ".");
    if (show->copy.json) {
        rd_json_text(show->to, whole);
        return;
    }
    rd_plain_text(show->to, whole);
    if (is_directory)
        (void)fputc('/', show->to);
}

/* `why` may be "". */
static void put_change(show_t *show, change_t change, const char *path, bool is_directory,
                       const char *why)
{
    show->changes[change]++;
    if (show->copy.json) {
        (void)fprintf(show->to, "{\"change\": \"%s\", \"path\": ", change_names[change]);
        put_path(show, path, is_directory);
        (void)fprintf(show->to,
                      ", \"is_directory\": %s, \"why\": ", is_directory ? "true" : "false");
        rd_json_text(show->to, why);
        (void)fprintf(show->to, "}\n");
        return;
    }
    (void)fprintf(show->to, "%s ", change_names[change]);
    put_path(show, path, is_directory);
    if (*why) {
        (void)fprintf(show->to, " (");
        rd_plain_text(show->to, why);
        (void)fputc(')', show->to);
    }
    (void)fputc('\n', show->to);
}

__attribute__((format(printf, 3, 4))) static void put_item(show_t *show, change_t change,
                                                           const char *form, ...)
{
    const rd_item_t *item = &show->item;
    char why[WHY_BYTES];
    va_list args;

    va_start(args, form);
    (void)vsnprintf(why, sizeof why, form, args);
    va_end(args);
    put_change(show, change, item->path, item->kind == RD_ITEM_DIR || item->kind == RD_ITEM_LEAVE,
               why);
}

/* ---- existing entries ---- */

typedef enum { NOTHING, THERE, UNKNOWN } found_t;

/* Looks for the entry that has the item's name. Returns UNKNOWN if it has reported an error. */
static found_t find(show_t *show, const char *path)
{
    const char *special;

    show->name = show->target.name;
    show->parent = show->beneath.top;
    if (show->target.is_tree && !*path)
        return show->parent >= 0 && fstat(show->parent, &show->is) == 0 ? THERE : NOTHING;
    if (*path)
        show->parent = rd_beneath_parent(&show->beneath, path, &show->name);
    if (show->parent >= 0 &&
        fstatat(show->parent, show->name, &show->is, AT_SYMLINK_NOFOLLOW) == 0) {
        special = rd_special_name(show->is.st_mode);
        if (!special)
            return THERE;
        rd_complain(&show->complaints, path, "is %s, which rdcp does not replace", special);
        return UNKNOWN;
    }
    if (errno == ENOENT)
        return NOTHING;
    rd_complain(&show->complaints, path, "%s", strerror(errno));
    return UNKNOWN;
}

/* With -p, shows how an existing entry differs from the item in mode and time. The attributes that
 * --owner, --xattrs and --acls preserve are not compared. */
static void show_status(show_t *show)
{
    const rd_item_t *item = &show->item;
    const struct stat *is = &show->is;
    mode_t mode = item->mode & (show->copy.owner ? 07777 : RD_MODE_KEPT);
    bool has_mode = (is->st_mode & 07777) == mode;
    bool has_time = rd_has_time(is, item);

    if (!show->copy.preserve)
        return;
    if (!has_mode)
        put_item(show, CHANGED, "mode %o to %o%s", is->st_mode & 07777, mode,
                 has_time ? "" : ", time");
    else if (!has_time)
        put_item(show, CHANGED, "time");
}

static void show_file(show_t *show)
{
    const rd_item_t *item = &show->item;
    const struct stat *is = &show->is;

    switch (find(show, item->path)) {
    case NOTHING:
        if (item->offset > 0)
            put_item(show, NEW, "%llu of %llu bytes already copied",
                     (unsigned long long)item->offset, (unsigned long long)item->size);
        else
            put_item(show, NEW, "%llu byte%s", (unsigned long long)item->size,
                     item->size == 1 ? "" : "s");
        break;
    case THERE:
        if (S_ISDIR(is->st_mode))
            rd_complain(&show->complaints, item->path, "%s", strerror(EISDIR));
        else if (S_ISLNK(is->st_mode))
            put_item(show, CHANGED, "was a symbolic link");
        else if ((uint64_t)is->st_size != item->size)
            put_item(show, CHANGED, "size %llu to %llu", (unsigned long long)is->st_size,
                     (unsigned long long)item->size);
        else
            put_item(show, CHANGED, "content");
        break;
    case UNKNOWN:
        break;
    }
}

static void show_link(show_t *show)
{
    const rd_item_t *item = &show->item;
    const struct stat *is = &show->is;
    char target[RD_PATH_BYTES];
    ssize_t len;

    switch (find(show, item->path)) {
    case NOTHING:
        put_item(show, NEW, "symbolic link to %s", item->target);
        break;
    case THERE:
        len = S_ISLNK(is->st_mode) ? readlinkat(show->parent, show->name, target, sizeof target - 1)
                                   : -1;
        target[len < 0 ? 0 : len] = 0;
        if (S_ISDIR(is->st_mode))
            rd_complain(&show->complaints, item->path, "%s", strerror(EISDIR));
        else if (len < 0)
            put_item(show, CHANGED, "symbolic link to %s, was a file", item->target);
        else if (strcmp(target, item->target) != 0)
            put_item(show, CHANGED, "symbolic link to %s, was to %s", item->target, target);
        break;
    case UNKNOWN:
        break;
    }
}

static void show_hard_link(show_t *show)
{
    const rd_item_t *item = &show->item;
    found_t found = find(show, item->path);
    struct stat is = show->is;

    if (found == NOTHING) {
        put_item(show, NEW, "hard link to %s", item->target);
    } else if (found == THERE && S_ISDIR(is.st_mode)) {
        rd_complain(&show->complaints, item->path, "%s", strerror(EISDIR));
    } else if (found == THERE && (find(show, item->target) != THERE ||
                                  is.st_ino != show->is.st_ino || is.st_dev != show->is.st_dev)) {
        put_item(show, CHANGED, "hard link to %s", item->target);
    }
}

static void show_directory(show_t *show)
{
    const rd_item_t *item = &show->item;
    found_t found = find(show, item->path);

    if (found == NOTHING)
        put_item(show, NEW, "directory");
    else if (!*item->path && show->target.is_new)
        put_item(show, NEW, "directory, partly copied already");
    else if (found == THERE && !S_ISDIR(show->is.st_mode))
        rd_complain(&show->complaints, item->path, "already exists and is not a directory");
}

static void show_left_directory(show_t *show)
{
    if (find(show, show->item.path) == THERE && S_ISDIR(show->is.st_mode) &&
        (*show->item.path || !show->target.is_new))
        show_status(show);
}

/* ---- the stream ---- */

/* `missing` counts what the source's side could not read, in all sources so far. */
static void end_source(show_t *show, uint64_t missing)
{
    bool is_whole = missing == 0 && show->complaints.count == 0;
    const rd_names_t *paths = &show->deletions.paths;

    if (rd_deletions_are_allowed(&show->deletions, &show->complaints, is_whole)) {
        for (size_t i = 0; i < paths->count; i++)
            put_change(show, DELETED, paths->of[i] + 1, paths->of[i][0] == 'd',
                       "not at the source");
    }
    rd_names_free(&show->deletions.paths);
    rd_beneath_close(&show->beneath);
    rd_target_close(&show->target);
    show->has_target = false;
    show->complaints.into = NULL;
}

static bool find_target(show_t *show, rd_why_t *why)
{
    const rd_item_t *item = &show->item;
    bool is_tree = item->kind == RD_ITEM_DIR;

    if (*item->path || !(is_tree || item->kind == RD_ITEM_FILE || item->kind == RD_ITEM_KEEP))
        return rd_because(why, "the copy does not begin with its top file or directory");
    if (!rd_target_find(&show->copy, is_tree, &show->target, why))
        return false;
    if (show->target.is_into)
        show->complaints.into = show->target.name;
    /* The user wants to see how the new tree will differ from the old one. */
    if (show->target.old >= 0) {
        show->target.is_new = false;
        rd_close(&show->target.base);
        show->target.base = show->target.old;
        show->target.old = -1;
    }
    rd_beneath_open(&show->beneath, show->target.base);
    show->has_target = true;
    return true;
}

/* Returns false when the copy has ended, and sets *done_p if everything has arrived. */
static bool step(show_t *show, bool *done_p, rd_why_t *why)
{
    rd_item_t *item = &show->item;

    if (!rd_items_next(&show->in, item, why))
        return false;
    if (item->kind == RD_ITEM_START || item->kind == RD_ITEM_END) {
        *done_p = item->kind == RD_ITEM_END;
        end_source(show, *done_p ? item->size : item->offset);
        return !*done_p && rd_copy_source(&show->copy, item, why);
    }
    if (!show->has_target && !find_target(show, why))
        return false;
    switch (item->kind) {
    case RD_ITEM_FILE:
        show_file(show);
        return true;
    case RD_ITEM_KEEP:
        if (find(show, item->path) == THERE)
            show_status(show);
        return true;
    case RD_ITEM_LINK:
        show_link(show);
        return true;
    case RD_ITEM_HARD:
        show_hard_link(show);
        return true;
    case RD_ITEM_DIR:
        show_directory(show);
        return true;
    case RD_ITEM_LEAVE:
        show_left_directory(show);
        return true;
    case RD_ITEM_DELETE:
        return (item->has == RD_HAS_PART && show->copy.atomic) ||
               rd_deletions_add(&show->deletions, &show->copy, item, why);
    default:
        return rd_because(why, "the other side sent file content in a dry run");
    }
}

static void report(const show_t *show)
{
    const rd_copy_t *copy = &show->copy;

    if (copy->verbose)
        (void)fprintf(stderr, "rdcp: %s%sdry run: %llu new, %llu changed, %llu deleted\n",
                      copy->host, *copy->host ? ": " : "", (unsigned long long)show->changes[NEW],
                      (unsigned long long)show->changes[CHANGED],
                      (unsigned long long)show->changes[DELETED]);
}

int rd_copy_show(const rd_copy_t *copy, int in, int out)
{
    static show_t show;
    rd_why_t why = {.text = ""};
    bool done = false;

    show = (show_t){.copy = *copy,
                    .complaints = {.copy = &show.copy},
                    .target = {.base = -1, .parent = -1, .old = -1}};
    rd_beneath_open(&show.beneath, -1);
    show.to = fdopen(dup(out), "w");
    if (!show.to || !rd_items_in_open(&show.in, in, NULL))
        return RD_COPY_FAILED;
    while (step(&show, &done, &why))
        ;
    if (why.text[0])
        rd_complain(&show.complaints, "", "%s", why.text);
    if (fclose(show.to) != 0)
        rd_complain(&show.complaints, "", "cannot write the list of changes: %s", strerror(errno));
    report(&show);
    rd_deletions_free(&show.deletions);
    rd_items_in_close(&show.in);
    rd_beneath_close(&show.beneath);
    rd_target_close(&show.target);
    return done && show.complaints.count == 0 ? RD_COPY_DONE : RD_COPY_FAILED;
}
