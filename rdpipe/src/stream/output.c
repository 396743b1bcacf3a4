/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>

struct rd_piece {
    rd_piece_t *next;
    size_t from;
    char *data;
    size_t len, done;
};

void rd_output_open(rd_output_t *output_p, int fd)
{
    *output_p = (rd_output_t){.end = {.fd = -1}};
    output_p->last_p = &output_p->first;
    if (fd >= 0)
        output_p->end = rd_end_of(fd, true);
}

bool rd_output_put(rd_output_t *output, size_t from, char *data, size_t len)
{
    rd_piece_t *piece = output->end.fd >= 0 ? malloc(sizeof *piece) : NULL;

    if (!piece) {
        free(data);
        return false;
    }
    *piece = (rd_piece_t){.from = from, .data = data, .len = len};
    *output->last_p = piece;
    output->last_p = &piece->next;
    return true;
}

static void drop_first(rd_output_t *output)
{
    rd_piece_t *piece = output->first;

    output->first = piece->next;
    if (!output->first)
        output->last_p = &output->first;
    free(piece->data);
    free(piece);
}

static bool shut(rd_output_t *output)
{
    while (output->first)
        drop_first(output);
    return rd_end_close(&output->end);
}

rd_output_step_t rd_output_step(rd_output_t *output, size_t *from_p, size_t *len_p, rd_why_t *why)
{
    rd_piece_t *piece = output->first;

    while (piece && piece->done < piece->len) {
        ssize_t n = rd_end_write(&output->end, piece->data + piece->done, piece->len - piece->done);

        if (n >= 0) {
            piece->done += (size_t)n;
        } else if (errno == EAGAIN) {
            return RD_OUTPUT_IDLE;
        } else if (errno == EPIPE) {
            (void)shut(output);
            return RD_OUTPUT_QUIT;
        } else if (errno != EINTR) {
            (void)rd_because(why, "writing the output: %s", strerror(errno));
            (void)shut(output);
            return RD_OUTPUT_FAULT;
        }
    }
    if (!piece)
        return RD_OUTPUT_IDLE;
    *from_p = piece->from;
    *len_p = piece->len;
    drop_first(output);
    return RD_OUTPUT_TAKEN;
}

bool rd_output_close(rd_output_t *output, rd_why_t *why)
{
    return shut(output) || rd_because(why, "closing the output: %s", strerror(errno));
}
