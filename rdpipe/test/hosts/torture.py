# SPDX-License-Identifier: Apache-2.0
"""Runs three random pipelines at a time, and injects a fault into each. A file with its final name must be complete, and the exit status must match."""
import concurrent.futures
import hashlib
import os
import shlex
import signal
import subprocess
import time

from cases import expect
from faults import seed_of
from hosts import DISK, Failure, SLOWNESS, run, wait_for
from streams import noise

COUNT = int(os.environ.get("PIPE_TORTURE", "12"))
AT_ONCE = 3
KILLED = -signal.SIGKILL
FATES = {"none": 2, "command": 3, "agent": 3, "rdpipe": 2, "ssh": 2, "frozen agent": 2, "frozen command": 2, "cut": 3, "full disk": 2, "reader quits": 2}
# The exit statuses that rdpipe may have. If a command is killed, its status is 137, or 143 if its shell gets SIGTERM first;
# but a neighbour may fail even earlier because of the kill.
STATUSES = {"none": {0}, "frozen agent": {0}, "frozen command": {0}, "command": {137, 143, 125}, "agent": {125, 137, 143}, "rdpipe": {KILLED},
            "ssh": {125}, "cut": {125}, "full disk": {125, 1}, "reader quits": {141}}


def plan_of(dice, number):
    fate = dice.choices(list(FATES), list(FATES.values()))[0]
    return {"number": number, "fate": fate, "size": dice.randrange(4_000_000, 12_000_000), "seed": dice.randrange(2**31), "piece": dice.choice([1 << 20, 65536, 5000]),
            "middle": [dice.choice(["cat", "dd bs=7000 2>/dev/null", ""]) for _ in range(dice.randrange(0, 3))],
            "hosts": dice.sample(["host1", "host2", "host3", "host4"], 4), "options": dice.choice(["", "--zstd=1", "--block 8K", "--encrypt", "--carrier tcp"]),
            "part": dice.uniform(0.1, 0.8), "victim": dice.random()}


