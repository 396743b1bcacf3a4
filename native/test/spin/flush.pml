/* SPDX-License-Identifier: Apache-2.0
 *
 * Model of when the frames gathered in a port are sent (native/driver/beamway_drv.c, pump_out.c, native/link/tcp).
 *
 * The VM passes frames to the port, which gathers them in its ring and asks the keeper, a process, to
 * flush them. The keeper may run at any time or never, because other processes use the CPUs. The port has one
 * timer for two purposes: to flush after 1 ms and to release idle memory after 1 s. Frames that the kernel does
 * not accept are queued, the port is busy, and the poller drains the queue when the kernel has room. A call to
 * the port is a single step, because it runs under the port's lock; between two calls anything may happen. At
 * any time after the last frame the port may close.
 *
 * Checked: after each call, if the ring contains frames, a timer of at most 1 ms is set (the assertion in `left`);
 * whatever happens, the peer receives all frames (otherwise it waits forever, which is an invalid end state); no frame is
 * sent before an earlier one (the ring is empty while something is queued).
 *
 * Each switch removes one part. The checker must then find a counterexample.
 *   -DASKED_ONCE   no timer for frames that are sent while the keeper has a message
 *   -DNOTIMER      no timer, only the keeper
 *   -DCLOBBER      the one-second timer for idle memory replaces the one-millisecond timer
 *   -DSTAY         frames that the kernel does not accept stay in the ring
 *   -DNOWAKE       a drain that stops early does not wake the poller
 *   -DDEAF         the poller does not report room
 *   -DPASS         a frame is gathered while others are queued
 *   -DNOCLOSE      a port that closes drops the gathered frames
 */

#ifndef FRAMES
#define FRAMES 4
#endif
#ifndef RING
#define RING 2 /* capacity of the ring in frames */
#endif
#ifndef ROOM
#define ROOM 1 /* capacity of the kernel's buffer in frames */
#endif

#define NONE 0
#define SOON 1   /* at most 1 ms */
#define SECOND 2

byte sent, ring, queued, kernel, got;
bit busy, unflushed, asked, message;
bit timer_is_to_flush, check_is_due;
byte timer;               /* the VM's timer for the port */
bit blocked, awaited;     /* state of the link */
bit polls_room;           /* the poller must report room in the kernel */
bit woken;                /* the poller must run immediately */
bit closing, stopped;

/* The kernel accepts as many frames from the ring as it has room for. */
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
    :: unflushed && !asked -> set_flush() /* from a single caller */
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

/* Checked at the end of each call. */
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
    /* a thread of the VM waits for room and sends the rest */
}

active proctype vm()
{
    do
    :: atomic { sent < FRAMES && !busy -> output(); flush_soon(); set_check(); left() }
    :: atomic { sent < FRAMES && busy && queued < 2 -> output(); flush_soon(); set_check(); left() } /* already in transit */
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
    :: atomic { stopped && ring > 0 && kernel < ROOM -> ring--; kernel++ } /* the thread that sends the rest */
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
