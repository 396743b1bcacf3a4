# SPDX-License-Identifier: Apache-2.0
"""Tests copies between hosts: what arrives, how an interrupted copy is resumed, and what is left behind if it cannot be."""
import json
import os
import pwd
import random
import re
import shutil
import signal
import stat
import subprocess
import time

from cases import expect
from faults import seed_of
from hosts import SLOWNESS, run, wait_for


def folder_of(hosts, name):
    path = os.path.join(hosts.folder, name)
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    return path


def copies(hosts, words, status=0, limits="", **more):
    got, out, err = hosts.call(f"{limits}rdcp {words}", **more)
    expect(got == status and out == b"", f"rdcp {words}: status {got} (expected {status}), output {out[:100]!r}, said: {err[-800:]}")
    return err


def parts_below(folder):
    return [name for _, folders, files in os.walk(folder) for name in folders + files if "rdcp-part" in name]


def a_tree_of(folder, dice):
    """Creates a tree with files of many sizes, empty files, deep directories, links, names that a shell would split, and a sparse file."""
    tree = os.path.join(folder, "tree")
    os.makedirs(os.path.join(tree, "deep/er/and deeper"))
    os.mkdir(os.path.join(tree, "empty"))
    for i in range(300):
        where = dice.choice(["", "deep", "deep/er", "deep/er/and deeper"])
        with open(os.path.join(tree, where, f"file {i}"), "wb") as file:
            file.write(dice.randbytes(dice.choice([0, 1, 100, 5000, 40000])))
    for name in ("-dash", "quote'\"", "new\nline", "a$b`c", "*", "ü", " blank "):
        with open(os.path.join(tree, name), "w", encoding="utf-8") as file:
            file.write(name)
    with open(os.path.join(tree, "big"), "wb") as file:
        file.write(dice.randbytes(9_000_000))
    with open(os.path.join(tree, "sparse"), "wb") as file:
        file.seek(40_000_000)
        file.write(b"x")
        file.truncate(80_000_000)
    os.symlink("deep/er", os.path.join(tree, "link"))
    os.symlink("/no/where", os.path.join(tree, "dangling"))
    return tree


def a_tree_in_all_directions(hosts):
    folder = folder_of(hosts, "directions")
    tree = a_tree_of(folder, seed_of(hosts))
    ways = [("", "host1:"), ("host1:", ""), ("root@host1:", "host2:"), ("host2:", "host2:"), ("", "")]
    for i, (source, target) in enumerate(ways):
        options = ["-r", "-rp", "-r --zstd", "-rp --carrier tcp", "-r --no-checksum --block 8K"][i]
        copies(hosts, f"{options} {source}{tree} {target}{folder}/to{i}")
        run("diff", "-r", "--no-dereference", tree, f"{folder}/to{i}")
        sparse = os.stat(f"{folder}/to{i}/sparse")
        expect(sparse.st_blocks * 512 < 20_000_000, f"the hole was filled: {sparse.st_blocks} blocks")
        if "p" in options.split()[0]:
            for name in ("", "big", "deep/er"):
                was, now = (os.lstat(os.path.join(top, name)) for top in (tree, f"{folder}/to{i}"))
                expect((was.st_mode, was.st_mtime_ns) == (now.st_mode, now.st_mtime_ns), f"{name}: {was} {now}")
    # Into an existing directory, and over existing files.
    copies(hosts, f"-r host1:{tree}/ {folder}/to0")
    run("diff", "-r", "--no-dereference", tree, f"{folder}/to0/tree")
    expect(not parts_below(folder), f"left: {parts_below(folder)}")


def a_file_in_all_directions(hosts):
    folder = folder_of(hosts, "files")
    with open(os.path.join(folder, "one"), "wb") as file:
        file.write(os.urandom(3_000_001))
    for source, target in (("", "host1:"), ("host1:", ""), ("host1:", "host2:")):
        copies(hosts, f"{source}{folder}/one {target}{folder}/two")
        run("cmp", f"{folder}/one", f"{folder}/two")
        os.unlink(f"{folder}/two")
    # A relative path starts in the home directory, as with ssh; a local path may contain a colon.
    from_home = os.path.relpath(folder, pwd.getpwnam("root").pw_dir)
    copies(hosts, f"host1:{from_home}/one {folder}/a:b")
    copies(hosts, f"{folder}/a:b host2:'~/{from_home}/with blank'")
    run("cmp", f"{folder}/one", f"{folder}/with blank")
    err = copies(hosts, f"-v --json {folder}/one host1:{folder}/one")
    expect("0 files written with 0 B, 1 already there" in err, err)
    expect(json.loads(err.splitlines()[-1])["command"] == "rdcp", err)


