/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_LANE_H
#define BW_LANE_H

#include "erl_driver.h"

#include "pump.h"
#include "reply.h"

/*
 * A port that is a lane: its frames are messages to the process that owns it, as many as that
 * process has granted; any process may send. apps/beamway/src/beamway_lane.erl says what it
 * promises, beamway_port.erl is the only user of the commands.
 *
 * A lane is a link that pump.h moves frames over, and, unless that is the socket on which the peers
 * have met, a guard: that socket, whose end is the peer's end.
 *
 * Messages: {Port, {data, Binary}}, {Port, passive}, {Port, closed, Reason, Unreleased} to the
 * owner, and {Port, flush} and {Port, look} if it attends; {Port, writable} to whoever asked. The
 * last thing a lane does is to say `closed`; then the port ends, with the reason `normal`.
 */
enum {
    COMMAND_LANE_OPEN = 31, /* guard:32 (0: none), largest frame:32, mark of parts:8 (0: none),
                                largest binary of parts:32 -> ; the port is a lane */
    COMMAND_LANE_CREDIT,    /* frames:64, bytes:64 -> */
    COMMAND_LANE_ASK,       /* -> ; the caller gets {Port, writable} when the port is not busy */
    COMMAND_LANE_CLOSE,     /* -> ; the port ends when all is said, or after LANE_CLOSE_MS */
    COMMAND_LANE_STATS,     /* -> credit_frames:64, credit_bytes:64, unreleased:64 */
    COMMAND_LANE_ATTEND     /* poll_us:64 -> ; the owner gets `flush` and `look` when it shall give
                                COMMAND_FLUSH or COMMAND_LOOK */
};

#define LANE_CLOSE_MS 1000
#define LANE_ASKERS_MAX 64

/* What is sent so soon after the last bytes went out finds them under way. */
#define LANE_UNDER_WAY_US 50u

typedef struct {
    bw_pump_t *pump;
    bool is_on;          /* the port is a lane */
    bool is_closing;     /* our owner has closed it */
    bool is_gone;        /* the guard is at its end */
    bool is_flush_asked; /* the owner has not come yet */
    bool is_looking;     /* the owner looks, or has been told to */
    int guard;           /* descriptor, -1: none */
    uint64_t flushed_us; /* when bytes last went out, if they gather */
    uint64_t read_at_check;
    int64_t gone_at_ms;
    ErlDrvTermData askers[LANE_ASKERS_MAX]; /* they want to hear when the port is not busy */
    int asker_count;
} lane_t;

/* The commands, under the port lock. False: the caller broke their rules, which is a badarg.
 * lane_credit and lane_close may end the port, see lane_after. */
bool lane_open(lane_t *lane, const char *data, size_t len, reply_t *reply);
bool lane_credit(lane_t *lane, const char *data, size_t len);
bool lane_ask(lane_t *lane, reply_t *reply);
bool lane_close(lane_t *lane);
void lane_stats(const lane_t *lane, reply_t *reply);
bool lane_attend(lane_t *lane, const char *data, size_t len);
bool lane_look(lane_t *lane, reply_t *reply); /* may end the port */

/* After whatever the pump has done: tells what there is to tell. May end the port, and drv_stop
 * runs inside: nothing of the port may be touched after it. The same holds for lane_guard,
 * lane_timeout and lane_fail. */
void lane_after(lane_t *lane, wake_result_t result);

/* After something was written: that may have emptied the queue, and no doorbell comes for it. */
void lane_written(lane_t *lane);

/* What has gathered goes out. False: the link is corrupt. */
bool lane_flush(lane_t *lane);

/* Whether what was sent shall go out now. Else the owner has been asked to flush, and the caller
 * sees to it that it does not wait long: bytes are under way, and more may come meanwhile. */
bool lane_sends_at_once(lane_t *lane, bool is_lone);

/* The poller says that the guard is readable. */
void lane_guard(lane_t *lane);

/* The port's timer, if lane_owns_timer. */
void lane_timeout(lane_t *lane);

static inline bool lane_owns_timer(const lane_t *lane)
{
    return lane->is_closing || lane->is_gone;
}

/* The link cannot be written any more. */
void lane_fail(lane_t *lane);

/* The port stops: the guard is closed when no poller looks at it any more. */
void lane_stop(lane_t *lane);

#endif
