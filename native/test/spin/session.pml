/* SPDX-License-Identifier: Apache-2.0
 *
 * Model of how a link survives the loss of its connection (docs/dev/session.md).
 *
 * Two nodes send each other BYTES bytes over up to CONNECTIONS connections. Either may dial whenever it
 * has no connection, and up to SILENT times even though it has one. Initially connection 0 is up at both ends.
 * Faults at any step: up to CUTS connections are cut, and bytes in flight are lost or still arrive; up to CRASHES
 * nodes lose their state and restart under the same name, or abandon the link, which looks the same to the other
 * side.
 *
 * Checked at every step: each byte that is read is the next one, so none is lost, duplicated or reordered; a side
 * that resumes sending still has the bytes that the peer requests, and the peer never requests bytes that were not sent.
 * Checked once no step is possible any more: all bytes have been read, or no further connections were available,
 * or one node no longer knew the link, and then the other has closed it.
 *
 * Each switch breaks the protocol; the checker must then find a counterexample (run.sh):
 *   -DNO_FREEZE   the caller continues reading after it has reported how far it has read
 *   -DEARLY       the caller reports this before it gives up its connection
 *   -DNO_NUMBER   connections have no order: a late one is accepted
 *   -DKEEPS_LESS  a side discards sent bytes, acknowledged or not
 */

#ifndef BYTES
#define BYTES 2
#endif
#ifndef CONNECTIONS
#define CONNECTIONS 4
#endif
#ifndef CUTS
#define CUTS 2
#endif
#ifndef SILENT
#define SILENT 1
#endif
#ifndef CRASHES
#define CRASHES 0
#endif

mtype = { UNBORN, ASKED, CHALLENGED, PROVED, ACCEPTED, DONE, REFUSED }

/* state of a node */
byte read[2]     /* the number of the next byte to be read */
byte out[2]      /* the number of the next byte to send */
byte from[2]     /* the number of the oldest byte that is retained */
byte number[2]   /* the number of its last connection */
byte on[2]       /* its connection + 1; 0: none */
bit knows[2] = 1
bit ended[2]

/* state of a connection */
mtype phase[CONNECTIONS] = UNBORN
bit alive[CONNECTIONS]
bit caller[CONNECTIONS]
byte theirs[CONNECTIONS], chosen[CONNECTIONS], asks[CONNECTIONS], answers[CONNECTIONS]
byte sent[2 * CONNECTIONS], got[2 * CONNECTIONS] /* by each node: bytes before this one were sent, and received at the other end */

byte used = 1, cuts = CUTS, silent = SILENT, crashes = CRASHES

#define at(c, node) (2 * (c) + (node))
#define larger(a, b) ((a) > (b) -> (a) : (b))
/* Node 0 has even numbers, node 1 odd ones. */
#define after(node, last) ((node) == 0 -> ((last) / 2 + 1) * 2 : ((last) + 1) / 2 * 2 + 1)

inline drop(node)
{
    if
    :: on[node] != 0 -> alive[on[node] - 1] = 0; on[node] = 0
    :: else
    fi
}

/* Resumes sending over the connection, from the peer's position. */
inline resume(node, c, position)
{
    assert(position >= from[node] && position <= out[node]);
    out[node] = position;
    sent[at(c, node)] = position;
    got[at(c, node)] = position;
    on[node] = c + 1
}

proctype node(bit me)
{
    bit you = 1 - me;

end:
    do
    /* bytes */
    :: atomic { on[me] != 0 && alive[on[me] - 1] && out[me] < BYTES ->
           sent[at(on[me] - 1, me)]++;
           out[me]++;
#ifdef KEEPS_LESS
           from[me] = out[me]
#endif
       }
    :: atomic { on[me] != 0 && got[at(on[me] - 1, you)] < sent[at(on[me] - 1, you)] ->
           assert(got[at(on[me] - 1, you)] == read[me]);
           got[at(on[me] - 1, you)]++;
           read[me]++
       }
    :: atomic { on[me] != 0 && on[you] == on[me] && alive[on[me] - 1] && from[you] < read[me] ->
           from[you] = read[me]
       }
    /* the end of a connection */
    :: atomic { on[me] != 0 && !alive[on[me] - 1] -> on[me] = 0 }
    /* dials */
    :: atomic { knows[me] && !ended[me] && used < CONNECTIONS && (on[me] == 0 || silent > 0) ->
           if
           :: on[me] != 0 -> silent--
           :: else
           fi;
           caller[used] = me;
           alive[used] = 1;
           phase[used] = ASKED;
#ifdef EARLY
           asks[used] = read[me];
#endif
           used++
       }
    od
}