def what_was_cut_off_goes_on(hosts):
    folder = folder_of(hosts, "resumed")
    dice = seed_of(hosts)
    tree = a_tree_of(folder, dice)
    with open(os.path.join(tree, "zz"), "wb") as file:  # the last file to be sent
        for _ in range(60):
            file.write(dice.randbytes(1_000_000))
    part = f"{folder}/.to.rdcp-part/.zz.rdcp-part"
    with hosts.slow("host1", "200mbit"):
        for victim in ("rdcp", "--unpack", "--pack"):
            before = os.path.getsize(part) if os.path.exists(part) else 0
            process = hosts.start("local", f"exec rdcp -r host1:{tree} host2:{folder}/to")
            wait_for(f"more than {before} bytes", lambda: os.path.exists(part) and os.path.getsize(part) > before + 3_000_000, 120 * SLOWNESS)
            if victim == "rdcp":
                process.send_signal(signal.SIGINT)
            else:
                for name in ("host1", "host2"):
                    for pid, words in hosts.processes(name).items():
                        if victim in words:
                            os.kill(pid, signal.SIGKILL)
            status, _, err = hosts.end(process)
            expect(status == (-signal.SIGINT if victim == "rdcp" else 1), f"{victim}: status {status}: {err}")
            expect(not os.path.exists(f"{folder}/to"), "half a tree under its name")
            hosts.check_nothing_is_left()
    there = os.path.getsize(part)
    err = copies(hosts, f"-v -r host1:{tree} host2:{folder}/to")
    run("diff", "-r", "--no-dereference", tree, f"{folder}/to")
    told = re.search(r"(\d+) files written with ([0-9.]+) MB, (\d+) already there", err)
    expect(told and int(told[3]) > 300 and float(told[2]) * 1e6 <= 60_000_000 - there + 1_000_000, f"{there} bytes were there: {err}")
    expect(not parts_below(folder), f"left: {parts_below(folder)}")


def what_differs_of_a_changed_file(hosts):
    """All hosts are the same machine here, so `auto` sends whole files."""
    folder = folder_of(hosts, "changed")
    dice = seed_of(hosts)
    os.mkdir(f"{folder}/from")
    content = {name: dice.randbytes(3_000_000) for name in ("longer", "shorter", "same", "other")}
    for delta, least, most in (("always", 300_000, 400_000), ("auto", 9_000_000, 10_000_000), ("never", 9_000_000, 10_000_000)):
        for name, data in content.items():
            with open(f"{folder}/from/{name}", "wb") as file:
                file.write(data)
        shutil.rmtree(f"{folder}/to", ignore_errors=True)
        copies(hosts, f"-r --delta {delta} {folder}/from host1:{folder}/to")
        for name, change in (("longer", lambda data: data[:1_000_000] + dice.randbytes(300_000) + data[1_000_000:]),
                             ("shorter", lambda data: data[100_000:]), ("other", lambda data: data[:5] + b"x" + data[6:])):
            with open(f"{folder}/from/{name}", "wb") as file:
                file.write(change(content[name]))
        err = copies(hosts, f"-v -rT --delta {delta} host2:{folder}/from host1:{folder}/to")
        run("diff", "-r", f"{folder}/from", f"{folder}/to")
        told = re.search(r"(\d+) files written with ([0-9.]+) (.?)B, (\d+) already there", err)
        sent = told and float(told[2]) * {"": 1, "k": 1e3, "M": 1e6}[told[3]]
        expect(told and told[1] == "3" and told[4] == "1" and least <= sent <= most, f"--delta {delta}: {err}")
    expect("--delta 'no': expected auto, always or never" in copies(hosts, f"--delta no {folder}/from host1:{folder}/to", 2), "no usage")
    expect(not parts_below(folder), f"left: {parts_below(folder)}")


