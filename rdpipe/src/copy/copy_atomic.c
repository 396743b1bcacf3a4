/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_atomic.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "sparse.h"

#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

/* ---- files that are kept ---- */

/* A file in the old tree or the new one. */
typedef struct {
    int parent, fd; /* fd is -1 if not opened */
    const char *name;
    struct stat is;
} kept_t;

/* Checks only the size, because `have` has already compared the content, or size and time. */
static bool find_kept(kept_t *kept, int parent, const char *name, const rd_item_t *item)
{
    kept->parent = parent;
    kept->name = name;
    return parent >= 0 && fstatat(parent, name, &kept->is, AT_SYMLINK_NOFOLLOW) == 0 &&
           S_ISREG(kept->is.st_mode) && (uint64_t)kept->is.st_size == item->size;
}

static bool open_kept(kept_t *kept)
{
    struct stat is;

    if (kept->fd >= 0)
        return true;
    kept->fd = rd_file_at(kept->parent, kept->name, &is);
    return kept->fd >= 0 && is.st_ino == kept->is.st_ino;
}

/* Both trees can share a file only if it already has the attributes that it should have in the new
 * one. */
static bool is_as_it_should_be(const rd_writer_t *writer, kept_t *kept, const rd_item_t *item,
                               const rd_attributes_t *attributes)
{
    const rd_copy_t *copy = &writer->copy;

    if (copy->preserve &&
        ((kept->is.st_mode & 07777) != rd_writer_mode(writer, item, copy->owner) ||
         !rd_has_time(&kept->is, item)))
        return false;
    return !rd_attributes_wanted(copy) ||
           (open_kept(kept) && rd_attributes_are(attributes, copy, kept->fd, &kept->is));
}

/* Creates the hard link, replacing anything that an interrupted copy has left under the name. */
static bool link_kept(const kept_t *kept, int parent, const char *name)
{
    return linkat(kept->parent, kept->name, parent, name, 0) == 0 ||
           (errno == EEXIST && unlinkat(parent, name, 0) == 0 &&
            linkat(kept->parent, kept->name, parent, name, 0) == 0);
}

static bool copy_range(int from, int to, off_t at, off_t end)
{
    off_t out = at;

    while (at < end) {
        ssize_t n = copy_file_range(from, &at, to, &out, (size_t)(end - at), 0);

        if (n < 0 && (errno == EXDEV || errno == EOPNOTSUPP || errno == ENOSYS)) {
            char some[65536];
            size_t most = sizeof some < (size_t)(end - at) ? sizeof some : (size_t)(end - at);

            n = pread(from, some, most, at);
            if (n > 0 && pwrite(to, some, (size_t)n, out) != n)
                n = -1;
            at += n > 0 ? n : 0;
            out += n > 0 ? n : 0;
        }
        if (n == 0)
            errno = ESTALE; /* another program has truncated it */
        if (n <= 0)
            return false;
    }
    return true;
}

static bool copy_content(int from, int to, off_t size)
{
    uint64_t all = (uint64_t)size, end;

    for (uint64_t at = 0; at < all; at = end) {
        uint64_t data = rd_end_of_hole(from, at, all);

        end = data < all ? rd_end_of_data(from, data, all) : all;
        if (!copy_range(from, to, (off_t)data, (off_t)end))
            return false;
    }
    return ftruncate(to, size) == 0;
}

