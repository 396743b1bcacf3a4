/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../link/ring_memory.h"

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)
#define BUCKETS 256
#define TMPFS 0x01021994 /* TMPFS_MAGIC from linux/magic.h; on tmpfs, lseek finds holes */
#define SHARE_OF_DESCRIPTORS 4
#define MOST_BLOCKS 4096

struct bw_block {
    bw_blocks_t *blocks;
    uint8_t *base; /* NULL until it is mapped */
    size_t size;
    int fd;
    ino_t inode;
    struct timespec changed;
    uint64_t users;
    bw_block_t *next_at, *next_inode; /* in a bucket */
};

struct bw_blocks {
    /* Protects everything below. A block is in the tables while it is mapped and used. */
    pthread_mutex_t lock;
    bw_blocks_info_t info;
    bw_block_t *at[BUCKETS], *inode[BUCKETS];
};

bw_blocks_t *bw_blocks_new(uint64_t max_bytes)
{
    bw_blocks_t *blocks = calloc(1, sizeof *blocks);
    struct rlimit files;

    if (!blocks)
        return NULL;
    pthread_mutex_init(&blocks->lock, NULL);
    blocks->info.max_bytes = max_bytes;
    blocks->info.max_blocks = MOST_BLOCKS;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 &&
        files.rlim_cur / SHARE_OF_DESCRIPTORS < MOST_BLOCKS)
        blocks->info.max_blocks = files.rlim_cur / SHARE_OF_DESCRIPTORS;
    return blocks;
}

void bw_blocks_delete(bw_blocks_t *blocks)
{
    pthread_mutex_destroy(&blocks->lock);
    free(blocks);
}

void bw_blocks_limit(bw_blocks_t *blocks, uint64_t max_bytes)
{
    pthread_mutex_lock(&blocks->lock);
    blocks->info.max_bytes = max_bytes;
    pthread_mutex_unlock(&blocks->lock);
}

bw_blocks_info_t bw_blocks_info(bw_blocks_t *blocks)
{
    bw_blocks_info_t info;

    pthread_mutex_lock(&blocks->lock);
    info = blocks->info;
    pthread_mutex_unlock(&blocks->lock);
    return info;
}

/* ---- the tables ---- */

static size_t bucket_at(const void *at)
{
    return ((uintptr_t)at >> 12) % BUCKETS;
}

static size_t bucket_inode(ino_t inode)
{
    return inode % BUCKETS;
}

static bw_block_t **place_at(bw_blocks_t *blocks, const void *at)
{
    bw_block_t **place = &blocks->at[bucket_at(at)];

    while (*place && (*place)->base != at)
        place = &(*place)->next_at;
    return place;
}

static void enter(bw_block_t *block)
{
    bw_blocks_t *blocks = block->blocks;

    block->next_at = blocks->at[bucket_at(block->base)];
    blocks->at[bucket_at(block->base)] = block;
    block->next_inode = blocks->inode[bucket_inode(block->inode)];
    blocks->inode[bucket_inode(block->inode)] = block;
}

/* Counts a block if the limits or `beyond` allow it. Its descriptor is counted if it `has_come`. */
static bool count(bw_blocks_t *blocks, uint64_t size, bool has_come, bool beyond)
{
    bw_blocks_info_t *info = &blocks->info;
    uint64_t held = info->blocks + (has_come ? 0 : info->waiting);

    if (!beyond && (held >= info->max_blocks || size > info->max_bytes ||
                    info->bytes > info->max_bytes - size)) {
        info->refused++;
        return false;
    }
    info->blocks++;
    info->bytes += size;
    return true;
}

bool bw_blocks_reserve(bw_blocks_t *blocks, bool beyond)
{
    bw_blocks_info_t *info = &blocks->info;
    bool done;

    pthread_mutex_lock(&blocks->lock);
    done = beyond || info->blocks + info->waiting < info->max_blocks;
    info->waiting += done;
    pthread_mutex_unlock(&blocks->lock);
    return done;
}

void bw_blocks_release(bw_blocks_t *blocks)
{
    pthread_mutex_lock(&blocks->lock);
    blocks->info.waiting--;
    pthread_mutex_unlock(&blocks->lock);
}

static void uncount(bw_blocks_t *blocks, uint64_t size)
{
    pthread_mutex_lock(&blocks->lock);
    blocks->info.blocks--;
    blocks->info.bytes -= size;
    pthread_mutex_unlock(&blocks->lock);
}

