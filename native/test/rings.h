/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_RINGS_H
#define BW_TEST_RINGS_H

/* Shared by several test programs: memory mapped twice in a row, links between two ends in one
 * process, and functions that count a process's resources. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../link/ring.h"
#include "../link/shm/shm.h"
#include "../link/ring_memory.h"

static inline uint8_t *map_twice(size_t bytes)
{
    const char *step;

    return bw_map_twice("test", bytes, &step);
}

/* Returns true if the consumer's doorbell must be rung. */
static inline bool tx_commit(bw_tx_t *tx, size_t n)
{
    bw_tx_publish(tx, n);
    return bw_tx_alert(tx);
}

/* A small generator (xorshift64*), so that a run can be repeated from its seed. */
static inline uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545F4914F6CDD1Dull;
}

/* Counts this process's open descriptors, excluding the one used for counting. */
static inline int open_descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = -3; /* ".", ".." and the directory */

    if (!dir)
        return -1;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

/* Returns the sum in KB of one smaps field (such as "Rss:") over the mappings of the shm carrier,
 * or, if the field is NULL, the number of those mappings. */
static inline long carrier_mappings(const char *field)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    char line[512];
    long sum = 0, value;
    int inside = 0;

    if (!file)
        return -1;
    while (fgets(line, sizeof line, file)) {
        /* the first line of a mapping starts with its address in lower case */
        if (strchr("0123456789abcdef", line[0])) {
            inside = strstr(line, "/memfd:beamway") != NULL;
            sum += inside && !field;
        } else if (inside && field && strncmp(line, field, strlen(field)) == 0 &&
                   sscanf(line + strlen(field), "%ld", &value) == 1) {
            sum += value;
        }
    }
    fclose(file);
    return sum;
}

/* Sets up both ends of an shm link in this process. On failure, *error_p contains the reason. */
static inline bool open_link(uint64_t ring_bytes, bw_link_t **joined_p, bw_link_t **accepted_p,
                             bw_error_t *error_p)
{
    bw_shm_listener_t listener = {.fd = -1};
    bool done = bw_shm_listen(NULL, &listener, error_p) == BW_OK &&
                bw_shm_connect(listener.address, listener.address_len, listener.token, ring_bytes,
                               joined_p, error_p) == BW_OK;

    if (done && bw_shm_accept(&listener, ring_bytes, accepted_p, error_p) != BW_OK) {
        (*joined_p)->ops->close(*joined_p, NULL);
        done = false;
    }
    bw_shm_listener_close(&listener);
    return done;
}

#endif
