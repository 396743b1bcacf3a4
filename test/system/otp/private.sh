# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced by otp_suites and tls_suites. Gives a run its own epmd and cookie file, and kills the processes that it leaves behind.

# All processes that a suite starts have this mark in their environment, so that only these are found and killed.
OTP_SUITES_MARK=$$-$(date +%s)
export OTP_SUITES_MARK
epmd_pid=

leftovers() {
    for process in /proc/[0-9]*; do
        # Only nodes are listed, because this script's own short-lived helpers also have the mark. A process may exit while it is checked.
        case $(cat "$process/comm" 2>/dev/null) in
            beam* | erl_child_setup | fwd_node | epmd) ;;
            *) continue ;;
        esac
        [ "${process#/proc/}" != "$epmd_pid" ] || continue
        tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qx "OTP_SUITES_MARK=$OTP_SUITES_MARK" &&
            printf '%s\n' "${process#/proc/}"
    done
    return 0
}

end_leftovers() {
    for pid in $(leftovers); do
        kill -9 "$pid" 2>/dev/null || true
    done
}

clean_up() {
    end_leftovers
    [ -z "$epmd_pid" ] || kill "$epmd_pid" 2>/dev/null || true
}
trap clean_up EXIT
trap 'exit 2' INT TERM HUP

# The cookie is in a file, as in OTP's own test runs, because some cases start nodes without -setcookie or with more than one.
start_private() { # FOLDER
    mkdir -p "$1/home"
    rm -f "$1/home/.erlang.cookie"
    printf 'otp_suites_%s' "$OTP_SUITES_MARK" >"$1/home/.erlang.cookie"
    chmod 400 "$1/home/.erlang.cookie"
    ERL_EPMD_PORT=$(erl -noinput -eval \
        '{ok, S} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]), {ok, P} = inet:port(S), io:format("~b", [P]), halt().')
    export ERL_EPMD_PORT
    epmd -port "$ERL_EPMD_PORT" >"$1/epmd.log" 2>&1 &
    epmd_pid=$!
}
