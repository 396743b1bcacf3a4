/* SPDX-License-Identifier: Apache-2.0 */
/* The first part of a copy, which lists the files to copy in the order in which they are sent. */
#include "copy.h"
#include "copy_files_from.h"

#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct {
    rd_copy_t copy;
    rd_complaints_t complaints;
    dev_t device; /* device of the source's top directory */
    size_t next;  /* the index of the next name of --files-from */
    void *linked; /* a tree of linked_t, which holds the files with several hard links */
    rd_items_out_t out;
    rd_beneath_t beneath;
    rd_item_t item; /* used for every item, because items are large */
} list_t;

static void fill(rd_item_t *item, rd_item_kind_t kind, const struct stat *is)
{
    item->kind = kind;
    item->mode = is->st_mode & 07777;
    item->size = kind == RD_ITEM_FILE ? (uint64_t)is->st_size : 0;
    item->mtime_s = is->st_mtim.tv_sec;
    item->mtime_ns = (uint32_t)is->st_mtim.tv_nsec;
    item->offset = 0;
    item->target[0] = 0;
    if (kind == RD_ITEM_DIR)
        rd_directory_id(is, item->digest);
    else
        memset(item->digest, 0, sizeof item->digest);
}

/* `offset` is 1 at the end of a directory in which something was not examined, else 0. */
static bool put(list_t *list, rd_item_kind_t kind, const char *path, const struct stat *is,
                uint64_t offset)
{
    fill(&list->item, kind, is);
    list->item.offset = offset;
    (void)snprintf(list->item.path, sizeof list->item.path, "%s", path);
    return rd_items_put(&list->out, &list->item);
}

/* ---- hard links ---- */

/* A file with several hard links, and the name that was listed first. */
typedef struct {
    dev_t device;
    ino_t inode;
    char path[];
} linked_t;

static int compare_linked(const void *one, const void *other)
{
    const linked_t *a = one, *b = other;

    return a->inode != b->inode     ? (a->inode < b->inode ? -1 : 1)
           : a->device != b->device ? (a->device < b->device ? -1 : 1)
                                    : 0;
}

/* Returns the path under which this file was already listed, or NULL if it was not. */
static const char *listed_as(list_t *list, const char *path, const struct stat *is)
{
    linked_t *fresh = malloc(sizeof *fresh + strlen(path) + 1);
    linked_t *const *found;

    if (!fresh)
        return NULL; /* the file is then copied once more */
    fresh->device = is->st_dev;
    fresh->inode = is->st_ino;
    (void)strcpy(fresh->path, path);
    found = tsearch(fresh, &list->linked, compare_linked);
    if (found && *found == fresh)
        return NULL;
    free(fresh);
    return found ? (*found)->path : NULL;
}

static bool put_file(list_t *list, const char *path, const struct stat *is)
{
    const char *first =
        list->copy.hard_links && is->st_nlink > 1 ? listed_as(list, path, is) : NULL;

    if (!first)
        return put(list, RD_ITEM_FILE, path, is, 0);
    fill(&list->item, RD_ITEM_HARD, is);
    (void)snprintf(list->item.target, sizeof list->item.target, "%s", first);
    (void)snprintf(list->item.path, sizeof list->item.path, "%s", path);
    return rd_items_put(&list->out, &list->item);
}

/* ---- other entries ---- */

static bool put_link(list_t *list, const char *path, const struct stat *is)
{
    const char *name;
    int parent = rd_beneath_parent(&list->beneath, path, &name);
    ssize_t len;

    fill(&list->item, RD_ITEM_LINK, is);
    len = parent < 0 ? -1 : readlinkat(parent, name, list->item.target, RD_PATH_BYTES - 1);
    if (len <= 0) {
        rd_complain(&list->complaints, path, "%s", strerror(errno));
        return true;
    }
    list->item.target[len] = 0;
    (void)snprintf(list->item.path, sizeof list->item.path, "%s", path);
    return rd_items_put(&list->out, &list->item);
}

/* Lists an entry that is not copied, so that the target's entry of the same name is not deleted. */
static bool skip(list_t *list, const char *path, const struct stat *is)
{
    return !list->copy.deletes || put(list, RD_ITEM_SKIP, path, is, 0);
}

