/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_note.h"

#include <fcntl.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <openssl/evp.h>

#define NAME "user.rdcp-part"
#define NOTE_BYTES 128u

const char *rd_boot_id(void)
{
    static char boot[40];
    int fd;

    if (!*boot) {
        fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
        if (fd < 0 || read(fd, boot, sizeof boot - 1) <= 0)
            boot[0] = 0;
        rd_close(&fd);
    }
    return boot;
}

void rd_kernel_id(uint8_t id[RD_KERNEL_BYTES])
{
    const char *boot = rd_boot_id();
    uint8_t digest[EVP_MAX_MD_SIZE];

    memset(id, 0, RD_KERNEL_BYTES);
    if (*boot && EVP_Digest(boot, strlen(boot), digest, NULL, EVP_sha256(), NULL) == 1)
        memcpy(id, digest, RD_KERNEL_BYTES);
}

/* Writes the note and returns its length, or 0 if the system does not provide a boot ID. */
static size_t make_note(char note[NOTE_BYTES], const rd_item_t *item)
{
    static const uint8_t unknown[RD_KERNEL_BYTES];
    uint8_t id[RD_KERNEL_BYTES];

    rd_kernel_id(id);
    if (memcmp(id, unknown, sizeof id) == 0)
        return 0;
    return (size_t)snprintf(note, NOTE_BYTES, "1 %02x%02x%02x%02x%02x%02x %llu %lld.%09u", id[0],
                            id[1], id[2], id[3], id[4], id[5], (unsigned long long)item->size,
                            (long long)item->mtime_s, item->mtime_ns);
}

bool rd_note_write(int fd, const rd_item_t *item)
{
    char note[NOTE_BYTES];
    size_t len = make_note(note, item);

    return len > 0 && fsetxattr(fd, NAME, note, len, 0) == 0;
}

bool rd_note_holds(int fd, const rd_item_t *item)
{
    char note[NOTE_BYTES], got[NOTE_BYTES];
    size_t len = make_note(note, item);

    return len > 0 && fgetxattr(fd, NAME, got, sizeof got) == (ssize_t)len &&
           memcmp(got, note, len) == 0;
}

void rd_note_remove(int fd)
{
    (void)fremovexattr(fd, NAME);
}
