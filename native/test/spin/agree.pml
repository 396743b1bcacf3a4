/* SPDX-License-Identifier: Apache-2.0
 *
 * Model of how two nodes agree on a link (apps/beamway/README.md, "How two nodes agree on a link").
 *
 * There are two nodes, each of which may call the other, also simultaneously; node c is the caller of connection c.
 * An end of a connection is one setup process; `p` numbers them: 0 and 1 are caller and callee of
 * connection 0, 2 and 3 those of connection 1. A connection is two FIFO channels that can close.
 * net_kernel of each node keeps one entry for the other node and settles simultaneous calls, as OTP does.
 *
 * Clocks are unconstrained: a wait may time out at any moment, so every delay is covered. Up to FAULTS
 * faults occur, at any step: a setup process dies, a node is killed, or a node is stopped permanently.
 * A closed socket may or may not lose the bytes that were in flight.
 *
 * Checked at every step: there is never one end on shm and the other on tcp while both live and the socket is
 * open; no message of the agreement is ever read as distribution data, or vice versa; the
 * descriptors are already queued at the listener when the caller accepts.
 * Checked once no step is possible any more: no end is still waiting (no hang), no entry is pending, and
 * either both nodes are up on the same connection with the same link, or neither has one.
 *
 * Each switch breaks the protocol; the checker must then find a counterexample (run.sh):
 *   -DEAGER            the callee uses shm without the caller's READY
 *   -DCALLEE_TIMER_TCP the callee falls back to tcp when READY is late
 *   -DCALLER_TIMER_TCP the caller falls back to tcp when the ANSWER is late
 *   -DNOTIMER          no timer, so a stopped peer causes a hang
 *   -DNOWATCH          the ends do not watch the socket once the link is up
 *   -DLATE_CONNECT     the callee answers before it has connected
 *   -DNACK_TWICE       the caller answers a nack with a nack
 *   -DONE_SIDED        the caller offers without looking at the callee's extension
 *   -DNOARBITER        both of two simultaneous calls are accepted
 *   -DREACH=SHM        claims that the two nodes never agree on this link, to show that the model can reach it
 *   -DREACH=TCP
 */

#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef CALLERS
#define CALLERS 2 /* 2: both nodes may call */
#endif
#ifndef EXTENSIONS
#define EXTENSIONS 1 /* 0: both always allow shm */
#endif

mtype = { NAME, GO, NOK, ALIVE, YES, NO, OFFER, READY, NACK, DATA }
mtype:link = { UNBORN, WAITS, SHM, TCP, CLOSED }
mtype:entry = { NONE, PENDING, UP, UP_PENDING }

chan wire[4] = [2] of { mtype, bit } /* wire[p]: messages sent by end p; the bit is its extension */
mtype:link st[4] = UNBORN
bit open[4]
bit killed[4]
bit listening[2]  /* the caller of connection c listens */
bit arrived[2]    /* the token and the descriptors have arrived at its listener */

mtype:entry entry[2] = NONE
byte owner[2] /* the end that owns the entry */
byte heir[2]  /* the end that waits for it in UP_PENDING */
bit stopped[2]
bit dead[2]
bit over

#define PEER(p) ((p) ^ 1)
#define NODE(p) (((p) / 2) ^ ((p) % 2))
#define CONN(p) ((p) / 2)
#define SETTLED(p) (st[p] == SHM || st[p] == TCP)

inline close_end(q)
{
    open[q] = 0;
    st[q] = CLOSED;
    if
    :: true
    :: true ->
       do
       :: nempty(wire[q]) -> wire[q]?_, _
       :: empty(wire[q]) -> break
       od
    fi;
    do
    :: nempty(wire[PEER(q)]) -> wire[PEER(q)]?_, _
    :: empty(wire[PEER(q)]) -> break
    od;
    if
    :: q % 2 == 0 -> listening[CONN(q)] = 0
    :: else
    fi
}

/* net_kernel notices that the process of end q has died. */
inline leave(q)
{
    if
    :: entry[NODE(q)] == UP_PENDING && owner[NODE(q)] == q ->
       entry[NODE(q)] = PENDING;
       owner[NODE(q)] = heir[NODE(q)]
    :: entry[NODE(q)] == UP_PENDING && heir[NODE(q)] == q -> entry[NODE(q)] = UP
    :: entry[NODE(q)] != UP_PENDING && entry[NODE(q)] != NONE && owner[NODE(q)] == q ->
       entry[NODE(q)] = NONE
    :: else
    fi
}

