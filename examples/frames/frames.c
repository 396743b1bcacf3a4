/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends raw pictures through a pipe at a fixed rate:
 *
 *   frames make COUNT [WIDTH HEIGHT FPS]    writes them to standard output, each when it is due
 *   frames watch [WIDTH HEIGHT FPS]         reads them and counts those that are late or damaged
 *
 * The default is 3840x2160 in RGBA at 60 pictures a second, which is 2 GB/s. The first picture sets
 * the clock. A picture is late if it is not complete before the next one is due. The clocks of the
 * two sides need to run at the same speed but need not show the same time.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x62776672u /* each picture begins with this and its number */

typedef struct {
    uint64_t width, height, fps;
} format_t;

typedef struct {
    uint32_t magic, reserved;
    uint64_t number;
} mark_t;

static uint64_t now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void wait_until(uint64_t ns)
{
    struct timespec at = {.tv_sec = (time_t)(ns / 1000000000u),
                          .tv_nsec = (long)(ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
        ;
}

static size_t bytes_of(const format_t *format)
{
    return (size_t)(format->width * format->height * 4);
}

/* Paints a moving ramp, which depends only on the picture's number. */
static void paint(uint8_t *picture, const format_t *format, uint64_t number)
{
    mark_t mark = {.magic = MAGIC, .number = number};
    size_t row = (size_t)format->width * 4;

    memset(picture, (int)(number & 255), row);
    memcpy(picture, &mark, sizeof mark);
    picture[bytes_of(format) - 1] = (uint8_t)number;
}

static int make(const format_t *format, uint64_t count)
{
    size_t bytes = bytes_of(format);
    uint8_t *picture = calloc(1, bytes);
    uint64_t began = now_ns();

    if (!picture)
        return 1;
    for (uint64_t number = 0; number < count; number++) {
        paint(picture, format, number);
        wait_until(began + number * 1000000000u / format->fps);
        for (size_t done = 0; done < bytes;) {
            ssize_t n = write(1, picture + done, bytes - done);

            if (n < 0 && errno != EINTR) {
                (void)fprintf(stderr, "frames: writing picture %llu: %s\n",
                              (unsigned long long)number, strerror(errno));
                free(picture);
                return 1;
            }
            done += n > 0 ? (size_t)n : 0;
        }
    }
    free(picture);
    return 0;
}

/* Reads a whole picture. Returns 0 at the end of the input, -1 if that is within a picture. */
static int read_one(uint8_t *picture, size_t bytes)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t n = read(0, picture + done, bytes - done);

        if (n == 0 || (n < 0 && errno != EINTR))
            return done == 0 && n == 0 ? 0 : -1;
        done += n > 0 ? (size_t)n : 0;
    }
    return 1;
}

static int is_right(const uint8_t *picture, size_t bytes, uint64_t number)
{
    mark_t mark;

    memcpy(&mark, picture, sizeof mark);
    return mark.magic == MAGIC && mark.number == number && picture[bytes - 1] == (uint8_t)number;
}

static int watch(const format_t *format)
{
    size_t bytes = bytes_of(format);
    uint8_t *picture = malloc(bytes);
    uint64_t first = 0, late = 0, damaged = 0, number = 0, worst = 0;
    int got = 0;

    if (!picture)
        return 1;
    while ((got = read_one(picture, bytes)) > 0) {
        uint64_t now = now_ns(), due;

        first = number == 0 ? now : first;
        due = first + number * 1000000000u / format->fps;
        if (now > due && now - due > worst)
            worst = now - due;
        late += now > due + 1000000000u / format->fps;
        damaged += !is_right(picture, bytes, number);
        number++;
    }
    (void)printf("%llu pictures, %llu late, %llu damaged, worst %.1f ms%s\n",
                 (unsigned long long)number, (unsigned long long)late, (unsigned long long)damaged,
                 (double)worst / 1e6, got < 0 ? ", cut off" : "");
    free(picture);
    return late > 0 || damaged > 0 || got < 0;
}

static int number_of(const char *text, uint64_t max, uint64_t *number_p)
{
    char *end;

    errno = 0;
    *number_p = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && errno == 0 && *number_p > 0 && *number_p <= max;
}

/* Parses WIDTH HEIGHT FPS, or none of them. Returns false if an argument is invalid. */
static int format_of(char **words, int count, format_t *format_p)
{
    *format_p = (format_t){3840, 2160, 60};
    return count == 0 ||
           (count == 3 && number_of(words[0], 16384, &format_p->width) &&
            number_of(words[1], 16384, &format_p->height) &&
            number_of(words[2], 100000, &format_p->fps) && format_p->width * format_p->height >= 8);
}

int main(int argc, char **argv)
{
    format_t format;
    uint64_t count;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)fcntl(argc > 1 && strcmp(argv[1], "make") == 0, F_SETPIPE_SZ, 1024 * 1024);
    if (argc >= 3 && strcmp(argv[1], "make") == 0 && number_of(argv[2], 1u << 30, &count) &&
        format_of(argv + 3, argc - 3, &format))
        return make(&format, count);
    if (argc >= 2 && strcmp(argv[1], "watch") == 0 && format_of(argv + 2, argc - 2, &format))
        return watch(&format);
    (void)fprintf(stderr,
                  "usage: frames make COUNT [WIDTH HEIGHT FPS] | frames watch [WIDTH HEIGHT FPS]\n"
                  "Exit status: 0 all pictures came in time, 1 some did not, 2 usage error.\n");
    return 2;
}
