# SPDX-License-Identifier: Apache-2.0
"""What a pipe does when all goes well, and how its commands' ends are told."""
import hashlib
import json
import os
import re
import shlex
import subprocess

from hosts import Failure, SLOWNESS, run, wait_for


def expect(is_so, text):
    if not is_so:
        raise Failure(text)


def gives(hosts, command, output, data=b"", status=0, **more):
    got, out, err = hosts.call(command, data, **more)
    expect(got == status and out == output,
           f"{command}\n    status {got} (expected {status}), output {out[:200]!r} (expected {output[:200]!r}), said: {err[-600:]}")
    return err


# ---- the seed's examples

def olleh(hosts):
    gives(hosts, "echo hello | rdpipe host1:'tr [:lower:] [:upper:]' host2:'rev'", b"OLLEH\n")


def bandwidth_of_a_file(hosts):
    with open(os.path.join(hosts.folder, "zeroes"), "wb") as file:
        file.truncate(300_000_000)
    err = gives(hosts, f"rdpipe -v host1:'<{hosts.folder}/zeroes' host2:'>/dev/null'", b"")
    expect(re.search(r"^Bandwidth [0-9.]+ [kMGT]?B/s$", err, re.M), f"no bandwidth in: {err}")
    expect("host1 to host2: tcp" in err, f"not over tcp: {err}")


def local_input_into_a_remote_command(hosts):
    data = os.urandom(3_000_000)
    gives(hosts, "cat | rdpipe host1:'sha256sum'", (hashlib.sha256(data).hexdigest() + "  -\n").encode(), data)


def users_on_both_ends(hosts):
    gives(hosts, "rdpipe root@host1:'id -un; echo $SSH_CONNECTION | cut -d\" \" -f3' root@host2:'cat; id -un' </dev/null",
          f"root\n{hosts.address('host1')}\nroot\n".encode())


def tar_stands_in_for_zfs(hosts):
    source, target = (os.path.join(hosts.folder, name) for name in ("source", "target"))
    os.makedirs(os.path.join(source, "media/deep"))
    os.mkdir(target)
    for name in ("media/one", "media/deep/two"):
        with open(os.path.join(source, name), "wb") as file:
            file.write(os.urandom(500_000))
    gives(hosts, f"rdpipe root@host1:'tar -C {source} -cf - media' host2:'tar -C {target} -xf -'", b"")
    run("diff", "-r", source, target)


def plans_of_what_cannot_run_here(hosts):
    for words in ("backup@fileserver:'zfs send -I tank/media@last_backup tank/media@head' backup_server:'zfs recv tank-backup/media'",
                  "playback_host:'ffplay -f rawvideo -pix_fmt yuv420p -s 720x480 -'"):
        status, out, err = hosts.call(f"rdpipe -n {words}")
        parts = [part for word in shlex.split(words) for part in word.split(":", 1)]
        expect(status == 0 and all(part in out.decode() for part in parts),
               f"plan of {words}: status {status}: {out.decode()} {err}")


