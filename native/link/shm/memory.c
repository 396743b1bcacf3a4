/* SPDX-License-Identifier: Apache-2.0 */

/* Creates the memory and the eventfds of a link, and the link itself from them. */

#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../ring_memory.h"

/*
 * The segment: one page with the two ring headers, then the data of ring 0, which carries bytes
 * from the process that created the segment, then the data of ring 1, which carries bytes to that
 * process. Each ring's data is mapped twice in a row. The page is as large as the largest page of
 * any Linux system (on arm64); its unused part costs nothing.
 */
#define SEGMENT_PAGE 65536u
#define SEGMENT_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

typedef struct {
    bw_ring_shared_t ring[2];
} segment_t;

static_assert(sizeof(segment_t) <= SEGMENT_PAGE, "the ring headers fit in the first page");

bw_shm_link_t *bw_shm_new_link(void)
{
    bw_shm_link_t *shm = calloc(1, sizeof *shm);

    if (shm) {
        shm->link.ops = &bw_shm_carrier;
        shm->event = shm->peer_event = shm->process = shm->listener.fd = -1;
    }
    return shm;
}

static uint64_t segment_bytes(uint64_t ring_bytes)
{
    return SEGMENT_PAGE + 2 * ring_bytes;
}

static bw_status_t map_segment(int memory, uint64_t ring_bytes, uint8_t **map_p, size_t *bytes_p,
                               bw_error_t *error_p)
{
    size_t bytes = SEGMENT_PAGE + 4 * ring_bytes;
    uint8_t *map = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *rings = map + SEGMENT_PAGE;

    if (map == MAP_FAILED)
        return bw_fail_system(error_p, "mmap of the rings", errno);
    if (mmap(map, SEGMENT_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, 0) ==
            MAP_FAILED ||
        !bw_map_halves(rings, ring_bytes, memory, SEGMENT_PAGE) ||
        !bw_map_halves(rings + 2 * ring_bytes, ring_bytes, memory, SEGMENT_PAGE + ring_bytes)) {
        int saved = errno;

        munmap(map, bytes);
        return bw_fail_system(error_p, "mmap of a ring", saved);
    }
    (void)madvise(map, bytes, MADV_DONTDUMP); /* keep it out of crash dumps, where it is useless */
    *map_p = map;
    *bytes_p = bytes;
    return BW_OK;
}

bw_status_t bw_shm_attach(bw_shm_side_t side, int memory, uint64_t ring_bytes, int event,
                          int peer_event, int process, bw_link_t **link_p, bw_error_t *error_p)
{
    int out = side == BW_SHM_MAKER ? 0 : 1;
    bw_shm_link_t *shm = bw_shm_new_link();
    bw_status_t status;
    segment_t *segment;
    uint8_t *data[2];

    if (!shm)
        return bw_fail(error_p, BW_LIMIT, "memory for the link", ENOMEM);
    status = map_segment(memory, ring_bytes, &shm->map, &shm->map_bytes, error_p);
    if (status != BW_OK) {
        free(shm);
        return status;
    }
    segment = (segment_t *)(void *)shm->map;
    data[0] = shm->map + SEGMENT_PAGE;
    data[1] = data[0] + 2 * ring_bytes;
    if (side == BW_SHM_MAKER) {
        bw_ring_init(&segment->ring[0], 0);
        bw_ring_init(&segment->ring[1], 0);
    }
    shm->event = event;
    shm->peer_event = peer_event;
    shm->process = process;
    bw_tx_attach(&shm->tx, &segment->ring[out], data[out], ring_bytes, 0);
    bw_rx_attach(&shm->rx, &segment->ring[!out], data[!out], ring_bytes, 0);
    *link_p = &shm->link;
    return BW_OK;
}

bw_status_t bw_shm_make_memory(uint64_t ring_bytes, int *fd_p, bw_error_t *error_p)
{
    int fd = memfd_create("beamway", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    bw_status_t status;

    if (fd < 0)
        return bw_fail_system(error_p, "memfd_create", errno);
    if (bw_set_size(fd, segment_bytes(ring_bytes)) < 0 ||
        fcntl(fd, F_ADD_SEALS, SEGMENT_SEALS) < 0) {
        status = bw_fail_system(error_p,
                                errno == EFBIG
                                    ? "file size limit (ulimit -f) below the size of the rings"
                                    : "size and seals of the memory",
                                errno);
        close(fd);
        return status;
    }
    *fd_p = fd;
    return BW_OK;
}

bw_status_t bw_shm_make_event(int *fd_p, bw_error_t *error_p)
{
    *fd_p = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (*fd_p < 0)
        return bw_fail_system(error_p, "eventfd", errno);
    return BW_OK;
}

bool bw_shm_is_memory(int fd, uint64_t ring_bytes)
{
    int seals = fcntl(fd, F_GET_SEALS); /* -1 for an ordinary file */
    struct stat memory;

    return seals >= 0 && (seals & SEGMENT_SEALS) == SEGMENT_SEALS && fstat(fd, &memory) == 0 &&
           memory.st_size == (off_t)segment_bytes(ring_bytes);
}

/* A descriptor that is not an eventfd or that could block would stall a scheduler thread.
 * O_NONBLOCK is a flag of the open file, so the process that created it could still clear it. Only
 * a hostile process of our own user can do that, and it could just as well stop or trace us. */
bool bw_shm_is_event(int fd)
{
    char path[32], target[32];
    ssize_t len;
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || !(flags & O_NONBLOCK))
        return false;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    len = readlink(path, target, sizeof target);
    return len < 0 || (len == 20 && memcmp(target, "anon_inode:[eventfd]", 20) == 0);
}
