/* SPDX-License-Identifier: Apache-2.0 */
#include "buffer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK ((size_t)1024 * 1024)
#define NONE UINT32_MAX
#define TICK_MS 1000

struct rd_buffer {
    const rd_end_t *output;
    uint8_t *data;
    size_t mapped;
    uint32_t *next;     /* for each chunk, the next one in the list of used or free chunks */
    size_t size, level; /* the level in bytes at which the thread starts to write */
    int wake, stop;     /* eventfds */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    /* protected by the lock */
    size_t used;          /* number of bytes in the buffer */
    uint32_t first, last; /* the chunks that hold the oldest and the newest byte */
    /* The offset of the oldest byte in `first`, and of the end of the newest in `last`. */
    size_t head, tail;
    uint32_t free, fresh; /* the first free chunk, and the first chunk that was never used */
    bool is_flowing, has_ended, is_stopped;
    int error; /* the output's errno, or 0 if none */
};

/* Waits until there is something to write, and returns its length, or 0 if the thread must exit. */
static size_t next_piece(rd_buffer_t *buffer, const uint8_t **at_p)
{
    size_t len;

    (void)pthread_mutex_lock(&buffer->lock);
    while (!buffer->is_stopped) {
        if (buffer->used == 0)
            buffer->is_flowing = false;
        else if (buffer->used >= buffer->level || buffer->has_ended)
            buffer->is_flowing = true;
        if (buffer->is_flowing || (buffer->has_ended && buffer->used == 0))
            break;
        (void)pthread_cond_wait(&buffer->news, &buffer->lock);
    }
    len = buffer->is_stopped ? 0 : buffer->used;
    if (len > CHUNK - buffer->head)
        len = CHUNK - buffer->head;
    *at_p = buffer->data + buffer->first * CHUNK + buffer->head;
    (void)pthread_mutex_unlock(&buffer->lock);
    return len;
}

static void take(rd_buffer_t *buffer, size_t len, int error)
{
    uint32_t first = buffer->first;

    (void)pthread_mutex_lock(&buffer->lock);
    buffer->head += len;
    buffer->used -= len;
    if (buffer->head == CHUNK && first != buffer->last) {
        buffer->first = buffer->next[first];
        buffer->head = 0;
        buffer->next[first] = buffer->free;
        buffer->free = first;
    }
    buffer->error = error;
    (void)pthread_mutex_unlock(&buffer->lock);
    (void)eventfd_write(buffer->wake, 1);
}

static void *run(void *argument)
{
    rd_buffer_t *buffer = argument;
    const uint8_t *at = NULL;
    size_t len;

    while ((len = next_piece(buffer, &at)) > 0) {
        ssize_t n = rd_end_write(buffer->output, at, len);

        if (n >= 0) {
            take(buffer, (size_t)n, 0);
        } else if (errno == EAGAIN) {
            struct pollfd polled[] = {{.fd = buffer->output->fd, .events = POLLOUT},
                                      {.fd = buffer->stop, .events = POLLIN}};

            (void)poll(polled, 2, TICK_MS);
        } else if (errno != EINTR) {
            take(buffer, 0, errno);
            break;
        }
    }
    return NULL;
}

rd_buffer_t *rd_buffer_open(const rd_end_t *output, size_t bytes, unsigned start, int wake,
                            rd_why_t *why)
{
    size_t chunks = (bytes + CHUNK - 1) / CHUNK + 1; /* the first and last may be partly empty */
    rd_buffer_t *buffer = calloc(1, sizeof *buffer);
    uint32_t *next = malloc(chunks * sizeof *next);
    void *data = buffer && next ? mmap(NULL, chunks * CHUNK, PROT_READ | PROT_WRITE,
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                                : MAP_FAILED;

    if (data == MAP_FAILED) {
        (void)rd_because(why, "a buffer of %zu bytes: %s", bytes, strerror(errno));
        free(next);
        free(buffer);
        return NULL;
    }
    *buffer = (rd_buffer_t){.output = output,
                            .data = data,
                            .mapped = chunks * CHUNK,
                            .next = next,
                            .free = NONE,
                            .fresh = 1,
                            .size = bytes,
                            .level = bytes / 100 * start > 0 ? bytes / 100 * start : 1,
                            .wake = wake,
                            .stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    (void)pthread_mutex_init(&buffer->lock, NULL);
    (void)pthread_cond_init(&buffer->news, NULL);
    if (buffer->stop >= 0 && pthread_create(&buffer->thread, NULL, run, buffer) == 0)
        return buffer;
    (void)rd_because(why, "cannot start a thread for the buffer");
    rd_close(&buffer->stop);
    (void)munmap(data, buffer->mapped);
    free(next);
    free(buffer);
    return NULL;
}

/* A chunk is always available, because there are enough of them for `size` bytes. */
static void add_chunk(rd_buffer_t *buffer)
{
    uint32_t chunk = buffer->free;

    if (chunk == NONE)
        chunk = buffer->fresh++;
    else
        buffer->free = buffer->next[chunk];
    buffer->next[buffer->last] = chunk;
    buffer->last = chunk;
    buffer->tail = 0;
}

ssize_t rd_buffer_put(rd_buffer_t *buffer, const void *data, size_t len)
{
    uint8_t *to;
    size_t room;
    int error;

    (void)pthread_mutex_lock(&buffer->lock);
    error = buffer->error;
    room = buffer->size - buffer->used;
    if (buffer->used == 0)
        buffer->head = buffer->tail = 0;
    else if (buffer->tail == CHUNK && room > 0)
        add_chunk(buffer);
    if (room > CHUNK - buffer->tail)
        room = CHUNK - buffer->tail;
    to = buffer->data + buffer->last * CHUNK + buffer->tail;
    (void)pthread_mutex_unlock(&buffer->lock);
    if (error != 0 || room == 0) {
        errno = error != 0 ? error : EAGAIN;
        return -1;
    }
    /* The thread does not read the free space, so it can be written without the lock. */
    len = len < room ? len : room;
    memcpy(to, data, len);
    (void)pthread_mutex_lock(&buffer->lock);
    buffer->tail += len;
    buffer->used += len;
    (void)pthread_cond_signal(&buffer->news);
    (void)pthread_mutex_unlock(&buffer->lock);
    return (ssize_t)len;
}

int rd_buffer_end(rd_buffer_t *buffer, size_t *left_p)
{
    int error;

    (void)pthread_mutex_lock(&buffer->lock);
    buffer->has_ended = true;
    error = buffer->error;
    *left_p = buffer->used;
    (void)pthread_cond_signal(&buffer->news);
    (void)pthread_mutex_unlock(&buffer->lock);
    errno = error;
    return error != 0 ? -1 : *left_p == 0;
}

void rd_buffer_close(rd_buffer_t *buffer)
{
    (void)pthread_mutex_lock(&buffer->lock);
    buffer->is_stopped = true;
    (void)pthread_cond_signal(&buffer->news);
    (void)pthread_mutex_unlock(&buffer->lock);
    (void)eventfd_write(buffer->stop, 1);
    (void)pthread_join(buffer->thread, NULL);
    (void)pthread_mutex_destroy(&buffer->lock);
    (void)pthread_cond_destroy(&buffer->news);
    close(buffer->stop);
    (void)munmap(buffer->data, buffer->mapped);
    free(buffer->next);
    free(buffer);
}
