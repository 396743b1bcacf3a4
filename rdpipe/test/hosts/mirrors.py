# SPDX-License-Identifier: Apache-2.0
"""Tests copies between hosts that make a target identical to its source: what is deleted there, and what is never deleted."""
import json
import os
import random
import shutil
import subprocess

from cases import expect
from comforts import lines_of
from copies import a_tree_of, copies, folder_of, killed_somewhere
from faults import seed_of
from hosts import run


def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def told_of(err, event):
    """Returns the JSON object of this event, of which standard error must contain exactly one line."""
    found = [line for line in lines_of(err) if line.get("event") == event]
    expect(len(found) == 1, f"{len(found)} lines of {event}: {err}")
    return found[0]


def names_below(folder):
    return sorted(os.path.relpath(os.path.join(at, name), folder) for at, folders, files in os.walk(folder) for name in folders + files)


def a_mirror_in_all_directions(hosts):
    """--delete between hosts removes, counts and lists what only the target has. A link out of the tree is removed, but not its target."""
    folder = folder_of(hosts, "mirror")
    tree = a_tree_of(folder, seed_of(hosts))
    put(f"{folder}/outside/file", "kept")
    for i, (source, target) in enumerate([("", "host1:"), ("host1:", ""), ("host1:", "host2:"), ("", "")]):
        to = f"{folder}/to{i}"
        copies(hosts, f"-rpT {source}{tree} {target}{to}")
        put(f"{to}/old/deep/file", "old")
        put(f"{to}/deep/er/it's\nold", "old")
        os.symlink("../outside", f"{to}/out")
        err = copies(hosts, f"-rpT -v --json --delete {source}{tree} {target}{to}")
        run("diff", "-r", "--no-dereference", tree, to)
        expect(os.stat(f"{to}/deep/er").st_mtime_ns == os.stat(f"{tree}/deep/er").st_mtime_ns, "the time of a directory")
        told = told_of(err, "copied")
        expect(sorted(told["deleted"]) == ["deep/er/it's\nold", "old", "old/deep", "old/deep/file", "out"], told)
        expect(told["host"] == target.rstrip(":") and told["files_written"] == 0, told)
        expect(", 5 deleted" in err and f"{to}/old/deep/file: deleted" in err and "it's\\x0aold: deleted" in err, err)
        expect(json.loads(err.splitlines()[-1])["event"] == "end", err)
    expect(os.listdir(f"{folder}/outside") == ["file"], "what a link led to is gone")


def a_mirror_with_bounds(hosts):
    """If more files than --max-delete would be removed, none are and the status is 1. Files that match --exclude are kept. Also tests usage errors."""
    folder = folder_of(hosts, "bounds")
    put(f"{folder}/from/one", "1")
    for name in ("a", "b", "c", "keep.o", "cache/file"):
        put(f"{folder}/to/{name}", name)
    words = f"-rT --delete --exclude '*.o' --exclude cache/ host1:{folder}/from host2:{folder}/to"
    err = copies(hosts, f"--max-delete 2 {words}", 1)
    expect("nothing is deleted, because more than 2 files and directories would be" in err, err)
    expect(names_below(f"{folder}/to") == ["a", "b", "c", "cache", "cache/file", "keep.o", "one"], names_below(f"{folder}/to"))
    copies(hosts, f"--max-delete 3 {words}")
    expect(names_below(f"{folder}/to") == ["cache", "cache/file", "keep.o", "one"], names_below(f"{folder}/to"))
    for words, text in (("--delete", "--delete needs -r"), ("-r --max-delete x", "--max-delete 'x': expected a number")):
        expect(text in copies(hosts, f"{words} {folder}/from {folder}/to", 2), words)