#define goes_on(node) (knows[node] && !ended[node])
#define me caller[c]
#define you (1 - caller[c])

/* The handshake of both sides, before the connection carries bytes. */
proctype connection(byte c)
{
end:
    do
    /* the callee receives RESUME */
    :: atomic { alive[c] && phase[c] == ASKED && goes_on(you) ->
           theirs[c] = number[you];
           phase[c] = CHALLENGED
       }
    :: atomic { alive[c] && phase[c] == ASKED && !goes_on(you) ->
           phase[c] = REFUSED
       }
    /* the caller receives CHALLENGE or REFUSE */
    :: atomic { alive[c] && phase[c] == CHALLENGED && goes_on(me) ->
           chosen[c] = after(me, larger(number[me], theirs[c]));
           number[me] = chosen[c];
#ifndef NO_FREEZE
           drop(me);
#endif
#ifndef EARLY
           asks[c] = read[me];
#endif
           phase[c] = PROVED
       }
    :: atomic { alive[c] && phase[c] == REFUSED && goes_on(me) ->
           drop(me);
           ended[me] = 1
       }
    /* the callee receives PROOF */
    :: atomic { alive[c] && phase[c] == PROVED && goes_on(you) ->
           if
#ifdef NO_NUMBER
           :: true ->
#else
           :: chosen[c] > number[you] ->
#endif
                  number[you] = chosen[c];
                  drop(you);
                  answers[c] = read[you];
                  phase[c] = ACCEPTED;
                  resume(you, c, asks[c])
#ifndef NO_NUMBER
           :: else -> alive[c] = 0
#endif
           fi
       }
    /* the caller receives ACCEPT */
    :: atomic { alive[c] && phase[c] == ACCEPTED && goes_on(me) ->
           if
#ifdef NO_NUMBER
           :: true ->
#else
           :: number[me] == chosen[c] ->
#endif
                  phase[c] = DONE;
                  on[me] = 0;
                  resume(me, c, answers[c])
#ifndef NO_NUMBER
           :: else -> alive[c] = 0
#endif
           fi
       }
    od
}

#undef me
#undef you

proctype faults()
{
    byte c;

end:
    do
    :: atomic { cuts > 0 ->
           cuts--;
           select(c : 0 .. CONNECTIONS - 1);
           if
           :: alive[c] ->
                  alive[c] = 0;
                  if /* bytes in flight */
                  :: sent[at(c, 0)] = got[at(c, 0)]
                  :: skip
                  fi;
                  if
                  :: sent[at(c, 1)] = got[at(c, 1)]
                  :: skip
                  fi
           :: else
           fi
       }
    :: atomic { crashes > 0 ->
           crashes--;
           if
           :: c = 0
           :: c = 1
           fi;
           on[c] = 0;
           knows[c] = 0;
           c = 0;
           do
           :: c < CONNECTIONS -> alive[c] = 0; c++
           :: else -> break
           od
       }
    od
}

init
{
    byte c = 1;

    atomic {
        alive[0] = 1;
        phase[0] = DONE;
        on[0] = 1;
        on[1] = 1;
        run node(0);
        run node(1);
        do
        :: c < CONNECTIONS -> run connection(c); c++
        :: else -> break
        od;
        run faults()
    };
    timeout;
    assert((read[0] == BYTES && read[1] == BYTES) || used == CONNECTIONS ||
           ((!knows[0] || !knows[1]) && (ended[0] || !knows[0]) && (ended[1] || !knows[1])))
}
