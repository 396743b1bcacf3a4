/* SPDX-License-Identifier: Apache-2.0 */
#include "block.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../link/shm/inside.h"
#include "../link/token.h"
#include "../link/twice.h"

#define SEALS (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)
#define BUCKETS 256
#define TMPFS 0x01021994 /* TMPFS_MAGIC of linux/magic.h: memory whose pages are there */
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
    pthread_mutex_t lock; /* of all below; a block is in the tables while it is mapped and used */
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

/* Counts it, if there is room or `beyond`. */
static bool count(bw_blocks_t *blocks, uint64_t size, bool beyond)
{
    bw_blocks_info_t *info = &blocks->info;

    if (!beyond && (info->blocks >= info->max_blocks || size > info->max_bytes ||
                    info->bytes > info->max_bytes - size)) {
        info->refused++;
        return false;
    }
    info->blocks++;
    info->bytes += size;
    return true;
}

static void uncount(bw_blocks_t *blocks, uint64_t size)
{
    pthread_mutex_lock(&blocks->lock);
    blocks->info.blocks--;
    blocks->info.bytes -= size;
    pthread_mutex_unlock(&blocks->lock);
}

static bool counted(bw_blocks_t *blocks, uint64_t size, bool beyond)
{
    bool done;

    pthread_mutex_lock(&blocks->lock);
    done = count(blocks, size, beyond);
    pthread_mutex_unlock(&blocks->lock);
    return done;
}

/* ---- to make one ---- */

static bw_block_t *new_block(bw_blocks_t *blocks, int fd, size_t size)
{
    bw_block_t *block = calloc(1, sizeof *block);

    if (!block)
        return NULL;
    block->blocks = blocks;
    block->size = size;
    block->fd = fd;
    block->users = 1;
    return block;
}

bw_status_t bw_block_begin(bw_blocks_t *blocks, size_t size, bw_block_t **block_p,
                           bw_error_t *error_p)
{
    bw_status_t status = BW_LIMIT;
    int fd;

    if (size == 0 || size > PTRDIFF_MAX)
        return bw_fail(error_p, BW_INVALID, "the size of the block", EINVAL);
    if (!counted(blocks, size, false))
        return bw_fail(error_p, BW_LIMIT, "there is no room for another block", 0);
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

/* For files that the system cannot send. */
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

/* ---- to use one ---- */

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

/* ---- what came from a peer ---- */

/*
 * Bytes may be read where nothing can take them away any more, whoever passed them: a file that can
 * be shortened, or memory whose pages are missing and cannot be had, would end this process by
 * SIGBUS.
 */
static bool is_block(int fd, uint64_t size, struct stat *st)
{
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, st) < 0 || fstatfs(fd, &fs) < 0)
        return false;
    return S_ISREG(st->st_mode) && fs.f_type == TMPFS && size > 0 && size <= PTRDIFF_MAX &&
           (uint64_t)st->st_size == size && (uint64_t)st->st_blocks * 512 >= size;
}

/* The block if this process has it already. Numbers of inodes may come round on some systems; the
 * time of the last change, which was the sealing, tells two apart. */
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

