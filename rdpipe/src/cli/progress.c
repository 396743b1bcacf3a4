/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

void rd_speed_begin(rd_speed_t *speed_p, int64_t now_ms)
{
    *speed_p = (rd_speed_t){.began_ms = now_ms, .at_ms = now_ms};
}

void rd_speed_step(rd_speed_t *speed, uint64_t bytes, uint64_t size, int64_t now_ms)
{
    int64_t since = now_ms - speed->at_ms, all = now_ms - speed->began_ms;

    if (bytes < speed->bytes || since <= 0)
        return;
    if (speed->bytes < speed->first)
        speed->bytes = speed->first;
    speed->rate = (double)(bytes - speed->bytes) * 1000 / (double)since;
    speed->average = (double)(bytes - speed->first) * 1000 / (double)all;
    speed->bytes = bytes;
    speed->size = size;
    speed->at_ms = now_ms;
}

int64_t rd_speed_left(const rd_speed_t *speed)
{
    double left;

    if (speed->size < speed->bytes || speed->size == 0 || speed->average <= 0)
        return -1;
    left = (double)(speed->size - speed->bytes) / speed->average;
    return left < 1e6 ? (int64_t)left : -1;
}

void rd_speed_text(char text[192], const rd_speed_t *speed)
{
    int64_t s = (speed->at_ms - speed->began_ms) / 1000, left = rd_speed_left(speed);
    char amount[32], rate[32], average[32], rest[48] = "";

    rd_amount(amount, (double)speed->bytes, "B");
    rd_amount(rate, speed->rate, "B/s");
    rd_amount(average, speed->average, "B/s");
    if (left >= 0)
        (void)snprintf(rest, sizeof rest, "  %d%% %d:%02d left",
                       (int)(100.0 * (double)speed->bytes / (double)speed->size), (int)(left / 60),
                       (int)(left % 60));
    (void)snprintf(text, 192, "%d:%02d  %s  %s  average %s%s", (int)(s / 60), (int)(s % 60), amount,
                   rate, average, rest);
}

void rd_speed_json(char text[256], const rd_speed_t *speed)
{
    int64_t left = rd_speed_left(speed);
    char size[24] = "null", seconds[24] = "null";

    if (speed->size > 0)
        (void)snprintf(size, sizeof size, "%llu", (unsigned long long)speed->size);
    if (left >= 0)
        (void)snprintf(seconds, sizeof seconds, "%lld", (long long)left);
    (void)snprintf(text, 256,
                   "\"seconds\": %.3f, \"bytes\": %llu, \"rate\": %.0f, \"average\": %.0f, "
                   "\"size\": %s, \"left\": %s",
                   (double)(speed->at_ms - speed->began_ms) / 1000,
                   (unsigned long long)speed->bytes, speed->rate, speed->average, size, seconds);
}

bool rd_progress_is_wanted(const rd_cli_t *cli)
{
    return !cli->quiet && (cli->progress || isatty(2));
}

static bool is_drawn(const rd_cli_t *cli)
{
    return isatty(2) && !(cli->json && cli->progress);
}

int rd_progress_ms(const rd_cli_t *cli)
{
    return is_drawn(cli) ? RD_DRAW_MS : RD_LINE_MS;
}

static bool has_room(void)
{
    struct pollfd room = {.fd = 2, .events = POLLOUT};

    return poll(&room, 1, 0) > 0 && (room.revents & POLLOUT);
}

void rd_progress_clear(const rd_cli_t *cli)
{
    if (rd_progress_is_wanted(cli) && is_drawn(cli) && has_room())
        (void)fprintf(stderr, "\r\033[K");
}

/* Returns how many bytes of `text` fit on the line after `used` columns. If the text wrapped, \r
 * would return only to the start of the last row. A multi-byte character counts as one column. */
static int fitting(const char *text, int used)
{
    struct winsize size = {0};
    int len = 0, left;

    if (ioctl(2, TIOCGWINSZ, &size) < 0 || size.ws_col == 0)
        return (int)strlen(text);
    for (left = size.ws_col - 1 - used; text[len]; len++)
        if (((unsigned char)text[len] & 0xC0) != 0x80 && left-- <= 0)
            break;
    return len;
}

bool rd_progress_write(const rd_cli_t *cli, const char *text, const char *json)
{
    if (!has_room())
        return false;
    if (cli->json && cli->progress)
        (void)fprintf(stderr, "%s\n", json);
    else if (is_drawn(cli))
        (void)fprintf(stderr, "\r%s: %.*s\033[K", cli->name,
                      fitting(text, (int)strlen(cli->name) + 2), text);
    else
        (void)fprintf(stderr, "%s: %s\n", cli->name, text);
    return true;
}

struct rd_progress {
    pthread_t thread;
    int stop;
    const rd_cli_t *cli;
    const rd_transfer_t *transfer;
    rd_speed_t speed;
};

static void show(rd_progress_t *progress)
{
    char text[192], members[256], json[320];

    progress->speed.first = atomic_load(&progress->transfer->first);
    rd_speed_step(&progress->speed,
                  atomic_load_explicit(&progress->transfer->bytes, memory_order_relaxed),
                  atomic_load(&progress->transfer->size), rd_now_ms());
    rd_speed_text(text, &progress->speed);
    rd_speed_json(members, &progress->speed);
    (void)snprintf(json, sizeof json, "{\"command\": \"%s\", \"event\": \"progress\", %s}",
                   progress->cli->name, members);
    (void)rd_progress_write(progress->cli, text, json);
}

static void *run_progress(void *argument)
{
    rd_progress_t *progress = argument;
    struct pollfd stop = {.fd = progress->stop, .events = POLLIN};

    while (poll(&stop, 1, rd_progress_ms(progress->cli)) == 0)
        show(progress);
    rd_progress_clear(progress->cli);
    return NULL;
}

rd_progress_t *rd_progress_start(const rd_cli_t *cli, const rd_transfer_t *transfer)
{
    rd_progress_t *progress;

    if (!rd_progress_is_wanted(cli))
        return NULL;
    progress = calloc(1, sizeof *progress);
    if (!progress)
        return NULL;
    *progress = (rd_progress_t){.stop = eventfd(0, EFD_CLOEXEC), .cli = cli, .transfer = transfer};
    rd_speed_begin(&progress->speed, rd_now_ms());
    if (progress->stop >= 0 && pthread_create(&progress->thread, NULL, run_progress, progress) == 0)
        return progress;
    rd_close(&progress->stop);
    free(progress);
    return NULL;
}

void rd_progress_stop(rd_progress_t *progress)
{
    if (!progress)
        return;
    (void)eventfd_write(progress->stop, 1);
    (void)pthread_join(progress->thread, NULL);
    close(progress->stop);
    free(progress);
}
