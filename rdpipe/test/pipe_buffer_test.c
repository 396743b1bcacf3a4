/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how much memory the buffer in front of an output uses. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "check.h"

#include "stream/transfer.h"

#define LONG_MS 60000
#define MB ((size_t)1024 * 1024)

/* Returns how many bytes of memory this process uses. */
static size_t resident(void)
{
    char text[128] = "";
    size_t pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    ssize_t n = read(fd, text, sizeof text - 1);

    close(fd);
    if (n <= 0 || sscanf(text, "%*u %zu", &pages) != 1)
        abort();
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Waits until the thread reports that it has written something. The thread writes the bytes of one
 * put with a single call, unless there are more than it writes at once. */
static bool await_written(int wake)
{
    struct pollfd polled = {.fd = wake, .events = POLLIN};
    eventfd_t ignored;

    return poll(&polled, 1, LONG_MS) == 1 && eventfd_read(wake, &ignored) == 0;
}

/* The buffer's size is only a limit, so a small amount of data uses little memory. */
static void little_in_a_large_buffer(void)
{
    static uint8_t data[1024 * 1024];
    rd_end_t output = rd_end_of(open("/dev/null", O_WRONLY | O_CLOEXEC), true);
    int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    rd_why_t why;
    rd_buffer_t *buffer = rd_buffer_open(&output, 256 * MB, 0, wake, &why);
    size_t before;

    CHECK(buffer != NULL);
    memset(data, 1, sizeof data);
    before = resident();
    for (int i = 0; i < 256; i++) {
        CHECK_EQ(rd_buffer_put(buffer, data, sizeof data), sizeof data);
        CHECK(await_written(wake));
    }
    CHECK(resident() < before + 64 * MB);
    rd_buffer_close(buffer);
    CHECK(rd_end_close(&output));
    close(wake);
}

static uint8_t byte_of(uint64_t at)
{
    return (uint8_t)(at * 2654435761u >> 13);
}

/* Puts the next bytes of the stream with as many calls as needed. Returns false if the buffer is
 * full. */
static bool put(rd_buffer_t *buffer, uint64_t *at_p, size_t len)
{
    static uint8_t data[3 * 1024 * 1024];
    size_t done = 0;
    ssize_t n = 0;

    for (size_t i = 0; i < len; i++)
        data[i] = byte_of(*at_p + i);
    while (done < len && (n = rd_buffer_put(buffer, data + done, len - done)) > 0)
        done += (size_t)n;
    *at_p += done;
    return done == len;
}

/* Reads `len` bytes, and returns whether they are the next bytes of the stream. */
static bool get(int fd, uint64_t *at_p, size_t len)
{
    static uint8_t data[1000000];

    while (len > 0) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        ssize_t n = poll(&polled, 1, LONG_MS) == 1
                        ? read(fd, data, len < sizeof data ? len : sizeof data)
                        : -1;

        if (n <= 0)
            return false;
        for (ssize_t i = 0; i < n; i++)
            if (data[i] != byte_of((*at_p)++))
                return false;
        len -= (size_t)n;
    }
    return true;
}

/* A stream that never empties the buffer uses no more memory than one that does. */
static void a_large_buffer_that_is_never_empty(void)
{
    int ends[2], wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    uint64_t from = 0, to = 0;
    rd_end_t output;
    rd_buffer_t *buffer;
    rd_why_t why;
    size_t before, left;

    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    output = rd_end_of(ends[1], true); /* the pipe holds 1 MB at most */
    buffer = rd_buffer_open(&output, 256 * MB, 0, wake, &why);
    CHECK(buffer != NULL);
    before = resident();
    CHECK(put(buffer, &to, 3 * MB) && put(buffer, &to, 3 * MB));
    while (to < 300 * MB) {
        size_t len = 1 + (size_t)(to * 2654435761u % (2 * MB));

        CHECK(put(buffer, &to, len) && get(ends[0], &from, len));
    }
    CHECK(resident() < before + 64 * MB);
    CHECK(rd_buffer_end(buffer, &left) == 0 && left > 0);
    CHECK(get(ends[0], &from, (size_t)(to - from)));
    for (int i = 0; rd_buffer_end(buffer, &left) == 0 && i < LONG_MS; i++)
        (void)poll(NULL, 0, 1);
    CHECK_EQ(rd_buffer_end(buffer, &left), 1);
    rd_buffer_close(buffer);
    CHECK(rd_end_close(&output));
    close(ends[0]);
    close(wake);
}

/* The buffer accepts as many bytes as its size, wherever in it the first byte is. */
static void all_of_a_buffer(void)
{
    int ends[2], wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    uint64_t from = 0, to = 0;
    rd_end_t output;
    rd_buffer_t *buffer;
    rd_why_t why;

    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    output = rd_end_of(ends[1], true);
    buffer = rd_buffer_open(&output, 5 * MB / 2, 0, wake, &why);
    CHECK(buffer != NULL);
    for (int round = 0; round < 50; round++) {
        /* After bytes were read from the pipe, the buffer has room again only when the thread
         * reports that it has written more. */
        while (put(buffer, &to, 99999) || (to - from < 5 * MB / 2 && await_written(wake)))
            ;
        CHECK(to - from >= 5 * MB / 2);
        CHECK(get(ends[0], &from, 700001));
    }
    rd_buffer_close(buffer);
    CHECK(rd_end_close(&output));
    close(ends[0]);
    close(wake);
}

static const check_case_t cases[] = {
    {"little in a large buffer", little_in_a_large_buffer},
    {"a large buffer that is never empty", a_large_buffer_that_is_never_empty},
    {"all of a buffer", all_of_a_buffer},
};

CHECK_MAIN(cases)
