/* SPDX-License-Identifier: Apache-2.0 */
#include "status.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "text.h"

#define EVERY_MS 1000
#define FOLDER_BYTES (PATH_MAX - 32) /* room for /PID.json.new */

/* In /tmp another user may have created a directory or link of this name. */
static bool is_ours(const char *folder)
{
    struct stat found;

    return lstat(folder, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == getuid() &&
           (found.st_mode & 022) == 0;
}

static bool folder_of(char folder[FOLDER_BYTES])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int len = runtime && *runtime == '/'
                  ? snprintf(folder, FOLDER_BYTES, "%s/rdpipe", runtime)
                  : snprintf(folder, FOLDER_BYTES, "/tmp/rdpipe-%u", getuid());

    return len > 0 && len < FOLDER_BYTES && (mkdir(folder, 0700) == 0 || errno == EEXIST) &&
           is_ours(folder);
}

static void remove_left(const char *folder)
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;

    while (entries && (entry = readdir(entries))) {
        char *end;
        long pid = strtol(entry->d_name, &end, 10);

        if (pid > 0 && strncmp(end, ".json", 5) == 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH)
            (void)unlinkat(dirfd(entries), entry->d_name, 0);
    }
    if (entries)
        (void)closedir(entries);
}

void rd_status_begin(rd_status_t *status)
{
    char folder[FOLDER_BYTES];

    *status = (rd_status_t){.again_ms = 0};
    if (!folder_of(folder))
        return;
    remove_left(folder);
    (void)snprintf(status->file, sizeof status->file, "%s/%d.json", folder, (int)getpid());
    (void)snprintf(status->fresh, sizeof status->fresh, "%s.new", status->file);
}

FILE *rd_status_open(rd_status_t *status)
{
    int fd;

    if (!*status->file || rd_left_ms(status->again_ms) > 0)
        return NULL;
    status->again_ms = rd_now_ms() + EVERY_MS;
    fd = open(status->fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd >= 0 ? fdopen(fd, "w") : NULL;
}

void rd_status_close(const rd_status_t *status, FILE *to)
{
    bool is_whole = !ferror(to);

    if (fclose(to) == 0 && is_whole)
        (void)rename(status->fresh, status->file);
}

void rd_status_end(const rd_status_t *status)
{
    if (!*status->file)
        return;
    (void)unlink(status->fresh);
    (void)unlink(status->file);
}
