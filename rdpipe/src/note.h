/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_NOTE_H
#define RD_NOTE_H

#include "item.h"

/*
 * The part of a large file has a note in an extended attribute: the size and time of the version of
 * its source of which it is the beginning, and the boot of the system during which it was written.
 * As long as the source is still that version, the part can be resumed without reading it. After a
 * reboot the note does not count, since bytes that were not on the disk are lost.
 */

/* 6 bytes that identify this boot of the system; all zeros if it does not tell. */
#define RD_KERNEL_BYTES 6u
void rd_kernel_id(uint8_t id[RD_KERNEL_BYTES]);

/* Notes that the file will be the beginning of this item. False: its file system has no
 * attributes. */
bool rd_note_write(int fd, const rd_item_t *item);

/* Does the note say that the file is the beginning of this item? */
bool rd_note_holds(int fd, const rd_item_t *item);

void rd_note_remove(int fd);

#endif
