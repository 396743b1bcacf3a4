/* SPDX-License-Identifier: Apache-2.0 */
#include "load.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../link/bytes.h"

#define NO_AVERAGE UINT16_MAX
#define MEMORY_MAX 0xFFFFFFu

_Atomic uint32_t bw_load_samples;
static _Atomic uint64_t last;

static uint64_t average(void)
{
    double minute;

    if (getloadavg(&minute, 1) < 1 || minute < 0)
        return NO_AVERAGE;
    return bw_least((uint64_t)(minute * 100 + 0.5), NO_AVERAGE - 1);
}

/* Returns the available memory in MiB, like placement's attribute mem_available. The kernel
 * generates files in /proc in memory when they are read, so this does not wait for a disk. */
static uint64_t memory(void)
{
    static const char name[] = "MemAvailable:";
    char text[512];
    const char *line;
    ssize_t len;
    int fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return 0;
    len = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[len > 0 ? len : 0] = '\0';
    line = strstr(text, name);
    return line ? bw_least(strtoull(line + sizeof name - 1, NULL, 10) / 1024, MEMORY_MAX) : 0;
}

void bw_load_sample(uint64_t cpu_percent, uint64_t run_queue)
{
    atomic_store(&last, 1ull << 63 | bw_least(cpu_percent, 100) << 56 |
                            bw_least(run_queue, UINT16_MAX) << 40 | average() << 24 | memory());
    (void)atomic_fetch_add(&bw_load_samples, 1);
}

uint64_t bw_load_last(void)
{
    return atomic_load(&last);
}