/* ---- creating a block ---- */

static bw_block_t *new_block(bw_blocks_t *blocks, int fd, size_t size)
{
    bw_block_t *block = malloc(sizeof *block);

    if (block)
        *block = (bw_block_t){.blocks = blocks, .size = size, .fd = fd, .users = 1};
    return block;
}

bw_status_t bw_block_begin(bw_blocks_t *blocks, size_t size, bw_block_t **block_p,
                           bw_error_t *error_p)
{
    bw_status_t status = BW_LIMIT;
    bool is_counted;
    int fd;

    if (size == 0 || size > PTRDIFF_MAX)
        return bw_fail(error_p, BW_INVALID, "the size of the block", EINVAL);
    pthread_mutex_lock(&blocks->lock);
    is_counted = count(blocks, size, false, false);
    pthread_mutex_unlock(&blocks->lock);
    if (!is_counted)
        return bw_fail(error_p, BW_LIMIT, "no room for another block", 0);
    fd = memfd_create("beamway block", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        status = bw_fail_system(error_p, "memfd_create", errno);
    else if (bw_set_size(fd, size) < 0)
        status = bw_fail_system(error_p, "size of a block (ulimit -f?)", errno);
    else if (!(*block_p = new_block(blocks, fd, size)))
        status = bw_fail(error_p, BW_LIMIT, "memory for a block", ENOMEM);
    else
        return BW_OK;
    if (fd >= 0)
        close(fd);
    uncount(blocks, size);
    return status;
}

bw_status_t bw_block_write(bw_block_t *block, size_t offset, const void *data, size_t len,
                           bw_error_t *error_p)
{
    const uint8_t *from = data;

    if (len > block->size || offset > block->size - len)
        return bw_fail(error_p, BW_INVALID, "bytes beyond the block", EINVAL);
    while (len > 0) {
        ssize_t n = pwrite(block->fd, from, len, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return bw_fail_system(error_p, "writing a block", errno);
        from += n;
        offset += (size_t)n;
        len -= (size_t)n;
    }
    return BW_OK;
}

/* Fills the block from a file that sendfile does not support. */
static ssize_t read_and_write(bw_block_t *block, int file, size_t done, bw_error_t *error_p)
{
    char buffer[65536];
    size_t most = block->size - done < sizeof buffer ? block->size - done : sizeof buffer;
    ssize_t n = read(file, buffer, most);

    if (n <= 0)
        return n;
    return bw_block_write(block, done, buffer, (size_t)n, error_p) == BW_OK ? n : -1;
}

bw_status_t bw_block_fill(bw_block_t *block, int file, bw_error_t *error_p)
{
    bool can_send = true;
    size_t done = 0;

    if (lseek(block->fd, 0, SEEK_SET) < 0)
        return bw_fail(error_p, BW_SYSTEM, "lseek in a block", errno);
    while (done < block->size) {
        ssize_t n = can_send ? sendfile(block->fd, file, NULL, block->size - done)
                             : read_and_write(block, file, done, error_p);

        if (n > 0)
            done += (size_t)n;
        else if (n == 0)
            return bw_fail(error_p, BW_SYSTEM, "the file has become shorter", EIO);
        else if (can_send && (errno == EINVAL || errno == ENOSYS))
            can_send = false;
        else if (errno != EINTR)
            return bw_fail_system(error_p, "reading the file", errno);
    }
    return BW_OK;
}

static bw_status_t map(bw_block_t *block, bw_error_t *error_p)
{
    void *base = mmap(NULL, block->size, PROT_READ, MAP_SHARED, block->fd, 0);

    if (base == MAP_FAILED)
        return bw_fail_system(error_p, "mmap of a block", errno);
    block->base = base;
    return BW_OK;
}

static void identify(bw_block_t *block, const struct stat *st)
{
    block->inode = st->st_ino;
    block->changed = st->st_ctim;
}

bw_status_t bw_block_finish(bw_block_t *block, bw_error_t *error_p)
{
    bw_blocks_t *blocks = block->blocks;
    struct stat st;
    bw_status_t status;

    if (fcntl(block->fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) < 0)
        return bw_fail(error_p, BW_SYSTEM, "sealing a block", errno);
    if (fstat(block->fd, &st) < 0)
        return bw_fail(error_p, BW_SYSTEM, "fstat of a block", errno);
    identify(block, &st);
    if ((status = map(block, error_p)) != BW_OK)
        return status;
    pthread_mutex_lock(&blocks->lock);
    enter(block);
    blocks->info.made++;
    pthread_mutex_unlock(&blocks->lock);
    return BW_OK;
}

/* ---- using a block ---- */

const uint8_t *bw_block_data(const bw_block_t *block)
{
    return block->base;
}

size_t bw_block_size(const bw_block_t *block)
{
    return block->size;
}

bw_block_t *bw_block_find(bw_blocks_t *blocks, const void *at, size_t size)
{
    bw_block_t *block;

    pthread_mutex_lock(&blocks->lock);
    block = *place_at(blocks, at);
    if (block && block->size == size)
        block->users++;
    else
        block = NULL;
    pthread_mutex_unlock(&blocks->lock);
    return block;
}

bool bw_block_drop(bw_block_t *block)
{
    bw_blocks_t *blocks = block->blocks;
    bool last;

    pthread_mutex_lock(&blocks->lock);
    last = --block->users == 0;
    if (last && block->base) {
        bw_block_t **place = &blocks->inode[bucket_inode(block->inode)];

        while (*place != block)
            place = &(*place)->next_inode;
        *place = block->next_inode;
        *place_at(blocks, block->base) = block->next_at;
    }
    pthread_mutex_unlock(&blocks->lock);
    return last;
}

void bw_block_free(bw_block_t *block)
{
    if (block->base)
        munmap(block->base, block->size);
    close(block->fd);
    uncount(block->blocks, block->size);
    free(block);
}

/* ---- passing blocks between processes ---- */

int bw_block_descriptor(const bw_block_t *block)
{
    return block->fd;
}

/* Checks that the bytes can be read and that no process can ever remove them. If the file could be
 * shortened, or had missing pages that cannot be allocated, reading it would kill this process with
 * SIGBUS. */
static bool is_block(int fd, uint64_t size, struct stat *st)
{
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, st) < 0 || fstatfs(fd, &fs) < 0)
        return false;
    /* st_blocks would also count pages past the end. */
    return S_ISREG(st->st_mode) && fs.f_type == TMPFS && size > 0 && size <= PTRDIFF_MAX &&
           (uint64_t)st->st_size == size && lseek(fd, 0, SEEK_HOLE) == (off_t)size;
}

