#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs fuzz targets one at a time and records their counts. A finding (a crash or a hang) ends the run with exit status 1;
# its input is then in build/fuzz/found/. Inputs that reached new coverage stay in build/fuzz/corpus/.
# usage: fuzz/run.sh SECONDS TARGET...          (in native/ or rdpipe/; the targets must be built already)
# Writes build/fuzz/results.json; `make fuzz-keep` stores it in the repository, with the smallest inputs that reach the same coverage. It needs
# build/fuzz/began, which tells how busy the machine was before the run, and is written if the benchmarks are built.
set -eu

seconds=$1
shift
# libFuzzer takes 0 to mean no time limit.
case $seconds in '' | 0* | *[!0-9]*)
    echo "fuzz: $seconds seconds for each target: expected a whole number, at least 1" >&2
    exit 2
    ;;
esac
out=build/fuzz
mkdir -p "$out/found"
rm -f "$out/began"
here=$(basename "$PWD")
if [ -f ../bench/ebin/beamway_bench_figures.beam ]; then
    # --force, because a run whose counts nobody stores need not wait.
    ../scripts/figures begin --force "fuzz$([ "$here" = native ] || echo "-$here")" "make -C $here fuzz fuzz-keep FUZZ_SECONDS=$seconds" >"$out/began"
fi

number() { sed -n "s/^stat::$1: *//p" "$2" | tail -n 1; }

# The coverage that libFuzzer reports when it exits: `cov: 611 ft: 2507 corp: 120/11Kb` on its last lines.
reached() { sed -n "s/.* $1: \([0-9]*\).*/\1/p" "$2" | tail -n 1; }

rows=
for target in "$@"; do
    log=$out/$target.log
    echo "---- $target, $seconds s"
    mkdir -p "$out/corpus/$target" "build/reached/$target"
    # Time limit for one call: a call that a peer can keep from returning also counts as a finding.
    if ! "$out/$target" -max_total_time="$seconds" -timeout=20 -max_len=4096 -rss_limit_mb=1024 -use_value_profile=1 \
        -print_final_stats=1 -close_fd_mask=1 -artifact_prefix="$out/found/$target-" \
        "$out/corpus/$target" "fuzz/corpus/$target" "build/reached/$target" >"$log" 2>&1; then
        tail -n 40 "$log"
        echo "$target: FAILED, see $PWD/$log and $PWD/$out/found/"
        exit 1
    fi
    executions=$(number number_of_executed_units "$log")
    row=$(printf '{"target": "%s", "seconds": %s, "executions": %s, "edges": %s, "features": %s, "inputs": %s, "findings": 0}' \
        "$target" "$seconds" "$executions" "$(reached cov "$log")" "$(reached ft "$log")" "$(reached corp "$log")")
    echo "  $row"
    rows="$rows$row
"
done
cat >"$out/results.json.new" <<EOF
{"what": "libFuzzer with address and undefined-behaviour sanitizers, one target after the other",
 "seconds_each": $seconds,
 "compiler": "$("${FUZZ_CC:-clang}" --version | sed -n 1p)",
 "targets": [
$(printf '%s' "$rows" | sort | sed 's/^/  /; $!s/$/,/; $s/$/]}/')
EOF
mv "$out/results.json.new" "$out/results.json"
echo "fuzz: no finding in $# targets"