static bool clone_kept(rd_writer_t *writer, kept_t *kept, const rd_item_t *item,
                       const rd_attributes_t *attributes, int parent, const char *name)
{
    char part[256];
    int to;
    bool done;

    if (!open_kept(kept))
        return false;
    rd_part_name(name, part);
    (void)unlinkat(parent, part, 0);
    to = openat(parent, part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    done = to >= 0 && copy_content(kept->fd, to, kept->is.st_size) &&
           rd_writer_attributes(writer, attributes, to, NULL, item, &kept->is) &&
           renameat(parent, part, parent, name) == 0;
    if (to >= 0) {
        int error = errno;

        if (!done)
            (void)unlinkat(parent, part, 0);
        close(to);
        errno = error;
    }
    return done;
}

bool rd_atomic_keep(rd_writer_t *writer, rd_beneath_t *old, const rd_item_t *item,
                    const rd_attributes_t *attributes, int parent, const char *name)
{
    kept_t kept = {.fd = -1};
    const char *old_name = name;
    bool is_here = find_kept(&kept, parent, name, item), done;

    if (!is_here &&
        !find_kept(&kept, rd_beneath_parent(old, item->path, &old_name), old_name, item)) {
        rd_complain(&writer->complaints, item->path, "changed while being copied");
        return false;
    }
    if (is_as_it_should_be(writer, &kept, item, attributes))
        done = is_here || link_kept(&kept, parent, name) ||
               clone_kept(writer, &kept, item, attributes, parent, name);
    else
        done = clone_kept(writer, &kept, item, attributes, parent, name);
    if (!done)
        (void)rd_writer_complain(writer, item->path, errno);
    rd_close(&kept.fd);
    return done;
}

/* ---- entries that only the old tree has ---- */

typedef struct {
    rd_writer_t *writer;
    rd_names_t deleted; /* sorted */
    char path[RD_PATH_BYTES];
} carry_t;

static void complain(carry_t *carry)
{
    (void)rd_writer_complain(carry->writer, carry->path, errno);
}

/* Links a file of the old tree, or copies it where the file system has no hard links. */
static bool carry_file(int old, int fresh, const char *name, const struct stat *is)
{
    kept_t kept = {.parent = old, .fd = -1, .name = name, .is = *is};
    bool done = linkat(old, name, fresh, name, 0) == 0;
    int to = -1;

    if (done || !S_ISREG(is->st_mode) || !open_kept(&kept))
        return done;
    to = openat(fresh, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    done = to >= 0 && copy_content(kept.fd, to, is->st_size) &&
           (geteuid() != 0 || fchown(to, is->st_uid, is->st_gid) == 0) &&
           fchmod(to, is->st_mode & 07777) == 0;
    if (done) {
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, is->st_mtim};

        (void)futimens(to, times);
    }
    rd_close(&to);
    close(kept.fd);
    return done;
}

static void copy_attributes(int from, int to)
{
    static char names[65536], value[RD_VALUE_MAX];
    ssize_t len = flistxattr(from, names, sizeof names);

    for (const char *name = names; len > 0 && name < names + len; name += strlen(name) + 1) {
        ssize_t bytes = fgetxattr(from, name, value, sizeof value);

        if (bytes >= 0)
            (void)fsetxattr(to, name, value, (size_t)bytes, 0);
    }
}

/* A directory that the source does not have keeps the attributes from the old tree. */
static void finish_directory(carry_t *carry, int from, int to, const struct stat *is)
{
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, is->st_mtim};

    copy_attributes(from, to);
    if ((geteuid() == 0 && fchown(to, is->st_uid, is->st_gid) < 0) ||
        fchmod(to, is->st_mode & 07777) < 0 || futimens(to, times) < 0)
        complain(carry);
}

static void carry_directory(carry_t *carry, int old, int fresh);

static void carry_into(carry_t *carry, int old, int fresh, const char *name, const struct stat *is)
{
    bool is_new = mkdirat(fresh, name, 0700) == 0;
    int to = openat(fresh, name, DIRECTORY), from = openat(old, name, DIRECTORY);

    if (to < 0 || from < 0) {
        complain(carry);
    } else if (rd_is_mount_root(from)) {
        rd_complain(&carry->writer->complaints, carry->path,
                    "is a mount point, which --atomic cannot move into the new tree");
    } else {
        carry_directory(carry, from, to);
        if (is_new)
            finish_directory(carry, from, to, is);
    }
    rd_close(&to);
    rd_close(&from);
}

/* As without --atomic, it is an error if the new tree has a directory in place of anything else,
 * anything else in place of a directory, or anything in place of a device, FIFO or socket. */
static void carry_one(carry_t *carry, int old, int fresh, const char *name)
{
    struct stat is, there;

    if (rd_names_have(&carry->deleted, carry->path) || rd_is_part_name(name))
        return;
    if (fstatat(old, name, &is, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT)
            complain(carry);
    } else if (fstatat(fresh, name, &there, AT_SYMLINK_NOFOLLOW) < 0) {
        if (S_ISDIR(is.st_mode))
            carry_into(carry, old, fresh, name, &is);
        else if (!carry_file(old, fresh, name, &is))
            complain(carry);
    } else if (S_ISDIR(is.st_mode) && S_ISDIR(there.st_mode)) {
        carry_into(carry, old, fresh, name, &is);
    } else if (S_ISDIR(is.st_mode)) {
        rd_complain(&carry->writer->complaints, carry->path, "%s", strerror(EISDIR));
    } else if (S_ISDIR(there.st_mode)) {
        rd_complain(&carry->writer->complaints, carry->path,
                    "already exists and is not a directory");
    } else if (rd_special_name(is.st_mode)) {
        rd_complain(&carry->writer->complaints, carry->path, "is %s, which rdcp does not replace",
                    rd_special_name(is.st_mode));
    }
}

/* The new directory already has its final mode and time, which must be preserved. */
static void carry_directory(carry_t *carry, int old, int fresh)
{
    int again = fcntl(old, F_DUPFD_CLOEXEC, 0);
    size_t len = strlen(carry->path), room = sizeof carry->path - len;
    rd_names_t names = {0};
    struct stat is;

    if (again < 0 || !rd_names_read(&names, again) || fstat(fresh, &is) < 0) {
        complain(carry);
        rd_names_free(&names);
        return;
    }
    if ((is.st_mode & 0700) != 0700)
        (void)fchmod(fresh, (is.st_mode & 07777) | 0700);
    for (size_t i = 0; i < names.count; i++) {
        int added = snprintf(carry->path + len, room, "%s%s", len > 0 ? "/" : "", names.of[i]);

        if ((size_t)added < room) {
            carry_one(carry, old, fresh, names.of[i]);
        } else {
            errno = ENAMETOOLONG;
            complain(carry);
        }
        carry->path[len] = 0;
    }
    rd_names_free(&names);
    if ((is.st_mode & 0700) != 0700)
        (void)fchmod(fresh, is.st_mode & 07777);
    if (carry->writer->copy.preserve) {
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, is.st_mtim};

        (void)futimens(fresh, times);
    }
}

