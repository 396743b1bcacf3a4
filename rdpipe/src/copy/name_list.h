/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_NAME_LIST_H
#define RD_NAME_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

/* A list of names or paths. An empty list is {0}. */

typedef struct {
    char **of;
    size_t count;
} rd_names_t;

/* Makes room for one more element in an array of `count`. Returns the array, which may have moved,
 * or NULL if memory is exhausted. The array doubles when its count is a power of two, so it may be
 * grown only with this function, one element at a time. */
static inline void *rd_with_room(void *of, size_t count, size_t bytes)
{
    return count & (count - 1) ? of : reallocarray(of, count > 0 ? 2 * count : 1, bytes);
}

/* Appends a copy of the first `len` bytes. If memory is exhausted, returns false and leaves the
 * list unchanged. */
bool rd_names_add(rd_names_t *names, const char *name, size_t len);

/* Appends the entries of a directory except "." and "..", and sorts the list. Closes the
 * descriptor, so that deep trees do not use many of them. On failure, errno is set. */
bool rd_names_read(rd_names_t *names, int fd);

/* Sorts the list in byte order. */
void rd_names_sort(rd_names_t *names);

/* Returns whether the name is in the list, which must be sorted. */
bool rd_names_have(const rd_names_t *names, const char *name);

/* Frees the names. The list is then empty, and can be used again. */
void rd_names_free(rd_names_t *names);

#endif
