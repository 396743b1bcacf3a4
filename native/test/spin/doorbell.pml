/* SPDX-License-Identifier: Apache-2.0
 *
 * Model of how the rings are armed, and of their doorbells and credits (native/README.md, "The ring of shm";
 * native/link/ring.c).
 *
 * There are two sides, two one-way rings and one doorbell (eventfd) per side, as in the shm carrier. Each side
 * is a process that reads one ring and writes the other, and sleeps on its one doorbell for both purposes. It
 * behaves like native/driver/pump_*.c. The VM may send at any time while the port is not busy. Bytes that do
 * not fit are queued, and the port is busy until half the ring is free. When the doorbell rings, the side reads,
 * clears the doorbell, writes its queue and arms. A call may stop early and wake itself. With FRAME=2 half a
 * frame stays in the ring until the other half arrives. With LOOK a side that has drained its ring may poll for a
 * while before it arms (poll_us).
 *
 * The memory model is weaker than that of any machine: every plain store goes to a separate slot and
 * becomes visible at any later time, in any order (partial store order). A fence waits until the
 * process's own slots are empty, and a release store waits for the bytes written before it. An exchange takes
 * effect immediately and does not order anything else. The C code gets its fences from sequentially consistent
 * stores and loads.
 *
 * Checked: no side sleeps forever while it has something to do (an invalid end state for spin), no
 * byte is overwritten before it was read (overrun), and every byte arrives once and in order.
 *
 * Each switch removes one part of the protocol. The checker must then find a counterexample: run.sh
 * treats a broken variant without one as a failure of the model.
 *   -DNOFENCE_ARM     consumer: no fence between reader_armed = 1 and the second check of head
 *   -DNOFENCE_HEAD    producer: no fence between head = ... and the check of reader_armed
 *   -DNOFENCE_WANTS   producer: no fence between writer_wants = ... and the second check of tail
 *   -DNOFENCE_TAIL    consumer: no fence between tail = ... and the check of writer_wants
 *   -DNORECHECK_ARM   consumer sleeps without the second check of head
 *   -DNORECHECK_WANTS producer sleeps without the second check of tail
 *   -DNORELEASE       head is stored without release: it may be seen before the bytes
 *   -DLATE_CLEAR      the event is cleared after arming, not before
 *   -DNOREARM         a producer that was woken too early does not request another wake-up
 *   -DKEEP_CREDIT     the producer trusts a tail that it has not read: an overrun
 *   -DNOWAKE          a call that stops early after clearing does not wake itself
 *   -DGREEDY          with FRAME=2: the producer waits for the whole ring, which contains half a frame
 */

#ifndef SIZE
#define SIZE 2 /* capacity of a ring in bytes */
#endif
#ifndef FRAME
#define FRAME 1 /* bytes of a frame, which is only read when complete; SEND0 and SEND1 are multiples of it */
#endif
#ifdef GREEDY
#define HALF SIZE
#else
#define HALF (SIZE / 2)
#endif
#ifndef SEND0
#define SEND0 4 /* bytes that side 0 sends */
#endif
#ifndef SEND1
#define SEND1 2 /* bytes that side 1 sends */
#endif

/* Ring r is written by side r and read by side 1-r. `x` is the value in memory, `x_slot` is the owner's
 * store that is not yet visible to others, and `x_set` means that the slot is in use. */
typedef ring_t {
    byte head; byte head_slot; bit head_set;    /* plain stores by the producer */
    byte wants; byte wants_slot; bit wants_set; /* plain stores by the producer */
    byte tail; byte tail_slot; bit tail_set;    /* plain stores by the consumer */
    bit armed; bit armed_slot; bit armed_set;   /* plain stores by the consumer */
    byte data[SIZE];                            /* the number of the byte at this position */
    byte data_slot[SIZE];
    byte really_read                            /* the oracle for overrun */
};
ring_t ring[2];
bit event[2]; /* the eventfd that side s sleeps on */

#define STORE(r, x, v) atomic { ring[r].x##_slot = v; ring[r].x##_set = 1 }
#define LAND(r, x)                                                                                 \
    atomic {                                                                                       \
        ring[r].x##_set->ring[r].x = ring[r].x##_slot;                                             \
        ring[r].x##_slot = 0;                                                                      \
        ring[r].x##_set = 0                                                                        \
    }
#define LAND_BYTE(r, i)                                                                            \
    atomic {                                                                                       \
        ring[r].data_slot[i] != 0 -> ring[r].data[i] = ring[r].data_slot[i];                       \
        ring[r].data_slot[i] = 0                                                                   \
    }
/* Reads and clears a flag that the other side sets. */
#define TAKE(r, x, old) atomic { old = ring[r].x; ring[r].x = 0 }
/* One side stores head and wants of its outgoing ring, tail and armed of its incoming one. */
#define FENCE(side)                                                                                \
    (!ring[side].head_set && !ring[side].wants_set && !ring[1 - side].tail_set &&                  \
     !ring[1 - side].armed_set)

/* The memory system. It does not belong to either side, so any state is a valid end state for it. */
active [2] proctype memory()
{
end:
    do
    :: LAND(_pid, head)
    :: LAND(_pid, wants)
    :: LAND(_pid, tail)
    :: LAND(_pid, armed)
#ifdef NORELEASE
    :: LAND_BYTE(_pid, 0)
    :: LAND_BYTE(_pid, 1)
#endif
    od
}

#define me (_pid - 2)
#define out me
#define in (1 - me)
#define room (SIZE - (head - credit))

inline ring_the_other(old)
{
    if
    :: old != 0 -> event[1 - me] = 1
    :: else
    fi
}

