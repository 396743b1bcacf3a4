/* SPDX-License-Identifier: Apache-2.0 */
#include "resume.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SENDER "rdsend-resume 1"
#define TAKER "rdrecv-resume 2" /* version 1 did not record the output file */
#define TEXT_BYTES 512
#define WHOLE "whole"

/* On failure, *why is set, and errno is ENOENT if the file does not exist. */
static bool read_file(const char *file, char text[TEXT_BYTES], rd_why_t *why)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    ssize_t n = fd >= 0 ? read(fd, text, TEXT_BYTES - 1) : -1;
    int error = errno;

    rd_close(&fd);
    if (n < 0) {
        (void)rd_because(why, "--resume %s: %s", file, strerror(error));
        errno = error;
        return false;
    }
    text[n] = 0;
    errno = 0;
    return true;
}

/* The old text remains until the new one is complete. The new file is always created and never
 * reused, because in a shared directory an existing one may be a link planted by another user. */
static bool write_file(const char *file, const char *text, rd_why_t *why)
{
    char fresh[4096];
    int fd;
    bool done;

    if (snprintf(fresh, sizeof fresh, "%s.new", file) >= (int)sizeof fresh)
        return rd_because(why, "--resume %s: %s", file, strerror(ENAMETOOLONG));
    (void)unlink(fresh);
    fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && fdatasync(fd) == 0;
    if (fd >= 0)
        done = close(fd) == 0 && done;
    done = done && rename(fresh, file) == 0;
    return done || rd_because(why, "--resume %s: %s", file, strerror(errno));
}

static bool is_id(const char *id, size_t len)
{
    if (len != RD_RESUME_ID - 1)
        return false;
    for (size_t i = 0; i < len; i++)
        if (rd_hex_digit(id[i]) < 0)
            return false;
    return true;
}

static bool make_id(char id[RD_RESUME_ID], rd_why_t *why)
{
    uint64_t random[2];

    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return rd_because(why, "getrandom: %s", strerror(errno));
    (void)snprintf(id, RD_RESUME_ID, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    return true;
}

static bool is_not_ours(const char *file, rd_why_t *why)
{
    return rd_because(why,
                      "--resume %s: the file was not written by this version of the command; "
                      "specify another file, or remove it to start again",
                      file);
}

/* ---- the producer ---- */

bool rd_resume_send(rd_resume_t *resume_p, const char *file, int input, rd_why_t *why)
{
    char text[TEXT_BYTES], noted[TEXT_BYTES];
    off_t at = lseek(input, 0, SEEK_CUR), size = lseek(input, 0, SEEK_END);
    struct stat is;
    int len;

    if (at < 0 || size < 0 || lseek(input, at, SEEK_SET) < 0 || fstat(input, &is) < 0)
        return rd_because(why, "--resume needs a seekable input, such as a file: %s",
                          strerror(errno));
    *resume_p = (rd_resume_t){.file = file, .base = (uint64_t)at};
    (void)snprintf(noted, sizeof noted, " %" PRIu64 " %" PRIu64 " %lld.%09ld %llu:%llu\n",
                   resume_p->base, (uint64_t)size, (long long)is.st_mtim.tv_sec, is.st_mtim.tv_nsec,
                   (unsigned long long)is.st_dev, (unsigned long long)is.st_ino);
    if (read_file(file, text, why)) {
        len = (int)strlen(SENDER) + 1;
        if (strncmp(text, SENDER " ", (size_t)len) != 0 ||
            !is_id(text + len, strcspn(text + len, " ")))
            return is_not_ours(file, why);
        if (strcmp(text + len + RD_RESUME_ID - 1, noted) != 0)
            return rd_because(why,
                              "--resume %s: the input is not the recorded one, or has changed "
                              "since; to start again, remove the --resume files on both sides",
                              file);
        (void)snprintf(resume_p->id, RD_RESUME_ID, "%.32s", text + len);
        return true;
    }
    if (errno != ENOENT || !make_id(resume_p->id, why))
        return false;
    (void)snprintf(text, sizeof text, SENDER " %s%.300s", resume_p->id, noted);
    return write_file(file, text, why);
}

bool rd_resume_seek(const rd_resume_t *resume, int input, uint64_t bytes, rd_why_t *why)
{
    off_t size = lseek(input, 0, SEEK_END);

    if (size < 0 || bytes > (uint64_t)size || resume->base > (uint64_t)size - bytes)
        return rd_because(why, "the receiver reports more bytes than the input has");
    if (lseek(input, (off_t)(resume->base + bytes), SEEK_SET) < 0)
        return rd_because(why, "the input: %s", strerror(errno));
    return true;
}

/* ---- the consumer ---- */

/* Writes an ID of the output file that survives a reboot. It is made from the inode number and the
 * creation time, because the device number may change. */
static bool identify(int output, char is[RD_RESUME_FILE])
{
    struct statx stat;

    if (statx(output, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &stat) < 0)
        return false;
    if (!(stat.stx_mask & STATX_BTIME))
        stat.stx_btime = (struct statx_timestamp){0};
    (void)snprintf(is, RD_RESUME_FILE, "%llu:%lld.%09u", (unsigned long long)stat.stx_ino,
                   (long long)stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    return true;
}

static bool note(const rd_resume_t *resume, rd_why_t *why)
{
    char text[TEXT_BYTES];

    (void)snprintf(text, sizeof text, TAKER " %s %" PRIu64 " %" PRIu64 " %s %s\n", resume->id,
                   resume->base, resume->bytes, resume->output, resume->is_whole ? WHOLE : "begun");
    return write_file(resume->file, text, why);
}

/* Syncs the directory that contains the note. Without a note the stream would start from the
 * beginning and be appended to the part that the output already has, so a new note must survive a
 * power failure. */
static bool keep_name(const char *file, rd_why_t *why)
{
    const char *slash = strrchr(file, '/');
    char folder[4096];
    int fd;
    bool done;

    (void)snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - file) + 1 : 1,
                   slash ? file : ".");
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    done = fd < 0 || fsync(fd) == 0 || errno == EINVAL ||
           rd_because(why, "--resume %s: %s", file, strerror(errno));
    rd_close(&fd);
    return done;
}

