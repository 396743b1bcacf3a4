#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stores the results of a fuzz run in the repository: its counts (../bench/results/fuzz.json) and, for each target, a minimal set
# of small inputs with the same coverage as all inputs of the run, as fuzz/corpus/TARGET.tar.gz. Named inputs are kept.
# usage: fuzz/keep.sh TARGET...       (in native/ or rdpipe/, after fuzz/run.sh; FORCE=1 also stores counts of a busy machine, and marks them as noisy)
set -eu

out=build/fuzz
most_bytes=49152 # limit on the unnamed inputs of one target

# The archive is reproducible: the same inputs give the same archive.
pack() { # FOLDER ARCHIVE
    (cd "$1" && tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=644 -cf - -- *) | gzip -9n >"$2"
}

for target in "$@"; do
    corpus=fuzz/corpus/$target
    kept=$out/kept/$target
    rm -rf "$kept"
    mkdir -p "$kept/all" "$kept/reached" "$out/corpus/$target"
    # Named inputs come first, because no other input is needed for the coverage that they reach.
    cp "$corpus"/* "$kept/all/"
    "$out/$target" -merge=1 -max_len=1024 -close_fd_mask=1 "$kept/all" "build/reached/$target" "$out/corpus/$target" >"$out/$target-merge.log" 2>&1
    bytes=0
    # Smallest inputs first, because they reach the most coverage per byte.
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
if [ ! -f "$out/began" ]; then
    echo "the counts are not stored: the benchmarks were not built before the run (make build-bench)"
elif [ "$(sed -n 's/.*"target": "\([^"]*\)".*/\1/p' "$out/results.json" | tr '\n' ' ')" = "$FUZZ_ALL " ]; then
    ../scripts/figures store ${FORCE:+--force} "$out/began" <"$out/results.json"
else
    echo "the counts are not stored: the last run was not one of all targets ($FUZZ_ALL)"
fi
