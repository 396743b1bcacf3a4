/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "copy_note.h"

/* ---- messages ---- */

bool rd_writer_complain(rd_writer_t *writer, const char *path, int error)
{
    rd_complain(&writer->complaints, path, "%s", strerror(error));
    if (error == ENOSPC || error == EDQUOT || error == EIO || error == EROFS)
        writer->is_fatal = true;
    return false;
}

void rd_writer_lose(rd_writer_t *writer, const char *path)
{
    rd_complain(&writer->complaints, path, RD_COPY_LOSES);
    if (!*path)
        writer->is_fatal = true;
}

void rd_writer_warn_of_owner(rd_writer_t *writer, const char *path)
{
    if (errno == EPERM)
        rd_warn(&writer->complaints, path, "its owner is not kept: only root may give files away");
    else
        rd_complain(&writer->complaints, path, "cannot set its owner: %s", strerror(errno));
}

static void say_special(rd_writer_t *writer, const char *path, const char *special)
{
    rd_complain(&writer->complaints, path, "is %s, which rdcp does not replace", special);
}

bool rd_writer_is_free(rd_writer_t *writer, const char *path, int parent, const char *name)
{
    const char *special = rd_special_at(parent, name);

    if (special)
        say_special(writer, path, special);
    return !special;
}

/* ---- attributes ---- */

void rd_item_times(const rd_item_t *item, struct timespec times[2])
{
    times[0] = (struct timespec){.tv_nsec = UTIME_OMIT};
    times[1] = (struct timespec){.tv_sec = item->mtime_s, .tv_nsec = item->mtime_ns};
}

/* Set-id bits are preserved only together with the owner to whom they refer. */
mode_t rd_writer_mode(const rd_writer_t *writer, const rd_item_t *item, bool is_owned)
{
    bool preserve = writer->copy.preserve;
    mode_t kept = is_owned ? 07777 : preserve ? RD_MODE_KEPT : 0777;

    return item->mode & kept & ~(preserve ? 0 : writer->mask);
}

/* Like rd_writer_mode, but as with cp, an existing file keeps its permissions. */
static mode_t final_mode(const rd_writer_t *writer, const rd_item_t *item, bool is_owned,
                         const struct stat *there)
{
    mode_t mode = rd_writer_mode(writer, item, is_owned);

    return there && !writer->copy.preserve ? (mode & ~(mode_t)0777) | (there->st_mode & 0777)
                                           : mode;
}

/* The order matters: a new owner clears set-id bits, an unprivileged user can set attributes only
 * while that user has write permission, and a new mode changes the ACL. */
bool rd_writer_attributes(rd_writer_t *writer, const rd_attributes_t *attributes, int fd,
                          const struct stat *now, const rd_item_t *item, const struct stat *there)
{
    struct timespec times[2];
    struct stat is;
    bool is_owned = writer->copy.owner && rd_attributes_own(attributes, fd);
    mode_t mode = final_mode(writer, item, is_owned, there), writable;

    if (writer->copy.owner && !is_owned)
        rd_writer_warn_of_owner(writer, item->path);
    /* As with cp, an existing file keeps its owner if root runs the copy. */
    if (there && !writer->copy.owner && !writer->copy.preserve && writer->is_root &&
        !(now && now->st_uid == there->st_uid && now->st_gid == there->st_gid) &&
        fchown(fd, there->st_uid, there->st_gid) < 0)
        rd_warn(&writer->complaints, item->path,
                "cannot keep the owner of the file that it replaces: %s", strerror(errno));
    /* A new directory inherits the set-group-id bit from its parent. */
    if (item->kind == RD_ITEM_LEAVE && !is_owned && !writer->copy.preserve && fstat(fd, &is) == 0)
        mode |= is.st_mode & S_ISGID;
    rd_item_times(item, times);
    writable = writer->copy.xattrs ? mode | S_IWUSR : mode;
    if (writer->copy.owner)
        now = NULL; /* a change of owner may have cleared mode bits */
    if (!(now && (now->st_mode & 07777) == writable) && fchmod(fd, writable) < 0)
        return false;
    rd_attributes_set(attributes, &writer->complaints, item->path, fd, false);
    if (writable != mode && fchmod(fd, mode) < 0)
        return false;
    rd_attributes_set(attributes, &writer->complaints, item->path, fd, true);
    return !writer->copy.preserve || futimens(fd, times) == 0;
}

/* ---- the file ---- */

