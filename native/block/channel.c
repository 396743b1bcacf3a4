/* SPDX-License-Identifier: Apache-2.0 */
#include "channel.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../link/clock.h"
#include "../link/shm/inside.h"
#include "../link/token.h"

#define HELLO_VERSION 1u

typedef struct {
    uint8_t token[BW_TOKEN_BYTES];
    uint8_t id[BW_TOKEN_BYTES];
    uint32_t version;
    uint32_t reserved;
} hello_t;

/* From sender to receiver, this announces a block and is accompanied by its descriptor. In the
 * other direction, it reports the total number of blocks taken so far, with a size of 0. */
typedef struct {
    uint64_t number;
    uint64_t size;
} word_t;

static_assert(sizeof(hello_t) == 40 && sizeof(word_t) == 16, "the layout is part of the protocol");

typedef struct {
    word_t word; /* size is 0 if empty */
    int fd;
} waiting_t;

struct bw_channel {
    bw_blocks_t *blocks;
    uint8_t id[BW_TOKEN_BYTES];
    pthread_mutex_t lock; /* protects everything below */
    int fd;               /* -1 if closed */
    bool sends, corrupt;
    uint64_t passed; /* at the sender: number of the last block */
    uint64_t taken;  /* how many of these the receiver has taken */
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

/* A peer normally sends its message right after connecting. All peers share one time limit, but a
 * peer that is queued behind silent ones gets a little more time. */
static bool has_spoken(int fd, int64_t end_ms)
{
    struct pollfd peer = {.fd = fd, .events = POLLIN};
    int64_t left = end_ms - bw_clock_ms();

    return poll(&peer, 1, left > 1 ? (int)left : 1) > 0;
}

static bool is_good(int fd, const bw_shm_listener_t *listener, int64_t end_ms, hello_t *hello_p)
{
    return bw_shm_same_user(fd) && has_spoken(fd, end_ms) &&
           recv(fd, hello_p, sizeof *hello_p, MSG_DONTWAIT | MSG_TRUNC) ==
               (ssize_t)sizeof *hello_p &&
           bw_token_is_same(hello_p->token, listener->token) && hello_p->version == HELLO_VERSION;
}

bw_status_t bw_channel_accept(bw_blocks_t *blocks, bw_shm_listener_t *listener,
                              bw_channel_t **channel_p, bw_error_t *error_p)
{
    int64_t end_ms = bw_clock_ms() + BW_CHANNEL_SILENT_MS;

    /* Checks all connections that can be queued: a valid one may be behind unauthenticated ones. */
    for (int peers = 0; peers <= BW_SHM_BACKLOG; peers++) {
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        hello_t hello;

        if (fd < 0 && errno == EINTR)
            continue;
        if (fd < 0 && errno == EAGAIN)
            break;
        if (fd < 0)
            return bw_fail_system(error_p, "accept of a channel", errno);
        if (is_good(fd, listener, end_ms, &hello)) {
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

/* Drops the blocks that were received but not taken. The caller holds the lock. */
static void close_channel(bw_channel_t *channel)
{
    if (channel->fd < 0)
        return;
    close(channel->fd);
    channel->fd = -1;
    for (size_t i = 0; i < BW_BLOCK_PASSED_MAX; i++)
        if (channel->waiting[i].word.size > 0) {
            close(channel->waiting[i].fd);
            bw_blocks_release(channel->blocks);
        }
    memset(channel->waiting, 0, sizeof channel->waiting);
}

/* Receives the next message, and the descriptor that came with it, or -1. BW_AGAIN: none is queued.
 * BW_REFUSED: the peer has closed the channel. */
static bw_status_t receive_word(int fd, int flags, word_t *word, int *with)
{
    size_t count = 0;
    bw_status_t status;

    *with = -1;
    status = bw_shm_receive(fd, word, sizeof *word, flags, with, 1, &count);
    if (status != BW_OK || count == (word->size > 0))
        return status;
    if (*with >= 0)
        close(*with);
    *with = -1;
    return BW_CORRUPT;
}

/* Like receive_word, but if this process cannot open another descriptor (BW_LIMIT), the message
 * stays queued. A message that was peeked at is then received without its descriptor, which the
 * peek already returned. */
static bw_status_t receive_block(int fd, word_t *word, int *with)
{
    bw_status_t status = receive_word(fd, MSG_PEEK, word, with);
    char seen;

    if (status == BW_OK)
        (void)recv(fd, &seen, sizeof seen, MSG_DONTWAIT);
    return status;
}

/* Reports each block separately, so that never more are in flight than the socket holds. */
static void count_taken(bw_channel_t *channel)
{
    word_t word = {.number = ++channel->taken};

    (void)bw_shm_send(channel->fd, &word, sizeof word, NULL, 0);
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

/* Checks whether the sender has closed the channel, without receiving anything. */
static bw_status_t look_for_end(const bw_channel_t *channel)
{
    char first;
    ssize_t n = recv(channel->fd, &first, sizeof first, MSG_PEEK | MSG_DONTWAIT);

    return n > 0 ? BW_LIMIT : n < 0 && errno == EAGAIN ? BW_AGAIN : BW_REFUSED;
}

/* Called by the receiver with the lock held. Receives everything that is queued; `beyond` allows
 * the limit to be exceeded only up to the block with that number. BW_REFUSED: the sender has closed
 * the channel. BW_LIMIT: more blocks are queued. */
static bw_status_t take_in(bw_channel_t *channel, uint64_t number, bool beyond)
{
    for (;;) {
        bw_status_t status;
        word_t word;
        int fd;

        if (channel->fd < 0)
            return BW_REFUSED;
        if (beyond && find_waiting(channel, number, false))
            return BW_OK;
        if (!bw_blocks_reserve(channel->blocks, beyond))
            return look_for_end(channel);
        status = receive_block(channel->fd, &word, &fd);
        if (status == BW_OK && store(channel, &word, fd))
            continue;
        bw_blocks_release(channel->blocks);
        if (status != BW_OK && status != BW_CORRUPT)
            return status;
        channel->corrupt = true;
        close_channel(channel);
        return BW_CORRUPT;
    }
}

/* Called by the sender with the lock held. Reads the receiver's reports. */
static bw_status_t hear(bw_channel_t *channel)
{
    for (;;) {
        bw_status_t status;
        word_t word;
        int fd;

        if (channel->fd < 0)
            return BW_REFUSED;
        status = receive_word(channel->fd, 0, &word, &fd);
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
    bw_status_t status;

    pthread_mutex_lock(&channel->lock);
    status = channel->sends ? hear(channel) : take_in(channel, 0, false);
    pthread_mutex_unlock(&channel->lock);
    return status == BW_AGAIN || status == BW_LIMIT;
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
        word_t word = {.number = channel->passed + 1, .size = bw_block_size(block)};
        int with = bw_block_descriptor(block);

        if (bw_shm_send(channel->fd, &word, sizeof word, &with, 1))
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
    bw_status_t status = BW_OK, taken_in = BW_OK;
    waiting_t *waiting;

    pthread_mutex_lock(&channel->lock);
    waiting = find_waiting(channel, number, false);
    if (!waiting) {
        taken_in = take_in(channel, number, beyond);
        waiting = find_waiting(channel, number, false);
    }
    if (channel->corrupt)
        status = bw_fail(error_p, BW_CORRUPT, "the peer has passed no block", 0);
    else if (!waiting && taken_in == BW_LIMIT)
        status =
            bw_fail(error_p, BW_LIMIT, "no descriptor is left for a block (ulimit -n?)", EMFILE);
    else if (!waiting)
        status = bw_fail(error_p, BW_REFUSED, "the peer has not passed this block", 0);
    else if (waiting->word.size != size)
        status = bw_fail(error_p, BW_CORRUPT, "the block has another size", 0);
    else {
        bw_blocks_release(channel->blocks);
        status = bw_block_adopt(channel->blocks, waiting->fd, size, beyond, block_p, error_p);
        if (status == BW_LIMIT)
            (void)bw_blocks_reserve(channel->blocks, true);
    }
    /* The descriptor has been consumed whatever the result, except when a limit was reached. */
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
