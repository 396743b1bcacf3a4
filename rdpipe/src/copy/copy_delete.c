/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_delete.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

/* ---- entries that only the target has ---- */

/* A directory in the list, between its DIR and its LEAVE. */
typedef struct {
    rd_names_t listed;
    size_t len; /* length of the parent directory's path */
} level_t;

struct rd_extras {
    rd_complaints_t *complaints;
    rd_items_out_t *out;
    rd_beneath_t beneath, part;
    level_t *levels;
    size_t depth;
    char path[RD_PATH_BYTES]; /* the list's current directory, or an entry below it */
    uint64_t found;           /* total for all sources */
    rd_item_t item;
};

rd_extras_t *rd_extras_open(rd_complaints_t *complaints, rd_items_out_t *out)
{
    rd_extras_t *extras = calloc(1, sizeof *extras);

    if (!extras)
        return NULL;
    extras->complaints = complaints;
    extras->out = out;
    rd_beneath_open(&extras->beneath, -1);
    rd_beneath_open(&extras->part, -1);
    return extras;
}

static void leave_all(rd_extras_t *extras)
{
    while (extras->depth > 0)
        rd_names_free(&extras->levels[--extras->depth].listed);
    extras->path[0] = 0;
}

void rd_extras_begin(rd_extras_t *extras, int top, int part)
{
    leave_all(extras);
    rd_beneath_close(&extras->beneath);
    rd_beneath_close(&extras->part);
    rd_beneath_open(&extras->beneath, top);
    rd_beneath_open(&extras->part, part);
}

void rd_extras_close(rd_extras_t *extras)
{
    if (!extras)
        return;
    leave_all(extras);
    rd_beneath_close(&extras->beneath);
    rd_beneath_close(&extras->part);
    free(extras->levels);
    free(extras);
}

/* Checks the entry `name` in the directory `path`, and sends DELETE items for it and everything in
 * it if all of that may be deleted. If this returns false the entry is kept, and so is its
 * directory. */
static bool offer(rd_extras_t *extras, const char *name, bool is_in_extra);

/* Sends DELETE items for the content of `path`, a directory that only the target has. */
static bool offer_content(rd_extras_t *extras)
{
    int fd = rd_beneath_file(&extras->beneath, extras->path, O_RDONLY | O_DIRECTORY);
    rd_names_t names = {0};
    bool all = true;

    if (fd >= 0 && rd_is_mount_root(fd)) {
        rd_warn(extras->complaints, extras->path, "is a mount point: not deleted");
        close(fd);
        return false;
    }
    if (fd < 0 || !rd_names_read(&names, fd)) {
        rd_complain(extras->complaints, extras->path, "%s", strerror(errno));
        all = false;
    }
    for (size_t i = 0; i < names.count; i++)
        all &= offer(extras, names.of[i], true);
    rd_names_free(&names);
    return all;
}

