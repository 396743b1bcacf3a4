/* SPDX-License-Identifier: Apache-2.0
 *
 * When what has gathered in a port goes out (native/driver/beamway_drv.c, pump_out.c, native/link/tcp).
 *
 * The VM gives frames to the port, which gathers them in its ring and asks the keeper, a process, to
 * send them. The keeper runs when it likes, or never: others compute. One timer of the port is for two
 * things, to flush in 1 ms and to look for idle memory in 1 s. What the kernel does not take is queued,
 * the port is busy, and the poller drains the queue when the kernel has room. A call of the port is one
 * step, as it is under the port's lock; between two calls anything may happen. At any time after the
 * last frame the port may close.
 *
 * Checked: after each call, what is in the ring has a timer of at most 1 ms (the assertion of `left`);
 * whatever happens, the peer gets all frames (else it waits for ever: an invalid end state); no frame is
 * sent before an earlier one (the ring is empty while something is queued).
 *
 * Each switch takes one part away. The checker must then find a counterexample.
 *   -DASKED_ONCE   no timer for what is sent while the keeper has a message
 *   -DNOTIMER      the keeper alone
 *   -DCLOBBER      the second for idle memory replaces the millisecond
 *   -DSTAY         what the kernel does not take stays in the ring
 *   -DNOWAKE       a drain that stops early does not wake the poller
 *   -DDEAF         the poller is not asked to tell of room
 *   -DPASS         a frame is gathered while others are queued
 *   -DNOCLOSE      a port that closes forgets what has gathered
 */

#ifndef FRAMES
#define FRAMES 4
#endif
#ifndef RING
#define RING 2 /* frames that the ring holds */
#endif
#ifndef ROOM
#define ROOM 1 /* that the kernel holds */
#endif

#define NONE 0
#define SOON 1   /* at most 1 ms */
#define SECOND 2

byte sent, ring, queued, kernel, got;
bit busy, unflushed, asked, message;
bit timer_is_to_flush, check_is_due;
byte timer;               /* the VM's, of the port */
bit blocked, awaited;     /* the link's */
bit polls_room;           /* the poller is to tell of room in the kernel */
bit woken;                /* it is to come at once */
bit closing, stopped;

/* The kernel takes what it can of the ring. */
inline push()
{
    do
    :: ring > 0 && !blocked && kernel < ROOM -> ring--; kernel++
    :: ring > 0 && !blocked && kernel == ROOM -> blocked = 1
    :: else -> break
    od
}

inline poll()
{
#ifndef DEAF
    polls_room = blocked
#else
    skip
#endif
}

inline drain()
{
    do
    :: queued > 0 && !blocked && kernel < ROOM -> queued--; kernel++
    :: queued > 0 && !blocked && kernel == ROOM -> blocked = 1; awaited = 1
    :: queued > 0 && !blocked -> break /* the budget is used up */
    :: queued == 0 || blocked -> awaited = awaited || (queued > 0 && blocked); break
    od;
    poll();
    if
    :: blocked && awaited -> skip
    :: else ->
        if
        :: queued == 0 -> busy = 0
        :: else ->
#ifndef NOWAKE
            woken = 1
#else
            skip
#endif
        fi
    fi
}

inline flush()
{
    if
    :: unflushed ->
        unflushed = 0;
        push();
#ifndef STAY
        awaited = awaited || ring > 0;
        queued = queued + ring;
        ring = 0;
#endif
        if
        :: queued > 0 -> busy = 1; drain()
        :: else -> skip
        fi
    :: else -> skip
    fi
}

inline gather()
{
    ring++;
    unflushed = 1
}

inline output()
{
    sent++;
    if
#ifndef PASS
    :: queued > 0 -> queued++
#endif
    :: else ->
        if
        :: ring < RING -> gather()
        :: else ->
            flush();
            if
            :: queued == 0 && ring < RING -> gather()
            :: else -> queued++; busy = 1; drain()
            fi
        fi
    fi
}

inline flush_soon()
{
    if
    :: !unflushed -> skip
#ifdef ASKED_ONCE
    :: unflushed && asked -> skip
#else
    :: unflushed && asked -> set_flush()
#endif
    :: unflushed && !asked -> set_flush() /* of a lone caller */
    :: unflushed && !asked -> asked = 1; message = 1; set_flush()
    fi
}

inline set_flush()
{
#ifndef NOTIMER
    if
    :: timer_is_to_flush -> skip
    :: else -> timer_is_to_flush = 1; timer = SOON
    fi
#else
    skip
#endif
}

inline set_check()
{
    if
    :: check_is_due -> skip
    :: else ->
        check_is_due = 1;
        if
#ifndef CLOBBER
        :: timer_is_to_flush -> skip
#endif
        :: else -> timer = SECOND
        fi
    fi
}

/* Each call ends here. */
inline left()
{
#ifndef NOTIMER
    assert(ring == 0 || stopped || (timer_is_to_flush && timer == SOON));
#endif
    assert(ring == 0 || queued == 0)
}

inline stop()
{
    stopped = 1;
    timer = NONE;
    push();
#ifdef NOCLOSE
    ring = 0
#endif
    /* a thread of the VM sends the rest: it waits for room */
}

active proctype vm()
{
    do
    :: atomic { sent < FRAMES && !busy -> output(); flush_soon(); set_check(); left() }
    :: atomic { sent < FRAMES && busy && queued < 2 -> output(); flush_soon(); set_check(); left() } /* on its way */
    :: sent == FRAMES -> break
    od;
    if
    :: atomic { closing = 1; if :: queued == 0 -> stop() :: else -> skip fi }
    :: skip
    fi
}

active proctype keeper()
{
end:
    do
    :: atomic { message && !stopped -> message = 0; asked = 0; flush(); left() }
    :: break /* it never runs again */
    od
}

active proctype timers()
{
end:
    do
    :: atomic { timer != NONE && !stopped ->
        timer = NONE;
        if
        :: timer_is_to_flush ->
            timer_is_to_flush = 0;
            flush();
            if
            :: check_is_due -> timer = SECOND
            :: else -> skip
            fi
        :: else -> check_is_due = 0
        fi;
        left() }
    od
}

active proctype poller()
{
end:
    do
    :: atomic { woken && !stopped ->
        woken = 0;
        push();
        if
        :: busy -> drain()
        :: else -> skip
        fi;
        poll();
        left() }
    :: atomic { polls_room && kernel < ROOM && !stopped ->
        blocked = 0;
        awaited = 0;
        if
        :: busy -> drain()
        :: else -> skip
        fi;
        poll();
        left() }
    :: atomic { closing && !stopped && queued == 0 -> stop() }
    :: atomic { stopped && ring > 0 && kernel < ROOM -> ring--; kernel++ } /* that thread */
    od
}

active proctype peer()
{
    do
    :: atomic { kernel > 0 ->
        kernel--;
        got++ }
    :: got == FRAMES -> break
    od
}
