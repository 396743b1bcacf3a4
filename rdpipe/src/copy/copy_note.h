/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_NOTE_H
#define RD_COPY_NOTE_H

#include "copy_item.h"

/*
 * The part of a large file has a note in an extended attribute. The note contains the size and time
 * of the source file from which the part was copied, and the ID of the system's boot during which
 * the part was written. As long as the source file has not changed, the part can be resumed without
 * reading it. After a reboot the note is ignored, because the part may have lost bytes that had not
 * reached the disk.
 */

/* Returns the ID of the current boot in the kernel's own format, or "" if the kernel does not
 * provide one. */
const char *rd_boot_id(void);

/* Writes 6 bytes that identify the current boot, or zeros if the system does not provide an ID. */
#define RD_KERNEL_BYTES 6u
void rd_kernel_id(uint8_t id[RD_KERNEL_BYTES]);

/* Stores a note that `fd` is going to hold the beginning of this item's file. Returns false if the
 * note cannot be stored. */
bool rd_note_write(int fd, const rd_item_t *item);

/* Returns whether, according to its note, the file is the beginning of this item's file. */
bool rd_note_holds(int fd, const rd_item_t *item);

void rd_note_remove(int fd);

#endif
