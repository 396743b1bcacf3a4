/* SPDX-License-Identifier: Apache-2.0 */
#include "traffic.h"

void traffic_count(traffic_t *self, uint64_t pid, uint64_t bytes)
{
    traffic_sender_t *least = &self->senders[0];

    for (int i = 0; i < TRAFFIC_SENDERS; i++) {
        traffic_sender_t *sender = &self->senders[i];

        if (sender->pid == pid && sender->bytes > 0) {
            sender->bytes += bytes;
            return;
        }
        if (sender->bytes < least->bytes)
            least = sender;
    }
    *least = (traffic_sender_t){.pid = pid, .bytes = least->bytes + bytes, .before = least->bytes};
}

/* Uses Knuth's linear congruential generator, of which only the upper bits are random enough. */
uint64_t traffic_next(traffic_t *self)
{
    self->random = self->random * 6364136223846793005ull + 1442695040888963407ull;
    return TRAFFIC_SAMPLE_BYTES / 2 + (self->random >> 33) % TRAFFIC_SAMPLE_BYTES;
}
