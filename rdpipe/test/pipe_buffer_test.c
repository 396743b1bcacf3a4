/* SPDX-License-Identifier: Apache-2.0 */
/* The buffer before an output: the memory that it takes. */
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "check.h"

#include "transfer.h"

#define LONG_MS 60000
#define MB ((size_t)1024 * 1024)

/* Bytes of memory that this process has. */
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

/* What was put is written: by one call, as it is no more than the thread writes at a time. */
static bool await_empty(int wake)
{
    struct pollfd polled = {.fd = wake, .events = POLLIN};
    eventfd_t ignored;

    return poll(&polled, 1, LONG_MS) == 1 && eventfd_read(wake, &ignored) == 0;
}

/* Its size is what it may take. */
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
        CHECK(await_empty(wake));
    }
    CHECK(resident() < before + 64 * MB);
    rd_buffer_close(buffer);
    CHECK(rd_end_close(&output));
    close(wake);
}

static const check_case_t cases[] = {
    {"little in a large buffer", little_in_a_large_buffer},
};

CHECK_MAIN(cases)