/* Reads what is available, in steps of any size, except half a frame. Sets `more` if it stopped early. */
inline receive()
{
    do
    :: due > 0 ->
       seen = ring[in].head;
       if
       :: seen - tail >= FRAME ->
          if
          :: n = FRAME
          :: seen - tail >= 2 * FRAME -> n = 2 * FRAME
          fi;
          atomic {
              do
              :: n > 0 ->
                 assert(ring[in].data[tail % SIZE] == tail + 1);
                 tail++;
                 due--;
                 n--
              :: else -> break
              od;
              ring[in].really_read = tail
          };
          STORE(in, tail, tail);
#ifndef NOFENCE_TAIL
          FENCE(me);
#endif
          old = ring[in].wants;
          if
          :: old != 0 && SIZE - (seen - tail) >= old ->
             TAKE(in, wants, old);
             ring_the_other(old)
          :: else
          fi;
          old = 0
       :: else ->
          more = 0;
          break
       fi
    :: due > 0 ->
       more = 1; /* the budget is used up */
       break
    :: due == 0 ->
       more = 0;
       break
    od
}

/* Writes as many of the `k` bytes as there is room for, and subtracts them from k. */
inline put(k)
{
    if
    :: room < k ->
#ifdef KEEP_CREDIT
       credit = credit + 1
#else
       credit = ring[out].tail
#endif
    :: else
    fi;
    if
    :: room > 0 ->
       n = (room < k -> room : k);
       k = k - n;
       atomic {
           do
           :: n > 0 ->
              assert(head - ring[out].really_read < SIZE);
#ifdef NORELEASE
              ring[out].data_slot[head % SIZE] = head + 1;
#else
              ring[out].data[head % SIZE] = head + 1;
#endif
              head++;
              n--
           :: else -> break
           od
       };
       STORE(out, head, head);
#ifndef NOFENCE_HEAD
       FENCE(me);
#endif
       if
       :: ring[out].armed ->
          TAKE(out, armed, old);
          ring_the_other(old)
       :: else
       fi;
       old = 0
    :: else
    fi
}

/* Writes the queue. The port stops being busy once the queue is empty and half the ring is free. */
inline drain()
{
    if
    :: queued > 0 -> put(queued)
    :: else
    fi;
#ifdef NOREARM
    if
    :: !asked ->
       asked = 1;
#endif
       STORE(out, wants, HALF);
#ifndef NOFENCE_WANTS
       FENCE(me);
#endif
#ifndef NORECHECK_WANTS
       credit = ring[out].tail;
       if
       :: room >= HALF ->
          STORE(out, wants, 0);
          if
          :: queued == 0 -> busy = 0
          :: else -> event[me] = 1 /* room became free in the meantime: run again */
          fi
       :: else
       fi
#endif
#ifdef NOREARM
    :: else
    fi
#endif
}

/* Sets `more` if something has arrived since the last check; in that case nothing is armed. */
inline arm_read()
{
    STORE(in, armed, 1);
#ifndef NOFENCE_ARM
    FENCE(me);
#endif
#ifdef NORECHECK_ARM
    more = 0;
#else
    n = ring[in].head;
    more = (n != seen) && due > 0;
    seen = n;
    n = 0;
    if
    :: more -> STORE(in, armed, 0)
    :: else
    fi
#endif
}

active [2] proctype side()
{
    byte left = (_pid == 2 -> SEND0 : SEND1); /* bytes that the VM has yet to send */
    byte due = (_pid == 2 -> SEND1 : SEND0);  /* bytes yet to arrive */
    byte head, tail;                          /* our own positions */
    byte credit;                              /* the last known tail of the peer */
    byte seen;                                /* the last known head of the peer */
    byte queued, n, old;
    bit busy, more, cleared;
#ifdef LOOK
    bit looking;
#endif
#ifdef NOREARM
    bit asked;
#endif

    event[me] = 1; /* a new link must be read once */
    do
    :: left == 0 && queued == 0 && due == 0 -> break
    :: left > 0 && !busy ->
       /* pump_send: one frame, or two bytes of them */
       if
       :: queued = FRAME
       :: left >= 2 * FRAME -> queued = 2 * FRAME
       fi;
       left = left - queued;
       put(queued);
       if
       :: queued > 0 ->
          busy = 1;
#ifdef NOREARM
          asked = 0;
#endif
          drain()
       :: else
       fi
    :: event[me] ->
       /* pump_wake */
#ifdef LOOK
       looking = 0;
#endif
       do
       :: receive();
          if
          :: more ->
             if
             :: busy -> drain()
             :: else
             fi;
             if
#ifndef NOWAKE
             :: cleared -> event[me] = 1
#endif
             :: else
             fi;
             break
          :: else
          fi;
#ifndef LATE_CLEAR
          if
          :: !cleared -> event[me] = 0
          :: else
          fi;
#endif
          cleared = 1;
          if
          :: busy -> drain()
          :: else
          fi;
          if
#ifdef LOOK
          :: looking = 1; /* not armed: the poller runs instead of a doorbell */
             break
#endif
          :: true
          fi;
          arm_read();
          if
          :: more -> skip
          :: !more ->
#ifdef LATE_CLEAR
             event[me] = 0;
#endif
             break
          fi
       od;
       cleared = 0;
       more = 0
#ifdef LOOK
    :: looking ->
       /* pump_look: polls for a while, then arms, or wakes itself if something has arrived in the meantime */
       receive();
       if
       :: true
       :: !more ->
          looking = 0;
          arm_read();
          if
#ifndef NOWAKE
          :: more -> event[me] = 1
#endif
          :: else
          fi
       fi;
       more = 0
#endif
    od
}