/* Takes the descriptor over, unless there is no room. */
static bw_status_t adopt(bw_blocks_t *blocks, int fd, uint64_t size, bool beyond,
                         bw_block_t **block_p, bw_error_t *error_p)
{
    bw_status_t status = BW_OK;
    bw_block_t *block;
    struct stat st;

    if (!is_block(fd, size, &st)) {
        close(fd);
        return bw_fail(error_p, BW_REFUSED, "the peer has passed what is no sealed memory", 0);
    }
    pthread_mutex_lock(&blocks->lock);
    block = known(blocks, &st);
    if (block) {
        close(fd);
    } else if (!count(blocks, size, beyond)) {
        status = bw_fail(error_p, BW_LIMIT, "there is no room for another block", 0);
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
    *block_p = block;
    return status;
}

/* ---- channels ---- */

#define HELLO_VERSION 1u

typedef struct {
    uint8_t token[BW_TOKEN_BYTES];
    uint8_t id[BW_TOKEN_BYTES];
    uint32_t version;
    uint32_t reserved;
} hello_t;

/* From sender to receiver: a block, with its descriptor. Back: how many have been taken, all in
 * all, and 0. */
typedef struct {
    uint64_t number;
    uint64_t size;
} word_t;

static_assert(sizeof(hello_t) == 40 && sizeof(word_t) == 16, "the layout is part of the protocol");

typedef struct {
    word_t word; /* size 0: nothing */
    int fd;
} waiting_t;

struct bw_channel {
    bw_blocks_t *blocks;
    uint8_t id[BW_TOKEN_BYTES];
    pthread_mutex_t lock; /* of all below */
    int fd;               /* -1: closed */
    bool sends, corrupt;
    uint64_t passed; /* at the sender: the last number */
    uint64_t taken;  /* of these */
    waiting_t waiting[BW_BLOCK_PASSED_MAX];
};

static bw_channel_t *new_channel(bw_blocks_t *blocks, int fd, bool sends, const uint8_t *id)
{
    bw_channel_t *channel = calloc(1, sizeof *channel);

    if (!channel)
        return NULL;
    channel->blocks = blocks;
    memcpy(channel->id, id, sizeof channel->id);
    pthread_mutex_init(&channel->lock, NULL);
    channel->fd = fd;
    channel->sends = sends;
    return channel;
}

bw_status_t bw_channel_connect(bw_blocks_t *blocks, const uint8_t *address, size_t address_len,
                               const uint8_t token[BW_TOKEN_BYTES],
                               const uint8_t id[BW_TOKEN_BYTES], bw_channel_t **channel_p,
                               bw_error_t *error_p)
{
    hello_t hello = {.version = HELLO_VERSION};
    bw_status_t status;
    int fd;

    if (address_len == 0 || address_len > BW_ADDRESS_MAX)
        return bw_fail(error_p, BW_INVALID, "the address of the offer", EINVAL);
    memcpy(hello.token, token, sizeof hello.token);
    memcpy(hello.id, id, sizeof hello.id);
    if ((status = bw_shm_reach(address, address_len, &fd, error_p)) != BW_OK)
        return status;
    if (send(fd, &hello, sizeof hello, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof hello)
        status = bw_fail(error_p, BW_SYSTEM, "sending the token", errno);
    else if (!(*channel_p = new_channel(blocks, fd, true, id)))
        status = bw_fail(error_p, BW_LIMIT, "memory for a channel", ENOMEM);
    if (status != BW_OK)
        close(fd);
    return status;
}

/* A peer that has just connected speaks in a moment. */
static bool has_spoken(int fd)
{
    struct pollfd peer = {.fd = fd, .events = POLLIN};

    return poll(&peer, 1, BW_CHANNEL_SILENT_MS) > 0;
}

static bool is_good(int fd, const bw_shm_listener_t *listener, hello_t *hello_p)
{
    return bw_shm_same_user(fd) && has_spoken(fd) &&
           recv(fd, hello_p, sizeof *hello_p, MSG_DONTWAIT | MSG_TRUNC) ==
               (ssize_t)sizeof *hello_p &&
           bw_token_is_same(hello_p->token, listener->token) && hello_p->version == HELLO_VERSION;
}

bw_status_t bw_channel_accept(bw_blocks_t *blocks, bw_shm_listener_t *listener,
                              bw_channel_t **channel_p, bw_error_t *error_p)
{
    for (int peers = 0; peers < 32; peers++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        hello_t hello;

        if (fd < 0 && errno == EINTR)
            continue;
        if (fd < 0 && errno == EAGAIN)
            break;
        if (fd < 0)
            return bw_fail_system(error_p, "accept of a channel", errno);
        if (is_good(fd, listener, &hello)) {
            *channel_p = new_channel(blocks, fd, false, hello.id);
            if (*channel_p)
                return BW_OK;
        }
        close(fd);
    }
    return bw_fail(error_p, BW_AGAIN, "no channel waits", 0);
}

void bw_channel_id(const bw_channel_t *channel, uint8_t id[BW_TOKEN_BYTES])
{
    memcpy(id, channel->id, BW_TOKEN_BYTES);
}

/* Under the lock. What has come and was not taken goes with it. */
static void close_channel(bw_channel_t *channel)
{
    if (channel->fd < 0)
        return;
    close(channel->fd);
    channel->fd = -1;
    for (size_t i = 0; i < BW_BLOCK_PASSED_MAX; i++)
        if (channel->waiting[i].word.size > 0)
            close(channel->waiting[i].fd);
    memset(channel->waiting, 0, sizeof channel->waiting);
}

static bool send_word(int fd, const word_t *word, int with)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)word, .iov_len = sizeof *word};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

    if (with >= 0) {
        struct cmsghdr *cmsg;

        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        cmsg = CMSG_FIRSTHDR(&message);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(cmsg), &with, sizeof(int));
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *word;
}

/* The next word; a descriptor that came with it, or -1. BW_AGAIN: none waits. BW_REFUSED: the end.
 */
static bw_status_t receive_word(int fd, word_t *word, int *with)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {.iov_base = word, .iov_len = sizeof *word};
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    size_t descriptors = 0;

    *with = -1;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? BW_AGAIN : BW_REFUSED;
    if (n == 0)
        return BW_REFUSED;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message); cmsg; cmsg = CMSG_NXTHDR(&message, cmsg)) {
        if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
            continue;
        /* The kernel fills the padding of the buffer too: one more may have come than was asked. */
        for (size_t at = CMSG_LEN(0); at + sizeof(int) <= cmsg->cmsg_len; at += sizeof(int)) {
            int one;

            memcpy(&one, (char *)cmsg + at, sizeof one);
            if (descriptors++ == 0)
                *with = one;
            else
                close(one);
        }
    }
    if (n == (ssize_t)sizeof *word && descriptors == (word->size > 0) &&
        !(message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)))
        return BW_OK;
    if (*with >= 0)
        close(*with);
    *with = -1;
    return BW_CORRUPT;
}

/* Word by word, so that the sender never counts more on their way than the socket holds. */
static void count_taken(bw_channel_t *channel)
{
    word_t word = {.number = ++channel->taken};

    (void)send_word(channel->fd, &word, -1);
}