def a_copy_that_cannot_be_made(hosts):
    folder = folder_of(hosts, "wrong")
    open(f"{folder}/file", "w", encoding="utf-8").close()
    os.mkdir(f"{folder}/dir")
    os.mkfifo(f"{folder}/fifo")
    os.mkdir(f"{folder}/special")
    os.mkfifo(f"{folder}/special/fifo")
    for words, status, text in [
            (f"host1:{folder}/none host2:{folder}/to", 1, "host1: " + folder + "/none: No such file"),
            (f"host1:{folder}/dir host2:{folder}/to", 1, "use -r to copy it"),
            (f"{folder}/file host2:{folder}/none/to", 1, "host2: " + folder + "/none/to: No such file"),
            (f"{folder}/file host2:{folder}/none/", 1, "not a directory"),
            (f"-r {folder}/dir host2:{folder}/file", 1, "not a directory"),
            (f"-r host2:{folder}/dir host2:{folder}/dir/to", 1, "host2: " + folder + "/dir/to: a directory is not copied into itself"),
            # All hosts here are the same machine.
            (f"-r host1:{folder}/dir host2:{folder}/dir/to", 1, "host2: " + folder + "/dir/to: a directory is not copied into itself"),
            (f"-r {folder}/dir host2:{folder}/dir", 1, "host2: " + folder + "/dir/dir: a directory is not copied into itself"),
            ("/dev/null host1:/tmp/x", 1, "is a device: rdcp copies only files"),
            (f"{folder}/file host2:{folder}/fifo", 1, "host2: " + folder + "/fifo: is a FIFO, which rdcp does not replace"),
            (f"-r --fail-special {folder}/special host2:{folder}/to", 1, "--fail-special"),
            (f"-o Port=1 {folder}/file host1:/tmp/x", 125, "ssh has failed"),
            (f"--remote-path /nowhere {folder}/file host1:/tmp/x", 125, "--remote-path"),
            (f"{folder}/file", 2, "SOURCE and TARGET"), (f"-- {folder}/file -bad:x", 2, "not a valid host")]:
        err = copies(hosts, words, status)
        expect(text in err, f"rdcp {words} said: {err}")
    shutil.rmtree(f"{folder}/.to.rdcp-part")
    expect(sorted(os.listdir(folder)) == ["dir", "fifo", "file", "special"], f"left: {os.listdir(folder)}")
    expect(stat.S_ISFIFO(os.stat(f"{folder}/fifo").st_mode), "the FIFO was replaced")
    err = copies(hosts, f"-r {folder}/special host2:{folder}/to")
    expect("/special/fifo: is a FIFO: skipped" in err and os.listdir(f"{folder}/to") == [], err)


def several_sources_with_all_that_they_have(hosts):
    """Runs the command with -a, --exclude and several sources. A second run over unchanged files does not send any content."""
    folder = folder_of(hosts, "several")
    for name in ("one", "it's two"):
        os.makedirs(f"{folder}/{name}/deep")
        for i in range(50):
            with open(f"{folder}/{name}/deep/{i}", "wb") as file:
                file.write(os.urandom(1000))
        os.link(f"{folder}/{name}/deep/0", f"{folder}/{name}/linked")
        os.chown(f"{folder}/{name}/deep/1", 4321, 4322)
        os.setxattr(f"{folder}/{name}/deep/2", "user.note", b"kept")
        open(f"{folder}/{name}/left.o", "w", encoding="utf-8").close()
    os.mkdir(f"{folder}/to")
    _, plan, _ = hosts.call(f"rdcp --plan -r --exclude left.o host1:{folder}/one host2:{folder}/to")
    parts = [line for line in plan.decode().splitlines() if " --list " in line or " --pack " in line]
    expect(len(parts) == 2 and all("--exclude 'left.o'" in part for part in parts), f"a part of the source does not know what is left out: {parts}")
    words = f"""-v --json -a --exclude '*.o' host1:{folder}/one host1:"{folder}/it's two" host2:{folder}/to"""
    for written, there in ((102, 0), (0, 102)):
        err = copies(hosts, words)
        expect(f"{written} files written with" in err and f"{there} already there" in err, err)
        for name in ("one", "it's two"):
            run("diff", "-r", "--no-dereference", "--exclude=left.o", f"{folder}/{name}", f"{folder}/to/{name}")
            at = f"{folder}/to/{name}"
            expect(os.path.samefile(f"{at}/deep/0", f"{at}/linked") and not os.path.exists(f"{at}/left.o"), "links, or what is excluded")
            expect(os.stat(f"{at}/deep/1").st_uid == 4321 and os.getxattr(f"{at}/deep/2", "user.note") == b"kept", "owner, or attribute")
    expect(json.loads(err.splitlines()[-1])["hops"][-1]["bytes"] < 60_000, err)
    for words, text in ((f"host1:{folder}/one host2:{folder}/one {folder}/to", "is on another host than"), (f"-T {folder}/one {folder}/to {folder}/x", "-T takes one source"),
                        (f"{folder}/one/linked {folder}/to/one/linked/ {folder}/to", "would both become 'linked'")):
        expect(text in copies(hosts, words, 2), words)


