# SPDX-License-Identifier: Apache-2.0
"""Tests progress reports, resumed streams, buffers and other options for running streams."""
import hashlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import termios
import time

from cases import expect, gives
from hosts import SLOWNESS, SOON, run, wait_for

KEY = {"RDPIPE_KEY": "a key of the tests' own"}


def send_and_take(hosts, sender, receiver, data):
    """Sends data from host1 to host2. Returns the receiver's output and the messages of both sides."""
    path = os.path.join(hosts.folder, "taken")
    taking = hosts.start("host2", f"exec rdrecv --wait {int(SOON)} {receiver} 7001 >{path}", **KEY)
    status, _, said = hosts.call(f"rdsend --wait {int(SOON)} {sender} {hosts.address('host2')} 7001", data, "host1", **KEY)
    got, _, told = hosts.end(taking)
    with open(path, "rb") as file:
        out = file.read()
    expect((status, got) == (0, 0) and out == data, f"status {status} and {got}, {len(out)} of {len(data)} bytes: {said} {told}")
    return said, told


def a_rate_is_kept(hosts):
    data = os.urandom(1_500_000)
    for what in ("rdsend", "rdpipe"):
        began = time.monotonic()
        if what == "rdsend":
            send_and_take(hosts, "--rate 1M", "", data)
        else:
            digest = hashlib.sha256(data).hexdigest()
            status, out, err = hosts.call("rdpipe --rate 1M host1:cat host2:sha256sum", data)
            expect(status == 0 and out.decode().split()[0] == digest, f"status {status}: {err}")
        took = time.monotonic() - began
        expect(took > 1.2, f"{what}: {len(data)} bytes at 1 MiB a second took {took:.2f} s")
    # A slow stream keeps flowing, so its first bytes arrive long before its last.
    process = hosts.start("local", "head -c 20000 /dev/zero | exec rdpipe --rate 10K host1:cat")
    began = time.monotonic()
    expect(process.stdout.read(1) == b"\0", "no first byte")
    first = time.monotonic() - began
    status, _, err = hosts.end(process)
    expect(status == 0 and time.monotonic() - began - first > 0.7, f"status {status}, first byte after {first:.2f} s: {err}")


def lines_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def lines_of_json_while_it_runs(hosts):
    with open(os.path.join(hosts.folder, "paced"), "wb") as file:
        file.write(os.urandom(3_500_000))
    words = f"rdpipe --rate 1M --json --progress host1:'<{file.name}' host2:'>/dev/null'"
    status, _, err = hosts.call(words)
    told = lines_of(err)
    middle = [line for line in told if line["event"] == "progress"]
    expect(status == 0 and len(middle) >= 2 and [line["event"] for line in told[-1:]] == ["end"], f"status {status}: {err}")
    bytes_of = [line["bytes"] for line in middle]
    expect(bytes_of == sorted(bytes_of) and middle[-1]["size"] == 3_500_000, f"{middle}")
    expect(any(500_000 < line["average"] < 1_400_000 and line["left"] is not None for line in middle[1:]), f"{middle}")
    expect(all(line["hops"][0]["to"] == "host2" for line in middle), f"{middle}")
    # The bytes that the first command produces before it reads are still counted when it reads input later.
    process = hosts.start("local", f"exec rdpipe --json --progress host1:'cat {file.name}; cat' host2:'>/dev/null'", stdin=subprocess.PIPE)
    wait_for("all is shown", lambda: line_with(process, '"bytes": 3500000,'), 60 * SLOWNESS)
    process.stdin.write(b"x")
    process.stdin.flush()
    middle = [json.loads(process.stderr.readline()) for _ in range(5)]
    status, _, err = hosts.end(process)
    expect(status == 0 and all(one["seconds"] < other["seconds"] and one["bytes"] <= other["bytes"] for one, other in zip(middle, middle[1:])),
           f"status {status}: {middle} {err}")
    said, told = send_and_take(hosts, "--rate 1M --json --progress", "--json --progress", os.urandom(2_500_000))
    for text, name in ((said, "rdsend"), (told, "rdrecv")):
        lines = lines_of(text)
        expect([line["event"] for line in lines][-1] == "end" and lines[-1]["outcome"] == "done" and lines[-1]["bytes"] == 2_500_000, text)
        expect(any(line["event"] == "progress" and line["rate"] > 0 for line in lines) and lines[0]["command"] == name, text)