def a_mirror_of_what_cannot_be_read(hosts):
    """If there is an error at the source, while listing or reading, nothing is deleted."""
    folder = folder_of(hosts, "unread")
    put(f"{folder}/from/one", "1")
    put(f"{folder}/to/old", "old")
    os.mkfifo(f"{folder}/from/fifo")
    words = f"-rT --delete host1:{folder}/from host2:{folder}/to"
    err = copies(hosts, f"--fail-special {words}", 1)
    expect("nothing is deleted, because the copy is incomplete" in err and os.path.exists(f"{folder}/to/old"), err)
    os.unlink(f"{folder}/from/fifo")
    with open(f"{folder}/from/big", "wb") as file:
        for _ in range(120):
            file.write(os.urandom(1_000_000))
    writer = subprocess.Popen(["bash", "-c", f"while :; do touch {folder}/from/big; sleep 0.001; done"])
    try:
        err = copies(hosts, words, 1)
    finally:
        writer.kill()
        writer.wait()
    expect("changed while being read" in err and "nothing is deleted" in err, err)
    expect(os.path.exists(f"{folder}/to/old") and not os.path.exists(f"{folder}/to/big"), names_below(f"{folder}/to"))
    expect("No such file" in copies(hosts, f"-rT --delete host1:{folder}/gone host2:{folder}/to", 1) and os.path.exists(f"{folder}/to/old"), "a source that is gone")
    copies(hosts, words)
    run("diff", "-r", f"{folder}/from", f"{folder}/to")


def a_mirror_killed_anywhere(hosts):
    """No matter which process is killed and when, nothing is deleted before everything is copied, and the next copy makes both trees identical."""
    folder = folder_of(hosts, "mirror_killed")
    dice = random.Random(seed_of(hosts).random())
    tree = a_tree_of(folder, dice)
    for i in range(4):
        for name in range(200):
            put(f"{folder}/to/old/{name % 7}/{name}", "old")
        killed_somewhere(hosts, dice, f"-rT --delete host1:{tree} host2:{folder}/to", 0.5)
        hosts.check_nothing_is_left()
        old = sum(len(files) for _, _, files in os.walk(f"{folder}/to/old"))
        if old < 200:
            run("diff", "-r", "--no-dereference", "--exclude=old", tree, f"{folder}/to")
        if i % 2:
            shutil.rmtree(f"{folder}/to")
    copies(hosts, f"-rT --delete host1:{tree} host2:{folder}/to")
    run("diff", "-r", "--no-dereference", tree, f"{folder}/to")


def a_dry_run(hosts):
    """-n lists what a copy would change, with the reason, on standard output, and changes nothing."""
    folder = folder_of(hosts, "dry")
    tree = f"{folder}/from"
    for name, text in (("one", "1"), ("dir/two", "22"), ("dir/three", "same"), ("it's new", "3")):
        put(f"{tree}/{name}", text)
    shutil.copytree(tree, f"{folder}/to")
    os.unlink(f"{folder}/to/it's new")
    put(f"{folder}/to/dir/two", "2")
    put(f"{folder}/to/old/file", "old")
    os.chmod(f"{tree}/one", 0o600)
    state = ["find", f"{folder}/to", "-printf", "%p %y %m %s %T@ %i\n"]
    before = run(*state)
    lines = ["new it's new (1 byte)", "changed dir/two (size 1 to 2)", "changed one (mode 644 to 600)",
             "deleted old/ (not at the source)", "deleted old/file (not at the source)"]
    for source, target in (("", "host1:"), ("host1:", "host2:"), ("", "")):
        status, out, err = hosts.call(f"rdcp -rpTvn --delete {source}{tree} {target}{folder}/to")
        told = [line for line in out.decode().splitlines() if not line.endswith("/ (time)")]
        expect(status == 0 and sorted(told) == sorted(lines), f"status {status}: {out}: {err}")
        expect("dry run: 1 new, " in err and ", 2 deleted" in err, err)
        expect(run(*state) == before, "a dry run has changed the target")
    status, out, err = hosts.call(f"rdcp -rT -n --json host1:{tree} {folder}/to")
    told = [json.loads(line) for line in out.splitlines()]
    expect(status == 0 and {(line["change"], line["path"]) for line in told} == {("new", "it's new"), ("changed", "dir/two")}, f"{out} {err}")
    expect(json.loads(err.splitlines()[-1])["event"] == "end", err)
    status, out, err = hosts.call(f"rdcp -rT -n host1:{tree} {folder}/none/to")
    expect(status == 1 and out == b"" and "none/to: No such file" in err, f"{out} {err}")
    copies(hosts, f"-rpT --delete host1:{tree} host2:{folder}/to")
    run("diff", "-r", tree, f"{folder}/to")


