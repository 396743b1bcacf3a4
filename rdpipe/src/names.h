/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_NAMES_H
#define RD_NAMES_H

#include <stdbool.h>
#include <stddef.h>

/* A list of names or paths. An empty one is {0}. */

typedef struct {
    char **of;
    size_t count, room;
} rd_names_t;

/* Appends a copy of the first `len` bytes. False: there is no memory, and the list is as before. */
bool rd_names_add(rd_names_t *names, const char *name, size_t len);

/* Appends what is in a directory, but for "." and "..", and sorts the list. Closes the descriptor,
 * so that deep trees need few of them. False: errno. */
bool rd_names_read(rd_names_t *names, int fd);

/* Sorts by bytes. */
void rd_names_sort(rd_names_t *names);

/* Is the name in a list that is sorted? */
bool rd_names_have(const rd_names_t *names, const char *name);

/* Empties the list. */
void rd_names_free(rd_names_t *names);

#endif
