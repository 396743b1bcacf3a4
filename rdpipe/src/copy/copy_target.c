/* SPDX-License-Identifier: Apache-2.0 */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "cli/cli.h"
#include "copy_note.h"

#define SUFFIX ".rdcp-part"
#define RETIRED_SUFFIX ".rdcp-old" /* must not be longer than SUFFIX */
#define SHOWN_BYTES 250            /* how much of each end of a long path is shown */
#define LOCK_MS 3000               /* an interrupted copy may need this long to exit */
#define DIRECTORY (O_RDONLY | O_DIRECTORY | O_CLOEXEC)

/* Prints only one line for all messages over the limit. */
__attribute__((format(printf, 5, 0))) static void say(const rd_complaints_t *complaints,
                                                      uint64_t nth, const char *more,
                                                      const char *below, const char *form,
                                                      va_list args)
{
    const rd_copy_t *copy = complaints->copy;
    const char *into = complaints->into ? complaints->into : "";
    const char *path = *copy->path ? copy->path : ".", *tail = "";
    size_t len = strlen(path), most = strlen(below);
    bool has_slash = path[len - 1] == '/';
    char text[3 * RD_PATH_BYTES];

    if (nth > RD_COMPLAINTS_MAX + 1)
        return;
    if (most > 2 * SHOWN_BYTES) {
        tail = below + most - SHOWN_BYTES;
        most = SHOWN_BYTES;
    }
    len = (size_t)snprintf(text, sizeof text, "%s%s%s%s%s%s%.*s%s%s: ", copy->host,
                           *copy->host ? ": " : "", path,
                           (*into || *below) && !has_slash ? "/" : "", into,
                           *into && *below ? "/" : "", (int)most, below, *tail ? "..." : "", tail);
    if (nth > RD_COMPLAINTS_MAX)
        (void)snprintf(text, sizeof text, "%s%s%s", copy->host, *copy->host ? ": " : "", more);
    else if (len < sizeof text)
        (void)vsnprintf(text + len, sizeof text - len, form, args);
    rd_say_plain("rdcp", text);
}

/* Serializes messages, because several threads may report errors at once. */
static pthread_mutex_t saying = PTHREAD_MUTEX_INITIALIZER;

void rd_tell(rd_complaints_t *complaints, rd_message_t kind, const char *below, const char *form,
             ...)
{
    va_list args;

    va_start(args, form);
    (void)pthread_mutex_lock(&saying);
    switch (kind) {
    case RD_ERROR:
        say(complaints, ++complaints->count, "further errors are not shown", below, form, args);
        break;
    case RD_WARNING:
        say(complaints, ++complaints->warned, "further warnings are not shown", below, form, args);
        break;
    case RD_NOTE:
        say(complaints, 1, "", below, form, args);
        break;
    }
    (void)pthread_mutex_unlock(&saying);
    va_end(args);
}

const char *rd_special_name(mode_t mode)
{
    return S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode) ? NULL
           : S_ISFIFO(mode)                                ? "a FIFO"
           : S_ISSOCK(mode)                                ? "a socket"
                                                           : "a device";
}

const char *rd_special_at(int parent, const char *name)
{
    struct stat is;

    return fstatat(parent, name, &is, AT_SYMLINK_NOFOLLOW) == 0 ? rd_special_name(is.st_mode)
                                                                : NULL;
}

bool rd_has_time(const struct stat *is, const rd_item_t *item)
{
    return is->st_mtim.tv_sec == item->mtime_s && is->st_mtim.tv_nsec == (long)item->mtime_ns;
}

int rd_as_file(int fd, struct stat *is_p)
{
    if (fd < 0 || (fstat(fd, is_p) == 0 && S_ISREG(is_p->st_mode)))
        return fd;
    close(fd);
    errno = 0;
    return -1;
}

int rd_file_at(int parent, const char *name, struct stat *is_p)
{
    return rd_as_file(openat(parent, name, O_RDONLY | RD_FILE_FLAGS), is_p);
}

