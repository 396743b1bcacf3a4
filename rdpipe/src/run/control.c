/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "hop/key.h"

#define SEND_MS 10000
#define SEND_BYTES_PER_S 65536 /* the minimum speed at which a peer must read */

static bool make_room(char **text_p, size_t len, size_t *room_p, size_t more)
{
    size_t room = *room_p > 0 ? *room_p : 256;
    char *text;

    while (room < len + more)
        room *= 2;
    if (room == *room_p)
        return true;
    text = malloc(room); /* not realloc, which may leave a copy of a key behind in freed memory */
    if (!text)
        return false;
    if (*text_p) {
        memcpy(text, *text_p, len);
        rd_wipe(*text_p, *room_p);
        free(*text_p);
    }
    *text_p = text;
    *room_p = room;
    return true;
}

static void discard(rd_line_t *line)
{
    if (line->text) {
        rd_wipe(line->text, line->room);
        free(line->text);
    }
    *line = (rd_line_t){0};
}

static void append(rd_line_t *line, const char *text, size_t len)
{
    if (!line->text)
        return;
    if (!make_room(&line->text, line->len, &line->room, len)) {
        discard(line);
        return;
    }
    memcpy(line->text + line->len, text, len);
    line->len += len;
}

void rd_line_begin(rd_line_t *line, const char *what)
{
    *line = (rd_line_t){.text = malloc(256), .room = 256};
    append(line, what, strlen(what));
}

static bool is_plain(unsigned char c)
{
    return c > ' ' && c < 127 && c != '%';
}

void rd_line_add_bytes(rd_line_t *line, const char *name, const void *value, size_t len)
{
    const unsigned char *at = value;

    append(line, " ", 1);
    append(line, name, strlen(name));
    append(line, "=", 1);
    for (size_t i = 0; i < len; i++) {
        char code[4];

        if (is_plain(at[i])) {
            append(line, (const char *)&at[i], 1);
        } else {
            (void)snprintf(code, sizeof code, "%%%02x", at[i]);
            append(line, code, 3);
        }
    }
}

void rd_line_add(rd_line_t *line, const char *name, const char *value)
{
    rd_line_add_bytes(line, name, value, strlen(value));
}

void rd_line_number(rd_line_t *line, const char *name, uint64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    rd_line_add(line, name, text);
}

bool rd_line_send(rd_line_t *line, int fd)
{
    int64_t deadline;
    size_t done = 0;
    bool is_sent;

    append(line, "\n", 1);
    deadline = rd_now_ms() + SEND_MS + (int64_t)(line->len * 1000 / SEND_BYTES_PER_S);
    while (done < line->len && rd_left_ms(deadline) > 0) {
        struct pollfd polled = {.fd = fd, .events = POLLOUT};
        /* A pipe that is ready accepts a small piece without blocking. */
        size_t len = line->len - done < 4096 ? line->len - done : 4096;
        ssize_t n;

        if (poll(&polled, 1, rd_left_ms(deadline)) <= 0)
            continue;
        n = write(fd, line->text + done, len);
        if (n > 0)
            done += (size_t)n;
        else if (errno != EINTR && errno != EAGAIN)
            break;
    }
    is_sent = line->len > 0 && done == line->len;
    discard(line);
    return is_sent;
}

void rd_lines_init(rd_lines_t *lines, int fd)
{
    *lines = (rd_lines_t){.fd = fd};
}

void rd_lines_free(rd_lines_t *lines)
{
    if (lines->text) {
        rd_wipe(lines->text, lines->room);
        free(lines->text);
    }
    *lines = (rd_lines_t){.fd = -1, .has_ended = true};
}

void rd_lines_fill(rd_lines_t *lines)
{
    ssize_t n;

    if (lines->taken > 0) {
        memmove(lines->text, lines->text + lines->taken, lines->len - lines->taken);
        lines->len -= lines->taken;
        lines->taken = 0;
    }
    if (lines->len > RD_LINE_MAX || !make_room(&lines->text, lines->len, &lines->room, 4096)) {
        lines->has_ended = true;
        return;
    }
    n = read(lines->fd, lines->text + lines->len, 4095);
    if (n > 0)
        lines->len += (size_t)n;
    else if (n == 0 || (errno != EINTR && errno != EAGAIN))
        lines->has_ended = true;
}

char *rd_lines_next(rd_lines_t *lines)
{
    char *line, *end;

    if (lines->len == lines->taken)
        return NULL;
    line = lines->text + lines->taken;
    end = memchr(line, '\n', lines->len - lines->taken);
    if (!end)
        return NULL;
    *end = 0;
    lines->taken = (size_t)(end + 1 - lines->text);
    return line;
}

bool rd_line_is(const char *line, const char *what)
{
    size_t len = strlen(what);

    return strncmp(line, what, len) == 0 && (line[len] == ' ' || line[len] == 0);
}

static char *decode(const char *from, size_t len, size_t *len_p)
{
    char *value = malloc(len + 1), *to = value;

    if (!value)
        return NULL;
    for (size_t i = 0; i < len; i++) {
        int byte = from[i] == '%' && i + 2 < len ? rd_hex_byte(from + i + 1) : -1;

        *to++ = byte >= 0 ? (char)byte : from[i];
        i += byte >= 0 ? 2 : 0;
    }
    *to = 0;
    if (len_p)
        *len_p = (size_t)(to - value);
    return value;
}

char *rd_line_value(const char *line, const char *name, size_t *len_p)
{
    size_t name_len = strlen(name);

    for (const char *word = strchr(line, ' '); word; word = strchr(word, ' ')) {
        word++;
        if (strncmp(word, name, name_len) == 0 && word[name_len] == '=')
            return decode(word + name_len + 1, strcspn(word + name_len + 1, " "), len_p);
    }
    return NULL;
}

bool rd_line_value_number(const char *line, const char *name, uint64_t max, uint64_t *number_p)
{
    char *value = rd_line_value(line, name, NULL);
    bool done = value && rd_number(value, 0, max, number_p);

    free(value);
    return done;
}