def lines_where_no_terminal_is(hosts):
    said, told = send_and_take(hosts, "--rate 1M --progress", "-q", os.urandom(2_500_000))
    expect("  average " in said and "rdsend: 2.500 MB in " in said and "\r" not in said, said)
    expect(told == "", told)
    said, told = send_and_take(hosts, "--rate 1M", "", os.urandom(1_500_000))
    expect(said == "" and told == "", f"{said} {told}")
    for words in ("rdpipe -q --progress :cat", "rdpipe --rate 5 :cat", "rdcp --rate lots a b"):
        status, _, err = hosts.call(words)
        expect(status == 2 and err, f"{words}: status {status}: {err}")


def quiet_on_a_terminal(hosts):
    path = os.path.join(hosts.folder, "quiet")
    with open(path, "wb") as file:
        file.truncate(15_000_000)
    status, lines = hosts.on_a_terminal(f"rdpipe -q host1:'<{path}' host2:'>/dev/null'")
    expect(status == 0 and "".join(lines) == "", f"status {status}: {lines}")


def a_terminal_that_is_stopped_stops_nothing(hosts):
    """Ctrl-S on the terminal stops the progress display but not the stream."""
    ours, theirs = pty.openpty()
    try:
        termios.tcflow(theirs, termios.TCOOFF)
        words = ["ip", "netns", "exec", hosts.space("local"), "rdpipe", "host1:sleep 2; echo through", "host2:cat"]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
                                   env=hosts.environment(), start_new_session=True)
        status, out, _ = ended(process)
        expect(status == 0 and out == b"through\n", f"status {status}: {out!r}")
    finally:
        os.close(ours)
        os.close(theirs)