static waiting_t *find_waiting(bw_channel_t *channel, uint64_t number, bool is_free)
{
    for (size_t i = 0; i < BW_BLOCK_PASSED_MAX; i++) {
        waiting_t *waiting = &channel->waiting[i];

        if (is_free ? waiting->word.size == 0
                    : waiting->word.size > 0 && waiting->word.number == number)
            return waiting;
    }
    return NULL;
}

static bool store(bw_channel_t *channel, const word_t *word, int fd)
{
    waiting_t *waiting = find_waiting(channel, word->number, true);

    if (fd < 0)
        return false;
    if (!waiting || find_waiting(channel, word->number, false)) {
        close(fd);
        return false;
    }
    *waiting = (waiting_t){*word, fd};
    return true;
}

/* At the receiver, under the lock: takes in all that waits. BW_REFUSED: the sender has gone. */
static bw_status_t take_in(bw_channel_t *channel)
{
    for (;;) {
        bw_status_t status;
        word_t word;
        int fd;

        if (channel->fd < 0)
            return BW_REFUSED;
        status = receive_word(channel->fd, &word, &fd);
        if (status == BW_OK && store(channel, &word, fd))
            continue;
        if (status != BW_OK && status != BW_CORRUPT)
            return status;
        channel->corrupt = true;
        close_channel(channel);
        return BW_CORRUPT;
    }
}

/* At the sender, under the lock: hears what was taken. */
static bw_status_t hear(bw_channel_t *channel)
{
    for (;;) {
        bw_status_t status;
        word_t word;
        int fd;

        if (channel->fd < 0)
            return BW_REFUSED;
        status = receive_word(channel->fd, &word, &fd);
        if (status == BW_AGAIN)
            return BW_AGAIN;
        if (fd >= 0)
            close(fd);
        if (status == BW_OK && word.size == 0 && word.number > channel->taken &&
            word.number <= channel->passed) {
            channel->taken = word.number;
            continue;
        }
        close_channel(channel);
        return BW_REFUSED;
    }
}

bool bw_channel_look(bw_channel_t *channel)
{
    bool open;

    pthread_mutex_lock(&channel->lock);
    open = (channel->sends ? hear(channel) : take_in(channel)) == BW_AGAIN;
    pthread_mutex_unlock(&channel->lock);
    return open;
}

bw_status_t bw_channel_pass(bw_channel_t *channel, bw_block_t *block, uint64_t *number_p,
                            bw_error_t *error_p)
{
    bw_status_t status = BW_OK;

    pthread_mutex_lock(&channel->lock);
    if (hear(channel) != BW_AGAIN) {
        status = bw_fail(error_p, BW_REFUSED, "the channel is closed", 0);
    } else if (channel->passed - channel->taken >= BW_BLOCK_PASSED_MAX) {
        status = bw_fail(error_p, BW_AGAIN, "too many blocks are on their way", 0);
    } else {
        word_t word = {.number = channel->passed + 1, .size = block->size};

        if (send_word(channel->fd, &word, block->fd))
            *number_p = ++channel->passed;
        else if (errno == EAGAIN)
            status = bw_fail(error_p, BW_AGAIN, "too many blocks are on their way", 0);
        else if (errno == ETOOMANYREFS)
            status = bw_fail(error_p, BW_LIMIT, "passing a block (ulimit -n?)", errno);
        else
            status = bw_fail(error_p, BW_REFUSED, "passing a block", errno);
    }
    pthread_mutex_unlock(&channel->lock);
    return status;
}

bw_status_t bw_channel_take(bw_channel_t *channel, uint64_t number, uint64_t size, bool beyond,
                            bw_block_t **block_p, bw_error_t *error_p)
{
    bw_status_t status = BW_OK;
    waiting_t *waiting;

    pthread_mutex_lock(&channel->lock);
    waiting = find_waiting(channel, number, false);
    if (!waiting) {
        (void)take_in(channel);
        waiting = find_waiting(channel, number, false);
    }
    if (channel->corrupt)
        status = bw_fail(error_p, BW_CORRUPT, "the peer has passed no block", 0);
    else if (!waiting)
        status = bw_fail(error_p, BW_REFUSED, "the peer has not passed this block", 0);
    else if (waiting->word.size != size)
        status = bw_fail(error_p, BW_CORRUPT, "the block has another size", 0);
    else
        status = adopt(channel->blocks, waiting->fd, size, beyond, block_p, error_p);
    /* Whatever it was, but for want of room, its descriptor is gone. */
    if (waiting && waiting->word.size == size && status != BW_LIMIT) {
        *waiting = (waiting_t){.fd = -1};
        count_taken(channel);
    }
    pthread_mutex_unlock(&channel->lock);
    return status;
}

void bw_channel_close(bw_channel_t *channel)
{
    pthread_mutex_lock(&channel->lock);
    close_channel(channel);
    pthread_mutex_unlock(&channel->lock);
}

void bw_channel_delete(bw_channel_t *channel)
{
    close_channel(channel);
    pthread_mutex_destroy(&channel->lock);
    free(channel);
}
