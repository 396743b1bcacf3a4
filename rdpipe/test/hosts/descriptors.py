# SPDX-License-Identifier: Apache-2.0
"""Tests with closed standard descriptors: rdpipe must not reuse their numbers, and must not lose output silently."""
import itertools
import os
import struct

from cases import expect
from hosts import SLOWNESS

KEY = "a key for two hosts, long enough"
CLOSED = ("<&-", ">&-", "2>&-")
COMBINATIONS = [chosen for n in (1, 2, 3) for chosen in itertools.combinations(CLOSED, n)]


def written(hosts, name, data):
    path = os.path.join(hosts.folder, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def bytes_of_a_stream_are_no_orders(hosts):
    """Bytes that look like a guard's command to remove a directory are treated as data, even if standard output is closed."""
    victim = os.path.join(hosts.folder, "victim")
    os.makedirs(victim, exist_ok=True)
    kept = written(hosts, "victim/kept", b"kept")
    payload = written(hosts, "payload", struct.pack("<ii", 2, 0) + victim.encode().ljust(256, b"\0"))
    for closed in COMBINATIONS:
        status, _, err = hosts.call(f"rdpipe host1:'cat {payload}' </dev/null {' '.join(closed)}")
        expect(os.path.exists(kept), f"{closed}: a payload has removed a directory, status {status}: {err}")
        wanted = 125 if ">&-" in closed else 0
        expect(status == wanted, f"{closed}: status {status}, expected {wanted}: {err}")


def closed_descriptors_of_rdpipe(hosts):
    """A closed input counts as empty. A closed output cannot be written, so any byte for it is a fault."""
    for options in ("", "--encrypt", "--carrier tcp"):
        for closed in COMBINATIONS:
            status, out, err = hosts.call(f"rdpipe {options} host1:'cat; echo x' {' '.join(closed)}", b"data\n")
            wanted = 125 if ">&-" in closed else 0
            expect(status == wanted, f"rdpipe {options} {closed}: status {status}, expected {wanted}: {err}")
            expect(wanted == 0 or "2>&-" in closed or "Bad file descriptor" in err, f"{closed}: said: {err}")
            if wanted == 0:
                expect(out == (b"x\n" if "<&-" in closed else b"data\nx\n"), f"rdpipe {options} {closed}: {out!r}")
    # If rdpipe itself writes nothing, a closed output does not matter.
    path = os.path.join(hosts.folder, "of_closed_descriptors")
    for closed in COMBINATIONS:
        status, _, err = hosts.call(f"rdpipe :'echo x' host1:'>{path}' {' '.join(closed)}")
        expect(status == 0 and open(path, "rb").read() == b"x\n", f"into a file, {closed}: status {status}: {err}")
        status, _, err = hosts.call(f"rdpipe --tee host1:'echo x' host1:'cat >{path}' :'cat >/dev/null' {' '.join(closed)}")
        expect(status == 0 and open(path, "rb").read() == b"x\n", f"to receivers, {closed}: status {status}: {err}")


def closed_descriptors_of_rdsend_and_rdrecv(hosts):
    for port, closed in enumerate(COMBINATIONS, 7200):
        for sender, receiver in ((closed, ()), ((), closed)):
            process = hosts.start("host2", f"rdrecv --wait 20 {port} {' '.join(receiver)}", RDPIPE_KEY=KEY)
            status, _, err = hosts.call(f"rdsend --wait 20 {hosts.address('host2')} {port} {' '.join(sender)}", b"data", name="host1",
                                        seconds=40 * SLOWNESS, RDPIPE_KEY=KEY)
            got, out, told = hosts.end(process, seconds=40 * SLOWNESS)
            wanted = 1 if ">&-" in receiver else 0
            expect(status == got == wanted, f"rdsend {sender}, rdrecv {receiver}: status {status} and {got}, expected {wanted}: {err} {told}")
            expect(wanted or out == (b"" if "<&-" in sender else b"data"), f"rdsend {sender}, rdrecv {receiver}: {out!r}")


def a_key_from_standard_input(hosts):
    """Standard input contains only the key, so the stream is empty. No connection gets the descriptor number of the input."""
    key = written(hosts, "key", KEY.encode())
    process = hosts.start("host2", f"rdrecv --wait 20 --key-fd 0 7300 <{key}")
    status, _, err = hosts.call(f"rdsend --wait 20 --key-fd 0 {hosts.address('host2')} 7300 <{key}", name="host1", seconds=40 * SLOWNESS)
    got, out, told = hosts.end(process, seconds=40 * SLOWNESS)
    expect(status == got == 0 and out == b"", f"status {status} and {got}: {out!r} {err} {told}")


def closed_descriptors_of_rdcp(hosts):
    source = written(hosts, "copied", os.urandom(300_000))
    for closed in COMBINATIONS:
        target = f"{source}.{len(os.listdir(hosts.folder))}"
        status, _, err = hosts.call(f"rdcp {source} host1:{target} {' '.join(closed)}")
        expect(status == 0, f"rdcp {closed}: status {status}: {err}")
        expect(open(target, "rb").read() == open(source, "rb").read(), f"rdcp {closed}: another file")
        os.unlink(target)


def what_is_shown_is_not_lost(hosts):
    """Failing to write the help text, the version or the plan is also an error."""
    for words in ("rdpipe --help", "rdpipe --version", "rdpipe -n host1:cat", "rdcp --help", "rdcp --plan x host1:y", "rdsend --help", "rdrecv --version"):
        for to in (">&-", ">/dev/full"):
            status, _, err = hosts.call(f"{words} {to}")
            expect(status not in (0, 2) and "standard output" in err, f"{words} {to}: status {status}: {err}")


CASES = [bytes_of_a_stream_are_no_orders, closed_descriptors_of_rdpipe, closed_descriptors_of_rdsend_and_rdrecv, a_key_from_standard_input,
         closed_descriptors_of_rdcp, what_is_shown_is_not_lost]
