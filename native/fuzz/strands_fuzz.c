/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes what a peer sends over several connections (link/session/strands.h): headers and chunks
 * with any contents, in pieces, while connections are lost and added and both users read and write.
 * A byte must count as new exactly if it has not arrived yet, the ring must have room for every new
 * byte, and only bytes that were sent can be acknowledged.
 *
 * Input: steps, each of which is a byte that selects the step and the connection, followed by the
 * step's arguments.
 */
#include <endian.h>

#include "../link/bytes.h"
#include "../link/session/strands.h"
#include "input.h"

#define RING ((uint64_t)4096)
#define CONNECTIONS 4

static bw_strands_t strands;
static bool has_arrived[RING]; /* for the bytes from `taken` on */
static unsigned places[CONNECTIONS];
static bool has_ended; /* nothing more is written */

static void check_positions(void)
{
    const bw_outgoing_t *out = &strands.out;
    uint64_t head = strands.taken;

    while (head < strands.taken + RING && has_arrived[head % RING])
        head++;
    must(strands.in.head == head);
    must(out->next <= out->sent && out->arrived <= out->sent && out->sent <= strands.head);
    must(strands.freed <= out->arrived && strands.head - strands.freed <= RING);
    must(strands.live == CONNECTIONS);
}

static void arrive_in_ring(const bw_strand_due_t *due, size_t bytes)
{
    if (due->is_new)
        must(due->at >= strands.taken && due->at + bytes <= strands.taken + RING);
    for (uint64_t at = due->at; at < due->at + bytes; at++) {
        must(due->is_new == (at >= strands.taken && !has_arrived[at % RING]));
        if (due->is_new)
            has_arrived[at % RING] = true;
    }
}

/* Returns false if the peer has violated the protocol. */
static bool arrive(bw_strand_t *strand, reader_t *reader, size_t bytes)
{
    while (bytes > 0) {
        bw_strand_due_t due = bw_strands_due(&strands, strand);
        size_t n = bw_least(due.len, bytes);

        must(n > 0);
        if (due.header)
            for (size_t i = 0; i < n; i++)
                due.header[i] = next_byte(reader);
        else
            arrive_in_ring(&due, n);
        if (!bw_strands_came(&strands, strand, &due, n))
            return false;
        bytes -= n;
    }
    return true;
}

/* A header that is nearly right, because few others get past the first check. */
static bool arrive_header(bw_strand_t *strand, reader_t *reader)
{
    uint8_t header[BW_STRAND_HEADER] = {next_byte(reader) % 5};
    uint32_t len = htole32((uint32_t)number(reader, 2));
    uint64_t base = header[0] == 2 ? strands.out.arrived : strands.taken;
    uint64_t offsets[2] = {htole64(base + number(reader, 2) - 256),
                           htole64(base + number(reader, 2) - 256)};
    reader_t of_header = {.at = header, .left = sizeof header};

    memcpy(header + 4, &len, 4);
    memcpy(header + 8, offsets, 16);
    return arrive(strand, &of_header, sizeof header);
}

static void take(uint64_t most)
{
    for (uint64_t n = bw_least(most, strands.in.head - strands.taken); n > 0; n--)
        has_arrived[strands.taken++ % RING] = false;
}

static void send_some(int place, size_t most)
{
    bw_strand_t *strand;

    if (place < 0)
        return;
    strand = &strands.strands[place];
    must(strand->is_live && strand->at + strand->left <= strands.head);
    bw_strand_sent(strand, bw_least(most, strand->said_len + strand->left));
}

static bool step(uint8_t choice, reader_t *reader)
{
    unsigned *place = &places[choice / 8 % CONNECTIONS];
    bw_strand_t *strand = &strands.strands[*place];

    switch (choice % 8) {
    case 0:
        return arrive(strand, reader, 1 + next_byte(reader) % 64);
    case 1:
        return arrive_header(strand, reader);
    case 2:
        if (!has_ended)
            strands.head += bw_least(number(reader, 2), RING - (strands.head - strands.freed));
        return true;
    case 3:
        take(number(reader, 2));
        return true;
    case 4:
        send_some(bw_strands_assign(&strands), (size_t)number(reader, 2));
        return true;
    case 5:
        send_some(bw_strands_acknowledge(&strands, 1 + next_byte(reader), choice / 64 != 0),
                  BW_STRAND_HEADER);
        return true;
    case 6:
        bw_strands_lost(&strands, *place);
        *place = (unsigned)bw_strands_add(&strands);
        return true;
    default:
        send_some((int)*place, (size_t)number(reader, 2));
        has_ended = has_ended || (choice / 64 == 3 && bw_strands_end(&strands));
        return true;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    reader_t reader = {.at = input, .left = size};

    strands = (bw_strands_t){.in_bytes = RING, .use = BW_STRANDS_MAX};
    memset(has_arrived, 0, sizeof has_arrived);
    has_ended = false;
    for (unsigned i = 0; i < CONNECTIONS; i++)
        places[i] = (unsigned)bw_strands_add(&strands);
    while (reader.left > 0 && step(next_byte(&reader), &reader))
        check_positions();
    free(strands.in.of);
    return 0;
}
