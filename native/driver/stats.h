/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_STATS_H
#define BW_STATS_H

#include "../link/link.h"

/*
 * The numbers in the reply to the command STATS, 64 bits each: first those of the link
 * (BW_LINK_NUMBERS), then those of the port, as X(name, value), where `self` is the port. The names
 * in beamway_counters.erl are in the same order.
 */
#define BW_PORT_NUMBERS(X)                                                                         \
    X(frames_in, self->pump.frames_in)                                                             \
    X(frames_out, self->pump.frames_out)                                                           \
    X(wakeups, self->pump.wakeups)                                                                 \
    X(queue_bytes, pump_queued(&self->pump))                                                       \
    X(busy, self->pump.busy)                                                                       \
    X(held_senders, self->pump.scheduler.counts.held)                                              \
    X(losses, self->losses)                                                                        \
    X(kept_bytes, self->pump.session.out.next - self->pump.session.from)                           \
    X(run_delay_us,                                                                                \
      late_us(&self->keeper_late, self->is_flush_asked, self->asked_us, bw_now_us()))              \
    X(uncompressed_out, self->pump.packing.out.before)                                             \
    X(compressed_out, self->pump.packing.out.after)                                                \
    X(compress_us, self->pump.packing.out.ns / 1000)                                               \
    X(uncompressed_in, self->pump.packing.in.before)                                               \
    X(compressed_in, self->pump.packing.in.after)                                                  \
    X(decompress_us, self->pump.packing.in.ns / 1000)                                              \
    X(peer_load, self->pump.peer_load)                                                             \
    X(peer_load_age_ms, (uint64_t)(bw_now_ms() - self->pump.peer_load_ms))

#endif
