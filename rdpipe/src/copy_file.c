/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- what is said ---- */

/* What all that follows would fail of, too. */
static bool is_final(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EIO || error == EROFS;
}

bool rd_writer_complain(rd_writer_t *writer, const char *path, int error)
{
    rd_complain(&writer->complaints, path, "%s", strerror(error));
    if (is_final(error))
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
        rd_complain(&writer->complaints, path, "its owner: %s", strerror(errno));
}

bool rd_writer_is_free(rd_writer_t *writer, const char *path, int parent, const char *name)
{
    const char *special = rd_special_at(parent, name);

    if (special)
        rd_complain(&writer->complaints, path, "is %s there: rdcp does not replace it", special);
    return !special;
}

/* ---- attributes ---- */

void rd_item_times(const rd_item_t *item, struct timespec times[2])
{
    times[0] = (struct timespec){.tv_nsec = UTIME_OMIT};
    times[1] = (struct timespec){.tv_sec = item->mtime_s, .tv_nsec = item->mtime_ns};
}

/* Set-id bits are only taken over with the owner that they speak of. */
mode_t rd_writer_mode(const rd_writer_t *writer, const rd_item_t *item, bool is_owned)
{
    bool preserve = writer->copy.preserve;
    mode_t kept = is_owned ? 07777 : preserve ? RD_MODE_KEPT : 0777;

    return item->mode & kept & ~(preserve ? 0 : writer->mask);
}

/* A new owner takes set-id bits away, a user sets attributes only of what he may write, and a mode
 * changes an ACL: so in this order. */
bool rd_writer_attributes(rd_writer_t *writer, const rd_attributes_t *attributes, int fd,
                          const rd_item_t *item, const struct stat *there)
{
    struct timespec times[2];
    struct stat is;
    bool is_owned = writer->copy.owner && rd_attributes_own(attributes, fd);
    mode_t mode = rd_writer_mode(writer, item, is_owned), writable;

    if (writer->copy.owner && !is_owned)
        rd_writer_warn_of_owner(writer, item->path);
    if (there && !writer->copy.owner && !writer->copy.preserve && geteuid() == 0 &&
        fchown(fd, there->st_uid, there->st_gid) < 0)
        rd_warn(&writer->complaints, item->path,
                "does not keep the owner of the file that was there: %s", strerror(errno));
    /* As with cp, a file that is there keeps its permissions, and from root its owner. */
    if (there && !writer->copy.preserve)
        mode = (mode & ~(mode_t)0777) | (there->st_mode & 0777);
    /* A directory has the set-group-id bit from the one in which it was made. */
    if (!is_owned && !writer->copy.preserve && fstat(fd, &is) == 0 && S_ISDIR(is.st_mode))
        mode |= is.st_mode & S_ISGID;
    rd_item_times(item, times);
    writable = writer->copy.xattrs ? mode | S_IWUSR : mode;
    if (fchmod(fd, writable) < 0)
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

#define PART_FLAGS (O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

/* Takes this part's lock. It is closed, and -1, if another copy has it, or has given it its name.
 */
static int locked(const rd_file_t *file, int fd, struct stat *is_p)
{
    int error;

    if (fd < 0)
        return -1;
    if (rd_copy_lock(fd) && fstat(fd, is_p) == 0) {
        if (rd_is_named(file->parent, file->part, fd))
            return fd;
        errno = EBUSY;
    }
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

/* A part that is not ours makes room for a new one. */
static int open_part(const rd_file_t *file, uint64_t from)
{
    struct stat is;
    int fd = locked(file, openat(file->parent, file->part, PART_FLAGS), &is);

    if (fd >= 0 && !rd_part_is_ours(file->parent, &is)) {
        int error = unlinkat(file->parent, file->part, 0) == 0 ? ENOENT : errno;

        close(fd);
        fd = -1;
        errno = error;
    }
    if (fd < 0 && errno == ENOENT) {
        fd = openat(file->parent, file->part, PART_FLAGS | O_CREAT | O_EXCL, 0600);
        if (fd < 0 && errno == EEXIST)
            errno = EBUSY;
        fd = locked(file, fd, &is);
    }
    if (fd < 0)
        return -1;
    if (!S_ISREG(is.st_mode) || (uint64_t)is.st_size < from)
        errno = ESTALE; /* somebody else has touched it */
    else if (((uint64_t)is.st_size == from || ftruncate(fd, (off_t)from) == 0) &&
             lseek(fd, (off_t)from, SEEK_SET) >= 0)
        return fd;
    close(fd);
    return -1;
}

void rd_file_open(rd_writer_t *writer, rd_file_t *file)
{
    if (!rd_writer_is_free(writer, file->item.path, file->parent, file->name))
        return;
    file->fd = open_part(file, file->item.offset);
    if (file->fd >= 0)
        return;
    if (errno == EBUSY)
        rd_writer_lose(writer, file->item.path);
    else if (errno == ESTALE)
        rd_complain(&writer->complaints, file->item.path, "another program has changed %s",
                    file->part);
    else
        (void)rd_writer_complain(writer, file->item.path, errno);
}

void rd_file_drop(rd_file_t *file, bool with_part)
{
    if (file->fd < 0)
        return;
    if (with_part)
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
            done += (size_t)n;
        } else if (errno != EINTR) {
            (void)rd_writer_complain(writer, file->item.path, errno);
            rd_file_drop(file, false);
        }
    }
    file->at += done;
}

/* A hole at the end has no data behind it, so the length is set. */
void rd_file_skip(rd_writer_t *writer, rd_file_t *file, uint64_t len)
{
    if (file->fd < 0)
        return;
    file->at += len;
    if (file->at > INT64_MAX || ftruncate(file->fd, (off_t)file->at) < 0 ||
        lseek(file->fd, (off_t)file->at, SEEK_SET) < 0) {
        (void)rd_writer_complain(writer, file->item.path, errno);
        rd_file_drop(file, false);
    }
}

/* A network file system may report only at a close what it could not write. To be called before the
 * attributes are set: that may write the content as well, and drop the error. The lock stays. */
static bool is_written(int fd)
{
    int twin = fcntl(fd, F_DUPFD_CLOEXEC, 0);

    return twin >= 0 && close(twin) == 0;
}

bool rd_file_close(rd_writer_t *writer, rd_file_t *file)
{
    const rd_item_t *item = &file->item;
    struct stat is;
    bool is_there;

    if (file->fd < 0)
        return false;
    if (file->at != item->size) {
        rd_complain(&writer->complaints, item->path, "came with another length than was said");
        rd_file_drop(file, true);
        return false;
    }
    is_there =
        fstatat(file->parent, file->name, &is, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(is.st_mode);
    if (file->has_old) {
        is = file->old;
        is_there = true;
    }
    if (!is_written(file->fd) ||
        !rd_writer_attributes(writer, &file->attributes, file->fd, item, is_there ? &is : NULL) ||
        renameat(file->parent, file->part, file->parent, file->name) < 0) {
        (void)rd_writer_complain(writer, item->path, errno);
        rd_file_drop(file, true);
        return false;
    }
    rd_file_drop(file, false);
    return true;
}