/* Returns the block if this process already has it. Some systems reuse inode numbers, so two blocks
 * are also distinguished by the time of the last change, which is when they were sealed. */
static bw_block_t *known(bw_blocks_t *blocks, const struct stat *st)
{
    bw_block_t *block = blocks->inode[bucket_inode(st->st_ino)];

    while (block && (block->inode != st->st_ino || block->size != (uint64_t)st->st_size ||
                     block->changed.tv_sec != st->st_ctim.tv_sec ||
                     block->changed.tv_nsec != st->st_ctim.tv_nsec))
        block = block->next_inode;
    if (block)
        block->users++;
    return block;
}

bw_status_t bw_block_adopt(bw_blocks_t *blocks, int fd, uint64_t size, bool beyond,
                           bw_block_t **block_p, bw_error_t *error_p)
{
    bw_status_t status = BW_OK;
    bw_block_t *block;
    struct stat st;

    if (!is_block(fd, size, &st)) {
        close(fd);
        return bw_fail(error_p, BW_REFUSED,
                       "the peer passed a descriptor that is not sealed memory", 0);
    }
    pthread_mutex_lock(&blocks->lock);
    block = known(blocks, &st);
    if (block) {
        close(fd);
    } else if (!count(blocks, size, true, beyond)) {
        status = bw_fail(error_p, BW_LIMIT, "no room for another block", 0);
    } else if (!(block = new_block(blocks, fd, size)) || map(block, error_p) != BW_OK) {
        status = block ? BW_LIMIT : bw_fail(error_p, BW_LIMIT, "memory for a block", ENOMEM);
        free(block);
        blocks->info.blocks--;
        blocks->info.bytes -= size;
    } else {
        identify(block, &st);
        enter(block);
    }
    blocks->info.received += status == BW_OK;
    pthread_mutex_unlock(&blocks->lock);
    if (status == BW_OK)
        *block_p = block;
    return status;
}