inline send(m, b)
{
    if
    :: open[PEER(p)] -> wire[p]!m, b
    :: !open[PEER(p)]
    fi
}

#ifdef NOTIMER
#define LATE false
#else
#define LATE true
#endif

/* `theirs` is a variable for the peer's extension, or _ if the message carries none. */
inline receive(theirs)
{
    if
    :: wire[PEER(p)]?got, theirs
    :: empty(wire[PEER(p)]) && !open[PEER(p)] -> goto leaving
    :: LATE -> goto leaving
    fi
}

/* nodeup: net_kernel accepts it only from the process that owns the entry. */
inline settle(kind)
{
    atomic {
        if
#ifdef NOARBITER
        :: true ->
           owner[NODE(p)] = p;
#else
        :: entry[NODE(p)] == PENDING && owner[NODE(p)] == p ->
#endif
           entry[NODE(p)] = UP;
           st[p] = kind;
           assert(!(open[PEER(p)] && SETTLED(PEER(p)) && st[PEER(p)] != kind))
#ifndef NOARBITER
        :: else -> goto leaving
#endif
        fi
    }
}

proctype end_of(byte p)
{
    mtype got;
    bit mine, other; /* the extensions: whether shm is allowed */
    {
        st[p] = WAITS;
#if EXTENSIONS
        if
        :: mine = 0
        :: mine = 1
        fi;
#else
        mine = 1;
#endif
        if
        :: p % 2 == 0 -> goto calling
        :: else -> goto called
        fi;

calling:
        send(NAME, mine);
        receive(other);
        if
        :: got == GO
        :: got == NOK -> goto leaving
        :: got == ALIVE ->
           if
           :: entry[NODE(p)] == PENDING && owner[NODE(p)] == p -> send(YES, 0)
           :: else ->
              send(NO, 0);
              goto leaving
           fi
        :: else -> assert(false)
        fi;
#ifndef ONE_SIDED
        mine = mine && other;
#endif
        other = 0;
        got = 0;
        if
        :: !mine ->
           settle(TCP);
           goto up
        :: else
        fi;
        listening[CONN(p)] = 1;
        send(OFFER, 0);
#ifdef CALLER_TIMER_TCP
        if
        :: wire[PEER(p)]?got, _
        :: empty(wire[PEER(p)]) && !open[PEER(p)] -> goto leaving
        :: true ->
           settle(TCP);
           goto up
        fi;
#else
        receive(_);
#endif
        if
        :: got == READY ->
           assert(arrived[CONN(p)]);
           got = 0;
           arrived[CONN(p)] = 0;
           listening[CONN(p)] = 0;
           if
           :: send(READY, 0);
              settle(SHM)
           :: send(NACK, 0); /* the memory cannot be mapped, belongs to the wrong user, or is too large */
              settle(TCP)
           fi
        :: got == NACK ->
           listening[CONN(p)] = 0;
#ifdef NACK_TWICE
           send(NACK, 0);
#endif
           settle(TCP)
        :: else -> assert(false)
        fi;
        goto up;

called:
        receive(other);
        assert(got == NAME);
        atomic {
            if
            :: entry[NODE(p)] == NONE ->
               entry[NODE(p)] = PENDING;
               owner[NODE(p)] = p;
               got = GO
#ifdef NOARBITER
            :: entry[NODE(p)] == PENDING -> got = GO
#else
            :: entry[NODE(p)] == PENDING && NODE(p) == 1 -> got = NOK /* the greater name wins */
            :: entry[NODE(p)] == PENDING && NODE(p) == 0 ->
               if
               :: killed[owner[0]] = 1;
                  close_end(owner[0])
               fi;
               owner[0] = p;
               got = GO
#endif
            :: entry[NODE(p)] == UP ->
               entry[NODE(p)] = UP_PENDING;
               heir[NODE(p)] = p;
               got = ALIVE
            :: entry[NODE(p)] == UP_PENDING -> got = NOK
            fi
        };
        send(got, mine);
        mine = mine && other;
        other = 0;
        if
        :: got == NOK -> goto leaving
        :: got == GO
        :: got == ALIVE ->
           receive(_);
           if
           :: got == NO -> goto leaving
           :: else -> assert(got == YES)
           fi;
           atomic {
               if
               :: entry[NODE(p)] == UP_PENDING && heir[NODE(p)] == p ->
                  killed[owner[NODE(p)]] = 1;
                  close_end(owner[NODE(p)]);
                  entry[NODE(p)] = PENDING;
                  owner[NODE(p)] = p
               :: else
               fi
           }
        fi;
        got = 0;
        if
        :: !mine ->
           settle(TCP);
           goto up
        :: else
        fi;
        receive(_);
        assert(got == OFFER);
        if
#ifdef LATE_CONNECT
        :: send(READY, 0);
           arrived[CONN(p)] = 1
#else
        :: listening[CONN(p)] ->
           arrived[CONN(p)] = 1;
           send(READY, 0)
#endif
        :: send(NACK, 0); /* nobody is listening, no memory, or the wrong user */
           settle(TCP);
           goto up
        fi;
#ifdef EAGER
        settle(SHM);
        goto up;
#endif
#ifdef CALLEE_TIMER_TCP
        if
        :: wire[PEER(p)]?got, _
        :: empty(wire[PEER(p)]) && !open[PEER(p)] -> goto leaving
        :: true ->
           settle(TCP);
           goto up
        fi;
#else
        receive(_);
#endif
        if
        :: got == READY -> settle(SHM)
        :: got == NACK -> settle(TCP)
        :: else -> assert(false)
        fi;

up:
        got = 0;
        mine = 0;
        if
        :: st[p] == TCP -> send(DATA, 0)
        :: else
        fi;
end_up:
        do
        :: wire[PEER(p)]?got, _ ->
           assert(st[p] == TCP && got == DATA);
           got = 0
#ifndef NOWATCH
        :: empty(wire[PEER(p)]) && !open[PEER(p)] -> goto leaving
#endif
        od;

leaving:
        atomic {
            got = 0;
            mine = 0;
            close_end(p);
            leave(p)
        }
    }
    unless
    {
        if
        :: killed[p]
        :: stopped[NODE(p)] && !killed[p] ->
end_stopped:
           killed[p] /* only kill -9 can end this state */
        fi
    }
}

