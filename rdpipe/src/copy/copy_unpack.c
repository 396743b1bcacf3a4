/* SPDX-License-Identifier: Apache-2.0 */
/* The last part of a copy, which writes the items that arrive without trusting them
 * (open_beneath.h). Where writing a small file takes a long time, as on a network file system,
 * several are written in parallel (copy_jobs.h), each after it has arrived completely. */
#include "copy_atomic.h"
#include "copy_delta.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "cli/cli.h"
#include "copy_jobs.h"

/* Either a small file that is first collected in memory and then written in parallel with others,
 * or the end of a directory, which waits for the files before it. */
typedef struct {
    rd_file_t file;
    bool is_directory, is_written;
    size_t filled;
    uint8_t content[RD_SMALL_BYTES];
} job_t;

typedef struct {
    rd_writer_t writer;
    rd_copy_terms_t terms;
    /* The number of errors in the previous sources, on the source's side and here. */
    uint64_t missing, complained;
    bool has_failed; /* one of those sources has failed */
    rd_target_t target;
    rd_beneath_t beneath;
    rd_beneath_t old; /* the tree that --atomic will replace */
    rd_item_t item;
    rd_items_in_t in;
    bool has_target;
    rd_attributes_t attributes; /* the attributes of the next item */
    bool is_in_file;
    rd_file_t file;
    job_t *gathered; /* the file being collected, in place of `file`, or NULL if none */
    rd_jobs_t *jobs; /* NULL if not needed yet */
    rd_pace_t pace;
    int64_t opened_us; /* how long it took to open `file` */
    /* The number of files written and left unchanged, and the bytes received. */
    uint64_t files, kept, bytes;
    rd_deletions_t deletions;
} unpack_t;

/* ---- the target ---- */

/* Makes an existing directory writable, because an interrupted copy or one with -p may have left it
 * read-only. When the directory is complete it gets its source's mode. */
static void make_writable(int fd)
{
    struct stat is;

    if (fstat(fd, &is) == 0 && (is.st_mode & 0700) != 0700)
        (void)fchmod(fd, (is.st_mode & 07777) | 0700);
}

