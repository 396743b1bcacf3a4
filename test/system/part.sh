# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by tests that are shell functions. They print the totals that part() counts.
# shellcheck disable=SC2034  # printed by the scripts that source this file
passed=0 failed=0

# Runs one test, and shows its output if it fails. Must not be called in a condition, because bash ignores `set -e' there.
part() { # NAME COMMAND...
    local name=$1 log began=$SECONDS status
    shift
    log=$(mktemp)
    # This must not be a condition, because bash would then continue after a command that fails.
    (set -e && "$@") >"$log" 2>&1
    status=$?
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok   $name ($((SECONDS - began)) s)"
    else
        failed=$((failed + 1))
        echo "FAIL $name ($((SECONDS - began)) s):"
        tail -n 25 "$log" | sed 's/^/     | /'
    fi
    rm -f "$log"
}
