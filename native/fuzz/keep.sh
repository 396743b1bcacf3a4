#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes what a fuzz run found out part of the repository: its counts (../bench/results/fuzz.json) and, for each target, the fewest
# and smallest inputs that reach as much as all inputs of the run, as fuzz/corpus/TARGET.tar.gz. Named inputs stay.
# usage: fuzz/keep.sh TARGET...       (in native/ or rdpipe/, after fuzz/run.sh)
set -eu

out=build/fuzz
most_bytes=49152 # of unnamed inputs, for one target
# The counts are of the tree as it was fuzzed, before its inputs change.
BEAMWAY_BENCH_COMMIT=$(../scripts/figures commit)
export BEAMWAY_BENCH_COMMIT

# The same inputs make the same archive.
pack() { # FOLDER ARCHIVE
    (cd "$1" && tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=644 -cf - -- *) | gzip -9n >"$2"
}

for target in "$@"; do
    corpus=fuzz/corpus/$target
    kept=$out/kept/$target
    rm -rf "$kept"
    mkdir -p "$kept/all" "$kept/reached" "$out/corpus/$target"
    # The named ones come first: what they reach needs no other input.
    cp "$corpus"/* "$kept/all/"
    "$out/$target" -merge=1 -max_len=1024 -close_fd_mask=1 "$kept/all" "build/reached/$target" "$out/corpus/$target" >"$out/$target-merge.log" 2>&1
    bytes=0
    # The smallest first: they reach the most for their bytes.
    find "$kept/all" -type f -printf '%s %f\n' | sort -n | while read -r size name; do
        [ -e "$corpus/$name" ] && continue
        bytes=$((bytes + size))
        [ "$bytes" -le "$most_bytes" ] || break
        mv "$kept/all/$name" "$kept/reached/$(printf %.12s "${name#reached-}")"
    done
    if rmdir "$kept/reached" 2>/dev/null; then
        rm -f "$corpus.tar.gz"
        echo "$target: named inputs alone reach as much"
        continue
    fi
    pack "$kept/reached" "$corpus.tar.gz"
    echo "$target: $(find "$corpus" -type f | wc -l) named inputs, $(find "$kept/reached" -type f | wc -l) in $corpus.tar.gz, $(wc -c <"$corpus.tar.gz") bytes"
done
# A stored result is one run of all targets (FUZZ_ALL), each for the same time.
here=$(basename "$PWD") minutes=$(($(sed -n 's/.*"seconds_each": \([0-9]*\).*/\1/p' "$out/results.json") / 60))
if [ "$(sed -n 's/.*"target": "\([^"]*\)".*/\1/p' "$out/results.json" | tr '\n' ' ')" = "$FUZZ_ALL " ]; then
    ../scripts/figures store "fuzz$([ "$here" = native ] || echo "-$here")" "make -C $here fuzz fuzz-keep FUZZ_SECONDS=$((minutes * 60))" <"$out/results.json"
else
    echo "the counts are not stored: the last run was not one of all targets ($FUZZ_ALL)"
fi
