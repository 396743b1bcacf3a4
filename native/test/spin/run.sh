#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks the Promela models: the actual protocol must have no error in any state, and each broken
# variant must have one. Usage: run.sh DIRECTORY-FOR-BUILD-PRODUCTS. Takes about a minute and a half, and at
# most 1 GB of memory.
set -eu

models=$(cd "$(dirname "$0")" && pwd)
work=$1
passed=0
failed=0

for tool in spin cc; do
    if ! command -v "$tool" >/dev/null; then
        echo "spin models: $tool is not installed; try: apt-get install spin gcc" >&2
        exit 1
    fi
done
mkdir -p "$work"
cd "$work"

# check VERDICT MODEL [SWITCH...]: VERDICT is `holds` or `breaks`.
check() {
    verdict=$1 model=$2
    shift 2
    defines=
    for switch in "$@"; do defines="$defines -D$switch"; done
    rm -f pan pan.* "$model.pml.trail"
    # shellcheck disable=SC2086 # one argument per define
    spin -a $defines "$models/$model.pml" >spin.log
    # SAFETY: does not search for cycles, because all runs terminate. COLLAPSE: lossless compression of states.
    # A counterexample is found almost immediately, so compiling takes longer than the search.
    level=-O2
    [ "$verdict" = holds ] || level=-O0
    cc "$level" -w -DSAFETY -DCOLLAPSE -DVECTORSZ=1024 -o pan pan.c
    status=0
    timeout 120 ./pan -m200000 -w22 >pan.log || status=$?
    states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
    why=$(sed -n 's/^pan:1: \(.*\) (at depth .*/\1/p' pan.log)
    # A search that was cut short proves nothing, neither that the model holds nor that it breaks.
    if [ "$status" -ne 0 ] || grep -q 'Search not completed\|max search depth' pan.log; then
        [ -n "$why" ] || why='the search did not end'
    fi
    case "$verdict:$why" in
        holds: | breaks:assertion* | breaks:invalid*)
            passed=$((passed + 1)) result=ok ;;
        *)
            failed=$((failed + 1)) result=FAILED ;;
    esac
    printf '%-6s %-8s %-6s %-40s %9s states%s\n' "$result" "$model" "$verdict" "$*" "$states" \
        "${why:+, $why}"
    if [ "$result" = FAILED ]; then
        echo "       to see the run: cd $PWD && ./pan -r -n $model.pml.trail, or spin -t -p"
    fi
}

check holds doorbell
check holds doorbell SEND0=6 SEND1=0
check holds doorbell SIZE=3 FRAME=2 SEND0=6 SEND1=2
check holds doorbell LOOK SEND0=4 SEND1=1
for switch in NOFENCE_ARM NOFENCE_HEAD NOFENCE_WANTS NOFENCE_TAIL NORECHECK_ARM NORECHECK_WANTS \
    NORELEASE LATE_CLEAR NOREARM KEEP_CREDIT NOWAKE; do
    check breaks doorbell "$switch"
done
check breaks doorbell SIZE=3 FRAME=2 SEND0=6 SEND1=2 GREEDY
check breaks doorbell LOOK SEND0=4 SEND1=0 NOWAKE

check holds agree CALLERS=1 FAULTS=2
check holds agree EXTENSIONS=0
for switch in EAGER CALLEE_TIMER_TCP CALLER_TIMER_TCP NOTIMER NOWATCH LATE_CONNECT NACK_TWICE \
    ONE_SIDED REACH=SHM REACH=TCP; do
    check breaks agree CALLERS=1 "$switch"
done
check breaks agree EXTENSIONS=0 NOARBITER

check holds flush
check holds flush FRAMES=6 RING=3 ROOM=2
for switch in ASKED_ONCE NOTIMER CLOBBER STAY NOWAKE DEAF PASS NOCLOSE; do
    check breaks flush "$switch"
done

check holds session CONNECTIONS=3 CUTS=1
check holds session SILENT=0 BYTES=1 CUTS=1
check holds session CONNECTIONS=3 CUTS=0 CRASHES=1
check holds session CONNECTIONS=3 SILENT=0 BYTES=1 CUTS=1 CRASHES=1
for switch in NO_FREEZE EARLY NO_NUMBER KEEPS_LESS; do
    check breaks session "$switch"
done

check holds strands
check holds strands BYTES=2 RING=1 CUTS=2
check holds strands USES=3 BYTES=2 CUTS=2
for switch in NO_BACK NO_AGAIN NO_ROOM NO_TWICE; do
    check breaks strands "$switch"
done

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