def more_sources_than_a_command_line_of_a_shell_holds(hosts):
    """rdcp accepts as many sources as fit on the user's command line (`rdcp many/* host:`), although a single argument is limited to 128 KiB."""
    folder = folder_of(hosts, "many")
    os.mkdir(f"{folder}/from")
    os.mkdir(f"{folder}/to")
    for i in range(5000):
        with open(f"{folder}/from/it's a name of some length {i}", "w", encoding="utf-8") as file:
            file.write(str(i))
    _, out, _ = hosts.call(f"cd {folder}; echo from/* | wc -c")
    expect(int(out) > 150_000, f"the names have {out} bytes")
    err = copies(hosts, f"-v {folder}/from/* host1:{folder}/to")
    expect("5000 files written" in err, err)
    run("diff", "-r", f"{folder}/from", f"{folder}/to")
    expect("would both become '7'" in copies(hosts, f"a/7 $(seq 3000) host1:{folder}/to", 2), "two of one name")


def a_file_system_without_attributes(hosts):
    """If the target's file system has no extended attributes, everything else is copied, as with cp -a."""
    folder = folder_of(hosts, "plain")
    disk = folder_of(hosts, "plain/disk")
    os.mkdir(f"{folder}/tree")
    with open(f"{folder}/tree/file", "w", encoding="utf-8") as file:
        file.write("text")
    os.setxattr(f"{folder}/tree/file", "user.note", b"lost")
    command = f"mount --make-rprivate / && mount -t ramfs ramfs {disk} && rdcp -a {folder}/tree {disk}; echo $? $(cat {disk}/tree/file)"
    _, out, err = hosts.call(f"unshare -m bash -c '{command}'")
    expect(out == b"0 text\n", f"{out!r}: {err}")
    expect(f"rdcp: {disk}/tree/file: its attribute user.note is not kept: the file system does not support it" in err, err)


def another_version(hosts):
    folder = folder_of(hosts, "versions")
    programs = folder_of(hosts, "versions/bin")
    open(f"{folder}/file", "w", encoding="utf-8").close()
    os.symlink(f"{hosts.programs}/rdpipe", f"{programs}/rdpipe")
    err = copies(hosts, f"--json --remote-path {programs} {folder}/file host1:{folder}/to", 125)
    expect("no 'rdcp' on a host's PATH" in err and json.loads(err.splitlines()[-1])["status"] == 125, err)
    # The same program with a different version, which does not matter, and one with a different protocol version.
    with open(f"{hosts.programs}/rdcp", "rb") as program:
        ours = program.read()
    version = run(f"{hosts.programs}/rdcp", "--version").split()[1]
    other = version[:-1] + chr(ord(version[-1]) + 1)
    expect(ours.count(version.encode() + b"\0") >= 1, "no version in rdcp")
    with open(f"{programs}/rdcp", "wb") as program:
        program.write(ours.replace(version.encode() + b"\0", other.encode() + b"\0"))
    os.chmod(f"{programs}/rdcp", 0o755)
    copies(hosts, f"--remote-path {programs} {folder}/file host1:{folder}/to")
    expect(run(f"{programs}/rdcp", "--version").split()[1] == other and os.path.exists(f"{folder}/to"), "no copy between versions")
    os.remove(f"{folder}/to")
    with open(f"{programs}/rdcp", "w", encoding="utf-8") as program:
        print(f'#!/bin/bash\nexec {hosts.programs}/rdcp "${{@/#[0-9]*/99}}"', file=program)
    err = copies(hosts, f"--remote-path {programs} {folder}/file host1:{folder}/to", 1)
    expect("rdcp there has protocol" in err and "here it is 99" in err and not os.path.exists(f"{folder}/to"), err)
    # If an rdcp calls the parts in a different way, the error is about the version, not about the usage.
    status, _, err = hosts.call(f"rdcp --have --of 99 -- {folder}/to </dev/null")
    expect(status == 1 and "rdcp there has protocol" in err and "here it is 99" in err, f"status {status}: {err}")