void rd_atomic_carry(rd_writer_t *writer, const rd_target_t *target,
                     const rd_deletions_t *deletions)
{
    carry_t *carry = calloc(1, sizeof *carry);
    bool done = carry != NULL;

    for (size_t i = 0; done && i < deletions->paths.count; i++) {
        const char *path = deletions->paths.of[i] + 1;

        done = rd_names_add(&carry->deleted, path, strlen(path));
    }
    if (done) {
        carry->writer = writer;
        rd_names_sort(&carry->deleted);
        carry_directory(carry, target->old, target->base);
    } else {
        rd_complain(&writer->complaints, "", "out of memory");
    }
    if (carry)
        rd_names_free(&carry->deleted);
    free(carry);
}

/* ---- the exchange ---- */

static bool remove_content(int fd)
{
    rd_names_t names = {0};
    struct stat is;
    int again = fcntl(fd, F_DUPFD_CLOEXEC, 0), error = 0;

    if (fstat(fd, &is) == 0 && (is.st_mode & 0700) != 0700)
        (void)fchmod(fd, 0700);
    if (again < 0 || !rd_names_read(&names, again))
        error = errno;
    for (size_t i = 0; i < names.count; i++)
        if (!rd_atomic_remove(fd, names.of[i]))
            error = errno;
    rd_names_free(&names);
    errno = error;
    return error == 0;
}

bool rd_atomic_remove(int parent, const char *name)
{
    int fd;
    bool done;

    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return true;
    if (errno != EISDIR && errno != EPERM)
        return false;
    fd = openat(parent, name, DIRECTORY);
    if (fd < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0)
        fd = openat(parent, name, DIRECTORY);
    if (fd < 0)
        return false;
    done = !rd_is_mount_root(fd);
    errno = EBUSY;
    done = done && remove_content(fd);
    close(fd);
    return done && (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT);
}

/* Undoes a rename after the next one has failed. Preserves the errno of that failure. */
static bool undo(int parent, const char *from, const char *to)
{
    int error = errno;

    (void)renameat(parent, from, parent, to);
    errno = error;
    return false;
}

/* First gives the new tree the retired name and then exchanges the two trees, so that the old tree
 * never has the name of a part. */
static bool exchange(const rd_target_t *target)
{
    int parent = target->parent;

    return rd_target_rename(target, target->part, target->retired) &&
           (renameat2(parent, target->retired, parent, target->name, RENAME_EXCHANGE) == 0 ||
            undo(parent, target->retired, target->part));
}

static bool rename_twice(const rd_target_t *target)
{
    int parent = target->parent;

    return renameat(parent, target->name, parent, target->retired) == 0 &&
           (renameat(parent, target->part, parent, target->name) == 0 ||
            undo(parent, target->retired, target->name));
}

/* Removes anything that an interrupted copy has left under the retired name. Fails if a running
 * copy has just given that name to its new tree, which is locked. On failure, reports the error and
 * returns false. */
static bool make_way(rd_writer_t *writer, const rd_target_t *target)
{
    int fd = openat(target->parent, target->retired, DIRECTORY);
    bool is_free = fd < 0 || rd_copy_lock(fd), done;

    done = is_free && rd_atomic_remove(target->parent, target->retired);
    if (!is_free)
        rd_writer_lose(writer, "");
    else if (!done)
        rd_complain(&writer->complaints, "", "cannot remove %s, which an earlier copy left: %s",
                    target->retired, strerror(errno));
    rd_close(&fd);
    return done;
}

bool rd_atomic_swap(rd_writer_t *writer, rd_target_t *target)
{
    rd_complaints_t *complaints = &writer->complaints;
    int parent = target->parent;
    bool is_named = rd_is_named(parent, target->name, target->old);
    bool is_retired = rd_is_named(parent, target->retired, target->old);
    bool done;

    if (!is_named && !is_retired) {
        rd_complain(complaints, "", "was replaced by another program during the copy");
        return false;
    }
    if (is_named && !make_way(writer, target))
        return false;
    if (is_retired)
        done = rd_target_rename(target, target->part, target->name);
    else
        done = exchange(target) || ((errno == EINVAL || errno == ENOSYS) && rename_twice(target));
    if (!done)
        return rd_writer_complain(writer, "", errno);
    if (!rd_atomic_remove(parent, target->retired))
        rd_warn(complaints, "",
                "was replaced, but the old tree, now called %s, cannot be removed: %s",
                target->retired, strerror(errno));
    return true;
}