def what_is_named(hosts):
    """--files-from reads many names from a file or from standard input, and rejects names that lead out of the source."""
    folder = folder_of(hosts, "named")
    tree = f"{folder}/from"
    for i in range(3000):
        put(f"{tree}/{i % 10}/it's a name of some length {i}", str(i))
    put(f"{tree}/new\nline", "x")
    put(f"{folder}/secret", "hidden")
    wanted = [f"{i % 10}/it's a name of some length {i}" for i in range(0, 3000, 2)]
    with open(f"{folder}/names", "w", encoding="utf-8") as file:
        file.write("".join(f"/{name}\n" for name in wanted))
    copies(hosts, f"--files-from {folder}/names host1:{tree} host2:{folder}/to")
    files = [name for name in names_below(f"{folder}/to") if "/" in name]
    expect(files == sorted(wanted), f"{len(files)} of {len(wanted)}")
    for name in wanted:
        expect(open(f"{folder}/to/{name}", encoding="utf-8").read() == name.split()[-1], name)
    status, _, err = hosts.call(f"rdcp -vT -0 --files-from - {tree} host1:{folder}/to", b"new\nline\0" + wanted[0].encode() + b"\0")
    expect(status == 0 and "1 files written" in err and ", 1 already there" in err and os.path.exists(f"{folder}/to/new\nline"), f"status {status}: {err}")
    for name in (b"../secret", b"1/../../secret"):
        status, _, err = hosts.call(f"rdcp --files-from - host1:{tree} host2:{folder}/none", b"new\n" + name)
        expect(status == 2 and f"name 2: '{name.decode()}' leads out of the source" in err and not os.path.exists(f"{folder}/none"), f"status {status}: {err}")
    for words, text in (("-r --delete --files-from -", "--delete and --files-from"), ("-0", "--from0 needs --files-from"), ("--files-from /none", "--files-from /none: No such file"),
                        (f"--files-from {folder}/names {tree}", "below one SOURCE, got 2")):
        expect(text in copies(hosts, f"{words} {tree} {folder}/x", 2), words)


def what_is_included(hosts):
    """--include and --exclude apply in the order given, on both sides."""
    folder = folder_of(hosts, "included")
    for name in ("a.c", "a.o", "deep/b.c", "deep/b.o", "deep/keep.o"):
        put(f"{folder}/from/{name}", name)
    put(f"{folder}/to/old.o", "old")
    put(f"{folder}/to/old.c", "old")
    copies(hosts, f"-rT --delete --include keep.o --exclude '*.o' host1:{folder}/from host2:{folder}/to")
    expect(names_below(f"{folder}/to") == ["a.c", "deep", "deep/b.c", "deep/keep.o", "old.o"], names_below(f"{folder}/to"))


def inodes_below(folder):
    return {name: os.lstat(f"{folder}/{name}").st_ino for name in names_below(folder) if not os.path.isdir(f"{folder}/{name}")}


def a_tree_replaced_at_once(hosts):
    """With --atomic, unchanged files are hard links to the old ones, the target always exists, and no temporary files remain next to it."""
    folder = folder_of(hosts, "atomic")
    tree = a_tree_of(folder, seed_of(hosts))
    copies(hosts, f"-rpT host1:{tree} host2:{folder}/to")
    put(f"{folder}/to/mine", "mine")
    looks = os.path.join(folder, "missing")
    watcher = subprocess.Popen(["bash", "-c", f"while :; do test -d {folder}/to || echo missing >>{looks}; done"])
    try:
        for options, has_mine in (("", True), ("--delete", False)):
            before, top = inodes_below(f"{folder}/to"), os.stat(f"{folder}/to").st_ino
            put(f"{tree}/big", f"changed {options}")
            err = copies(hosts, f"-rpT -v --atomic {options} host1:{tree} host2:{folder}/to")
            after = inodes_below(f"{folder}/to")
            expect("1 files written" in err, err)
            expect(os.stat(f"{folder}/to").st_ino != top and os.path.exists(f"{folder}/to/mine") == has_mine, f"{options}: {err}")
            expect(all(before[name] == inode for name, inode in after.items() if name not in ("big", "link", "dangling")), "what has not changed is not linked")
            run("diff", "-r", "--no-dereference", "--exclude=mine", tree, f"{folder}/to")
    finally:
        watcher.kill()
        watcher.wait()
    expect(not os.path.exists(looks), "the tree was away for a moment")
    expect(sorted(os.listdir(folder)) == ["to", "tree"], os.listdir(folder))
    expect("--atomic needs -r" in copies(hosts, f"--atomic {tree} {folder}/to", 2), "usage")