/* A node calls the other once, or not at all. */
proctype caller(byte c)
{
    if
    :: true
    :: atomic {
           entry[c] == NONE && !dead[0] && !dead[1] && !stopped[c] && !over ->
           entry[c] = PENDING;
           owner[c] = 2 * c;
           open[2 * c] = 1;
           open[2 * c + 1] = 1;
           st[2 * c] = WAITS;
           st[2 * c + 1] = WAITS;
           run end_of(2 * c);
           run end_of(2 * c + 1)
       }
    :: atomic { entry[c] != NONE || dead[0] || dead[1] || stopped[c] || over }
    fi
}

inline kill_end(q)
{
    if
    :: st[q] == WAITS || SETTLED(q) ->
       killed[q] = 1;
       close_end(q);
       leave(q)
    :: else
    fi
}

proctype nemesis()
{
    byte left = FAULTS;
    byte q = 0;
    do
    :: left == 0 -> break
    :: left > 0 -> break
    :: left > 0 ->
       left--;
       if
       :: q = 0
       :: q = 1
       :: q = 2
       :: q = 3
       fi;
       if
       :: atomic { !stopped[NODE(q)] -> kill_end(q) } /* a setup process is killed, for example by exit/2 */
       :: atomic {
              dead[NODE(q)] = 1;
              q = NODE(q);
              if /* the ends of node 0 are 0 and 3, those of node 1 are 1 and 2 */
              :: q == 0 ->
                 kill_end(0);
                 kill_end(3)
              :: else ->
                 kill_end(1);
                 kill_end(2)
              fi;
              stopped[q] = 0
          }
       :: stopped[NODE(q)] = 1
       fi;
       q = 0
    od
}

/* Checks the outcome when no other process can take a step. */
proctype judge()
{
    byte q = 0;
    timeout;
    over = 1;
    do
    :: q < 4 ->
       assert(stopped[NODE(q)] || st[q] != WAITS);
       q++
    :: else -> break
    od;
    q = 0;
    do
    :: q < 2 ->
       assert(stopped[q] || entry[q] == NONE || entry[q] == UP);
       q++
    :: else -> break
    od;
    if
    :: stopped[0] || stopped[1]
    :: else ->
       assert(entry[0] == entry[1]);
       if
       :: entry[0] == UP ->
          assert(CONN(owner[0]) == CONN(owner[1]) && st[owner[0]] == st[owner[1]] &&
                 SETTLED(owner[0]));
#ifdef REACH
          assert(st[owner[0]] != REACH)
#endif
       :: else
       fi
    fi
}

init
{
    atomic {
        run caller(0);
#if CALLERS == 2
        run caller(1);
#endif
        run nemesis();
        run judge()
    }
}