def options_behind_the_paths(hosts):
    folder = folder_of(hosts, "behind")
    os.mkdir(f"{folder}/dir")
    open(f"{folder}/dir/file", "w", encoding="utf-8").close()
    for _ in range(2):
        copies(hosts, f"{folder}/dir host1:{folder}/to -rpT")
    run("diff", "-r", f"{folder}/dir", f"{folder}/to")


def progress_of_a_copy(hosts):
    folder = folder_of(hosts, "progress")
    with open(f"{folder}/file", "wb") as file:
        file.write(os.urandom(20_000_000))
    status, told = hosts.on_a_terminal(f"rdcp host1:{folder}/file host2:{folder}/to")
    lines = [re.sub("\033\\[K", "", line) for line in told if "/s" in line]
    expect(status == 0 and lines, f"status {status}: {told[-3:]}")
    expect(all(re.fullmatch(r"rdcp: \d+:\d\d  [0-9.]+ .?B  [0-9.]+ .?B/s  average [0-9.]+ .?B/s  host1 to host2\s*", line) for line in lines), f"{lines[-3:]}")


def a_disk_that_is_full(hosts):
    folder = folder_of(hosts, "full")
    disk = folder_of(hosts, "full/disk")
    with open(f"{folder}/file", "wb") as file:
        file.write(os.urandom(6_000_000))
    mount = f"mount -t tmpfs -o size=4m tmpfs {disk} && "
    os.makedirs(f"{folder}/tree/deep")
    shutil.copy(f"{folder}/file", f"{folder}/tree/deep/file")
    for words, full in ((f"{folder}/file {disk}/to", "to"), (f"{folder}/file {disk}", "file"), (f"-r {folder}/tree {disk}", "tree/deep/file")):
        # Only this command sees the mount, which disappears when the command ends.
        command = f"unshare -m bash -c 'mount --make-rprivate / && {mount} rdcp {words}; echo $? $(ls {disk}) >{folder}/told'"
        _, _, err = hosts.call(command)
        told = open(f"{folder}/told", encoding="utf-8").read().split()
        expect(told == ["1"] and f"rdcp: {disk}/{full}: No space left" in err, f"{words}: {told}: {err}")
    status, _, err = hosts.call(f"ulimit -f 1000; rdcp {folder}/file {folder}/limited")
    expect(status == 1 and "File too large" in err and not os.path.exists(f"{folder}/limited"), f"ulimit -f: status {status}: {err}")


def a_file_that_changes(hosts):
    folder = folder_of(hosts, "changing")
    with open(f"{folder}/file", "wb") as file:
        file.truncate(0)
        for _ in range(120):
            file.write(os.urandom(1_000_000))
    writer = subprocess.Popen(["bash", "-c", f"while :; do touch {folder}/file; sleep 0.001; done"])
    try:
        err = copies(hosts, f"host1:{folder}/file host2:{folder}/to", 1)
    finally:
        writer.kill()
        writer.wait()
    expect("changed while being read" in err, err)
    expect(sorted(os.listdir(folder)) == ["file"], f"left: {os.listdir(folder)}")


def a_log_that_grows(hosts):
    folder = folder_of(hosts, "growing")
    with open(f"{folder}/log", "wb") as file:
        for _ in range(40):
            file.write(os.urandom(1_000_000))
    writer = subprocess.Popen(["bash", "-c", f"while :; do echo a line >>{folder}/log; sleep 0.005; done"])
    try:
        err = copies(hosts, f"host1:{folder}/log host2:{folder}/to")
    finally:
        writer.kill()
        writer.wait()
    expect("grew while being read" in err, err)
    size = os.path.getsize(f"{folder}/to")
    expect(size >= 40_000_000, f"{size} bytes")
    run("cmp", "-n", str(size), f"{folder}/log", f"{folder}/to")