static bool skip_special(list_t *list, const char *path, const struct stat *is)
{
    const char *what = rd_special_name(is->st_mode);

    if (list->copy.fail_special)
        rd_complain(&list->complaints, path, "is %s, and --fail-special was given", what);
    else
        rd_warn(&list->complaints, path, "is %s: skipped", what);
    return skip(list, path, is);
}

/* ---- a tree ---- */

/* Returns whether this path is to be copied. If not, the reason has been reported, unless the user
 * left the path out. */
static bool is_copied(list_t *list, const char *path, struct stat *is_p, bool *goes_on_p)
{
    const char *name;
    int parent = rd_beneath_parent(&list->beneath, path, &name);

    if (parent < 0 || fstatat(parent, name, is_p, AT_SYMLINK_NOFOLLOW) < 0) {
        rd_complain(&list->complaints, path, "%s", strerror(errno));
        return false;
    }
    if (rd_copy_excludes(&list->copy, path, S_ISDIR(is_p->st_mode)))
        return false;
    if (!rd_special_name(is_p->st_mode) && rd_is_part_name(name)) {
        /* The copy of such a file would be mistaken for the part of another file. A directory may
         * even be the one that we are creating, which would grow while it is listed. */
        rd_warn(&list->complaints, path, "is a partial copy: skipped");
        *goes_on_p = skip(list, path, is_p);
        return false;
    }
    return true;
}

static bool list_directory(list_t *list, char *path, const struct stat *is);
static bool list_named(list_t *list, char *path, const struct stat *is);

/* Returns false if the reader has closed. */
static bool list_one(list_t *list, char *path)
{
    bool goes_on = true;
    struct stat is;

    if (!is_copied(list, path, &is, &goes_on))
        return goes_on;
    if (S_ISREG(is.st_mode))
        return put_file(list, path, &is);
    if (S_ISDIR(is.st_mode))
        return list->copy.recursive ? list_directory(list, path, &is) : list_named(list, path, &is);
    if (S_ISLNK(is.st_mode))
        return put_link(list, path, &is);
    return skip_special(list, path, &is);
}

/* `path` is a buffer of RD_PATH_BYTES. Reports an error if the result is too long. */
static bool append(list_t *list, char *path, size_t len, const char *name, size_t bytes)
{
    int added =
        snprintf(path + len, RD_PATH_BYTES - len, "%s%.*s", len > 0 ? "/" : "", (int)bytes, name);

    if ((size_t)added < RD_PATH_BYTES - len)
        return true;
    path[len] = 0;
    rd_complain(&list->complaints, path, "its path is longer than 4,095 bytes");
    return false;
}

/* `path` is a buffer of RD_PATH_BYTES, and is restored before this returns. */
static bool list_directory(list_t *list, char *path, const struct stat *is)
{
    bool is_mounted = list->copy.one_system && is->st_dev != list->device;
    size_t len = strlen(path);
    rd_names_t names = {0};
    int fd = is_mounted ? -1 : rd_beneath_file(&list->beneath, path, O_RDONLY | O_DIRECTORY);
    bool goes_on = put(list, RD_ITEM_DIR, path, is, 0);

    if (!is_mounted && (fd < 0 || !rd_names_read(&names, fd)))
        rd_complain(&list->complaints, path, "%s", strerror(errno));
    for (size_t i = 0; i < names.count && goes_on; i++) {
        if (append(list, path, len, names.of[i], strlen(names.of[i])))
            goes_on = list_one(list, path);
        path[len] = 0;
    }
    rd_names_free(&names);
    return goes_on && put(list, RD_ITEM_LEAVE, path, is, is_mounted);
}

/* ---- the names of --files-from ---- */

static const char *next_name(const list_t *list)
{
    const rd_names_t *names = list->copy.wanted;

    return list->next < names->count ? names->of[list->next] : NULL;
}

static void pass_over(list_t *list, const char *path)
{
    for (const char *name; (name = next_name(list)) && rd_lies_in(name, path);)
        list->next++;
}

/* Lists a directory above the next name. */
static bool list_above(list_t *list, char *path)
{
    bool goes_on = true;
    struct stat is;
    bool is_in_copy = is_copied(list, path, &is, &goes_on);

    if (is_in_copy && S_ISDIR(is.st_mode))
        return list_named(list, path, &is);
    if (is_in_copy)
        rd_complain(&list->complaints, path, "is %s, but --files-from names paths below it",
                    S_ISLNK(is.st_mode) ? "a symbolic link" : "not a directory");
    pass_over(list, path);
    return goes_on;
}

