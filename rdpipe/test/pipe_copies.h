/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPE_COPIES_H
#define PIPE_COPIES_H

/* Runs the four parts of a copy one after the other, with files as their input and output, in a
 * temporary directory. */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "copy/copy.h"

/* Files with the streams of items, which a case may inspect or write itself. */
#define LISTED "listed"
#define HAD "had"
#define PACKED "packed"

/* If small files take this many microseconds or more, they are read or written in parallel. */
static unsigned beside_us;

static inline rd_copy_t copy_of(const char *path)
{
    return (rd_copy_t){
        .host = "", .path = path, .name = "", .recursive = true, .beside_us = beside_us};
}

static inline int open_stream(const char *name, bool for_writing)
{
    int fd = open(name, for_writing ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY, 0600);

    if (fd < 0)
        abort();
    return fd;
}

static inline int list(const rd_copy_t *source)
{
    int out = open_stream(LISTED, true), status = rd_copy_list(source, out);

    close(out);
    return status;
}

static inline int have(const rd_copy_t *target)
{
    int in = open_stream(LISTED, false), out = open_stream(HAD, true);
    int status = rd_copy_have(target, in, out);

    close(in);
    close(out);
    return status;
}

static inline int pack(const rd_copy_t *given)
{
    rd_copy_t source = *given;
    int in = open_stream(HAD, false), out = open_stream(PACKED, true), status;

    source.beside_us = beside_us;
    status = rd_copy_pack(&source, in, out);

    close(in);
    close(out);
    return status;
}

static inline int unpack(const rd_copy_t *given)
{
    rd_copy_t target = *given;
    int in = open_stream(PACKED, false), status;

    target.beside_us = beside_us;
    status = rd_copy_unpack(&target, in);
    close(in);
    return status;
}

/* Takes the place of unpack in a dry run, and prints the changes to the file "shown". */
static inline int show(const rd_copy_t *target)
{
    int in = open_stream(PACKED, false), out = open_stream("shown", true);
    int status = rd_copy_show(target, in, out);

    close(in);
    close(out);
    return status;
}

/* Writes a packed stream of only these items. */
static inline void put_items(const rd_item_t *items, size_t count)
{
    int fd = open_stream(PACKED, true);
    uint8_t at[RD_ITEM_MAX];

    for (size_t i = 0; i < count; i++) {
        size_t len = rd_item_put(at, &items[i]);

        if (write(fd, at, len) != (ssize_t)len)
            abort();
    }
    close(fd);
}

/* Returns the status of the last part that failed. */
static inline int status_of(const int statuses[4])
{
    int status = 0;

    for (size_t i = 0; i < 4; i++)
        if (statuses[i] != 0)
            status = statuses[i];
    return status;
}

static inline int copy_all(rd_copy_t source, rd_copy_t target)
{
    int statuses[4] = {list(&source), have(&target), pack(&source), unpack(&target)};

    return status_of(statuses);
}

/* Redirects messages to the file "said" until end_hearing is called with the returned
 * descriptor. */
static inline int begin_hearing(void)
{
    int said = open_stream("said", true), own = dup(STDERR_FILENO);

    if (own < 0 || dup2(said, STDERR_FILENO) < 0)
        abort();
    close(said);
    return own;
}

static inline void end_hearing(int own)
{
    if (dup2(own, STDERR_FILENO) < 0)
        abort();
    close(own);
}

/* Like copy_all, but messages go to the file "said". */
static inline int copy_and_hear(rd_copy_t source, rd_copy_t target)
{
    int own = begin_hearing(), status = copy_all(source, target);

    end_hearing(own);
    return status;
}

static inline int unpack_and_hear(const rd_copy_t *target)
{
    int own = begin_hearing(), status = unpack(target);

    end_hearing(own);
    return status;
}

static inline int copy(const char *from, const char *to)
{
    return copy_all(copy_of(from), copy_of(to));
}

static inline void put_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0640);

    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        abort();
    close(fd);
}