static bool parse(rd_resume_t *resume, const char *text)
{
    size_t len = strlen(TAKER) + 1;
    char state[8];

    if (strncmp(text, TAKER " ", len) != 0 || !is_id(text + len, strcspn(text + len, " ")))
        return false;
    (void)snprintf(resume->id, RD_RESUME_ID, "%.32s", text + len);
    if (sscanf(text + len + RD_RESUME_ID - 1, " %" SCNu64 " %" SCNu64 " %63s %7s", &resume->base,
               &resume->bytes, resume->output, state) != 4)
        return false;
    resume->is_whole = strcmp(state, WHOLE) == 0;
    return resume->base <= INT64_MAX && resume->bytes <= INT64_MAX - resume->base;
}

bool rd_resume_take(rd_resume_t *resume_p, const char *file, int output, rd_why_t *why)
{
    char text[TEXT_BYTES], is_it[RD_RESUME_FILE];
    int flags = fcntl(output, F_GETFL);
    struct stat is;
    off_t at;

    *resume_p = (rd_resume_t){.file = file};
    if (fstat(output, &is) < 0 || !S_ISREG(is.st_mode) || flags < 0 ||
        (flags & O_ACCMODE) == O_RDONLY || !identify(output, is_it))
        return rd_because(why, "--resume needs an output that is a file: >>FILE");
    if (!read_file(file, text, why)) {
        if (errno != ENOENT)
            return false;
        at = flags & O_APPEND ? is.st_size : lseek(output, 0, SEEK_CUR);
        resume_p->base = at > 0 ? (uint64_t)at : 0;
        (void)snprintf(resume_p->output, sizeof resume_p->output, "%s", is_it);
        return true;
    }
    if (!parse(resume_p, text))
        return is_not_ours(file, why);
    if (strcmp(resume_p->output, is_it) != 0)
        return rd_because(why,
                          "--resume %s: the stream was written to another file, not to this "
                          "output; open that file with >>, or remove %s to start again",
                          file, file);
    if ((uint64_t)is.st_size < resume_p->base + resume_p->bytes)
        return rd_because(why,
                          "--resume %s: the output has %lld bytes and should have %" PRIu64
                          ": open it with >>, because > truncates it",
                          file, (long long)is.st_size, resume_p->base + resume_p->bytes);
    return true;
}

/* Truncates the output to the recorded bytes of the stream, and seeks to their end. Bytes after a
 * complete stream are not part of it, so they are kept. */
static bool cut(const rd_resume_t *resume, int output, rd_why_t *why)
{
    off_t at = (off_t)(resume->base + resume->bytes);

    return ((resume->is_whole || ftruncate(output, at) == 0) && lseek(output, at, SEEK_SET) >= 0) ||
           rd_because(why, "the output: %s", strerror(errno));
}

bool rd_resume_accept(rd_resume_t *resume, int output, const char *id, size_t len, rd_why_t *why)
{
    if (!is_id(id, len))
        return rd_because(why, "the sender did not send a valid ID of a stream");
    if (!resume->id[0]) {
        memcpy(resume->id, id, len);
        return note(resume, why) && keep_name(resume->file, why);
    }
    if (memcmp(resume->id, id, len) != 0)
        return rd_because(why,
                          "--resume %s belongs to another stream than the sender's: remove it to "
                          "receive this one from the beginning",
                          resume->file);
    return cut(resume, output, why);
}

bool rd_resume_confirm(rd_resume_t *resume, int output, uint64_t bytes, bool is_whole,
                       rd_why_t *why)
{
    if (resume->is_doubtful)
        return rd_because(why, "the output has lost bytes");
    if (fdatasync(output) < 0 && errno != EINVAL) {
        resume->is_doubtful = true;
        return rd_because(why, "the output: %s", strerror(errno));
    }
    resume->bytes = bytes;
    resume->is_whole = is_whole;
    return note(resume, why);
}
