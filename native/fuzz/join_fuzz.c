/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes fragments of distribution signals: compares a VM that gets the frames from the pump with a
 * VM that gets the same frames unchanged (test/driver/join_model.h).
 *
 * Input: an even first byte, then 16 bytes for each frame of a mostly correct peer; or an odd first
 * byte, then literal frames, each after a byte with its length.
 */
#include "../test/driver/join_model.h"
#include "input.h"

static void drive_peer(reader_t reader)
{
    join_peer_t peer = {.is_hostile = true};

    while (reader.left > 0 && !join.plain.is_dead) {
        uint64_t what = number(&reader, 8);

        join_step(&peer, what, number(&reader, 8));
    }
}

static void give_frames(reader_t reader)
{
    while (reader.left > 0 && !join.plain.is_dead) {
        uint8_t bytes[UINT8_MAX] = {0};
        size_t len = 1 + next_byte(&reader) % UINT8_MAX;

        for (size_t i = 0; i < len; i++)
            bytes[i] = next_byte(&reader);
        join_send(bytes, len, len);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    if (size == 0)
        return 0;
    join_begin();
    if (input[0] % 2 == 0)
        drive_peer((reader_t){input + 1, size - 1});
    else
        give_frames((reader_t){input + 1, size - 1});
    join_end();
    return 0;
}