static void hidden_name(const char *name, const char *suffix, char hidden[256])
{
    uint8_t digest[32] = {0};
    char hex[33];

    if (strlen(name) + sizeof SUFFIX + 1 <= 256) {
        (void)snprintf(hidden, 256, ".%s%s", name, suffix);
        return;
    }
    (void)EVP_Digest(name, strlen(name), digest, NULL, EVP_sha256(), NULL);
    for (size_t i = 0; i < 16; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    (void)snprintf(hidden, 256, ".%.200s-%s%s", name, hex, suffix);
}

void rd_part_name(const char *name, char part[256])
{
    hidden_name(name, SUFFIX, part);
}

void rd_retired_name(const char *name, char retired[256])
{
    hidden_name(name, RETIRED_SUFFIX, retired);
}

bool rd_is_part_name(const char *name)
{
    size_t len = strlen(name), suffix = strlen(SUFFIX);

    return name[0] == '.' && len > suffix && strcmp(name + len - suffix, SUFFIX) == 0;
}

bool rd_is_mount_root(int fd)
{
    struct statx is;

    return statx(fd, "", AT_EMPTY_PATH, STATX_TYPE, &is) == 0 &&
           (is.stx_attributes_mask & is.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

void rd_directory_id(const struct stat *is, uint8_t id[RD_DIGEST_BYTES])
{
    const char *boot = rd_boot_id();
    char text[120];
    int len = snprintf(text, sizeof text, "%s %llu %llu", boot, (unsigned long long)is->st_dev,
                       (unsigned long long)is->st_ino);

    memset(id, 0, RD_DIGEST_BYTES);
    if (*boot)
        (void)EVP_Digest(text, (size_t)len, id, NULL, EVP_sha256(), NULL);
}

/* A part that other users may write to does not count as ours, because they may still have it open.
 * On a file system without modes, however, everybody may write to every file and directory, so
 * there the part's mode is ignored. */
bool rd_part_is_ours(int parent, const struct stat *is)
{
    struct stat place;

    return is->st_uid == geteuid() && (S_ISDIR(is->st_mode) || is->st_nlink == 1) &&
           ((is->st_mode & 022) == 0 ||
            (fstat(parent, &place) == 0 && (place.st_mode & 022) && !(place.st_mode & S_ISVTX)));
}

bool rd_copy_source(rd_copy_t *copy, const rd_item_t *start, rd_why_t *why)
{
    if (start->mode != RD_ITEM_VERSION)
        return rd_because(
            why, "the other rdcp uses a different version of the copy's protocol; expected %d",
            RD_ITEM_VERSION);
    if (start->size >= (copy->sources > 0 ? copy->sources : 1))
        return rd_because(why, "the other side refers to a source that does not exist");
    if (copy->paths)
        copy->path = copy->paths[start->size];
    if (copy->names)
        copy->name = copy->names[start->size];
    return true;
}

bool rd_copy_lock(int fd)
{
    int64_t deadline = rd_now_ms() + LOCK_MS;

    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return true; /* the file system does not support locks */
        if (rd_left_ms(deadline) == 0) {
            errno = EBUSY;
            return false;
        }
        (void)poll(NULL, 0, 20);
    }
    return true;
}

void rd_target_close(rd_target_t *target)
{
    rd_close(&target->base);
    rd_close(&target->parent);
    rd_close(&target->old);
    target->base = target->parent = target->old = -1;
}

bool rd_target_rename(const rd_target_t *target, const char *from, const char *to)
{
    return renameat2(target->parent, from, target->parent, to, RENAME_NOREPLACE) == 0 ||
           ((errno == EINVAL || errno == ENOSYS) &&
            renameat(target->parent, from, target->parent, to) == 0);
}

/* Called for a target that is not an existing directory. */
static bool find_parent(const char *path, size_t len, rd_target_t *target_p, rd_why_t *why)
{
    char dir[RD_PATH_BYTES];
    size_t name = len;

    while (name > 0 && path[name - 1] != '/')
        name--;
    if (len - name > 255)
        return rd_because(why, "%s", strerror(ENAMETOOLONG));
    memcpy(target_p->name, path + name, len - name);
    target_p->name[len - name] = 0;
    (void)snprintf(dir, sizeof dir, "%.*s", name > 0 ? (int)name : 1, name > 0 ? path : ".");
    target_p->parent = open(dir, DIRECTORY);
    if (target_p->parent < 0)
        return rd_because(why, "%s", strerror(errno));
    return strcmp(target_p->name, "..") != 0 || rd_because(why, "%s", strerror(ENOENT));
}

/* Opens the tree that will be replaced. If a replacement with two renames was interrupted between
 * them, the tree has the retired name. */
static void find_old(rd_target_t *target, int fd)
{
    rd_retired_name(target->name, target->retired);
    target->old = fd >= 0 ? fd : openat(target->parent, target->retired, DIRECTORY | O_NOFOLLOW);
}

static bool find_tree(const rd_copy_t *copy, rd_target_t *target, rd_why_t *why)
{
    int fd = openat(target->parent, target->name, DIRECTORY | O_NOFOLLOW);
    struct stat is;

    if (fd >= 0 && !copy->atomic) {
        target->base = fd;
        return true;
    }
    if (fd < 0 && errno != ENOENT)
        return rd_because(
            why, "%s%s%s", target->is_into ? target->name : "", target->is_into ? ": " : "",
            errno == ENOTDIR || errno == ELOOP ? "already exists and is not a directory"
                                               : strerror(errno));
    if (copy->atomic)
        find_old(target, fd);
    target->is_new = true;
    target->base = openat(target->parent, target->part, DIRECTORY | O_NOFOLLOW);
    if (target->base < 0)
        return errno == ENOENT || rd_because(why, "%s: %s", target->part, strerror(errno));
    return (fstat(target->base, &is) == 0 && rd_part_is_ours(target->parent, &is)) ||
           rd_because(why, "%s: " RD_PART_FOREIGN, target->part);
}

static bool find(const rd_copy_t *copy, rd_target_t *target, rd_why_t *why)
{
    const char *path = *copy->path ? copy->path : ".", *special;
    size_t len = strlen(path);
    struct stat is;
    bool is_there;

    if (len >= RD_PATH_BYTES)
        return rd_because(why, "%s", strerror(ENAMETOOLONG));
    is_there = stat(path, &is) == 0;
    if (!is_there && errno != ENOENT)
        return rd_because(why, "%s", strerror(errno));
    if (copy->sources > 1 && !(is_there && S_ISDIR(is.st_mode)))
        return rd_because(why, "is not an existing directory, which several sources need");
    if (is_there && rd_special_name(is.st_mode))
        return rd_because(why, "is %s, which rdcp does not replace", rd_special_name(is.st_mode));
    if (is_there && S_ISDIR(is.st_mode) && copy->no_directory && !target->is_tree)
        return rd_because(why, "is a directory, which -T does not replace with a file");
    if (is_there && S_ISDIR(is.st_mode) && !copy->no_directory) {
        target->parent = open(path, DIRECTORY);
        if (target->parent < 0)
            return rd_because(why, "%s", strerror(errno));
        (void)snprintf(target->name, sizeof target->name, "%s", copy->name);
        target->is_into = true;
    } else {
        if (!target->is_tree && path[len - 1] == '/')
            return rd_because(why, "is not a directory");
        while (len > 1 && path[len - 1] == '/')
            len--;
        if (!find_parent(path, len, target, why))
            return false;
    }
    if (target->is_tree && copy->atomic && (!*target->name || strcmp(target->name, ".") == 0))
        return rd_because(
            why,
            "--atomic needs the name of the directory that it replaces: specify its path, with -T");
    if (target->is_tree && !*target->name) { /* the directory itself */
        target->base = target->parent;
        target->parent = -1;
        return true;
    }
    rd_part_name(target->name, target->part);
    if (target->is_tree)
        return find_tree(copy, target, why);
    target->base = target->parent;
    target->parent = -1;
    special = rd_special_at(target->base, target->name);
    return !special ||
           rd_because(why, "%s is %s, which rdcp does not replace", target->name, special);
}

bool rd_target_find(const rd_copy_t *copy, bool is_tree, rd_target_t *target_p, rd_why_t *why)
{
    *target_p = (rd_target_t){.base = -1, .parent = -1, .old = -1, .is_tree = is_tree};
    if (find(copy, target_p, why))
        return true;
    rd_target_close(target_p);
    return false;
}