static inline bool holds(const char *path, const char *text)
{
    char got[256];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, got, sizeof got);

    if (fd >= 0)
        close(fd);
    return n == (ssize_t)strlen(text) && memcmp(got, text, (size_t)n) == 0;
}

static inline bool is_there(const char *path)
{
    struct stat is;

    return lstat(path, &is) == 0;
}

static inline bool run(const char *command)
{
    return system(command) == 0;
}

/* Returns the beginning of a text file, valid until the next call; "" if it cannot be read. */
static inline const char *text_of(const char *path)
{
    static char got[8192];
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, got, sizeof got - 1);

    if (fd >= 0)
        close(fd);
    got[n < 0 ? 0 : n] = 0;
    return got;
}

/* Returns whether the file "said" contains this text. */
static inline bool was_said(const char *text)
{
    return strstr(text_of("said"), text) != NULL;
}

#define STATE "find to -printf '%p %y %m %s %T@ %i %l\\n' | sort"

/* Records the state of the whole target for a later comparison. */
static inline void note_state(void)
{
    CHECK(run(STATE " >was"));
}

static inline bool is_state_unchanged(void)
{
    return run(STATE " | diff was - >&2");
}

/* Items that many cases put into a stream: the top of a tree, the end of a file that has arrived
 * completely, and the end of the copy. */
#define TOP                                                                                        \
    {                                                                                              \
        .kind = RD_ITEM_DIR, .mode = 0755                                                          \
    }
#define GOOD                                                                                       \
    {                                                                                              \
        .kind = RD_ITEM_CLOSE, .has = RD_HAS_ALL                                                   \
    }
#define END                                                                                        \
    {                                                                                              \
        .kind = RD_ITEM_END                                                                        \
    }

static char case_folder[64]; /* empty if there is none yet */

static inline void remove_folder(void)
{
    char command[256];

    if (getpid() != check_process || chdir("/") != 0)
        return;
    (void)snprintf(command, sizeof command, "chmod -R u+rwx %s; exec rm -rf %s", case_folder,
                   case_folder);
    (void)run(command);
}

/* Changes to an empty directory, which is removed when the next one is created or the program
 * exits. */
static inline void fresh(void)
{
    if (*case_folder)
        remove_folder();
    else
        CHECK(atexit(remove_folder) == 0);
    (void)snprintf(case_folder, sizeof case_folder, "/tmp/copy_test-XXXXXX");
    CHECK(mkdtemp(case_folder) && chdir(case_folder) == 0);
}

/* Returns the number of content bytes in the packed stream. *kept_p is the number of files that it
 * names but that stay unchanged; *left_out_p (may be NULL) is the number of files that it only
 * counts. */
static inline uint64_t bytes_and_files_packed(uint64_t *kept_p, uint64_t *left_out_p)
{
    static rd_item_t item;
    rd_items_in_t in;
    rd_why_t why;
    uint64_t bytes = 0;
    int fd = open_stream(PACKED, false);

    *kept_p = 0;
    if (left_out_p)
        *left_out_p = 0;
    if (!rd_items_in_open(&in, fd, NULL))
        abort();
    while (rd_items_next(&in, &item, &why)) {
        bytes += item.kind == RD_ITEM_DATA ? item.size : 0;
        *kept_p += item.kind == RD_ITEM_KEEP;
        if (left_out_p)
            *left_out_p += item.kind == RD_ITEM_LEAVE ? item.size : 0;
    }
    rd_items_in_close(&in);
    close(fd);
    return bytes;
}

static inline uint64_t bytes_packed(uint64_t *kept_p)
{
    return bytes_and_files_packed(kept_p, NULL);
}

/* Runs each case twice: with small files one by one, and with all of them in parallel. */
#define COPIES_MAIN(cases)                                                                         \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        beside_us = UINT_MAX;                                                                      \
        check_each("", cases, sizeof(cases) / sizeof *(cases), argc, argv);                        \
        beside_us = 0;                                                                             \
        check_each("side by side: ", cases, sizeof(cases) / sizeof *(cases), argc, argv);          \
        return check_end();                                                                        \
    }

#endif
