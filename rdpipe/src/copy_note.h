/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_NOTE_H
#define RD_COPY_NOTE_H

#include "item.h"

/*
 * The part of a large file has a note in an extended attribute: the size and time of the version of
 * its source of which it is the beginning, and the boot of the system during which it was written.
 * As long as the source is still that version, the part can be resumed without reading it. After a
 * reboot the note is ignored, because bytes that had not reached the disk are lost.
 */

/* Returns the kernel's ID of this boot of the system, as the kernel writes it, or "" if it does not
 * provide one. */
const char *rd_boot_id(void);

/* Writes 6 bytes that identify this boot of the system; all zeros if the system does not provide an
 * ID. */
#define RD_KERNEL_BYTES 6u
void rd_kernel_id(uint8_t id[RD_KERNEL_BYTES]);

/* Notes that the file will be the beginning of this item. Returns false if the file system does not
 * support extended attributes. */
bool rd_note_write(int fd, const rd_item_t *item);

/* Returns whether the note says that the file is the beginning of this item. */
bool rd_note_holds(int fd, const rd_item_t *item);

void rd_note_remove(int fd);

#endif