def raw_pictures_through_a_pipe(hosts):
    frames = os.urandom(720 * 480 * 3 // 2 * 8)  # yuv420p
    gives(hosts, "rdpipe host1:'wc -c'", f"{len(frames)}\n".encode(), frames)


# ---- more than the seed

def files_at_both_ends(hosts):
    path = os.path.join(hosts.folder, "file with 'quote")
    word = path.replace(" ", "\\ ").replace("'", "\\'")
    command = 'rdpipe host1:"%s"' % (">" + word).replace("\\", "\\\\")
    gives(hosts, command, b"", b"one\n")
    gives(hosts, command.replace(">", ">>", 1), b"", b"two\n")
    gives(hosts, command.replace(">", "<", 1), b"one\ntwo\n")


def four_hosts(hosts):
    gives(hosts, "printf 'a\\nb\\nc\\n' | rdpipe host1:'sed s/^/1/' host2:'sed s/^/2/' host3:'sed s/^/3/' host4:'tac'",
          b"321c\n321b\n321a\n")


def the_same_host_twice(hosts):
    err = gives(hosts, "echo x | rdpipe -v host1:'sed s/^/1/' host2:'sed s/^/2/' host1:'sed s/^/3/' host1:'sed s/^/4/'", b"4321x\n")
    expect("host1 to host1: shm" in err, f"not over shared memory: {err}")


def one_connection_a_host(hosts):
    process = hosts.start("local", "rdpipe host1:'sleep 60' host1:'sleep 60' host1:cat", stdin=subprocess.PIPE)
    try:
        wait_for("both sleep", lambda: sum(words[:2] == ["sleep", "60"] for words in hosts.processes("host1").values()) == 2)
        lines = run("ip", "netns", "exec", hosts.space("host1"), "ss", "-Htn", "state", "established", "sport", "=", ":22")
        expect(len(lines.splitlines()) == 1, f"connections to sshd: {lines}")
    finally:
        process.terminate()
        hosts.end(process, b"")


def several_at_once(hosts):
    processes = [hosts.start("local", f"seq {n} 50000 | rdpipe host1:cat host2:rev host1:rev | sha256sum") for n in range(6)]
    for n, process in enumerate(processes):
        status, out, err = hosts.end(process)
        wanted = hashlib.sha256("".join(f"{i}\n" for i in range(n, 50001)).encode()).hexdigest()
        expect(status == 0 and out.decode().split()[0] == wanted, f"pipeline {n}: status {status}: {err}")


def a_middle_hop_without_a_command(hosts):
    data = os.urandom(2_000_000)
    gives(hosts, "rdpipe host1: host2: host3:'sha256sum'", (hashlib.sha256(data).hexdigest() + "  -\n").encode(), data)


def several_receivers(hosts):
    data = os.urandom(5_000_000)
    digest = hashlib.sha256(data).hexdigest()
    status, out, err = hosts.call("rdpipe host1:'cat' [host2:'sha256sum' host3:'sha256sum' host4:'wc -c']", data)
    expect(status == 0 and sorted(out.decode().split("\n")) == sorted(["", f"{digest}  -", f"{digest}  -", "5000000"]),
           f"status {status}: {out!r} {err}")
    # One that wants no more does not end the others.
    status, out, err = hosts.call("rdpipe --tee host1:'cat' host2:'head -c 1 >/dev/null' host3:'sha256sum'", data)
    expect(status == 0 and out.decode() == f"{digest}  -\n", f"status {status}: {out!r} {err}")


def interactive_lines_are_not_held_back(hosts):
    process = hosts.start("local", "rdpipe host1:'sed -u s/^/1/' host2:'sed -u s/^/2/'", stdin=subprocess.PIPE)
    for text in (b"one\n", b"two\n"):
        process.stdin.write(text)
        process.stdin.flush()
        line = process.stdout.readline()
        expect(line == b"21" + text, f"got {line!r}")
    status, _, err = hosts.end(process)
    expect(status == 0, f"status {status}: {err}")


def nothing_to_say(hosts):
    gives(hosts, "rdpipe host1:'true' host2:'cat' </dev/null", b"")
    gives(hosts, "rdpipe host1:'sleep 0.2; echo late' </dev/null", b"late\n")


def a_forced_carrier(hosts):
    err = gives(hosts, "echo x | rdpipe -v --carrier tcp host1:cat host1:cat", b"x\n")
    expect("shm" not in err.replace("no shared memory", ""), err)
    status, _, err = hosts.call("rdpipe --carrier shm host1:cat host2:cat", b"x")
    expect(status == 125 and "another host" in err, f"status {status}: {err}")


def blocks_of_all_sizes(hosts):
    data = os.urandom(1_000_000)
    for options in ("--block 4K", "--block 8M", "--no-checksum", "--block 65536 --no-checksum", "--zstd", "--zstd=1 --block 4K"):
        gives(hosts, f"rdpipe {options} host1:'cat' | sha256sum", (hashlib.sha256(data).hexdigest() + "  -\n").encode(), data)


def json_at_the_end(hosts):
    err = gives(hosts, "echo hello | rdpipe --json host1:cat host2:cat", b"hello\n")
    told = json.loads(err.splitlines()[-1])
    expect(told["status"] == 0 and told["fault"] is None and [hop["bytes"] for hop in told["hops"]] == [6, 6, 6], err)
    status, _, err = hosts.call("rdpipe --json host1:'exit 7' host2:cat")
    told = json.loads(err.splitlines()[-1])
    expect(status == 7 and [segment["status"] for segment in told["segments"]] == [0, 7, 0, 0], err)


# ---- status

STATUSES = [
    ("host1:true host2:true", 0), ("host1:false host2:true", 1), ("host1:true host2:'exit 9'", 9),
    ("host1:'exit 3' host2:'exit 4' host3:true", 4), ("host1:'kill -9 $$' host2:cat", 137),
    ("host1:'no-such-command' host2:cat", 127), ("host1:yes host2:'head -c 100000 >/dev/null'", 141),
    ("host1:'yes | head -c 3000000' host2:'cat >/dev/null'", 0),
]


def status_as_with_pipefail(hosts):
    for words, wanted in STATUSES:
        status, _, err = hosts.call(f"rdpipe {words}")
        expect(status == wanted, f"{words}: status {status}, expected {wanted}: {err}")


def a_reader_that_quits(hosts):
    status, out, _ = hosts.call("rdpipe host1:yes host2:cat | head -n 2")
    expect(status == 141 and out == b"y\ny\n", f"status {status}, {out!r}")
    status, out, _ = hosts.call("yes | rdpipe host1:'head -n 1'; echo ${PIPESTATUS[@]}")
    expect(out == b"y\n141 0\n", repr(out))


def what_is_wrong_is_said(hosts):
    other = os.path.join(hosts.folder, "other")
    os.makedirs(other, exist_ok=True)
    with open(os.path.join(other, "rdpipe"), "w", encoding="utf-8") as program:
        print('#!/bin/sh\necho "rdpipe-agent control=0 version=0.0.1 ssh="; cat >/dev/null', file=program)
    os.chmod(os.path.join(other, "rdpipe"), 0o755)
    for words, wanted, text in [
            ("--remote-path /nowhere host1:cat", 125, "--remote-path"),
            (f"--remote-path {other} host1:cat", 125, "version 0.0.1"),
            (f"--remote-path {hosts.programs} host1:cat", 0, ""),
            ("-o Port=1 host1:cat", 125, "ssh has failed"),
            ("host1:'</no/such/file'", 125, "No such file"),
            ("host1:cat host2:'>/no/such/dir/file'", 125, "No such file"),
            ("host1:'</'", 125, "directory"),
            ("host1", 2, "HOST:COMMAND"), ("--block 3 host1:cat", 2, "4K to 8M"), ("--zstd=99 host1:cat", 2, "1 to 19"), ("--nonsense", 2, "--help")]:
        status, _, err = hosts.call(f"rdpipe {words}")
        expect(status == wanted and text in err, f"rdpipe {words}: status {status}, said: {err}")


# ---- without ssh

def send_and_receive(hosts):
    key = os.path.join(hosts.folder, "key")
    with open(key, "w", encoding="utf-8") as file:
        file.write("a key for two hosts, long enough")
    os.chmod(key, 0o600)
    receiver = hosts.start("host2", f"rdrecv --key-file {key} 7000 | sha256sum")
    data = os.urandom(4_000_000)
    gives(hosts, f"rdsend -v --key-fd 3 {hosts.address('host2')} 7000 3<{key}", b"", data, name="host1", seconds=60 * SLOWNESS)
    status, out, err = hosts.end(receiver)
    expect(status == 0 and out.decode().split()[0] == hashlib.sha256(data).hexdigest(), f"status {status}: {err}")


def a_wrong_key_is_said(hosts):
    receiver = hosts.start("host2", "rdrecv --wait 60 7001", RDPIPE_KEY="the right key, long enough")
    try:
        status, _, err = hosts.call(f"rdsend {hosts.address('host2')} 7001", b"x", name="host1", RDPIPE_KEY="a wrong key, long enough")
        expect(status == 1 and "key is another one" in err, f"status {status}: {err}")
        gives(hosts, f"rdsend {hosts.address('host2')} 7001", b"", b"right", name="host1", RDPIPE_KEY="the right key, long enough")
        status, out, err = hosts.end(receiver)
        expect(status == 0 and out == b"right" and "turned away 1" in err, f"status {status}: {out!r} {err}")
    finally:
        if receiver.poll() is None:
            receiver.kill()
            receiver.wait()


CASES = [olleh, bandwidth_of_a_file, local_input_into_a_remote_command, users_on_both_ends, tar_stands_in_for_zfs,
         plans_of_what_cannot_run_here, raw_pictures_through_a_pipe, files_at_both_ends, four_hosts, the_same_host_twice,
         one_connection_a_host, several_at_once, a_middle_hop_without_a_command, several_receivers,
         interactive_lines_are_not_held_back, nothing_to_say, a_forced_carrier, blocks_of_all_sizes, json_at_the_end,
         status_as_with_pipefail, a_reader_that_quits, what_is_wrong_is_said, send_and_receive, a_wrong_key_is_said]
