/* SPDX-License-Identifier: Apache-2.0
 *
 * Model of one direction of a stream over several connections (native/link/session/strands.h, docs/dev/session.md).
 *
 * A writer sends BYTES chunks over up to USES connections, in succession or in parallel, and has a
 * ring of RING chunks, as does the reader. At any step a connection may be cut, up to CUTS of them: chunks and
 * acknowledgements in flight over it are lost, and each side notices the cut at any later time.
 *
 * Checked at every step: the reader's ring has room for every chunk that arrives, and only chunks that were sent are
 * acknowledged.
 * Checked once no step is possible any more: the reader has consumed all chunks and the writer knows it, or all
 * connections are cut.
 *
 * Each switch breaks the protocol; the checker must then find a counterexample (run.sh):
 *   -DNO_BACK   the writer does not resend when a connection is lost
 *   -DNO_AGAIN  the reader does not repeat an acknowledgement that may have been lost
 *   -DNO_ROOM   the writer sends chunks for which the reader has no room
 *   -DNO_TWICE  the reader assumes that no chunk arrives twice
 */

#ifndef BYTES
#define BYTES 3
#endif
#ifndef RING
#define RING 2
#endif
#ifndef USES
#define USES 2 /* out of at most three */
#endif
#define STRANDS 3
#ifndef CUTS
#define CUTS 1
#endif

/* state of the writer */
byte next, sent, arrived, freed

/* state of the reader */
bit have[BYTES]
byte head, taken, acked
bit owes

/* state of a connection */
chan there[STRANDS] = [2] of { byte }
chan back[STRANDS] = [2] of { byte, byte } /* taken, arrived */
bit writes[STRANDS], reads[STRANDS], is_cut[STRANDS]
byte used, cuts = CUTS

inline goes_back()
{
#ifndef NO_BACK
    if
    :: next > arrived -> next = arrived
    :: else
    fi
#else
    skip
#endif
}

#ifdef NO_ROOM
#define has_room 1
#else
#define has_room (next < freed + RING)
#endif

#ifdef NO_AGAIN
#define says_again 0
#else
#define says_again (owes && head > 0)
#endif

active proctype world()
{
    byte i, n, took;

begin:
    do
    :: atomic { used < USES -> writes[used] = 1; reads[used] = 1; used++ }
    :: atomic {
        cuts > 0 && used > 0 -> select(i : 0 .. STRANDS - 1);
        if
        :: i < used && !is_cut[i] ->
            is_cut[i] = 1;
            cuts--;
            do
            :: nempty(there[i]) -> there[i]?n
            :: nempty(back[i]) -> back[i]?took, n
            :: empty(there[i]) && empty(back[i]) -> break
            od
        :: else
        fi;
        i = 0; n = 0; took = 0
       }
    /* The writer. */
    :: atomic { next < BYTES && has_room && writes[0] && nfull(there[0]) -> i = 0; goto send }
    :: atomic { next < BYTES && has_room && writes[1] && nfull(there[1]) -> i = 1; goto send }
    :: atomic { next < BYTES && has_room && writes[2] && nfull(there[2]) -> i = 2; goto send }
    :: atomic { writes[0] && is_cut[0] -> writes[0] = 0; goes_back() }
    :: atomic { writes[1] && is_cut[1] -> writes[1] = 0; goes_back() }
    :: atomic { writes[2] && is_cut[2] -> writes[2] = 0; goes_back() }
    :: atomic { nempty(back[0]) -> back[0]?took, n; goto heard }
    :: atomic { nempty(back[1]) -> back[1]?took, n; goto heard }
    :: atomic { nempty(back[2]) -> back[2]?took, n; goto heard }
    /* The reader. */
    :: atomic { nempty(there[0]) -> there[0]?n; goto came }
    :: atomic { nempty(there[1]) -> there[1]?n; goto came }
    :: atomic { nempty(there[2]) -> there[2]?n; goto came }
    :: atomic { reads[0] && is_cut[0] -> reads[0] = 0; owes = 1 }
    :: atomic { reads[1] && is_cut[1] -> reads[1] = 0; owes = 1 }
    :: atomic { reads[2] && is_cut[2] -> reads[2] = 0; owes = 1 }
    :: atomic { taken < head -> taken++ }
    :: atomic { (taken > acked || says_again) && reads[0] && nfull(back[0]) -> i = 0; goto say }
    :: atomic { (taken > acked || says_again) && reads[1] && nfull(back[1]) -> i = 1; goto say }
    :: atomic { (taken > acked || says_again) && reads[2] && nfull(back[2]) -> i = 2; goto say }
    :: timeout -> break
    od;
    goto over;

send:
    atomic {
        if
        :: is_cut[i] -> skip /* nobody receives it */
        :: else -> there[i]!next
        fi;
        next++;
        if
        :: next > sent -> sent = next
        :: else
        fi;
        i = 0;
        goto begin
    }
came:
    atomic {
        assert(n < taken + RING);
#ifdef NO_TWICE
        assert(!have[n]);
#endif
        have[n] = 1;
        do
        :: head < BYTES && have[head] -> head++
        :: else -> break
        od;
        n = 0;
        goto begin
    }
say:
    atomic {
        if
        :: is_cut[i] -> skip
        :: else -> back[i]!taken, head
        fi;
        acked = taken;
        owes = 0;
        i = 0;
        goto begin
    }
heard:
    atomic {
        assert(n <= sent && took <= n);
        if
        :: n > arrived -> arrived = n
        :: else
        fi;
        if
        :: next < arrived -> next = arrived
        :: else
        fi;
        if
        :: took > freed -> freed = took
        :: else
        fi;
        n = 0;
        took = 0;
        goto begin
    }
over:
    assert((is_cut[0] && is_cut[1] && (USES < 3 || is_cut[2])) || (taken == BYTES && freed == BYTES));
}