def ended(process):
    try:
        out, _ = process.communicate(timeout=SOON + 10 * SLOWNESS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "none: it hangs", b"", ""
    return process.returncode, out, ""


def resumed(hosts, sender="--resume sent", receiver="--resume taken", redirect=">>copy"):
    """Starts both sides of a stream from the file `whole` to the file `copy` in a separate directory."""
    folder = os.path.join(hosts.folder, "resume")
    wait = f"--wait {int(SOON)} --carrier tcp"
    taking = hosts.start("host2", f"cd {folder} && exec rdrecv {wait} {receiver} 7002 {redirect}", **KEY)
    sending = hosts.start("host1", f"cd {folder} && exec rdsend {wait} {sender} {hosts.address('host2')} 7002 <whole", **KEY)
    return folder, sending, taking


def both(hosts, sending, taking):
    status, _, said = hosts.end(sending)
    got, _, told = hosts.end(taking)
    return status, got, said + told


def a_stream_that_goes_on(hosts):
    """Interrupts the stream at every tenth of its length by killing the sender or the receiver, and resumes it."""
    folder = os.path.join(hosts.folder, "resume")
    os.makedirs(folder)
    size = 12_000_000
    with open(f"{folder}/whole", "wb") as file:
        file.write(os.urandom(size))
    with open(f"{folder}/copy", "wb") as file:
        file.write(b"what stood there")
    for tenth in range(1, 10):
        _, sending, taking = resumed(hosts, "--resume sent --rate 8M")
        wait_for(f"{tenth} tenths", lambda part=tenth: os.path.getsize(f"{folder}/copy") > size * part // 10 or sending.poll() is not None or taking.poll() is not None)
        victim = (sending, taking)[tenth % 2]
        victim.send_signal(signal.SIGKILL)
        status, got, said = both(hosts, sending, taking)
        expect(sorted([status, got]) == [-signal.SIGKILL, 1], f"tenth {tenth}: status {status} and {got}: {said}")
        with open(f"{folder}/taken", encoding="utf-8") as file:
            noted = int(file.read().split()[4])
        there = os.path.getsize(f"{folder}/copy") - 16
        expect(noted <= there and (victim is taking or there - noted <= 262_144), f"tenth {tenth}: {noted} of {there} bytes are noted")
    _, sending, taking = resumed(hosts, "--resume sent --json")
    status, got, said = both(hosts, sending, taking)
    expect((status, got) == (0, 0), f"status {status} and {got}: {said}")
    run("cmp", "-i", "0:16", f"{folder}/whole", f"{folder}/copy")
    # Running the commands again finds nothing left to send.
    status, got, said = both(hosts, *resumed(hosts, "--resume sent -v", "--resume taken -v")[1:])
    expect((status, got) == (0, 0) and os.path.getsize(f"{folder}/copy") == size + 16 and said.count(": 0 B in ") == 2, f"status {status} and {got}: {said}")


def a_stream_that_cannot_go_on(hosts):
    folder = os.path.join(hosts.folder, "resume")
    before = os.path.getsize(f"{folder}/whole")
    for sender, receiver, text in (("--resume sent", "", "this receiver was not"), ("", "--resume taken", "the sender was not"),
                                   ("--resume another", "--resume taken", "belongs to another stream")):
        status, got, said = both(hosts, *resumed(hosts, sender, receiver)[1:])
        expect((status, got) == (1, 1) and text in said, f"{sender} {receiver}: {status} and {got}: {said}")
    with open(f"{folder}/whole", "ab") as file:
        file.write(b"more")
    for command, text in ((f"rdsend --resume sent {hosts.address('host2')} 7002 <whole", "has changed since"),
                          ("cat whole | rdsend --resume new host 7002", "seekable"), ("rdrecv --resume taken 7002 >copy", "because > truncates it"),
                          ("rdrecv --resume taken 7002 | cat", "an output that is a file"), ("rdrecv --resume whole 7002 >>copy", "not written by this version"),
                          ("rdrecv --resume taken 7002 >>whole", "to another file")):
        status, _, err = hosts.call(f"cd {folder} && {command}", name="host1", **KEY)
        expect(status == 2 and text in err, f"{command}: status {status}: {err}")
    expect(os.path.getsize(f"{folder}/whole") == before + 4, "the wrong file was cut")


def what_the_doctor_says(hosts):
    status, out, err = hosts.call("rdpipe doctor --json host1 host2")
    told = json.loads(out)
    checks = {check["name"]: check for check in told["checks"]}
    expect(status == 0 and told["failed"] == 0 and told["event"] == "doctor", f"status {status}: {out} {err}")
    expect(all(name in checks for name in ("libssl", "libzstd", "crc32c", "rdma", "shm", "kernel", "encryption", "kTLS", "tcp_wmem", "open files", "ports")), out)
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        has_aes = re.search(r"^(flags|Features)\s*:.*\baes\b", file.read(), re.MULTILINE)
    expect(("ChaCha20" in checks["encryption"]["text"]) == (not has_aes), out)
    expect(f"hops connect to {hosts.address('host2')}" in checks["host2"]["text"], out)
    for words, name, text in (("--remote-path /nowhere host1", "host1", "no 'rdpipe' there"), ("-o Port=1 host1", "host1", "ssh has failed"),
                              ("-- -bad", "-bad", "not a valid host"), ("''", "", "not a valid host"), ("host1:cat", "host1:cat", "not a valid host"),
                              ("'root@[::1]'", "root@[::1]", "ssh has failed"),
                              ("--port 22 host1", "ports", "in use")):
        status, out, err = hosts.call(f"rdpipe --json doctor {words}", name="host1" if "22" in words else "local")
        failed = {check["name"]: check["text"] for check in json.loads(out)["checks"] if check["state"] == "failed"}
        expect(status == 1 and text in failed.get(name, ""), f"{words}: status {status}: {out} {err}")
    status, out, err = hosts.call("ulimit -n 40; rdpipe doctor host1")
    expect(status == 1 and b"FAIL  open files" in out and b"ok    host1" in out, f"status {status}: {out} {err}")
    status, out, err = hosts.call("ulimit -n 256; rdpipe doctor")
    expect(status == 0 and b"note  open files   at most 256, so a hop has at most 32 streams" in out, f"status {status}: {out} {err}")
    hosts.check_nothing_is_left()


def a_buffer_before_the_output(hosts):
    """With a buffer, the producer finishes although nothing is read yet. Afterwards all of its data can be read."""
    data = os.urandom(30_000_000)
    path = os.path.join(hosts.folder, "buffered")
    with open(path, "wb") as file:
        file.write(data)
    digest = hashlib.sha256(data).hexdigest()
    reader = os.path.join(hosts.folder, "read-now")
    slow = f"{{ while [ ! -e {reader} ]; do sleep 0.1; done; sha256sum; }}"
    wait = f"--wait {int(SOON)}"
    taking = hosts.start("host2", f"rdrecv {wait} --buffer 64M 7003 | {slow}", **KEY)
    sending = hosts.start("host1", f"exec rdsend {wait} --json --progress {hosts.address('host2')} 7003 <{path}", **KEY)
    said = wait_for("all is sent", lambda: line_with(sending, '"bytes": 30000000'), 60 * SLOWNESS)
    expect(json.loads(said)["event"] == "progress", said)
    open(reader, "w", encoding="utf-8").close()
    got, out, told = hosts.end(taking)
    status, _, _ = hosts.end(sending)
    expect((status, got) == (0, 0) and out.decode().split()[0] == digest, f"status {status} and {got}: {out!r} {told}")
    # The same for a pipeline whose last segment is a command.
    os.unlink(reader)
    through = os.path.join(hosts.folder, "through")
    process = hosts.start("local", f"exec rdpipe --buffer 64M host1:'cat {path}; touch {through}' host2:{shlex.quote(slow)}")
    wait_for("all is read", lambda: os.path.exists(through), 60 * SLOWNESS)
    open(reader, "w", encoding="utf-8").close()
    status, out, err = hosts.end(process)
    expect(status == 0 and out.decode().split()[0] == digest, f"status {status}: {out!r} {err}")
    # The same with a file as the first segment, and with a buffer for each of several receivers.
    for options in ("--buffer 1M", "--buffer 2G --start 90", "--buffer 4M --start 100"):
        status, out, err = hosts.call(f"rdpipe {options} host1:'<{path}' [host2:sha256sum host3:sha256sum]")
        expect(status == 0 and out.decode() == f"{digest}  -\n" * 2, f"{options}: status {status}: {out!r} {err}")


def line_with(process, text):
    """Reads the next line on standard error, and returns it if it contains this text. A line is written once a second."""
    line = process.stderr.readline().decode()
    return line if text in line else None


def a_buffer_that_fills_before_it_flows(hosts):
    process = hosts.start("local", "exec rdpipe --buffer 8M --start 50 host1:cat", stdin=subprocess.PIPE)
    os.set_blocking(process.stdout.fileno(), False)
    process.stdin.write(b"x" * 3_000_000)
    process.stdin.flush()
    time.sleep(1.5 * SLOWNESS)  # nothing may arrive during this time
    expect(process.stdout.read() is None, "it flows before the level is reached")
    process.stdin.write(b"x" * 3_000_000)
    process.stdin.flush()
    got = wait_for("it flows", process.stdout.read)
    os.set_blocking(process.stdout.fileno(), True)
    status, out, err = hosts.end(process)
    expect(status == 0 and len(got) + len(out) == 6_000_000, f"status {status}, {len(got)} and {len(out)} bytes: {err}")
    gives(hosts, "rdpipe --buffer 8M --start 100 host1:cat", b"little\n", b"little\n")


def what_is_left_of_a_buffer(hosts):
    """If the output fails or its reader exits while buffered data remains after the end of the stream, this is still reported."""
    for command, status, text in (("rdpipe --buffer 64M host1:'head -c 6000000 /dev/zero' :'>/dev/full'", 125, "No space left"),
                                  (f"rdpipe --buffer 64M host1:'head -c 6000000 /dev/zero' :'>{hosts.disk}/buffered'", 125, "No space left"),
                                  ("rdpipe --buffer 64M host1:'head -c 6000000 /dev/zero' </dev/null | head -c 10 >/dev/null", 141, ""),
                                  ("rdpipe --start 5 :cat", 2, "needs --buffer"), ("rdpipe --buffer 5 :cat", 2, "expected 1M"),
                                  ("rdrecv --buffer 1M --resume f 7000", 2, "on the disk")):
        got, _, err = hosts.call(command)
        expect(got == status and text in err, f"{command}: status {got}: {err}")
    process = hosts.start("local", "exec rdpipe --buffer 64M host1:yes host2:'sleep 3600'")
    wait_for("it runs", lambda: any("sleep" in words[0] for words in hosts.processes("host2").values()))
    process.terminate()
    status, _, err = hosts.end(process)
    expect(status == -signal.SIGTERM, f"status {status}: {err}")
    run("rm", "-f", f"{hosts.disk}/buffered")


def a_slow_receiver_is_dropped(hosts):
    """A receiver that reads nothing is killed without seeing the end of its input, and the others get everything."""
    data = os.urandom(30_000_000)
    path = os.path.join(hosts.folder, "for-all")
    with open(path, "wb") as file:
        file.write(data)
    digest = hashlib.sha256(data).hexdigest()
    ended_well = os.path.join(hosts.folder, "ended-well")
    stopped = f"kill -STOP $$; cat >/dev/null && touch {ended_well}"
    deaf = f"trap '' TERM; sleep 4; cat >/dev/null && touch {ended_well}"
    for slow, options, order in ((stopped, "", 1), (deaf, "", -1), (stopped, "--buffer 2M", -1), (stopped, "--buffer 64M", 1)):
        brackets = " ".join(shlex.quote(word) for word in [f"host2:{slow}", "host3:sha256sum"][::order])
        status, out, err = hosts.call(f"rdpipe --drop-slow 1 {options} host1:'<{path}' [ {brackets} ]")
        expect(out.decode() == f"{digest}  -\n" and status in (143, 137), f"{slow} {order}: status {status}: {out!r} {err}")
        expect("host2: dropped, because it read nothing for 1 s" in err and not os.path.exists(ended_well), f"{slow} {order}: {err}")
        hosts.check_nothing_is_left()
    # A slow receiver is not dropped as long as it reads something.
    steady = "for i in 1 2 3 4 5 6; do sleep 0.5; head -c 1000000 >/dev/null; done; cat >/dev/null"
    status, out, err = hosts.call(f"rdpipe --drop-slow 3 host1:'<{path}' [host2:{shlex.quote(steady)} host3:sha256sum]")
    expect(status == 0 and out.decode() == f"{digest}  -\n", f"status {status}: {out!r} {err}")
    status, _, err = hosts.call("rdpipe --drop-slow 3 :cat")
    expect(status == 2 and "in brackets" in err, f"status {status}: {err}")


CASES = [a_rate_is_kept, lines_of_json_while_it_runs, lines_where_no_terminal_is, quiet_on_a_terminal, a_terminal_that_is_stopped_stops_nothing,
         a_stream_that_goes_on, a_stream_that_cannot_go_on,
         what_the_doctor_says, a_buffer_before_the_output, a_buffer_that_fills_before_it_flows, what_is_left_of_a_buffer,
         a_slow_receiver_is_dropped]