/* Like list_directory, but lists only the entries that --files-from names. */
static bool list_named(list_t *list, char *path, const struct stat *is)
{
    size_t len = strlen(path);
    bool goes_on = put(list, RD_ITEM_DIR, path, is, 0);

    if (list->copy.one_system && is->st_dev != list->device) {
        rd_warn(&list->complaints, path,
                "is on another file system: the names below it are skipped");
        pass_over(list, path);
    }
    for (const char *name; goes_on && (name = next_name(list)) && rd_lies_in(name, path);) {
        const char *rest = name + len + (len > 0);
        size_t step = strcspn(rest, "/");

        if (!append(list, path, len, rest, step)) { /* too long; the error was reported */
            list->next++;
        } else if (rest[step]) {
            goes_on = list_above(list, path);
        } else {
            list->next++;
            goes_on = list_one(list, path);
            /* Skip the names below this one, because list_one has handled them. With -r it has
             * listed the whole directory, otherwise only these names. */
            pass_over(list, path);
        }
        path[len] = 0;
    }
    return goes_on && put(list, RD_ITEM_LEAVE, path, is, 1);
}

/* The list of names begins with "" if it contains the source itself. */
static bool list_names(list_t *list, char *path, const struct stat *is)
{
    const char *first;

    list->next = 0;
    first = next_name(list);
    if (first && !*first && list->copy.recursive)
        return list_directory(list, path, is);
    list->next += first && !*first;
    return list_named(list, path, is);
}

/* ---- the top ---- */

static bool list_top(list_t *list)
{
    const char *path = *list->copy.path ? list->copy.path : ".";
    char below[RD_PATH_BYTES] = "";
    struct stat is;
    int top;
    bool goes_on;

    if (stat(path, &is) < 0) {
        rd_complain(&list->complaints, "", "%s%s", strerror(errno),
                    errno == ENOENT && *list->copy.host && strpbrk(path, "*?[")
                        ? "; rdcp does not expand wildcards on another host"
                        : "");
        return true;
    }
    if (S_ISREG(is.st_mode) && list->copy.wanted) {
        rd_complain(&list->complaints, "", "is a file, but --files-from names paths below it");
        return true;
    }
    if (S_ISREG(is.st_mode))
        return put(list, RD_ITEM_FILE, "", &is, 0);
    if (!S_ISDIR(is.st_mode)) {
        rd_complain(&list->complaints, "", "is %s: rdcp copies only files and directories",
                    rd_special_name(is.st_mode));
        return true;
    }
    if (!list->copy.recursive && !list->copy.wanted) {
        rd_complain(&list->complaints, "", "is a directory; use -r to copy it and its contents");
        return true;
    }
    top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top < 0) {
        rd_complain(&list->complaints, "", "%s", strerror(errno));
        return true;
    }
    rd_beneath_open(&list->beneath, top);
    list->device = is.st_dev;
    goes_on = list->copy.wanted ? list_names(list, below, &is) : list_directory(list, below, &is);
    rd_beneath_close(&list->beneath);
    close(top);
    return goes_on;
}

static bool list_source(list_t *list, size_t which)
{
    bool goes_on;

    list->item = (rd_item_t){.kind = RD_ITEM_START,
                             .mode = RD_ITEM_VERSION,
                             .size = which,
                             .offset = list->complaints.count};
    rd_copy_terms_offer(&list->item, list->copy.delta);
    if (list->copy.paths)
        list->copy.path = list->copy.paths[which];
    goes_on = rd_items_put(&list->out, &list->item) && list_top(list);
    tdestroy(list->linked, free);
    list->linked = NULL;
    return goes_on;
}

int rd_copy_list(const rd_copy_t *copy, int out)
{
    static list_t list;
    bool done;

    list = (list_t){.copy = *copy, .complaints = {.copy = &list.copy}};
    if (!rd_items_out_open(&list.out, out))
        return RD_COPY_FAILED;
    done = true;
    for (size_t i = 0; done && i < (copy->sources > 0 ? copy->sources : 1); i++)
        done = list_source(&list, i);
    list.item = (rd_item_t){.kind = RD_ITEM_END, .size = list.complaints.count};
    done = done && rd_items_put(&list.out, &list.item);
    done = rd_items_out_close(&list.out) && done;
    return done && list.complaints.count == 0 ? RD_COPY_DONE : RD_COPY_FAILED;
}