def a_tree_replaced_and_killed_anywhere(hosts):
    """No matter which process is killed and when, the target is either the old tree or the new one."""
    folder = folder_of(hosts, "atomic_killed")
    dice = random.Random(seed_of(hosts).random())
    tree = a_tree_of(folder, dice)
    copies(hosts, f"-rpT host1:{tree} host2:{folder}/to")
    for i in range(4):
        shutil.rmtree(f"{folder}/was", ignore_errors=True)
        run("cp", "-a", tree, f"{folder}/was")
        for name in range(50):
            put(f"{tree}/deep/file {i} {name}", str(i))
        with open(f"{tree}/big", "wb") as file:
            file.write(dice.randbytes(9_000_000))
        status, err = killed_somewhere(hosts, dice, f"-rpT --atomic --delete host1:{tree} host2:{folder}/to", 0.6)
        hosts.check_nothing_is_left()
        is_new = subprocess.run(["diff", "-qr", "--no-dereference", tree, f"{folder}/to"], stdout=subprocess.DEVNULL, check=False).returncode == 0
        expect(is_new or status != 0, f"kill {i} (seed {hosts.seed}): status 0 and no new tree: {err}")
        if not is_new:
            run("diff", "-r", "--no-dereference", f"{folder}/was", f"{folder}/to")
        copies(hosts, f"-rpT --atomic --delete host1:{tree} host2:{folder}/to")
        run("diff", "-r", "--no-dereference", tree, f"{folder}/to")
    expect(sorted(os.listdir(folder)) == ["to", "tree", "was"], os.listdir(folder))


def sent_by(hosts, name):
    return int(run("ip", "netns", "exec", hosts.space(name), "cat", "/sys/class/net/eth0/statistics/tx_bytes"))


def several_targets(hosts):
    """With --also, all targets get the complete tree, although the source sends each byte only once. A failed target does not stop the others."""
    folder = folder_of(hosts, "several_targets")
    tree = a_tree_of(folder, seed_of(hosts))
    targets = [f"host{i}:{folder}/to{i}" for i in (2, 3, 4)]
    words = f"-rpT --carrier tcp host1:{tree} {targets[0]} --also {targets[1]} --also {targets[2]}"
    size = sum(os.lstat(f"{tree}/{name}").st_blocks * 512 for name in names_below(tree))
    before = sent_by(hosts, "host1")
    copies(hosts, words)
    sent = sent_by(hosts, "host1") - before
    expect(sent < 1.5 * size, f"host1 has sent {sent} bytes for {size}")
    for i in (2, 3, 4):
        run("diff", "-r", "--no-dereference", tree, f"{folder}/to{i}")
    # Only what one target lacks is sent again, and each target deletes what only it has.
    os.unlink(f"{folder}/to3/big")
    put(f"{folder}/to4/old", "old")
    err = copies(hosts, f"--json --delete {words}")
    told = {line["host"]: line for line in lines_of(err) if line["event"] == "copied"}
    expect([told[f"host{i}"]["deleted"] for i in (2, 3, 4)] == [[], [], ["old"]], err)
    expect(all(line["bytes_received"] == 9_000_000 for line in told.values()), err)
    for i in (2, 3, 4):
        run("diff", "-r", "--no-dereference", tree, f"{folder}/to{i}")
    # One target is a file, and the disk of another is full.
    shutil.rmtree(f"{folder}/to3")
    put(f"{folder}/to3", "a file")
    os.unlink(f"{folder}/to2/big")
    put(f"{tree}/new", "new")
    err = copies(hosts, words, 1)
    expect(f"host3: {folder}/to3: already exists and is not a directory" in err, err)
    full = f"-rT host1:{tree} host2:{hosts.disk}/to --also host3:{folder}/whole --also host4:{folder}/too"
    err = copies(hosts, full, 1)
    expect("No space left" in err, err)
    shutil.rmtree(f"{hosts.disk}/.to.rdcp-part")
    for name in ("to2", "to4", "whole", "too"):
        run("diff", "-r", "--no-dereference", tree, f"{folder}/{name}")
    expect("--dry-run takes only one target" in copies(hosts, f"-rn --also x {tree} {folder}/x", 2), "usage")


CASES = [several_targets, a_tree_replaced_at_once, a_tree_replaced_and_killed_anywhere, what_is_named, what_is_included, a_dry_run, a_mirror_in_all_directions, a_mirror_with_bounds, a_mirror_of_what_cannot_be_read, a_mirror_killed_anywhere]