bool rd_is_named(int parent, const char *name, int fd)
{
    struct stat is, named;

    return fstat(fd, &is) == 0 && fstatat(parent, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           is.st_ino == named.st_ino && is.st_dev == named.st_dev;
}

/* Network file systems and FUSE may report the errors of write only at close. */
static bool is_local(int fd)
{
    static const unsigned local[] = {EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,
                                     TMPFS_MAGIC,      RAMFS_MAGIC,     OVERLAYFS_SUPER_MAGIC,
                                     F2FS_SUPER_MAGIC, 0x2fc12fc1 /* ZFS */};
    struct statfs system;

    if (fstatfs(fd, &system) < 0)
        return false;
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        if ((unsigned)system.f_type == local[i])
            return true;
    return false;
}

void rd_writer_look_at(rd_writer_t *writer, int directory)
{
    struct stat is;

    writer->is_local = fstat(directory, &is) == 0 && is_local(directory);
    writer->device = writer->is_local ? is.st_dev : 0;
}

/* Opens and locks the part; returns -1 with errno EBUSY if another copy holds the lock, or has
 * renamed or removed the part. A part that is created here is locked only a moment later, but other
 * copies write only to parts that have bytes to resume, and remove empty parts only while holding
 * their lock. So it is enough to check that the part was not removed. */
static int open_part(const rd_file_t *file, int flags, mode_t mode, struct stat *is_p)
{
    int fd = openat(file->parent, file->part, flags | RD_FILE_FLAGS, mode);

    if (fd < 0)
        return -1;
    if (rd_copy_lock(fd) && fstat(fd, is_p) == 0) {
        if (flags & O_CREAT ? is_p->st_nlink > 0 : rd_is_named(file->parent, file->part, fd))
            return fd;
        errno = EBUSY;
    }
    rd_close(&fd);
    return -1;
}

static bool remove_part(const rd_file_t *file)
{
    struct stat is;
    int fd = open_part(file, O_RDONLY, 0, &is);
    bool done;

    if (fd < 0)
        return errno == ENOENT;
    errno = ESTALE;
    done = S_ISREG(is.st_mode) && unlinkat(file->parent, file->part, 0) == 0;
    rd_close(&fd);
    return done;
}

static int fresh_part(rd_file_t *file, mode_t mode, struct stat *is_p)
{
    const int flags = O_RDWR | O_CREAT | O_EXCL;
    int fd = open_part(file, flags, mode, is_p);

    if (fd >= 0 || errno != EEXIST || !remove_part(file))
        return fd;
    fd = open_part(file, flags, mode, is_p);
    if (fd < 0 && errno == EEXIST)
        errno = EBUSY;
    return fd;
}

static int old_part(rd_file_t *file, struct stat *is_p)
{
    uint64_t from = file->item.offset;
    int fd = open_part(file, O_RDWR, 0, is_p);

    if (fd < 0) {
        errno = errno == ENOENT ? ESTALE : errno;
        return -1;
    }
    if (!S_ISREG(is_p->st_mode) || !rd_part_is_ours(file->parent, is_p) ||
        (uint64_t)is_p->st_size < from)
        errno = ESTALE; /* another process has changed it */
    else if (((uint64_t)is_p->st_size == from || ftruncate(fd, (off_t)from) == 0) &&
             lseek(fd, (off_t)from, SEEK_SET) >= 0)
        return fd;
    rd_close(&fd);
    return -1;
}

/* Checks whether the file that now has the name may be replaced. If not, reports the reason. */
static bool see(rd_writer_t *writer, rd_file_t *file)
{
    const char *special = NULL;

    file->is_seen = true;
    if (fstatat(file->parent, file->name, &file->there, AT_SYMLINK_NOFOLLOW) == 0)
        special = rd_special_name(file->there.st_mode);
    else
        file->there.st_mode = 0;
    if (special)
        say_special(writer, file->item.path, special);
    return !special;
}

/* Opens a small file in a new tree. If the name or its part already exists, an interrupted copy has
 * left it there, and the file is then written as a part. */
static bool open_direct(const rd_writer_t *writer, rd_file_t *file)
{
    if (!writer->is_private || !file->is_small || file->item.has == RD_HAS_PART)
        return false;
    file->fd = openat(file->parent, file->name, O_WRONLY | O_CREAT | O_EXCL | RD_FILE_FLAGS, 0600);
    file->is_direct = file->fd >= 0;
    file->may_fail_late = !writer->is_local;
    return file->is_direct;
}

/* No note is written for a small file, for a file whose failed writes may be reported only at
 * close, or for a difference, which is known to be correct only once the file is complete. */
static void note(rd_file_t *file)
{
    file->is_noted = !file->is_small && !file->may_fail_late && file->item.has != RD_HAS_VERSION &&
                     rd_note_write(file->fd, &file->item);
    if (!file->is_noted && file->item.offset > 0)
        rd_note_remove(file->fd); /* left by an earlier copy */
}

/* Returns the file whose permissions the new one keeps unless -p is given, or NULL if there is
 * none. In a new tree an existing file of this name can only be an earlier attempt of our own. */
static const struct stat *replaced(const rd_writer_t *writer, const rd_file_t *file)
{
    bool is_there = file->is_seen && S_ISREG(file->there.st_mode) && !writer->is_private;

    return file->has_old ? &file->old : is_there ? &file->there : NULL;
}

/* Returns the initial mode of a new part. This is its final mode if that is known, which saves a
 * call and is safe, because only users who may open the file can then open the part. A large part
 * must never appear writable by others, because the next copy would then not trust it. */
static mode_t first_mode(const rd_writer_t *writer, const rd_file_t *file)
{
    bool is_known = file->is_small && (writer->copy.preserve || file->is_seen) &&
                    !rd_attributes_wanted(&writer->copy);

    return is_known ? final_mode(writer, &file->item, false, replaced(writer, file)) & 0755 : 0600;
}

void rd_file_open(rd_writer_t *writer, rd_file_t *file)
{
    file->is_small = file->item.offset == 0 && file->item.size <= RD_SMALL_BYTES &&
                     file->item.has != RD_HAS_VERSION;
    file->check = NULL;
    file->version = -1;
    file->is_direct = file->is_seen = file->is_noted = false;
    file->is_known = false;
    if (open_direct(writer, file))
        return;
    if ((!file->is_small || writer->replaces) && !see(writer, file))
        return;
    if (file->item.offset > 0)
        file->fd = old_part(file, &file->is);
    else
        file->fd = fresh_part(file, first_mode(writer, file), &file->is);
    if (file->fd >= 0) {
        file->is_known = true;
        file->may_fail_late = !writer->is_local || file->is.st_dev != writer->device;
        note(file);
    } else if (errno == EBUSY) {
        rd_writer_lose(writer, file->item.path);
    } else if (errno == ESTALE) {
        rd_complain(&writer->complaints, file->item.path, "another program has changed %s",
                    file->part);
    } else {
        (void)rd_writer_complain(writer, file->item.path, errno);
    }
}

void rd_file_drop(rd_file_t *file, bool with_part)
{
    if (file->fd < 0)
        return;
    rd_digest_close(file->check);
    file->check = NULL;
    rd_close(&file->version);
    if (file->is_direct)
        (void)unlinkat(file->parent, file->name, 0);
    else if (with_part)
        (void)unlinkat(file->parent, file->part, 0);
    close(file->fd);
    file->fd = -1;
}

void rd_file_write(rd_writer_t *writer, rd_file_t *file, const uint8_t *at, size_t len)
{
    size_t done = 0;

    while (done < len && file->fd >= 0) {
        ssize_t n = write(file->fd, at + done, len - done);

        if (n >= 0) {
            if (file->check)
                rd_digest_add(file->check, at + done, (size_t)n);
            done += (size_t)n;
        } else if (errno != EINTR) {
            (void)rd_writer_complain(writer, file->item.path, errno);
            rd_file_drop(file, false);
        }
    }
    file->at += done;
}

/* Also sets the file's length, because no write follows a hole at the end of the file. */
void rd_file_skip(rd_writer_t *writer, rd_file_t *file, uint64_t len)
{
    if (file->fd < 0)
        return;
    file->at += len;
    if (file->check)
        rd_digest_skip(file->check, len);
    if (file->at > INT64_MAX || ftruncate(file->fd, (off_t)file->at) < 0 ||
        lseek(file->fd, (off_t)file->at, SEEK_SET) < 0) {
        (void)rd_writer_complain(writer, file->item.path, errno);
        rd_file_drop(file, false);
    }
}

/* Returns whether all writes have succeeded. Must be called before the attributes are set, because
 * setting them may also flush the content and then lose the error. The lock remains held. */
static bool is_written(const rd_file_t *file)
{
    int twin;

    if (!file->may_fail_late)
        return true;
    twin = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    return twin >= 0 && close(twin) == 0;
}

static bool set_attributes(rd_writer_t *writer, rd_file_t *file)
{
    return rd_writer_attributes(writer, &file->attributes, file->fd,
                                file->is_known ? &file->is : NULL, &file->item,
                                replaced(writer, file));
}

/* Renames a part to its final name, which is either free or belongs to a file that we have
 * examined. On failure, errno is set, or 0 if the error was reported. */
static bool give_name(rd_writer_t *writer, rd_file_t *file)
{
    if (!file->is_seen) {
        if (renameat2(file->parent, file->part, file->parent, file->name, RENAME_NOREPLACE) == 0)
            return true;
        if (errno != EEXIST && errno != EINVAL && errno != ENOSYS)
            return false;
        if (!see(writer, file)) {
            errno = 0;
            return false;
        }
        file->is_known = false;
        if (file->there.st_mode != 0 && !set_attributes(writer, file))
            return false;
    }
    if (file->is_small)
        writer->replaces = file->there.st_mode != 0;
    return renameat(file->parent, file->part, file->parent, file->name) == 0;
}

bool rd_file_close(rd_writer_t *writer, rd_file_t *file)
{
    const rd_item_t *item = &file->item;
    bool done;

    if (file->fd < 0)
        return false;
    if (file->at != item->size) {
        rd_complain(&writer->complaints, item->path,
                    "the source sent more or less data than it announced");
        rd_file_drop(file, true);
        return false;
    }
    /* Check again, because writing a large file takes a long time. */
    if (!file->is_small && !see(writer, file)) {
        rd_file_drop(file, true);
        return false;
    }
    if (file->is_noted)
        rd_note_remove(file->fd);
    done = is_written(file) && set_attributes(writer, file) &&
           (file->is_direct || give_name(writer, file));
    if (!done) {
        if (errno != 0)
            (void)rd_writer_complain(writer, item->path, errno);
        rd_file_drop(file, true);
        return false;
    }
    file->is_direct = false;
    rd_file_drop(file, false);
    return true;
}