static bool offer_path(rd_extras_t *extras, bool is_in_extra)
{
    const rd_copy_t *copy = extras->complaints->copy;
    const char *name, *special;
    int parent = rd_beneath_parent(&extras->beneath, extras->path, &name);
    struct stat is;

    if (parent < 0 || fstatat(parent, name, &is, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT; /* another process has deleted it */
    if (rd_copy_excludes(copy, extras->path, S_ISDIR(is.st_mode)) ||
        (!is_in_extra && rd_is_part_name(name)))
        return false;
    special = rd_special_name(is.st_mode);
    if (special) {
        rd_warn(extras->complaints, extras->path, "is %s: not deleted", special);
        return false;
    }
    if (S_ISDIR(is.st_mode) && !offer_content(extras))
        return false;
    if (extras->found > copy->deletes_max)
        return true; /* unpack needs to know only that the limit is exceeded */
    extras->found++;
    extras->item = (rd_item_t){.kind = RD_ITEM_DELETE, .mode = is.st_mode, .size = copy->target};
    (void)snprintf(extras->item.path, sizeof extras->item.path, "%s", extras->path);
    return rd_items_put(extras->out, &extras->item);
}

static bool offer(rd_extras_t *extras, const char *name, bool is_in_extra)
{
    size_t len = strlen(extras->path), room = sizeof extras->path - len;
    bool done;

    if ((size_t)snprintf(extras->path + len, room, "%s%s", len > 0 ? "/" : "", name) >= room) {
        extras->path[len] = 0;
        rd_warn(extras->complaints, extras->path,
                "contains paths of more than %u bytes: not deleted", RD_PATH_BYTES - 1);
        return false;
    }
    done = offer_path(extras, is_in_extra);
    extras->path[len] = 0;
    return done;
}

/* Checks the directory `path` after the source has listed it completely. If a component of the path
 * is a symbolic link or not a directory at the target, that is an error, which unpack reports. */
static void look(rd_extras_t *extras, rd_names_t *listed)
{
    int fd = rd_beneath_file(&extras->beneath, extras->path, O_RDONLY | O_DIRECTORY);
    rd_names_t names = {0};

    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
        return;
    if (fd < 0 || !rd_names_read(&names, fd))
        rd_complain(extras->complaints, extras->path, "%s", strerror(errno));
    else
        rd_names_sort(listed);
    for (size_t i = 0; i < names.count && extras->complaints->count == 0; i++)
        if (!rd_names_have(listed, names.of[i]))
            (void)offer(extras, names.of[i], false);
    rd_names_free(&names);
}

/* A part's name may contain a shortened file name, so this compares it with the part name of each
 * listed file. */
static bool is_part_of(const rd_names_t *listed, const char *name)
{
    char part[256];

    for (size_t i = 0; i < listed->count; i++) {
        rd_part_name(listed->of[i], part);
        if (strcmp(part, name) == 0)
            return true;
    }
    return false;
}

/* Looks in the new tree for entries that an interrupted copy has left and that are no longer
 * listed. */
static void look_in_part(rd_extras_t *extras, rd_names_t *listed)
{
    int fd = rd_beneath_file(&extras->part, extras->path, O_RDONLY | O_DIRECTORY);
    rd_names_t names = {0};
    rd_item_t *item = &extras->item;

    if (fd < 0)
        return;
    if (!rd_names_read(&names, fd))
        rd_complain(extras->complaints, extras->path, "%s", strerror(errno));
    rd_names_sort(listed);
    for (size_t i = 0; i < names.count; i++) {
        if (rd_names_have(listed, names.of[i]) ||
            (rd_is_part_name(names.of[i]) && is_part_of(listed, names.of[i])))
            continue;
        *item = (rd_item_t){.kind = RD_ITEM_DELETE,
                            .has = RD_HAS_PART,
                            .mode = S_IFREG,
                            .size = extras->complaints->copy->target};
        if ((size_t)snprintf(item->path, sizeof item->path, "%s%s%s", extras->path,
                             *extras->path ? "/" : "", names.of[i]) < sizeof item->path)
            (void)rd_items_put(extras->out, item);
    }
    rd_names_free(&names);
}

/* ---- the list ---- */

static bool enter(rd_extras_t *extras, const char *path, rd_why_t *why)
{
    level_t *levels = rd_with_room(extras->levels, extras->depth, sizeof *levels);

    if (!levels)
        return rd_because(why, "out of memory");
    extras->levels = levels;
    extras->levels[extras->depth++] = (level_t){.len = strlen(extras->path)};
    (void)snprintf(extras->path, sizeof extras->path, "%s", path);
    return true;
}

static bool leave(rd_extras_t *extras, const rd_item_t *item, rd_why_t *why)
{
    level_t *level;

    if (extras->depth == 0 || strcmp(item->path, extras->path) != 0)
        return rd_because(why, "the list closes directory '%.300s', which is not the current one",
                          item->path);
    level = &extras->levels[--extras->depth];
    if (item->offset == 0) {
        if (extras->complaints->copy->deletes)
            look(extras, &level->listed);
        look_in_part(extras, &level->listed);
    }
    extras->path[level->len] = 0;
    rd_names_free(&level->listed);
    return true;
}

/* If the path is in the list's current directory, records its name as listed there. */
static bool note(rd_extras_t *extras, const char *path, rd_why_t *why)
{
    size_t len = strlen(extras->path), skipped = len > 0 ? len + 1 : 0;

    if (extras->depth == 0 || memcmp(path, extras->path, len) != 0 ||
        (len > 0 && path[len] != '/') || strchr(path + skipped, '/'))
        return rd_because(why,
                          "the list names '%.200s', which is not in the current directory '%.200s'",
                          path, extras->path);
    return rd_names_add(&extras->levels[extras->depth - 1].listed, path + skipped,
                        strlen(path + skipped)) ||
           rd_because(why, "out of memory");
}

bool rd_extras_take(rd_extras_t *extras, const rd_item_t *item, rd_why_t *why)
{
    bool is_top = !*item->path;

    if (item->kind == RD_ITEM_LEAVE)
        return leave(extras, item, why);
    if (is_top && extras->depth > 0)
        return rd_because(why, "the list names its top directory twice");
    if (!is_top && !note(extras, item->path, why))
        return false;
    return item->kind != RD_ITEM_DIR || enter(extras, item->path, why);
}

/* ---- deleting ---- */

bool rd_deletions_add(rd_deletions_t *deletions, const rd_copy_t *copy, const rd_item_t *item,
                      rd_why_t *why)
{
    bool is_directory = S_ISDIR(item->mode), done;
    char entry[RD_PATH_BYTES + 1];

    if (!copy->deletes)
        return rd_because(why, "the other side asks to delete '%.300s', but --delete was not given",
                          item->path);
    if (rd_special_name(item->mode))
        return rd_because(
            why,
            "the other side asks to delete '%.300s', but not as a file, directory or symbolic link",
            item->path);
    if (rd_copy_omits(copy, item->path, is_directory))
        return rd_because(why, "the other side asks to delete '%.300s', which --exclude protects",
                          item->path);
    if (++deletions->asked > copy->deletes_max)
        return true;
    (void)snprintf(entry, sizeof entry, "%c%s", is_directory ? 'd' : 'f', item->path);
    done = rd_names_add(&deletions->paths, entry, strlen(entry));
    return done || rd_because(why, "out of memory");
}

bool rd_deletions_are_allowed(rd_deletions_t *deletions, rd_complaints_t *complaints, bool is_whole)
{
    uint64_t most = complaints->copy->deletes_max;

    if (is_whole && deletions->asked > most)
        rd_complain(complaints, "",
                    "nothing is deleted, because more than %llu files and directories would be; "
                    "raise --max-delete to allow it",
                    (unsigned long long)most);
    else if (!is_whole && deletions->paths.count > 0)
        rd_warn(complaints, "", "nothing is deleted, because the copy is incomplete");
    if (is_whole && deletions->asked <= most)
        return true;
    rd_names_free(&deletions->paths);
    return false;
}

/* Returns true if the entry is not a part, or is a part that no copy is writing. */
static bool is_unused(int parent, const char *name)
{
    int fd = rd_is_part_name(name) ? openat(parent, name, O_RDONLY | RD_FILE_FLAGS) : -1;
    bool is_used = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;

    rd_close(&fd);
    return !is_used;
}

/* Deletes an entry of a directory that is ours but has no write permission because its source has
 * none. */
static bool unlink_in_read_only(int parent, const char *name, int flags, const struct stat *is)
{
    bool done;
    int error;

    if (fchmodat(parent, ".", (is->st_mode & 07777) | 0700, 0) < 0) {
        errno = EACCES;
        return false;
    }
    done = unlinkat(parent, name, flags) == 0;
    error = errno;
    (void)fchmodat(parent, ".", is->st_mode & 07777, 0);
    errno = error;
    return done;
}

/* Deletes an entry without changing its directory's modification time, which with -p is already
 * that of the source. */
static bool delete_in(rd_complaints_t *complaints, int parent, const char *name, const char *path,
                      bool is_directory)
{
    int flags = is_directory ? AT_REMOVEDIR : 0;
    struct stat above;
    bool done;

    if (fstat(parent, &above) < 0)
        return false;
    done = unlinkat(parent, name, flags) == 0 ||
           (errno == EACCES && unlink_in_read_only(parent, name, flags, &above));
    if (done && complaints->copy->preserve) {
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, above.st_mtim};

        (void)utimensat(parent, ".", times, 0);
    } else if (!done && errno != ENOENT) {
        rd_complain(complaints, path, "not deleted: %s", strerror(errno));
    }
    return done;
}

static bool delete_one(rd_complaints_t *complaints, rd_beneath_t *beneath, const char *entry)
{
    const char *path = entry + 1, *name;
    bool is_directory = entry[0] == 'd';
    int parent = rd_beneath_parent(beneath, path, &name);
    struct stat is;

    if (parent < 0 || fstatat(parent, name, &is, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT)
            rd_complain(complaints, path, "not deleted: %s", strerror(errno));
        return false;
    }
    if (S_ISDIR(is.st_mode) != is_directory || rd_special_name(is.st_mode))
        rd_complain(complaints, path, "not deleted: it was replaced after it was compared");
    else if (!is_unused(parent, name))
        rd_complain(complaints, path, "not deleted: another rdcp is writing to it");
    else
        return delete_in(complaints, parent, name, path, is_directory);
    return false;
}

static void note_deleted(rd_deletions_t *deletions, rd_complaints_t *complaints, const char *path)
{
    const char *into = complaints->into;
    char whole[RD_PATH_BYTES + 300];

    if (complaints->copy->verbose)
        rd_tell(complaints, RD_NOTE, path, "deleted");
    (void)snprintf(whole, sizeof whole, "%s%s%s", into ? into : "", into ? "/" : "", path);
    (void)rd_names_add(&deletions->deleted, whole, strlen(whole));
}

void rd_deletions_run(rd_deletions_t *deletions, rd_complaints_t *complaints, int top)
{
    rd_beneath_t beneath;

    rd_beneath_open(&beneath, top);
    for (size_t i = 0; i < deletions->paths.count; i++)
        if (delete_one(complaints, &beneath, deletions->paths.of[i]))
            note_deleted(deletions, complaints, deletions->paths.of[i] + 1);
    rd_beneath_close(&beneath);
    rd_names_free(&deletions->paths);
}

void rd_deletions_took_place(rd_deletions_t *deletions, rd_complaints_t *complaints, bool done)
{
    for (size_t i = 0; i < deletions->paths.count && done; i++)
        note_deleted(deletions, complaints, deletions->paths.of[i] + 1);
    rd_names_free(&deletions->paths);
}

void rd_deletions_free(rd_deletions_t *deletions)
{
    rd_names_free(&deletions->paths);
    rd_names_free(&deletions->deleted);
}
