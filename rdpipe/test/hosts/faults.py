# SPDX-License-Identifier: Apache-2.0
"""Tests with killed processes, network failures and full disks: nothing must be left behind, and the fault must be reported."""
import contextlib
import fcntl
import json
import os
import random
import shlex
import signal
import subprocess
import termios
import time

from cases import expect, gives
from hosts import Failure, SLOWNESS, SOON, wait_for

KILLS = int(os.environ.get("PIPE_KILLS", "16"))
CUTS = int(os.environ.get("PIPE_CUTS", "18"))
STREAM = "rdpipe host1:yes host2:cat host3:'cat >/dev/null'"


def seed_of(hosts):
    seed = int(os.environ.get("PIPE_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
    hosts.seed = seed
    return random.Random(seed)


def all_processes(hosts):
    return {pid: (name, words) for name in hosts.names for pid, words in hosts.processes(name).items()}


def is_running(hosts):
    return any(words[:1] == ["yes"] for _, words in all_processes(hosts).values())


def allowed_statuses(pid, words, main):
    """Returns the exit statuses that rdpipe may have after this process was killed."""
    if pid == main:
        return {-signal.SIGKILL}
    if [os.path.basename(word) for word in words[:2]] == ["sh", "ssh"]:
        return {125}  # the tests' ssh script before it has executed ssh
    if os.path.basename(words[0]) in ("yes", "cat", "sh"):
        return {137, 143}  # the other processes of a killed shell get SIGTERM, and may exit first
    # A child that has not yet executed its command looks like its agent.
    return {125, 137} if "--agent" in words else {125}


def each_process_killed(hosts):
    dice = seed_of(hosts)
    seen = set()
    for i in range(KILLS):
        process = hosts.start("local", STREAM)
        if i % 3 == 0:  # at a random time, possibly during setup
            time.sleep(dice.uniform(0, 1) * SLOWNESS)
        else:
            wait_for("the stream runs", lambda: is_running(hosts))
        victims = all_processes(hosts)
        if not victims or process.poll() is not None:
            raise Failure(f"kill {i}: the pipe has ended before: {hosts.end(process)}")
        # Each kind of process is chosen equally often, however many processes of that kind there are.
        kinds = {}
        for pid, (name, words) in victims.items():
            kinds.setdefault((name, os.path.basename(words[0]), pid == process.pid), []).append(pid)
        fresh = [kind for kind in kinds if kind not in seen] or list(kinds)
        kind = dice.choice(sorted(fresh))
        seen.add(kind)
        pid = dice.choice(kinds[kind])
        allowed = allowed_statuses(pid, victims[pid][1], process.pid)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            allowed = None
        if allowed is None:
            process.terminate()
        try:
            status, _, err = hosts.end(process)
        except Failure as failure:
            raise Failure(f"kill {i} (seed {hosts.seed}) of {victims[pid]}: {failure}; left: {hosts.leftovers()}") from None
        expect(allowed is None or status in allowed or (status == -9 and pid == process.pid),
               f"kill {i} (seed {hosts.seed}): {victims[pid]}: status {status}, expected one of {allowed}: {err}")
        expect(status != 125 or err.strip(), f"kill {i}: nothing said of {victims[pid]}")
        try:
            hosts.check_nothing_is_left()
        except Failure as failure:
            raise Failure(f"kill {i} (seed {hosts.seed}) of {victims[pid]}: {failure}") from None


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def a_guard_is_killed(hosts):
    """If a guard is killed, its parent kills the commands and removes the directory of the shared connection to host1 instead."""
    for where, name in (("local", "rdpipe-guard"), ("host1", "rdpipe-guard"), ("host1", "rdpipe-guard-2")):
        process = hosts.start("local", "rdpipe host1:yes host2:cat host1:'cat >/dev/null'")
        wait_for("the stream runs", lambda: is_running(hosts))
        guards = [pid for pid in hosts.processes(where) if name_of(pid) == name]
        expect(guards, f"no {name} on {where}")
        os.kill(guards[0], signal.SIGKILL)
        status, _, err = hosts.end(process)
        expect(status == 125 and "guard" in err, f"{name} on {where}: status {status}: {err}")
        hosts.check_nothing_is_left()


def a_cut_stream_never_looks_whole(hosts):
    """A command only sees the end of its input if the stream is complete, and not if its agent, its guard or both are killed."""
    path = os.path.join(hosts.folder, "whole")
    for i in range(CUTS):
        process = hosts.start("local", f"rdpipe host1:yes host2:'cat >{path}.part && mv {path}.part {path}'")
        wait_for("the stream runs", lambda: os.path.exists(f"{path}.part") and os.path.getsize(f"{path}.part") > 0)
        names = {pid: name_of(pid) for pid, words in hosts.processes("host2").items() if os.path.basename(words[0]) == "rdpipe"}
        agents, guards = ([pid for pid, name in names.items() if name == wanted] for wanted in ("rdpipe", "rdpipe-guard"))
        expect(len(agents) == len(guards) == 1, f"on host2: {names}")
        victims = [agents, agents + guards, guards + agents][i % 3]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):  # if an agent or a guard is killed, the other one exits by itself
                os.kill(pid, signal.SIGKILL)
        status, _, err = hosts.end(process)
        expect(status == 125, f"cut {i}: status {status}: {err}")
        wait_for("host2 is quiet", lambda: not hosts.processes("host2"))
        expect(not os.path.exists(path), f"cut {i} of {CUTS}, killed {[names[pid] for pid in victims]}: what came looks whole")
        os.unlink(f"{path}.part")


def signals_are_passed_on(hosts):
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        marks = os.path.join(hosts.folder, f"marks{sig}")
        command = f"trap \"echo got >>{marks}; exit 1\" {sig.name[3:]}; echo up >>{marks}; while :; do sleep 0.1; done"
        process = hosts.start("local", f"rdpipe --json host1:'{command}' host2:cat")

        def has(word, path=marks):
            return os.path.exists(path) and word in open(path, encoding="utf-8").read().split()

        wait_for("the command runs", lambda: has("up"))
        if sig == signal.SIGTERM:
            process.send_signal(sig)
        else:  # to the whole group, as a terminal does
            os.killpg(process.pid, sig)
        status, _, err = hosts.end(process)
        expect(status == -sig, f"{sig.name}: status {status}: {err}")
        expect(has("got"), f"{sig.name} did not reach the command")
        expect(json.loads(err.splitlines()[-1])["status"] == 128 + sig, err)
        hosts.check_nothing_is_left()


def what_was_ignored_stays_so(hosts):
    """Signals that were ignored when rdpipe was started, as with nohup or & in a script, are still ignored."""
    process = hosts.start("local", "trap '' HUP INT; exec rdpipe host1:'echo up; cat'", stdin=subprocess.PIPE)
    expect(process.stdout.readline() == b"up\n", "it did not start")
    for sig in (signal.SIGHUP, signal.SIGINT):
        os.killpg(process.pid, sig)
    status, out, err = hosts.end(process, b"end\n")
    expect(status == 0 and out == b"end\n", f"status {status}: {out!r} {err}")


def children_are_waited_for(hosts):
    """Exit statuses are reported even if the parent of rdpipe ignores SIGCHLD, which makes the kernel discard them by default."""
    program = "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execvp('rdpipe', ['rdpipe', ':exit 3', 'host1:cat'])"
    status, _, err = hosts.call(f"exec python3 -c {shlex.quote(program)}")
    expect(status == 3 and "this host: 'exit 3' ended with status 3" in err, f"status {status}: {err}")


def a_command_may_clean_up(hosts):
    """After a signal a command has several seconds to clean up, for example to remove the file of a dump."""
    mark = os.path.join(hosts.folder, "cleaned")
    command = f"trap \"sleep 5; echo cleaned >{mark}; exit 3\" INT; echo up; while :; do sleep 0.1; done"
    process = hosts.start("local", f"rdpipe host1:'{command}' host2:cat")
    expect(process.stdout.readline() == b"up\n", "it did not start")
    process.send_signal(signal.SIGINT)
    status, _, err = hosts.end(process)
    expect(status == -signal.SIGINT, f"status {status}: {err}")
    expect(os.path.exists(mark), "the command was killed while it cleaned up")


def what_ignores_signals_is_killed(hosts):
    for signals in (1, 2):
        process = hosts.start("local", "rdpipe host1:'trap \"\" INT TERM; echo up; while :; do sleep 1; done' host2:cat")
        expect(process.stdout.readline() == b"up\n", "it did not start")
        began = time.monotonic()
        for _ in range(signals):  # a second signal terminates everything immediately
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        status, _, err = hosts.end(process)
        took = time.monotonic() - began
        expect(status == -signal.SIGINT, f"status {status}: {err}")
        expect((took < 9) == (signals == 2), f"{signals} signals: {took:.1f} s")
        hosts.check_nothing_is_left()


def a_stopped_command_is_waited_for(hosts):
    gives(hosts, "rdpipe host1:'echo a; (sleep 0.5; kill -CONT $$) & kill -STOP $$; echo b' host2:cat </dev/null", b"a\nb\n")


def no_secret_on_a_command_line(hosts):
    process = hosts.start("local", STREAM)
    wait_for("the stream runs", lambda: is_running(hosts))
    told = [words for _, words in all_processes(hosts).values()]
    environments = b"".join(open(f"/proc/{pid}/environ", "rb").read() for pid in all_processes(hosts) if os.path.exists(f"/proc/{pid}"))
    process.terminate()
    hosts.end(process)
    for words in told:
        for word in words:
            digits = max((len(part) for part in "".join(c if c in "0123456789abcdef" else " " for c in word).split()), default=0)
            expect(digits < 32, f"looks like a key: {word}")
    expect(b"RDPIPE_KEY" not in environments, "a key in an environment")


SCANNER = """
import socket, sys, time, os
end = time.monotonic() + 120
while time.monotonic() < end:
    for port in range(7100, 7104):
        try:
            with socket.create_connection((sys.argv[1], port), 0.2) as s:
                s.sendall(os.urandom(300) if port % 2 else b"rdpipe\\r\\n" + os.urandom(80))
        except OSError:
            pass
    time.sleep(0.002)
"""


def a_port_scan_with_garbage(hosts):
    scanner = subprocess.Popen(["ip", "netns", "exec", hosts.space("local"), "python3", "-c", SCANNER, hosts.address("host2")])
    try:
        for _ in range(4):
            gives(hosts, "echo x | rdpipe --port 7100-7103 host1:cat host2:cat", b"x\n")
    finally:
        scanner.kill()
        scanner.wait()


def no_room_where_it_goes(hosts):
    for words, status, text in [("host1:yes host2:'>/dev/full'", 125, "rdpipe: host2: writing /dev/full: No space left"),
                                ("host1:yes >/dev/full", 125, "rdpipe: this host: writing the output: No space left"), ("host1:yes host2:'cat >/dev/full'", 1, "No space left")]:
        got, _, err = hosts.call(f"rdpipe {words}")
        expect(got == status and text in err, f"{words}: status {got}: {err}")


def a_small_disk(hosts):
    disk = os.path.join(hosts.folder, "disk")
    os.makedirs(disk, exist_ok=True)
    # Only this command sees the mount, which disappears when the command ends.
    command = f"mount --make-rprivate / && mount -t tmpfs -o size=4m tmpfs {disk} && rdpipe host1:\"head -c 9000000 /dev/zero\" :\">{disk}/file\""
    status, _, err = hosts.call(f"unshare -m bash -c '{command}'")
    expect(status == 125 and "No space left" in err, f"status {status}: {err}")


RECEIVERS = "rdpipe --tee host1:'head -c {size} /dev/zero' host2:'cat' host3:'cat >/dev/null'"


def output_of_receivers_is_not_lost(hosts):
    """A full disk is a fault, a reader that exits causes a broken pipe, and a slow reader gets everything."""
    status, _, err = hosts.call(f"{RECEIVERS.format(size=3_000_000)} >/dev/full")
    expect(status == 125 and "this host: writing the output: No space left" in err, f"status {status}: {err}")
    disk = os.path.join(hosts.folder, "small")
    os.makedirs(disk, exist_ok=True)
    command = f"mount --make-rprivate / && mount -t tmpfs -o size=1m tmpfs {disk} && {RECEIVERS.format(size=3_000_000)} >{disk}/file"
    status, _, err = hosts.call(f"unshare -m bash -c {shlex.quote(command)}")
    expect(status == 125 and "No space left" in err, f"status {status}: {err}")
    status, out, err = hosts.call(f"{RECEIVERS.format(size=5_000_000)} | head -c 10")
    expect(status == 141 and len(out) == 10, f"status {status}: {out!r} {err}")
    # No other process reads the output, because the command that prints it is also the one that exits.
    status, out, err = hosts.call("rdpipe --tee host1:'echo x' host2:'cat; yes' | head -n 2")
    expect(status == 141 and out == b"x\ny\n", f"status {status}: {out!r} {err}")


def a_reader_that_does_not_block_gets_all(hosts):
    """The parent has made the output non-blocking, and its reader starts late."""
    program = """
import fcntl, os, subprocess, sys, termios, time
r, w = os.pipe()
fcntl.fcntl(w, fcntl.F_SETFL, os.O_NONBLOCK | os.O_WRONLY)
p = subprocess.Popen(sys.argv[1], shell=True, stdout=w)
os.close(w)
while p.poll() is None and int.from_bytes(fcntl.ioctl(r, termios.FIONREAD, b"0000"), "little") < 60000:
    time.sleep(0.05)
time.sleep(0.5)
print(sum(iter(lambda: len(os.read(r, 65536)), 0)), p.wait())
"""
    for command in (RECEIVERS.format(size=3_000_000), "rdpipe host1:'head -c 3000000 /dev/zero' </dev/null"):
        status, out, err = hosts.call(f"python3 -c {shlex.quote(program)} {shlex.quote(command)}")
        expect(status == 0 and out == b"3000000 0\n", f"{command}: status {status}: {out!r} {err}")


def a_paused_reader_stalls_nothing(hosts):
    """While the output is full, the pipeline still handles signals and reads the agents' answers."""
    process = hosts.start("local", "exec " + RECEIVERS.format(size=2_000_000_000))
    wait_for("the output is full", lambda: is_stuck(hosts, process), 60 * SLOWNESS)
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(timeout=SOON)
    except subprocess.TimeoutExpired:
        hosts.end(process)
        raise Failure("a signal was not seen while the output is full") from None
    hosts.end(process)
    expect(status == -signal.SIGTERM, f"status {status}")


def is_stuck(hosts, process):
    """Returns whether the pipe from the process is full and remains so."""
    def lies_there():
        return int.from_bytes(fcntl.ioctl(process.stdout, termios.FIONREAD, b"\0" * 4), "little")

    before = lies_there()
    time.sleep(0.3)
    return before > 60_000 and lies_there() == before


def a_reader_that_pauses_for_long(hosts):
    process = hosts.start("local", "exec rdpipe --tee host1:'head -c 20000000 /dev/zero' host2:'cat' host1:'cat >/dev/null'")
    wait_for("the output is full", lambda: is_stuck(hosts, process), 60 * SLOWNESS)
    time.sleep(13)  # longer than an agent waits for its rdpipe
    status, out, err = hosts.end(process)
    expect(status == 0 and len(out) == 20_000_000, f"status {status}, {len(out)} bytes: {err}")


def limits_of_the_shell(hosts):
    path = os.path.join(hosts.folder, "limited")
    status, _, err = hosts.call(f"ulimit -f 1000; rdpipe host1:'head -c 5000000 /dev/zero' :'>{path}'")
    expect(status == 125 and "File too large" in err, f"ulimit -f: status {status}: {err}")
    expect(os.path.getsize(path) == 1000 * 1024, f"{os.path.getsize(path)} bytes")
    gives(hosts, "ulimit -f 1000; ulimit -l 64; rdpipe host1:'seq 100000' :cat host2:'wc -c' </dev/null", b"588895\n")
    gives(hosts, "ulimit -n 40; echo x | rdpipe host1:cat :cat", b"x\n")


def a_network_that_comes_back(hosts):
    process = hosts.start("local", "rdpipe host1:'head -c 30000000 /dev/zero; sleep 1; head -c 30000000 /dev/zero' host2:'wc -c' </dev/null")
    # Each head runs only briefly.
    wait_for("the stream runs", lambda: any(words[0] in ("head", "sleep") for words in hosts.processes("host1").values()))
    hosts.link("host2", "down")
    time.sleep(3)  # how long the host is down
    hosts.link("host2", "up")
    status, out, err = hosts.end(process, seconds=100 * SLOWNESS)
    expect(status == 0 and out == b"60000000\n", f"status {status}: {out!r} {err}")


def a_host_that_is_gone(hosts):
    process = hosts.start("local", "rdpipe host1:yes host2:'cat >/dev/null'")
    wait_for("the stream runs", lambda: is_running(hosts))
    hosts.link("host2", "down")
    began = time.monotonic()
    status, _, err = hosts.end(process, seconds=100 * SLOWNESS)
    lasted = time.monotonic() - began
    expect(status == 125 and err.strip(), f"status {status}: {err}")
    expect(lasted < 55 * SLOWNESS, f"said only after {lasted:.0f} s")
    # The processes there also notice, so that none of them waits forever.
    wait_for("host2 is quiet", lambda: not hosts.processes("host2"), 60 * SLOWNESS)
    hosts.link("host2", "up")


def the_other_side_of_a_fifo(hosts):
    """The other end of a FIFO may be opened late, or never."""
    fifo, started = (os.path.join(hosts.folder, name) for name in ("a_fifo", "started"))
    os.mkfifo(fifo)
    gives(hosts, f"echo hello | rdpipe host1:'>{fifo}' & cat {fifo}; wait $!", b"hello\n")
    gives(hosts, f"echo hello >{fifo} & rdpipe host1:'<{fifo}'", b"hello\n")
    for segments in (f"host2:'touch {started}; cat' host1:'>{fifo}'", f"host1:'<{fifo}' host2:'touch {started}; cat'"):
        process = hosts.start("local", f"exec rdpipe {segments}")
        wait_for("the pipeline runs", lambda: os.path.exists(started))
        process.terminate()
        status, _, err = hosts.end(process)
        expect(status == -signal.SIGTERM, f"{segments}: status {status}: {err}")
        hosts.check_nothing_is_left()
        os.unlink(started)
    # If the process that opens the FIFO fails, it is reported like a command.
    process = hosts.start("local", f"exec rdpipe host1:'<{fifo}' host2:cat")
    opens = wait_for("it is opened", lambda: [pid for pid, words in hosts.processes("host1").items() if words[:2] == ["sh", "-c"]])
    os.kill(opens[0], signal.SIGKILL)
    status, _, err = hosts.end(process)
    expect(status == 137 and f"host1: '{fifo}' ended with status 137" in err, f"status {status}: {err}")


CASES = [a_guard_is_killed, a_cut_stream_never_looks_whole, output_of_receivers_is_not_lost, a_reader_that_does_not_block_gets_all,
         a_paused_reader_stalls_nothing, signals_are_passed_on, what_was_ignored_stays_so, children_are_waited_for, a_command_may_clean_up, what_ignores_signals_is_killed, a_stopped_command_is_waited_for, the_other_side_of_a_fifo, no_secret_on_a_command_line,
         a_port_scan_with_garbage, no_room_where_it_goes, a_small_disk, limits_of_the_shell, each_process_killed]
LONG = [a_host_that_is_gone, a_network_that_comes_back, a_reader_that_pauses_for_long]