static bool make_top(unpack_t *unpack)
{
    rd_target_t *target = &unpack->target;
    struct stat is;

    if (target->base < 0) {
        if (mkdirat(target->parent, target->part, 0700) < 0) {
            if (errno != EEXIST)
                return rd_writer_complain(&unpack->writer, "", errno);
            rd_writer_lose(&unpack->writer, ""); /* it did not exist a moment ago */
            return false;
        }
        target->base =
            openat(target->parent, target->part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (target->base < 0)
            return rd_writer_complain(&unpack->writer, target->part, errno);
    }
    if (target->is_new &&
        !(rd_copy_lock(target->base) && rd_is_named(target->parent, target->part, target->base))) {
        rd_writer_lose(&unpack->writer, "");
        return false;
    }
    /* An abandoned part may already have its source's mode. */
    if (target->is_new && fstat(target->base, &is) == 0)
        (void)fchmod(target->base, (is.st_mode & S_ISGID) | 0700);
    else if (unpack->writer.copy.preserve)
        make_writable(target->base);
    return true;
}

static bool find_target(unpack_t *unpack)
{
    rd_why_t why;
    bool is_tree = unpack->item.kind == RD_ITEM_DIR;

    if (!rd_target_find(&unpack->writer.copy, is_tree, &unpack->target, &why)) {
        rd_complain(&unpack->writer.complaints, "", "%s", why.text);
        return false;
    }
    if (unpack->target.is_into)
        unpack->writer.complaints.into = unpack->target.name;
    if (is_tree && !make_top(unpack))
        return false;
    unpack->writer.is_private = is_tree && unpack->target.is_new;
    unpack->writer.replaces = false;
    rd_writer_look_at(&unpack->writer, unpack->target.base);
    rd_beneath_open(&unpack->beneath, unpack->target.base);
    rd_beneath_open(&unpack->old, unpack->target.old);
    return true;
}

static bool find_old(unpack_t *unpack, const char *path, struct stat *is_p)
{
    const char *name;
    int parent;

    if (unpack->target.old < 0)
        return false;
    if (!*path)
        return fstat(unpack->target.old, is_p) == 0;
    parent = rd_beneath_parent(&unpack->old, path, &name);
    return parent >= 0 && fstatat(parent, name, is_p, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Finds the directory and name of an item. Reports the error if it returns false. */
static bool find_name(unpack_t *unpack, int *parent_p, const char **name_p)
{
    const char *path = unpack->item.path;

    *parent_p = unpack->target.base;
    *name_p = unpack->target.name;
    if (*path) {
        *parent_p = rd_beneath_parent(&unpack->beneath, path, name_p);
        if (*parent_p < 0)
            return rd_writer_complain(&unpack->writer, path, errno);
    }
    return strlen(*name_p) <= 255 || rd_writer_complain(&unpack->writer, path, ENAMETOOLONG);
}

/* Like find_name, but also checks that the name is not that of a device, FIFO or socket. */
static bool find_place(unpack_t *unpack, int *parent_p, const char **name_p)
{
    return find_name(unpack, parent_p, name_p) &&
           rd_writer_is_free(&unpack->writer, unpack->item.path, *parent_p, *name_p);
}

/* ---- files written in parallel ---- */

/* Runs in a job's thread. */
static void do_job(void *context, void *argument)
{
    unpack_t *unpack = context;
    job_t *job = argument;
    rd_file_t *file = &job->file;

    if (!unpack->writer.is_fatal)
        rd_file_open(&unpack->writer, file);
    rd_file_write(&unpack->writer, file, job->content, job->filled);
    job->is_written = rd_file_close(&unpack->writer, file);
    close(file->parent);
}

static void leave_directory(unpack_t *unpack, const rd_item_t *left,
                            const rd_attributes_t *attributes);

static void end_job(void *context, void *argument)
{
    unpack_t *unpack = context;
    job_t *job = argument;

    if (job->is_directory)
        leave_directory(unpack, &job->file.item, &job->file.attributes);
    else if (job->is_written)
        unpack->files++;
    rd_attributes_clear(&job->file.attributes);
}

static void forget_job(void *context, void *argument)
{
    job_t *job = argument;

    (void)context;
    rd_attributes_free(&job->file.attributes);
}

/* Moves the attributes of the next item to its file. */
static void take_attributes(unpack_t *unpack, rd_attributes_t *attributes)
{
    rd_attributes_t old = *attributes;

    *attributes = unpack->attributes;
    unpack->attributes = old;
    rd_attributes_clear(&unpack->attributes);
}

/* Returns NULL if the file must be written immediately. */
static job_t *new_job(unpack_t *unpack)
{
    const rd_item_t *item = &unpack->item;
    bool was_beside = unpack->pace.is_beside;

    if (item->size > RD_SMALL_BYTES || item->offset > 0 || item->has == RD_HAS_VERSION)
        return NULL;
    if (!rd_pace_next(&unpack->pace, rd_now_us())) {
        if (was_beside)
            rd_jobs_drain(unpack->jobs); /* so that the next files, written one by one, show how
                                            long each takes */
        return NULL;
    }
    if (!unpack->jobs)
        unpack->jobs = rd_jobs_open(sizeof(job_t), do_job, end_job, unpack);
    return unpack->jobs ? rd_jobs_room(unpack->jobs) : NULL;
}

/* Called if the file that is being collected has holes or more content than announced. It is then
 * written directly. */
static void ungather(unpack_t *unpack)
{
    job_t *job = unpack->gathered;
    rd_file_t *file = &unpack->file;
    rd_attributes_t old = file->attributes;

    *file = job->file;
    job->file.attributes = old;
    unpack->gathered = NULL;
    rd_file_open(&unpack->writer, file);
    rd_file_write(&unpack->writer, file, job->content, job->filled);
}

/* ---- files written one by one ---- */

static void begin_file(unpack_t *unpack)
{
    job_t *job = new_job(unpack);
    rd_file_t *file = job ? &job->file : &unpack->file;
    const char *name;
    int parent;

    unpack->is_in_file = true;
    file->fd = file->parent = -1;
    file->item = unpack->item;
    file->at = unpack->item.offset;
    take_attributes(unpack, &file->attributes);
    file->has_old = find_old(unpack, unpack->item.path, &file->old) && S_ISREG(file->old.st_mode);
    if (!find_name(unpack, &parent, &name))
        return;
    /* No other path arrives before the end of this file, so `beneath` keeps its directory open. */
    file->parent = job ? fcntl(parent, F_DUPFD_CLOEXEC, 0) : parent;
    file->owns_parent = job != NULL;
    if (file->parent < 0) {
        (void)rd_writer_complain(&unpack->writer, unpack->item.path, errno);
        return;
    }
    (void)snprintf(file->name, sizeof file->name, "%s", name);
    rd_part_name(name, file->part);
    if (job) {
        job->is_directory = job->is_written = false;
        job->filled = 0;
        unpack->gathered = job;
    } else {
        int64_t from = rd_now_us();

        rd_file_open(&unpack->writer, file);
        if (file->item.has == RD_HAS_VERSION)
            rd_delta_begin(&unpack->writer, &unpack->terms, file);
        unpack->opened_us = rd_now_us() - from;
    }
}

/* Returns false if the copy must end here; *why is set if the stream ended. */
static bool take_data(unpack_t *unpack, rd_why_t *why)
{
    const uint8_t *at = NULL;
    size_t len;

    while ((len = rd_items_data(&unpack->in, &at, why)) > 0) {
        job_t *job = unpack->gathered;

        unpack->bytes += len;
        if (job && len > RD_SMALL_BYTES - job->filled)
            ungather(unpack);
        if (unpack->gathered) {
            memcpy(job->content + job->filled, at, len);
            job->filled += len;
        } else {
            rd_file_write(&unpack->writer, &unpack->file, at, len);
        }
        if (unpack->writer.is_fatal)
            return false;
    }
    return !why->text[0];
}

static void close_parent(rd_file_t *file)
{
    if (file->parent >= 0 && file->owns_parent)
        close(file->parent);
    file->parent = -1;
}

static void end_file(unpack_t *unpack)
{
    bool is_whole = unpack->item.has == RD_HAS_ALL; /* if not, the source's side has reported why */
    job_t *job = unpack->gathered;
    rd_file_t *file = &unpack->file;

    unpack->is_in_file = false;
    unpack->gathered = NULL;
    if (job && is_whole) {
        rd_jobs_give(unpack->jobs, true);
    } else if (job) {
        close(job->file.parent);
    } else {
        int64_t from = rd_now_us();

        if (is_whole && file->item.has == RD_HAS_VERSION)
            rd_delta_end(&unpack->writer, file, unpack->item.digest);
        if (!is_whole)
            rd_file_drop(file, true);
        else if (rd_file_close(&unpack->writer, file))
            unpack->files++;
        close_parent(file);
        if (file->item.size <= RD_SMALL_BYTES)
            rd_pace_took(&unpack->pace, unpack->opened_us + rd_now_us() - from);
    }
}

static bool has_mode_and_time(const unpack_t *unpack, const struct stat *is)
{
    const rd_item_t *item = &unpack->item;

    return S_ISREG(is->st_mode) && (uint64_t)is->st_size == item->size &&
           unpack->writer.copy.preserve && !rd_attributes_wanted(&unpack->writer.copy) &&
           (is->st_mode & 07777) == rd_writer_mode(&unpack->writer, item, false) &&
           rd_has_time(is, item);
}

/* Handles a KEEP item. The target already has the file's content, so only its mode, time and other
 * attributes may need to be set. */
static void keep_file(unpack_t *unpack)
{
    const rd_item_t *item = &unpack->item;
    const char *name;
    int parent, fd;
    struct stat is;

    if (!find_name(unpack, &parent, &name))
        return;
    if (unpack->target.old >= 0) {
        unpack->kept +=
            rd_atomic_keep(&unpack->writer, &unpack->old, item, &unpack->attributes, parent, name);
        return;
    }
    if (fstatat(parent, name, &is, AT_SYMLINK_NOFOLLOW) == 0 && has_mode_and_time(unpack, &is)) {
        unpack->kept++;
        return;
    }
    fd = rd_file_at(parent, name, &is);
    if (fd < 0 || (uint64_t)is.st_size != item->size)
        rd_complain(&unpack->writer.complaints, item->path, "changed while being copied");
    else if ((unpack->writer.copy.preserve || rd_attributes_wanted(&unpack->writer.copy)) &&
             !rd_writer_attributes(&unpack->writer, &unpack->attributes, fd, &is, item, &is))
        (void)rd_writer_complain(&unpack->writer, item->path, errno);
    else
        unpack->kept++;
    rd_close(&fd);
}

/* ---- links and directories ---- */

static void make_link(unpack_t *unpack)
{
    const rd_item_t *item = &unpack->item;
    struct timespec times[2];
    const char *name;
    char part[256];
    int parent;

    if (!find_place(unpack, &parent, &name))
        return;
    rd_part_name(name, part);
    rd_item_times(item, times);
    (void)unlinkat(parent, part, 0);
    if (symlinkat(item->target, parent, part) < 0 ||
        (unpack->writer.copy.preserve && utimensat(parent, part, times, AT_SYMLINK_NOFOLLOW) < 0) ||
        renameat(parent, part, parent, name) < 0) {
        (void)rd_writer_complain(&unpack->writer, item->path, errno);
        (void)unlinkat(parent, part, 0);
    } else if (unpack->writer.copy.owner &&
               !rd_attributes_own_link(&unpack->attributes, parent, name)) {
        rd_writer_warn_of_owner(&unpack->writer, item->path);
    }
}

/* Creates a hard link to a file that has already arrived, but may not have been written yet. */
static void make_hard_link(unpack_t *unpack)
{
    const rd_item_t *item = &unpack->item;
    const char *name, *first_name;
    char part[256];
    struct stat is, first_is;
    rd_beneath_t first;
    int parent, from;

    rd_jobs_drain(unpack->jobs);
    if (!find_place(unpack, &parent, &name))
        return;
    rd_part_name(name, part);
    rd_beneath_open(&first, unpack->target.base);
    from = rd_beneath_parent(&first, item->target, &first_name);
    if (from < 0 || fstatat(from, first_name, &first_is, AT_SYMLINK_NOFOLLOW) < 0) {
        (void)rd_writer_complain(&unpack->writer, item->path, errno);
    } else if (!S_ISREG(first_is.st_mode)) {
        rd_complain(&unpack->writer.complaints, item->path,
                    "cannot link to %s, which is not a regular file", item->target);
    } else if (fstatat(parent, name, &is, AT_SYMLINK_NOFOLLOW) == 0 &&
               is.st_ino == first_is.st_ino && is.st_dev == first_is.st_dev) {
        unpack->kept++;
    } else {
        (void)unlinkat(parent, part, 0);
        if (linkat(from, first_name, parent, part, 0) < 0 ||
            renameat(parent, part, parent, name) < 0) {
            (void)rd_writer_complain(&unpack->writer, item->path, errno);
            (void)unlinkat(parent, part, 0);
        } else {
            unpack->files++;
        }
    }
    rd_beneath_close(&first);
}

/* Creates a directory that we can write to, whatever its final mode will be. */
static void make_directory(unpack_t *unpack)
{
    const char *name;
    int parent, fd;

    if (!*unpack->item.path || !find_place(unpack, &parent, &name))
        return;
    if (mkdirat(parent, name, (unpack->item.mode & 0777) | 0700) == 0)
        return;
    if (errno != EEXIST) {
        (void)rd_writer_complain(&unpack->writer, unpack->item.path, errno);
        return;
    }
    fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        rd_complain(&unpack->writer.complaints, unpack->item.path,
                    "already exists and is not a directory");
    else if (unpack->target.is_new || unpack->writer.copy.preserve)
        make_writable(fd);
    rd_close(&fd);
}

/* Sets the attributes of a directory that is complete. Until then, only we have access to the top
 * of a new tree. */
static void leave_directory(unpack_t *unpack, const rd_item_t *left,
                            const rd_attributes_t *attributes)
{
    static rd_item_t item;
    bool preserve = unpack->writer.copy.preserve, has_old;
    struct stat old;
    int fd;

    has_old = find_old(unpack, left->path, &old) && S_ISDIR(old.st_mode);
    if (!preserve && !has_old && !rd_attributes_wanted(&unpack->writer.copy) &&
        (*left->path || !unpack->target.is_new))
        return;
    item = *left;
    if (!preserve)
        item.mode |= 0700;
    fd = rd_beneath_file(&unpack->beneath, item.path, O_RDONLY | O_DIRECTORY);
    if (fd < 0 ||
        !rd_writer_attributes(&unpack->writer, attributes, fd, NULL, &item, has_old ? &old : NULL))
        (void)rd_writer_complain(&unpack->writer, item.path, errno);
    rd_close(&fd);
}

static void take_leave(unpack_t *unpack)
{
    unpack->kept += unpack->item.size;
    if (unpack->jobs) {
        job_t *job = rd_jobs_room(unpack->jobs);

        job->is_directory = true;
        job->file.item = unpack->item;
        take_attributes(unpack, &job->file.attributes);
        rd_jobs_give(unpack->jobs, false);
    } else {
        leave_directory(unpack, &unpack->item, &unpack->attributes);
    }
}

/* Removes an entry that an earlier copy has left in the new tree of --atomic. Nobody else uses that
 * tree yet. */
static bool drop_stale(unpack_t *unpack, rd_why_t *why)
{
    const rd_item_t *item = &unpack->item;
    const char *name;
    int parent;

    if (!unpack->writer.copy.atomic || !unpack->target.is_new)
        return rd_because(why, "the other side asks to remove '%.300s', but there is no new tree",
                          item->path);
    rd_jobs_drain(unpack->jobs);
    parent = rd_beneath_parent(&unpack->beneath, item->path, &name);
    if (parent >= 0 && !rd_atomic_remove(parent, name))
        (void)rd_writer_complain(&unpack->writer, item->path, errno);
    return true;
}

/* ---- the end of a source ---- */

/* Resets the part's owner and mode, which may already be those of its source, because the next copy
 * resumes only parts of our own. */
static void keep_part(const rd_target_t *target)
{
    struct stat is;

    if (fstat(target->base, &is) < 0)
        return;
    if (is.st_uid != geteuid())
        (void)!fchown(target->base, geteuid(), getegid());
    (void)fchmod(target->base, (is.st_mode & S_ISGID) | 0700);
}

/* `there` and `here` count the errors on the source's side and on this side. */
static bool finish(unpack_t *unpack, uint64_t there, uint64_t here)
{
    rd_target_t *target = &unpack->target;
    uint64_t missing = there + here;
    rd_complaints_t last = {.copy = &unpack->writer.copy, .into = unpack->writer.complaints.into};

    if (!unpack->has_target || !target->is_tree || !target->is_new)
        return here == 0;
    if (missing > 0) {
        keep_part(target);
        rd_complain(&last, "",
                    "not %s, because %llu of its files or directories could not be copied; the "
                    "rest is in %s there, and the next copy to this target resumes it",
                    target->old >= 0 ? "replaced" : "created", (unsigned long long)missing,
                    target->part);
        return false;
    }
    if (target->old >= 0)
        return rd_atomic_swap(&unpack->writer, target);
    return rd_target_rename(target, target->part, target->name) ||
           rd_writer_complain(&unpack->writer, "", errno);
}

/* `missing` counts what the source's side could not read, in all sources so far. */
static void end_source(unpack_t *unpack, uint64_t missing)
{
    uint64_t there = missing >= unpack->missing ? missing - unpack->missing : 1;
    bool is_whole, done;

    rd_jobs_drain(unpack->jobs);
    is_whole = unpack->target.old >= 0
                   ? there == 0 && unpack->writer.complaints.count == unpack->complained
                   : missing == 0 && unpack->writer.complaints.count == 0 && !unpack->has_failed;
    if (rd_deletions_are_allowed(&unpack->deletions, &unpack->writer.complaints, is_whole)) {
        if (unpack->target.old >= 0)
            rd_atomic_carry(&unpack->writer, &unpack->target, &unpack->deletions);
        else
            rd_deletions_run(&unpack->deletions, &unpack->writer.complaints, unpack->target.base);
    }
    done = finish(unpack, there, unpack->writer.complaints.count - unpack->complained);
    rd_deletions_took_place(&unpack->deletions, &unpack->writer.complaints, done);
    unpack->has_failed |= !done;
    unpack->missing = missing;
    unpack->complained = unpack->writer.complaints.count;
    rd_attributes_clear(&unpack->attributes);
    rd_beneath_close(&unpack->beneath);
    rd_beneath_close(&unpack->old);
    rd_target_close(&unpack->target);
    unpack->has_target = false;
    unpack->writer.complaints.into = NULL;
}

static bool is_right_kind(const unpack_t *unpack)
{
    const rd_item_t *item = &unpack->item;

    switch (item->kind) {
    case RD_ITEM_DATA:
    case RD_ITEM_HOLE:
    case RD_ITEM_CLOSE:
        return unpack->is_in_file;
    case RD_ITEM_COPY:
        return unpack->is_in_file && unpack->file.item.has == RD_HAS_VERSION && !unpack->gathered;
    case RD_ITEM_BLOCKS:
        return false;
    case RD_ITEM_ATTRIBUTE:
        return !unpack->is_in_file;
    case RD_ITEM_FILE:
        if (item->has == RD_HAS_VERSION && !unpack->terms.has_delta)
            return false;
        /* fallthrough */
    case RD_ITEM_KEEP:
        return !unpack->is_in_file && unpack->target.is_tree == (*item->path != 0);
    default:
        return !unpack->is_in_file && (!unpack->has_target || unpack->target.is_tree);
    }
}

/* Returns false when the copy has ended; *why is set if that was because of an error. */
static bool take(unpack_t *unpack, rd_why_t *why)
{
    switch (unpack->item.kind) {
    case RD_ITEM_FILE:
        begin_file(unpack);
        break;
    case RD_ITEM_DATA:
        return take_data(unpack, why);
    case RD_ITEM_HOLE:
        if (unpack->gathered)
            ungather(unpack);
        rd_file_skip(&unpack->writer, &unpack->file, unpack->item.size);
        break;
    case RD_ITEM_COPY:
        rd_delta_copy(&unpack->writer, &unpack->file, unpack->item.offset, unpack->item.size);
        break;
    case RD_ITEM_CLOSE:
        end_file(unpack);
        break;
    case RD_ITEM_KEEP:
        keep_file(unpack);
        break;
    case RD_ITEM_LINK:
        make_link(unpack);
        break;
    case RD_ITEM_HARD:
        make_hard_link(unpack);
        break;
    case RD_ITEM_ATTRIBUTE:
        return rd_attributes_take(&unpack->attributes, &unpack->item, &unpack->in, why);
    case RD_ITEM_DIR:
        make_directory(unpack);
        break;
    case RD_ITEM_LEAVE:
        take_leave(unpack);
        break;
    case RD_ITEM_DELETE:
        if (unpack->item.size != unpack->writer.copy.target)
            break;
        return unpack->item.has == RD_HAS_PART
                   ? drop_stale(unpack, why)
                   : rd_deletions_add(&unpack->deletions, &unpack->writer.copy, &unpack->item, why);
    default:
        break;
    }
    rd_attributes_clear(&unpack->attributes);
    return !unpack->writer.is_fatal;
}

/* Returns false when the copy has ended, and sets *done_p if all of it has arrived. */
static bool step(unpack_t *unpack, bool *done_p, rd_why_t *why)
{
    rd_item_t *item = &unpack->item;

    if (!rd_items_next(&unpack->in, item, why))
        return false;
    if (item->kind == RD_ITEM_START && !unpack->is_in_file) {
        end_source(unpack, item->offset);
        rd_copy_terms_read(item, &unpack->terms);
        return rd_copy_source(&unpack->writer.copy, item, why);
    }
    if (item->kind == RD_ITEM_END && !unpack->is_in_file) {
        end_source(unpack, item->size);
        *done_p = !unpack->has_failed;
        return false;
    }
    if (!unpack->has_target && item->kind != RD_ITEM_ATTRIBUTE) {
        bool is_top = !*item->path && (item->kind == RD_ITEM_DIR || item->kind == RD_ITEM_FILE ||
                                       item->kind == RD_ITEM_KEEP);

        if (!is_top)
            return rd_because(why, "the copy does not begin with its top file or directory");
        if (!find_target(unpack))
            return false;
        unpack->has_target = true;
    }
    if (!is_right_kind(unpack))
        return rd_because(why, "the copy has an item in the wrong place");
    return take(unpack, why);
}

static void report(const unpack_t *unpack)
{
    const rd_copy_t *copy = unpack->writer.complaints.copy;
    char amount[32];

    rd_amount(amount, (double)unpack->bytes, "B");
    (void)fprintf(stderr, "rdcp: %s%s%llu files written with %s, %llu already there", copy->host,
                  *copy->host ? ": " : "", (unsigned long long)unpack->files, amount,
                  (unsigned long long)unpack->kept);
    if (copy->deletes)
        (void)fprintf(stderr, ", %zu deleted", unpack->deletions.deleted.count);
    (void)fputc('\n', stderr);
}

/* Prints the report with a single write, because other programs may write to the same output. */
static void report_json(const unpack_t *unpack)
{
    const rd_copy_t *copy = unpack->writer.complaints.copy;
    const rd_names_t *deleted = &unpack->deletions.deleted;
    char *line = NULL;
    size_t bytes;
    FILE *to = open_memstream(&line, &bytes);

    if (!to)
        return;
    (void)fprintf(to, "{\"command\": \"rdcp\", \"event\": \"copied\", \"host\": ");
    rd_json_text(to, copy->host);
    (void)fprintf(to,
                  ", \"files_written\": %llu, \"bytes_received\": %llu, \"files_kept\": %llu, "
                  "\"deleted\": [",
                  (unsigned long long)unpack->files, (unsigned long long)unpack->bytes,
                  (unsigned long long)unpack->kept);
    for (size_t i = 0; i < deleted->count; i++) {
        (void)fputs(i > 0 ? ", " : "", to);
        rd_json_text(to, deleted->of[i]);
    }
    (void)fprintf(to, "]}\n");
    if (fclose(to) == 0)
        (void)fputs(line, stderr);
    free(line);
}

int rd_copy_unpack(const rd_copy_t *copy, int in)
{
    static unpack_t unpack;
    rd_why_t why = {.text = ""};
    bool done = false;

    unpack = (unpack_t){.writer = {.copy = *copy,
                                   .complaints = {.copy = &unpack.writer.copy},
                                   .mask = umask(0),
                                   .is_root = geteuid() == 0},
                        .target = {.base = -1, .parent = -1, .old = -1},
                        .file = {.fd = -1, .parent = -1, .version = -1},
                        .pace = rd_pace_from(copy->beside_us)};
    (void)umask(unpack.writer.mask);
    rd_beneath_open(&unpack.beneath, -1);
    rd_beneath_open(&unpack.old, -1);
    if (!rd_items_in_open(&unpack.in, in, NULL))
        return RD_COPY_FAILED;
    while (step(&unpack, &done, &why))
        ;
    if (why.text[0])
        rd_complain(&unpack.writer.complaints, "", "%s", why.text);
    rd_file_drop(&unpack.file, false); /* must happen while its directory is still open */
    if (unpack.gathered)
        close(unpack.gathered->file.parent);
    rd_jobs_close(unpack.jobs, forget_job);
    if (copy->verbose)
        report(&unpack);
    if (copy->json)
        report_json(&unpack);
    rd_deletions_free(&unpack.deletions);
    close_parent(&unpack.file);
    rd_items_in_close(&unpack.in);
    rd_beneath_close(&unpack.beneath);
    rd_beneath_close(&unpack.old);
    rd_target_close(&unpack.target);
    rd_attributes_free(&unpack.attributes);
    rd_attributes_free(&unpack.file.attributes);
    return done ? RD_COPY_DONE : RD_COPY_FAILED;
}
