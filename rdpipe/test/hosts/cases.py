# SPDX-License-Identifier: Apache-2.0
"""Tests pipelines without faults, and how the exit status of their commands is reported."""
import contextlib
import hashlib
import json
import os
import pty
import re
import select
import shlex
import subprocess
import threading
import time

from hosts import Failure, SLOWNESS, SOON, run, wait_for


def expect(is_so, text):
    if not is_so:
        raise Failure(text)


def gives(hosts, command, output, data=b"", status=0, **more):
    got, out, err = hosts.call(command, data, **more)
    expect(got == status and out == output,
           f"{command}\n    status {got} (expected {status}), output {out[:200]!r} (expected {output[:200]!r}), said: {err[-600:]}")
    return err


# ---- basic pipelines

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
    _, out, _ = hosts.call("rdpipe -n --encrypt host1:cat")
    expect(b"else tcp" in out and b"rdma" not in out, f"plan with --encrypt: {out!r}")


def raw_pictures_through_a_pipe(hosts):
    frames = os.urandom(720 * 480 * 3 // 2 * 8)  # yuv420p
    gives(hosts, "rdpipe host1:'wc -c'", f"{len(frames)}\n".encode(), frames)


def test_picture_of_ffmpeg(hosts):
    raw = "-f rawvideo -pix_fmt yuv420p"
    source = f"ffmpeg -v error -nostdin -f lavfi -i testsrc=size=720x480:rate=30 -frames:v 90 {raw} -"
    player = f"ffmpeg -v error {raw} -s 720x480 -i - -f framemd5 -"
    _, shown, err = hosts.call(f"{source} | {player}")
    expect(len([line for line in shown.splitlines() if not line.startswith(b"#")]) == 90, f"not 90 pictures: {shown[-300:]!r} {err}")
    gives(hosts, f"{source} | rdpipe host1:'{player}'", shown)


# ---- further pipelines

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


def sessions_of_a_host_start_side_by_side(hosts):
    """Both ssh sessions to a host are started at the same time: the first one sends its hello only after the second has been started."""
    meet, second = os.path.join(hosts.folder, "ssh_meet"), os.path.join(hosts.folder, "second")
    with open(meet, "w", encoding="utf-8") as file:
        print(f"""#!/bin/bash
case "$*" in
*ControlMaster=yes*) exec "{hosts.ssh}" "${{@:1:$#-1}}" "for i in {{1..100}}; do [ ! -e {second} ] || exec ${{*: -1}}; sleep 0.1; done" ;;
*) touch {second}; exec "{hosts.ssh}" "$@" ;;
esac""", file=file)
    os.chmod(meet, 0o755)
    gives(hosts, "rdpipe host1:cat host1:rev", b"olleh\n", b"hello\n", RDPIPE_SSH=meet)


def what_a_login_shell_prints_is_skipped(hosts):
    talks = os.path.join(hosts.folder, "ssh_talks")
    with open(talks, "w", encoding="utf-8") as file:
        print(f"""#!/bin/sh
printf 'Welcome!\\nYou have no mail.'
exec "{hosts.ssh}" "$@\"""", file=file)
    os.chmod(talks, 0o755)
    gives(hosts, "rdpipe host1:cat host1:rev", b"olleh\n", b"hello\n", RDPIPE_SSH=talks)
    status, out, err = hosts.call("rdpipe doctor host1", RDPIPE_SSH=talks)
    expect(status == 0 and b"ok    host1" in out, f"status {status}: {out} {err}")


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
    # A receiver that stops reading does not stop the others.
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


def a_hop_of_smaller_blocks(hosts):
    """Memory is limited on this host, so the hop to it has small rings and host2 must forward the data in smaller blocks."""
    data = os.urandom(2_000_000) + bytes(2_000_000)
    with open(os.path.join(hosts.folder, "blocks"), "wb") as file:
        file.write(data)
    for options in ("", "--zstd", "--encrypt", "--carrier tcp"):
        gives(hosts, f"ulimit -f 1000; rdpipe {options} host1:'cat {file.name}' host2: | cat", data)
    status, out, err = hosts.call(f"ulimit -f 1000; rdpipe --zstd host1:'<{file.name}' [host2:sha256sum :sha256sum]")
    expect(status == 0 and out.decode() == f"{hashlib.sha256(data).hexdigest()}  -\n" * 2, f"status {status}: {out!r} {err}")


def json_at_the_end(hosts):
    err = gives(hosts, "echo hello | rdpipe --json host1:cat host2:cat", b"hello\n")
    told = json.loads(err.splitlines()[-1])
    expect(told["status"] == 0 and told["fault"] is None and [hop["bytes"] for hop in told["hops"]] == [6, 6, 6], err)
    status, _, err = hosts.call("rdpipe --json host1:'exit 7' host2:cat")
    told = json.loads(err.splitlines()[-1])
    expect(status == 7 and [segment["status"] for segment in told["segments"]] == [0, 7, 0, 0], err)


def progress_on_a_terminal(hosts):
    path = os.path.join(hosts.folder, "slow")
    with open(path, "wb") as file:
        file.truncate(30_000_000)
    status, lines = hosts.on_a_terminal(f"rdpipe host1:'<{path}' host2: host3:'>/dev/null'")
    told = [re.search(r"(\d+)% (\d+):\d\d left +host1>host2 [0-9.]+ .?B/s.* >host3 [0-9.]+ .?B/s", line) for line in lines]
    parts = [int(found[1]) for found in told if found]
    expect(status == 0 and parts and parts == sorted(parts) and parts[-1] <= 100, f"status {status}: {lines[-5:]}")
    expect(any("*" in line for line in lines), f"no hop is marked as the slowest: {lines[-5:]}")
    # The progress fits on one line of a narrow terminal.
    status, lines = hosts.on_a_terminal(f"stty cols 40; rdpipe host1:'<{path}' host2: host3:'>/dev/null'")
    drawn = [line.replace("\x1b[K", "") for line in lines if line.startswith("rdpipe: 0:")]
    expect(status == 0 and drawn and all(len(line) < 40 for line in drawn), f"status {status}: {drawn[-5:]}")
    # If the first command reads no input, its output is counted, and the idle hop to it is not marked as the slowest.
    status, lines = hosts.on_a_terminal(f"rdpipe host1:'cat {path}' host2: host3:'>/dev/null'")
    drawn = [line for line in lines if line.startswith("rdpipe: 0:")]
    expect(status == 0 and drawn and re.search(r"\d\d  [1-9][0-9.]* .?B  ", drawn[-1]) and "host1 0 B/s*" not in drawn[-1],
           f"status {status}: {drawn[-5:]}")
    # Nothing is shown if standard error is not a terminal.
    gives(hosts, f"rdpipe host1:'<{path}' host2:'>/dev/null'", b"")


def options_for_ssh(hosts):
    config = os.path.join(hosts.folder, "ssh_config")
    plain = {"RDPIPE_SSH": "ssh"}
    user = os.path.join(hosts.folder, "user_key")
    gives(hosts, f"echo x | rdpipe -F {config} host1:cat", b"x\n", **plain)
    common = "-F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    gives(hosts, f"echo x | rdpipe {common} -i {user} root@{hosts.address('host1')}:cat", b"x\n", **plain)
    status, _, err = hosts.call(f"rdpipe {common} -o IdentityFile=/nowhere -o BatchMode=yes root@{hosts.address('host1')}:cat", b"x", **plain)
    expect(status == 125 and "ssh has failed" in err, f"without a key: status {status}: {err}")
    # A RemoteCommand in the user's configuration is only for terminal sessions.
    with open(config, encoding="utf-8") as file, open(f"{config}_command", "w", encoding="utf-8") as other:
        other.write(file.read() + "\n RemoteCommand /bin/false\n")
    gives(hosts, f"echo x | rdpipe -F {config}_command host1:cat", b"x\n", **plain)
    # With a jump host, the server sees the connection come from host1, but the hops connect directly.
    gives(hosts, f"echo x | rdpipe -F {config} -J host1 --address host2={hosts.address('host2')} --address ={hosts.address('local')} "
          "host2:'echo $SSH_CONNECTION | cut -d\" \" -f1; cat'", f"{hosts.address('host1')}\nx\n".encode(), **plain)


def installed(hosts):
    """After `make install PREFIX=` or installation of the package, the commands work, and manual pages and completion are installed."""
    root = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
    prefix = os.path.join(hosts.folder, "prefix dir")
    run(os.path.join(root, "scripts/install-pipe"), prefix)
    for name in ("rdpipe", "rdsend", "rdrecv", "rdcp"):
        page = run("man", "--warnings", "-l", f"{prefix}/share/man/man1/{name}.1.gz") if os.path.exists("/usr/bin/man") else None
        expect(page is None or name in page, f"no page of {name}")
        expect(os.path.exists(f"{prefix}/share/bash-completion/completions/{name}"), f"no completion of {name}")
        expect(run(f"{prefix}/bin/{name}", "--version").startswith(f"{name} "), f"{name} does not run")
    gives(hosts, f"echo x | '{prefix}/bin/rdpipe' --remote-path '{prefix}/bin' host1:cat", b"x\n")
    completed = run("bash", "-c", f"source '{prefix}/share/bash-completion/completions/rdcp'; COMP_WORDS=('{prefix}/bin/rdcp' --rec); COMP_CWORD=1; _rdpipe; echo \"${{COMPREPLY[@]}}\"")
    expect(completed == "--recursive\n", repr(completed))
    package = os.path.join(hosts.folder, "rdpipe.deb")
    run(os.path.join(root, "scripts/install-pipe"), "--deb", package)
    tree = os.path.join(hosts.folder, "package")
    run("dpkg-deb", "--extract", package, tree)
    gives(hosts, f"echo x | {tree}/usr/bin/rdpipe --remote-path {tree}/usr/bin host1:cat", b"x\n")
    told = run("dpkg-deb", "--field", package, "Depends")
    expect("libssl3" in told and "libzstd1" in told and "libisal2" in told, told)


def names_of_files_are_completed(hosts):
    """An interactive bash completes file names as for other commands, and quotes special characters."""
    root = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
    folder = os.path.join(hosts.folder, "completed")
    os.mkdir(folder)
    open(os.path.join(folder, "my file"), "w", encoding="utf-8").close()
    terminal = Terminal(hosts, f"cd {folder} && exec bash --norc --noprofile -i")
    terminal.type(f"source {root}/rdpipe/completion/rdpipe; echo so''urced\n")
    terminal.wait_for("it is read", lambda shown: "sourced" in shown)
    for count, words in enumerate(("rdcp my", "rdcp host1:x ./my", "rdrecv --resume my"), 1):
        terminal.type(words + "\t")
        terminal.wait_for(f"{words} is completed", lambda shown, n=count: shown.count("my\\ file") >= n)
        terminal.type("\x15")
    terminal.type("exit\n")
    terminal.end()


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


def what_stands_before_and_behind_sees_the_ends(hosts):
    """In a shell pipeline rdpipe does not keep its input or output open after its first or last command has closed it, whichever host the command runs on."""
    for name in ("", "host1"):
        folder = os.path.join(hosts.folder, f"ends{name}")
        os.mkdir(folder)
        wait = f"for i in $(seq {int(20 * SLOWNESS)}0); do test -e {folder}/ended && exec touch {folder}/early; sleep 0.1; done"
        for command in (f"(yes 2>/dev/null; touch {folder}/ended) | rdpipe {name}:'head -c 2; exec <&-; {wait}' :'cat'",
                        f"(yes 2>/dev/null; touch {folder}/ended) | rdpipe {name}:'head -c 2; exec <&-; {wait}' :'>{folder}/file'; cat {folder}/file",
                        f"rdpipe :'cat' {name}:'echo y; exec >&-; {wait}' </dev/null | (cat; touch {folder}/ended)"):
            gives(hosts, command, b"y\n")
            expect(os.path.exists(f"{folder}/early"), f"{command}: the shell's other command was held up")
            os.remove(f"{folder}/early")
            os.remove(f"{folder}/ended")
        gives(hosts, f"echo hello | rdpipe {'host1:cat' if name else ''} :'>/dev/stdout' >{folder}/file; cat {folder}/file", b"hello\n")


def what_is_wrong_is_said(hosts):
    other = os.path.join(hosts.folder, "other")
    os.makedirs(other, exist_ok=True)
    with open(os.path.join(other, "rdpipe"), "w", encoding="utf-8") as program:
        print('#!/bin/sh\necho "rdpipe-agent control=0 version=0.0.1 ssh="; cat >/dev/null', file=program)
    os.chmod(os.path.join(other, "rdpipe"), 0o755)
    old = os.path.join(hosts.folder, "old")
    os.makedirs(old, exist_ok=True)
    with open(os.path.join(old, "rdpipe"), "w", encoding="utf-8") as program:
        print('#!/bin/sh\necho "rdpipe-agent control=1 version=0.0.9 ssh=$(echo $SSH_CONNECTION | sed "s/ /%20/g")"; cat >/dev/null', file=program)
    os.chmod(os.path.join(old, "rdpipe"), 0o755)
    released = os.path.join(hosts.folder, "released")
    os.makedirs(released, exist_ok=True)
    with open(os.path.join(released, "rdpipe"), "w", encoding="utf-8") as program:
        print('#!/bin/sh\necho "rdpipe-agent control=3 version=0.2.0 ssh=$(echo $SSH_CONNECTION | sed "s/ /%20/g")"; cat >/dev/null', file=program)
    os.chmod(os.path.join(released, "rdpipe"), 0o755)
    other_version = os.path.join(hosts.folder, "other version")
    os.makedirs(other_version, exist_ok=True)
    with open(os.path.join(other_version, "rdpipe"), "w", encoding="utf-8") as program:
        print(f'#!/bin/sh\n{hosts.programs}/rdpipe "$@" | sed -u "1s/version=[^ ]*/version=0.0.9/"', file=program)
    os.chmod(os.path.join(other_version, "rdpipe"), 0o755)
    gives(hosts, f"echo hello | rdpipe --remote-path '{other_version}' host1:rev", b"olleh\n")
    for words, wanted, text in [
            (f"--remote-path {old} host1:cat", 125, "version 0.0.9"),
            (f"--remote-path {released} host1:cat", 125, "version 0.2.0 (protocol 3)"),  # its rdcp would misread the commands of our parts
            ("host1:cat -v", 2, "'-v': options come before the first segment"),
            ("--remote-path /nowhere host1:cat", 125, "--remote-path"),
            (f"--remote-path {other} host1:cat", 125, "version 0.0.1"),
            (f"--remote-path {hosts.programs} host1:cat", 0, ""),
            ("-o Port=1 host1:cat", 125, "ssh has failed"),
            ("--address host1=192.0.2.1 root@host1:cat", 125, "cannot listen on 192.0.2.1"),
            ("host1:'</no/such/file'", 125, "No such file"),
            ("host1:cat host2:'>/no/such/dir/file'", 125, "No such file"),
            ("host1:'</'", 125, "directory"),
            ("host1:cat host2:'>/dev/stdout'", 125, "is not a file"), ("host1:'</dev/stdin'", 125, "is not a file"),
            (":'>/dev/stdout'", 125, "is not a file"),
            ("host1", 2, "HOST:COMMAND"), ("--block 3 host1:cat", 2, "4K to 8M"), ("--zstd=99 host1:cat", 2, "1 to 19"), ("--nonsense", 2, "--help")]:
        status, _, err = hosts.call(f"rdpipe {words}")
        expect(status == wanted and text in err, f"rdpipe {words}: status {status}, said: {err}")


def a_file_is_emptied_when_its_stream_begins(hosts):
    """The file in `>FILE` is not truncated if the pipeline fails to start."""
    file = os.path.join(hosts.folder, "kept")
    for words, status, holds in (("host1:'</no/such/file'", 125, b"old"), ("--tee :'</no/such/file'", 125, b"old"), ("-o Port=1 host3:cat", 125, b"old"),
                                 ("host1:'true'", 0, b""), ("host1:'echo new'", 0, b"new\n"), ("--buffer 1M host1:'echo new'", 0, b"new\n")):
        with open(file, "w", encoding="utf-8") as old:
            old.write("old")
        got, _, err = hosts.call(f"rdpipe {words} host2:'>{file}'")
        with open(file, "rb") as now:
            there = now.read()
        expect(got == status and there == holds, f"{words}: status {got}, the file has {there!r}: {err}")


def what_cannot_start_is_said_at_once(hosts):
    """If one command cannot start, the others and rdpipe exit immediately."""
    for words in ("host1:'</no/such/file' host2:cat", "host1:'sleep 100' host2:'>/no/such/dir/file'", "host1:'sleep 100' :'>/no/such/file'",
                  "--tee :'</no/such/file' host1:cat host2:cat"):
        began = time.monotonic()
        status, _, err = hosts.call(f"rdpipe {words}")
        lasted = time.monotonic() - began
        expect(status == 125 and "/no/such" in err, f"{words}: status {status}: {err}")
        expect(lasted < 20 * SLOWNESS, f"{words}: said after {lasted:.1f} s")


def a_fault_that_comes_with_the_end_is_said(hosts):
    """The reason is reported even if ssh delivers it only when it exits, after the consequences reported by the other host."""
    late = os.path.join(hosts.folder, "ssh_late")
    with open(late, "w", encoding="utf-8") as file:
        print(f"""#!/bin/sh
"{hosts.ssh}" "$@" | {{
    late=
    while IFS= read -r line; do
        case $line in 'fault '*) late=$late$line ;; *) printf '%s\\n' "$line" ;; esac
    done
    printf '%s\\n' "$late"
}}""", file=file)
    os.chmod(late, 0o755)
    for _ in range(5):
        status, _, err = hosts.call("rdpipe host1:'sleep 100' host2:'>/no/such/dir/file'", RDPIPE_SSH=late)
        expect(status == 125 and "/no/such" in err, f"status {status}: {err}")


def whose_command_failed_is_said(hosts):
    status, _, err = hosts.call("rdpipe host1:'echo oops >&2; exit 3' host2:'exit 4' host3:cat")
    expect(status == 4, f"status {status}: {err}")
    expect("rdpipe: host1: 'echo oops >&2; exit 3' ended with status 3" in err and "rdpipe: host2: 'exit 4' ended with status 4" in err, err)
    gives(hosts, "rdpipe host1:cat host2:cat </dev/null 2>&1", b"")
    status, _, err = hosts.call("rdpipe host1:yes host2:'head -n 1 >/dev/null'")
    expect(status == 141 and "ended with" not in err, f"status {status}: {err}")


def the_first_of_two_refused_hops_is_said(hosts):
    """host2 refuses the connection from host1, so host1 gives up and refuses the one from this host. The original cause is reported, although host1's message about it arrives late."""
    late = os.path.join(hosts.folder, "late-ssh")
    with open(late, "w", encoding="utf-8") as file:
        file.write(f"""#!/bin/bash
{hosts.ssh} "$@" | while IFS= read -r line; do
    [[ $line != *cause* ]] || sleep 0.2
    printf '%s\\n' "$line"
done
""")
    os.chmod(late, 0o755)
    block = ["ip", "netns", "exec", hosts.space("host2"), "iptables", "INPUT", "-p", "tcp", "--dport", "7200:7203", "-j", "REJECT"]
    run(*block[:5], "-A", *block[5:])
    try:
        status, _, err = hosts.call("rdpipe --port 7200-7203 host1:cat host2:cat </dev/null", RDPIPE_SSH=late)
        expect(status == 125 and "host1: host2: cannot connect to" in err, f"status {status}: {err}")
    finally:
        run(*block[:5], "-D", *block[5:])


def a_blocked_hop(hosts):
    """A firewall between the hosts drops or rejects packets to the ports of the hops."""
    block = ["ip", "netns", "exec", hosts.space("host2"), "iptables", "INPUT", "-p", "tcp", "--dport", "7200:7203", "-j"]
    for target in ("DROP", "REJECT"):
        run(*block[:5], "-A", *block[5:], target)
        try:
            began = time.monotonic()
            status, _, err = hosts.call("rdpipe --port 7200-7203 host1:cat host2:cat </dev/null")
            lasted = time.monotonic() - began
            got, _, said = hosts.call(f"rdsend --wait 2 {hosts.address('host2')} 7200 </dev/null", name="host1", RDPIPE_KEY="a key for two hosts, long enough")
            waited = time.monotonic() - began - lasted
        finally:
            run(*block[:5], "-D", *block[5:], target)
        expect(got == 1 and "cannot connect" in said and waited < 15 * SLOWNESS, f"rdsend, {target}: status {got} after {waited:.1f} s: {said}")
        expect(status == 125 and lasted < 20 * SLOWNESS, f"{target}: status {status} after {lasted:.1f} s: {err}")
        for text in ("host1: host2: cannot connect to", hosts.address("host2"), "port 720", "--port", "--address"):
            expect(text in err, f"{target}: no '{text}' in: {err}")


class Terminal:
    """Runs a command line on a new terminal, and records everything that is shown there."""

    def __init__(self, hosts, command, **more):
        pid, self.fd = pty.fork()
        if pid == 0:
            os.execvpe("ip", ["ip", "netns", "exec", hosts.space("local"), "bash", "-c", command], hosts.environment(**more))
        self.pid = pid
        self.shown = ""

    def read(self, seconds):
        """Reads what arrives within this time. Returns False if the command has exited."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            part = os.read(self.fd, 65536)
        except OSError:
            part = b""
        self.shown += part.decode(errors="replace")
        return part != b""

    def wait_for(self, what, is_so):
        def look():
            self.read(0.05)
            return is_so(self.shown)
        try:
            return wait_for(what, look)
        except Failure as failure:
            raise Failure(f"{failure}; shown: {self.shown!r}") from None

    def type(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        while self.read(SOON):
            pass
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return status


SECRETS = {"one": "the first secret", "two": "another secret"}


def keys_with_passphrases(hosts):
    """Makes host1 accept only the key `one`, and host2 only `two`. Returns an ssh that uses these keys."""
    program = os.path.join(hosts.folder, "ssh_asks")
    if os.path.exists(program):
        return program
    with open(os.path.join(hosts.folder, "config_asks"), "w", encoding="utf-8") as config:
        for host, name in (("host1", "one"), ("host2", "two")):
            key = os.path.join(hosts.folder, name)
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", SECRETS[name], "-f", key)
            with open(f"{key}.pub", encoding="utf-8") as public, open(os.path.join(hosts.folder, "authorized"), "a", encoding="utf-8") as authorized:
                authorized.write(public.read())
            print(f"Host {host}\n HostName {hosts.address(host)}\n IdentityFile {key}", file=config)
        print("Host *\n User root\n IdentitiesOnly yes\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR", file=config)
    with open(program, "w", encoding="utf-8") as file:
        print(f'#!/bin/sh\nexec ssh -F {hosts.folder}/config_asks "$@"', file=file)
    os.chmod(program, 0o755)
    return program


def one_prompt_at_a_time(hosts):
    """Two hosts ask for a passphrase. The second prompt appears after the first one has been answered, and the input is not echoed."""
    terminal = Terminal(hosts, "echo x | rdpipe host1:'sed s/^/1/' host2:'sed s/^/2/'", RDPIPE_SSH=keys_with_passphrases(hosts))
    asked = []
    for count in (1, 2):
        terminal.wait_for(f"prompt {count}", lambda shown, n=count: len(re.findall("passphrase for key", shown)) >= n)
        end = time.monotonic() + 1.5  # the other prompt must not appear during this time
        while time.monotonic() < end:
            terminal.read(0.1)
        found = re.findall("(host[12]): Enter passphrase for key '[^']*/(one|two)'", terminal.shown)
        expect(len(found) == count and terminal.shown.count("passphrase for key") == count, f"not {count} prompts: {terminal.shown!r}")
        asked.append(found[-1])
        terminal.type(SECRETS[found[-1][1]] + "\n")
    status = terminal.end()
    expect(status == 0 and "21x" in terminal.shown, f"status {status}: {terminal.shown!r}")
    expect(sorted(asked) == [("host1", "one"), ("host2", "two")], f"asked: {asked}")
    expect(not any(secret in terminal.shown for secret in SECRETS.values()), f"a secret was shown: {terminal.shown!r}")


def a_prompt_whose_text_a_server_chose(hosts):
    """A secret is not echoed even if its prompt looks like ssh's own question about a host key, whose answer is echoed."""
    asking = os.path.join(hosts.folder, "asking-ssh")
    with open(asking, "w", encoding="utf-8") as file:
        file.write('#!/bin/sh\n"$SSH_ASKPASS" "(root@host1) Password (yes/no): " >/dev/null && "$SSH_ASKPASS" "The authenticity of host X: continue (yes/no)? " >/dev/null\n'
                   'exit 3\n')
    os.chmod(asking, 0o755)
    terminal = Terminal(hosts, "rdpipe host1:cat </dev/null", RDPIPE_SSH=asking)
    terminal.wait_for("the first prompt", lambda shown: "Password" in shown)
    terminal.type("hidden\n")
    terminal.wait_for("the second prompt", lambda shown: "authenticity" in shown)
    terminal.type("shown\n")
    terminal.end()
    expect("hidden" not in terminal.shown and "shown" in terminal.shown, repr(terminal.shown))


def a_prompt_that_nobody_answers(hosts):
    """Ctrl-C at a prompt, or a failure of another host, terminates the pipeline and restores the terminal's echo."""
    ssh = keys_with_passphrases(hosts)
    # The shell continues after a command that Ctrl-C has terminated.
    terminal = Terminal(hosts, "trap : INT; rdpipe host1:cat host2:cat </dev/null; echo status $?; "
                        "for _ in {1..100}; do stty -a | grep -o ' echo ' && break; sleep 0.1; done", RDPIPE_SSH=ssh)
    terminal.wait_for("a prompt", lambda shown: "passphrase for key" in shown)
    began = time.monotonic()
    terminal.type("\x03")
    terminal.end()
    expect(time.monotonic() - began < 10 * SLOWNESS, f"it took {time.monotonic() - began:.1f} s")
    expect(terminal.shown.count("passphrase for key") <= 2 and " echo " in terminal.shown.partition("status")[2], repr(terminal.shown))
    hosts.check_nothing_is_left()
    terminal = Terminal(hosts, "rdpipe host1:cat nowhere:cat </dev/null; echo status $?; stty -a | grep -o ' echo '", RDPIPE_SSH=ssh)
    terminal.end()
    expect("status 125" in terminal.shown and " echo " in terminal.shown.partition("status")[2], repr(terminal.shown))


def a_command_that_asks_at_the_terminal(hosts):
    """A command reads from the terminal, as sudo does. Commands are not in the foreground, so the kernel stops it. rdpipe reports that as a fault, and does not hang."""
    for command in ("read answer </dev/tty; echo $answer", "stty -echo </dev/tty; echo quiet"):
        terminal = Terminal(hosts, f"rdpipe :{shlex.quote(command)} host1:cat; echo status $?; stty -a | grep -o ' echo '")
        shown = terminal.wait_for("an end", lambda shown: "status" in shown and shown)
        terminal.end()
        expect("status 125" in shown and f"'{command}' needs the terminal" in shown and " echo " in terminal.shown.partition("status")[2], repr(terminal.shown))


def text_of_others_is_shown_not_obeyed(hosts):
    """Text from a hostile agent is escaped for the terminal and in JSON, and cannot change the rank of its faults."""
    other = os.path.join(hosts.folder, "hostile")
    os.makedirs(other, exist_ok=True)
    _, hello, _ = hosts.call("rdpipe --agent </dev/null")
    with open(os.path.join(other, "rdpipe"), "w", encoding="utf-8") as program:
        print(f"""#!/bin/sh
cat <<'EOF'
{hello.decode().splitlines()[1]}
hop side=in carrier=%22%1b[2J%ff why=%1b]0;x%07%c2%9b%0a
fault cause=2 why=because%20of%20another
fault cause=0 why=the%20disk%20was%20lost,%20it%20stopped%1b[2J%c2%9b%ff%22
EOF
cat >/dev/null""", file=program)
    os.chmod(os.path.join(other, "rdpipe"), 0o755)
    status, _, err = hosts.call(f"rdpipe -v --json --remote-path {other} host1:cat")
    shown = 'rdpipe: host1: the disk was lost, it stopped\\x1b[2J\\xc2\\x9b\\xff"'
    expect(status == 125 and err.splitlines()[-3] == shown, f"status {status}: {err!r}")
    expect(not any(letter < " " and letter != "\n" or "\x7f" <= letter < "\xa0" or letter == "\ufffd" for letter in err), f"said: {err!r}")
    told = json.loads(err.splitlines()[-1])
    expect(told["hops"][0]["carrier"] == '"\x1b[2J\ufffd' and told["fault"].endswith('stopped\x1b[2J\x9b\ufffd"'), f"said: {told}")


# ---- encryption

class Wire:
    """Captures a host's network traffic and reports whether it contains a text."""

    def __init__(self, hosts, name, text):
        # A separate process is needed, because a socket belongs to the network namespace in which it is created.
        program = """
import select, socket, sys
seen = 0
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as wire:
    wire.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    print("up", flush=True)
    wire.settimeout(0.2)
    while True:
        try:
            seen += sys.argv[1].encode() in wire.recv(1 << 16)
        except TimeoutError:
            if select.select([0], [], [], 0)[0]:
                break
print(seen)
"""
        self.process = subprocess.Popen(["ip", "netns", "exec", hosts.space(name), "python3", "-c", program, text],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        expect(self.process.stdout.readline() == b"up\n", "the wire cannot be listened to")

    def has_seen(self):
        out, _ = self.process.communicate(timeout=60 * SLOWNESS)
        return int(out) > 0


def nothing_plain_on_the_wire(hosts):
    mark = "what nobody on the way may read"
    data = (mark + "\n").encode() * 2000
    for options, is_plain in (("", True), ("--encrypt", False), ("--encrypt --block 8M --no-checksum", False)):
        wire = Wire(hosts, "host2", mark)
        err = gives(hosts, f"rdpipe -v {options} host1:cat host2:cat host3:'sha256sum'", (hashlib.sha256(data).hexdigest() + "  -\n").encode(), data)
        expect(wire.has_seen() == is_plain, f"{options}: the wire has {'not ' if is_plain else ''}seen it")
        expect(err.count("encrypted by TLS 1.3") == (0 if is_plain else 4), err)


def encrypted_streams_and_their_ends(hosts):
    data = os.urandom(5_000_000)
    gives(hosts, "rdpipe --encrypt --zstd host1: host2:'sha256sum'", (hashlib.sha256(data).hexdigest() + "  -\n").encode(), data)
    for words, wanted in [("host1:'exit 3' host2:cat", 3), ("host1:yes host2:'head -c 100000 >/dev/null'", 141), ("host1:yes host2:'>/dev/full'", 125)]:
        status, _, err = hosts.call(f"rdpipe --encrypt {words}")
        expect(status == wanted, f"{words}: status {status}, expected {wanted}: {err}")
    status, _, err = hosts.call("rdpipe --encrypt --carrier rdma host1:cat", b"x")
    expect(status == 2 and "--encrypt" in err, f"status {status}: {err}")
    # It is sufficient if one side requests it.
    receiver = hosts.start("host2", "rdrecv --encrypt 7002 | sha256sum", RDPIPE_KEY="a key for two hosts, long enough")
    err = gives(hosts, f"rdsend -v {hosts.address('host2')} 7002", b"", data, name="host1", RDPIPE_KEY="a key for two hosts, long enough")
    status, out, _ = hosts.end(receiver)
    expect(status == 0 and out.decode().split()[0] == hashlib.sha256(data).hexdigest() and "TLS 1.3" in err, f"status {status}: {err}")


def sixty_four_streams(hosts):
    """Each of four hops uses 64 streams, or 32 if one of its hosts allows only 256 descriptors."""
    data = os.urandom(5_000_000)
    digest = (hashlib.sha256(data).hexdigest() + "  -\n").encode()
    for before, options, counts in (("", "", {"64": 4}), ("", "--encrypt", {"64": 4}), ("ulimit -n 256; ", "", {"32": 2, "64": 2})):
        err = gives(hosts, f"{before}rdpipe -v --carrier tcp --streams 64 {options} host1:cat host2:cat host3:sha256sum", digest, data)
        told = re.findall(r"; (\d+) streams", err)
        expect({count: told.count(count) for count in set(told)} == counts, f"{before}{options}: {err}")
    for count in ("0", "65", "-1", "x"):
        status, _, err = hosts.call(f"rdpipe --streams {count} host1:cat")
        expect(status == 2 and f"--streams {count}: expected auto or 1 to 64" in err, f"status {status}: {err}")


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


def a_listener_that_never_comes(hosts):
    """On a long path a refusal takes some time to arrive. The last connection attempt also waits for it."""
    with hosts.path("host1", "host2", rate=50_000_000, delay=20000) as (_, address):
        status, _, err = hosts.call(f"rdsend --wait 1 {address} 7005 </dev/null", name="host1", RDPIPE_KEY="a key for two hosts, long enough")
    expect(status == 1 and "Connection refused" in err, f"status {status}: {err}")


def over_a_lossy_path(hosts):
    data = os.urandom(1_000_000)
    key = {"RDPIPE_KEY": "a key for two hosts, long enough"}
    with hosts.path("host1", "host2", rate=50_000_000, delay=5000, loss=0.01, seed=3) as (_, address):
        for port, options in ((7003, ""), (7004, "--encrypt")):
            receiver = hosts.start("host2", f"rdrecv {options} {port} | sha256sum", **key)
            gives(hosts, f"rdsend {options} {address} {port}", b"", data, name="host1", seconds=120 * SLOWNESS, **key)
            status, out, err = hosts.end(receiver)
            expect(status == 0 and out.decode().split()[0] == hashlib.sha256(data).hexdigest(), f"{options}: status {status}: {err}")


def connections(hosts, name, port):
    return run("ip", "netns", "exec", hosts.space(name), "ss", "-Htn", "state", "established", "sport", f"= :{port}").splitlines()


def kill_connections(hosts, name, port, count):
    """Resets up to `count` connections to that port of the host, and returns their number."""
    lines = connections(hosts, name, port)
    for line in lines[:count]:
        peer = line.split()[-1].replace("::ffff:", "").replace("[", "").replace("]", "")
        run("ip", "netns", "exec", hosts.space(name), "ss", "-K", "dst", peer.rpartition(":")[0], "dport", "=", peer.rpartition(":")[2], check=False)
    return len(lines[:count])


def streams_that_are_killed(hosts):
    """If some of 8 or 64 connections are reset during a stream, no data is lost. If all are reset, both sides report that the stream is incomplete."""
    data = os.urandom(24_000_000)
    key = {"RDPIPE_KEY": "a key for two hosts, long enough"}
    with hosts.path("host1", "host2", rate=100_000_000, delay=5000, offload=1) as (_, address):
        for port, options, streams, killed, wanted in ((7011, "", 8, 5, 0), (7012, "--encrypt", 8, 5, 0), (7013, "", 8, 8, 1),
                                                       (7014, "", 64, 60, 0), (7015, "--encrypt", 64, 60, 0)):
            receiver = hosts.start("host2", f"rdrecv {options} {port} | sha256sum", **key)
            sender = hosts.start("host1", f"rdsend --streams {streams} {options} {address} {port}", stdin=subprocess.PIPE, **key)
            are_dead = threading.Event()

            def feed(sender=sender, are_dead=are_dead):  # sends the last byte after the kill, however late that is
                with contextlib.suppress(BrokenPipeError):
                    sender.stdin.write(data[:-1])
                are_dead.wait()
                hosts.end(sender, data[-1:])

            feeder = threading.Thread(target=feed)
            feeder.start()
            try:
                wait_for(f"{streams} streams", lambda: len(connections(hosts, "host2", port)) == streams)
                time.sleep(0.5)
                expect(kill_connections(hosts, "host2", port, killed) == killed, "the streams are gone already")
            finally:
                are_dead.set()
                feeder.join()
            status, out, err = hosts.end(receiver)
            expect(sender.returncode == wanted and status == wanted, f"{options}: status {sender.returncode} and {status}: {err}")
            is_same = out.decode().split()[0] == hashlib.sha256(data).hexdigest()
            expect(is_same == (wanted == 0), f"{options}: other bytes than were sent")


def a_far_path_begins_with_four_streams(hosts):
    """A short path uses a single stream. If packets are lost although no queue delays them, more streams are used than without losses."""
    key = {"RDPIPE_KEY": "a key for two hosts, long enough"}

    def streams(port, address, data, options=""):
        receiver = hosts.start("host2", f"rdrecv --carrier tcp {port} | sha256sum", **key)
        err = gives(hosts, f"rdsend --json {options} {address} {port}", b"", data, name="host1", seconds=120 * SLOWNESS, **key)
        status, out, said = hosts.end(receiver)
        expect(status == 0 and out.decode().split()[0] == hashlib.sha256(data).hexdigest(), f"status {status}: {said}")
        return json.loads(err)["streams"]

    expect(streams(7021, hosts.address("host2"), b"near") == 1, "a near path uses several streams")
    for port, delay in ((7022, 600), (7024, 10000)):  # microseconds, one way
        with hosts.path("host1", "host2", rate=1_000_000_000, delay=delay, offload=1) as (_, address):
            used = streams(port, address, os.urandom(6_000_000), "--rate 4M")  # slow enough for four; at most one trial with eight
            expect(4 <= used <= 8, f"{used} streams were used with {delay} us")
            used = streams(port + 1, address, os.urandom(6_000_000), "--rate 4M --streams 2")
            expect(used == 2, f"{used} streams were used, and two were wanted")
    with hosts.path("host1", "host2", rate=1_000_000_000, delay=25000, loss=0.002, offload=1, seed=5) as (_, address):
        used = streams(7026, address, os.urandom(60_000_000), "--congestion reno")
        expect(used > 16, f"in spite of losses only {used} streams were used")


def a_wrong_key_is_said(hosts):
    receiver = hosts.start("host2", "rdrecv --wait 60 7001", RDPIPE_KEY="the right key, long enough")
    try:
        status, _, err = hosts.call(f"rdsend {hosts.address('host2')} 7001", b"x", name="host1", RDPIPE_KEY="a wrong key, long enough")
        expect(status == 1 and "its key is different" in err, f"status {status}: {err}")
        gives(hosts, f"rdsend {hosts.address('host2')} 7001", b"", b"right", name="host1", RDPIPE_KEY="the right key, long enough")
        status, out, err = hosts.end(receiver)
        expect(status == 0 and out == b"right" and "turned away 1" in err, f"status {status}: {out!r} {err}")
    finally:
        if receiver.poll() is None:
            receiver.kill()
            receiver.wait()


NEED_TUN = [a_listener_that_never_comes, over_a_lossy_path, streams_that_are_killed, a_far_path_begins_with_four_streams]
CASES = [olleh, bandwidth_of_a_file, local_input_into_a_remote_command, users_on_both_ends, tar_stands_in_for_zfs,
         plans_of_what_cannot_run_here, raw_pictures_through_a_pipe, files_at_both_ends, four_hosts, the_same_host_twice,
         one_connection_a_host, sessions_of_a_host_start_side_by_side, what_a_login_shell_prints_is_skipped, several_at_once, a_middle_hop_without_a_command, several_receivers,
         interactive_lines_are_not_held_back, nothing_to_say, a_forced_carrier, blocks_of_all_sizes, a_hop_of_smaller_blocks, json_at_the_end, progress_on_a_terminal, options_for_ssh, installed, names_of_files_are_completed,
         status_as_with_pipefail, a_reader_that_quits, what_stands_before_and_behind_sees_the_ends, what_is_wrong_is_said, text_of_others_is_shown_not_obeyed, what_cannot_start_is_said_at_once, a_file_is_emptied_when_its_stream_begins, a_fault_that_comes_with_the_end_is_said, whose_command_failed_is_said, the_first_of_two_refused_hops_is_said, a_blocked_hop, one_prompt_at_a_time, a_prompt_whose_text_a_server_chose, a_prompt_that_nobody_answers, a_command_that_asks_at_the_terminal, nothing_plain_on_the_wire, encrypted_streams_and_their_ends, sixty_four_streams, send_and_receive, a_wrong_key_is_said] \
    + NEED_TUN \
    + ([test_picture_of_ffmpeg] if os.environ.get("PIPE_FFMPEG") else [])
