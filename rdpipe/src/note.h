/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_NOTE_H
#define RD_NOTE_H

#include "item.h"

/*
 * What the part of a large file notes of itself, in an extended attribute: of which version of its
 * source it is the beginning, by size and time, and in which run of the system it was written. As
 * long as the source is that version, nobody need read what the part has to resume it. After a
 * restart of the system the note does not count, since bytes that were not on the disk are lost.
 */

/* 6 bytes of this run of the system; all zeroes if it does not say. */
#define RD_KERNEL_BYTES 6u
void rd_kernel_id(uint8_t id[RD_KERNEL_BYTES]);

/* The file is going to be the beginning of this one. False: its file system takes no attributes. */
bool rd_note_write(int fd, const rd_item_t *item);

/* Is it the beginning of this one? */
bool rd_note_holds(int fd, const rd_item_t *item);

void rd_note_remove(int fd);

#endif