def digest_of(hosts, plan):
    """Returns the digest that the stream should have."""
    made = subprocess.run([noise(hosts), *(str(plan[name]) for name in ("size", "seed", "piece")), "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return hashlib.sha256(made.stdout).hexdigest()


def marked(hosts, mark):
    """Returns {pid: (host, arguments)} of the shells that run a pipeline's commands, which are recognized by its mark."""
    return {pid: (name, words) for name in hosts.names for pid, words in hosts.processes(name).items() if words[0].endswith("sh") and any(mark in word for word in words[1:])}


def parent_of(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def children_of(hosts, pid):
    found = []
    for child in hosts.processes("local"):
        try:
            found += [child] if parent_of(child) == pid else []
        except OSError:
            pass
    return found


def send(pid, sig):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def freeze(pid):
    send(pid, signal.SIGSTOP)
    time.sleep(1.5)  # the stream does not move during this time
    send(pid, signal.SIGCONT)


def strike(hosts, plan, process, mark):
    """Injects the fault. Returns False if the pipeline had already finished."""
    fate, shells = plan["fate"], sorted(marked(hosts, mark))
    if not shells or process.poll() is not None:
        return False
    pid = shells[int(plan["victim"] * len(shells))]
    try:
        if fate in ("agent", "frozen agent", "cut"):
            pid = parent_of(pid)
    except OSError:
        return False
    if fate in ("command", "agent"):
        send(pid, signal.SIGKILL)
    elif fate == "rdpipe":
        send(process.pid, signal.SIGKILL)
    elif fate == "ssh":
        sessions = sorted(child for child in children_of(hosts, process.pid) if "ssh" in os.path.basename(hosts.processes("local").get(child, [""])[0]))
        if not sessions:
            return False
        send(sessions[int(plan["victim"] * len(sessions))], signal.SIGKILL)
    elif fate.startswith("frozen"):
        freeze(pid)
    elif fate == "cut":
        # Resets this agent's connections to other agents.
        name = next((name for name in hosts.names if pid in hosts.processes(name)), None)
        if not name:
            return False
        told = run("ip", "netns", "exec", hosts.space(name), "ss", "-Htnp", "state", "established")
        ports = [line.split()[2].rpartition(":")[2] for line in told.splitlines() if f"pid={pid}," in line]
        if not ports:
            return False
        for port in ports:
            run("ip", "netns", "exec", hosts.space(name), "ss", "-K", "-tn", "sport", "=", port)
    return True


def torture_one(hosts, plan):
    mark = f"mark{plan['number']}x"
    folder = os.path.join(hosts.folder, mark)
    os.mkdir(folder)
    whole, part = f"{folder}/whole", f"{folder}/part"
    first = f": {mark}; {noise(hosts)} {plan['size']} {plan['seed']} {plan['piece']} 0"
    last = f": {mark}; cat >{part} && mv {part} {whole}"
    if plan["fate"] == "full disk":
        part = f"{hosts.disk}/{mark}"
        last = f": {mark}; cat >{part} && mv {part} {whole}" if plan["victim"] < 0.5 else f">{part}"
    texts = [first] + [f": {mark}; {text}" if text else "" for text in plan["middle"]] + [last]
    if plan["fate"] == "reader quits":
        texts.pop()
        part = f"{folder}/read"
    words = " ".join(shlex.quote(f"{plan['hosts'][i]}:{text}") for i, text in enumerate(texts))
    command = f"exec rdpipe --rate {plan['size'] // 1024}K {plan['options']} {words} </dev/null"
    if plan["fate"] == "reader quits":
        command = command.replace("exec ", "", 1) + f" | head -c 300000 >{part}; exit ${{PIPESTATUS[0]}}"
    process = hosts.start("local", command)
    wanted = plan["part"] * (min(plan["size"], DISK) if plan["fate"] == "full disk" else 300_000 if plan["fate"] == "reader quits" else plan["size"])
    wait_for(f"{plan}: data flows", lambda: process.poll() is not None or (os.path.exists(part) and os.path.getsize(part) >= wanted), 90 * SLOWNESS)
    struck = plan["fate"] in ("none", "full disk", "reader quits") or strike(hosts, plan, process, mark)
    status, _, err = hosts.end(process, seconds=120 * SLOWNESS)
    if plan["fate"] == "full disk" and os.path.exists(part):
        os.unlink(part)
    has_whole = os.path.exists(whole)
    if has_whole:
        with open(whole, "rb") as file:
            data = file.read()
        got = hashlib.sha256(data).hexdigest()
        # A killed command ends its stream, as in a local pipeline, and its exit status shows that it was killed.
        expect(got == digest_of(hosts, plan) or (plan["fate"] == "command" and status != 0), f"{plan}: what has the name is not the stream ({len(data)} bytes, status {status}): {err}")
    allowed = STATUSES[plan["fate"]] if struck else {0} | STATUSES[plan["fate"]]
    # The process may be killed only after everything has arrived.
    may_be_late = plan["fate"] in ("command", "agent", "rdpipe", "ssh", "cut")
    expect(status in allowed or (may_be_late and has_whole and status == 0), f"{plan}: status {status}, expected one of {sorted(allowed)}: {err}")
    expect(has_whole or status != 0 or plan["fate"] == "reader quits", f"{plan}: status 0, and nothing arrived: {err}")
    expect(status <= 0 or status == 141 or err.strip(), f"{plan}: status {status}, and nothing was said")
    return plan["fate"]


def torture(hosts):
    dice = seed_of(hosts)
    plans = [plan_of(dice, number) for number in range(COUNT)]
    noise(hosts)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as workers:
        futures = [workers.submit(torture_one, hosts, plan) for plan in plans]
        try:
            fates = [future.result() for future in futures]
        except Failure as failure:
            for future in futures:
                future.cancel()
            raise Failure(f"seed {hosts.seed}: {failure}") from None
    print(f"     {COUNT} pipelines, seed {hosts.seed}: " + ", ".join(f"{fates.count(fate)} {fate}" for fate in FATES))


CASES = [torture]