def two_copies_to_one_target(hosts):
    """The second copy fails immediately without sending anything, and the first one completes."""
    folder = folder_of(hosts, "twice")
    os.mkdir(f"{folder}/tree")
    with open(f"{folder}/tree/file", "wb") as file:
        file.write(os.urandom(200_000_000))  # slow, so the second is refused long before the first is done
    for options, source, target, part in (("", "tree/file", "one", ".one.rdcp-part"), ("-r", "tree", "all", ".all.rdcp-part/.file.rdcp-part")):
        with hosts.slow("host1"):
            first = hosts.start("local", f"exec rdcp {options} host1:{folder}/{source} host2:{folder}/{target}")
            wait_for("the first has begun", lambda path=f"{folder}/{part}": os.path.exists(path) and os.path.getsize(path) > 1_000_000)
            status, _, err = hosts.call(f"rdcp --json {options} host1:{folder}/{source} host2:{folder}/{target}")
            expect(first.poll() is None, f"the first was through before the second was told: {err}")
        expect(status == 1 and "another rdcp is writing to it" in err, f"status {status}: {err}")
        told = json.loads(err.splitlines()[-1])
        expect(told["hops"][-1]["bytes"] < 10_000, f"{told['hops'][-1]} were sent")
        status, _, err = hosts.end(first)
        expect(status == 0, f"the first: status {status}: {err}")
        run("diff", "-r", f"{folder}/{source}", f"{folder}/{target}")


def little_locked_memory(hosts):
    folder = folder_of(hosts, "locked")
    with open(f"{folder}/file", "wb") as file:
        file.write(os.urandom(3_000_000))
    for target in ("host2:", ""):
        copies(hosts, f"host1:{folder}/file {target}{folder}/copy", limits="ulimit -l 64; ulimit -n 64; ")
        run("cmp", f"{folder}/file", f"{folder}/copy")
        os.unlink(f"{folder}/copy")


def killed_somewhere(hosts, dice, words, longest):
    """Starts a copy and kills one of its processes at a random time, after `longest` seconds at most. Returns its status and messages."""
    process = hosts.start("local", f"exec rdcp {words}")
    time.sleep(dice.uniform(0, longest) * SLOWNESS)
    victims = [pid for name in hosts.names for pid in hosts.processes(name)]
    if victims:
        try:
            os.kill(dice.choice(sorted(victims)), signal.SIGKILL)
        except ProcessLookupError:
            pass
    status, _, err = hosts.end(process)
    return status, err


def kills_anywhere(hosts):
    """No matter which process is killed and when, the target is either complete or missing, and the next copy completes it."""
    folder = folder_of(hosts, "killed")
    dice = random.Random(seed_of(hosts).random())
    tree = a_tree_of(folder, dice)
    for i in range(6):
        status, err = killed_somewhere(hosts, dice, f"-r host1:{tree} host2:{folder}/to", 0.5)
        if os.path.exists(f"{folder}/to"):
            run("diff", "-r", "--no-dereference", tree, f"{folder}/to")
            shutil.rmtree(f"{folder}/to")
        else:
            expect(status != 0, f"kill {i} (seed {hosts.seed}): status 0 and no target: {err}")
        hosts.check_nothing_is_left()
    copies(hosts, f"-r host1:{tree} host2:{folder}/to")
    run("diff", "-r", "--no-dereference", tree, f"{folder}/to")


CASES = [a_tree_in_all_directions, a_file_in_all_directions, several_sources_with_all_that_they_have, more_sources_than_a_command_line_of_a_shell_holds, a_file_system_without_attributes, a_copy_that_cannot_be_made, another_version, options_behind_the_paths,
         progress_of_a_copy, a_disk_that_is_full, a_file_that_changes, a_log_that_grows, two_copies_to_one_target,
         what_was_cut_off_goes_on, what_differs_of_a_changed_file, little_locked_memory, kills_anywhere]
