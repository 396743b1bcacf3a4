# SPDX-License-Identifier: Apache-2.0
"""Tests random streams, with random sizes, pieces, numbers of hosts, and commands that fail, stop or hang. Compares SHA-256 and exit status."""
import concurrent.futures
import math
import os
import random
import re
import signal
import time

from cases import expect
from faults import seed_of
from hosts import Failure, SLOWNESS

COUNT = int(os.environ.get("PIPE_STREAMS", "100"))
WORKERS = 4
LARGEST = 1_000_000_000

# Writes SIZE bytes in random pieces, prints their sha256 on standard error, and exits with STATUS.
NOISE = """#!/usr/bin/env python3
import hashlib, os, random, sys, time
size, seed, piece, status = map(int, sys.argv[1:5])
dice = random.Random(seed)
noise = dice.randbytes(1 << 21)
digest = hashlib.sha256()
while size > 0:
    n = min(size, dice.randint(1, piece))
    at = dice.randrange(0, (1 << 21) - n)
    part = memoryview(noise)[at:at + n]
    digest.update(part)
    while part:
        part = part[os.write(1, part):]
    size -= n
print("NOISE", digest.hexdigest(), file=sys.stderr, flush=True)
sys.exit(status)
"""


def noise(hosts):
    path = os.path.join(hosts.folder, "noise")
    if not os.path.exists(path):
        with open(path + ".new", "w", encoding="utf-8") as program:
            program.write(NOISE)
        os.chmod(path + ".new", 0o755)
        os.rename(path + ".new", path)
    return path


def plan_of(dice, largest):
    """Returns the parameters of a random stream."""
    fate = dice.choices(["whole", "fails", "stops", "hangs"], [80, 10, 6, 4])[0]
    size = int(math.exp(dice.uniform(0, math.log(largest)))) if dice.random() > 0.03 else 0
    return {"fate": fate, "size": min(size, 20_000_000) if fate == "stops" else size, "seed": dice.randrange(2**31),
            "piece": dice.choice([1 << 20, 1 << 20, 65536, 5000]) if size < 50_000_000 else 1 << 20,
            "middle": [dice.choice(["cat", "cat", "dd bs=7000 2>/dev/null", ""]) for _ in range(dice.randrange(0, 3))],
            "hosts": dice.sample(["host1", "host2", "host3", "host4"], 4), "options": dice.choice(["", "", "", "--zstd=1", "--block 8K", "--block 2M", "--no-checksum"])}


def run_stream(hosts, plan):
    status = 5 if plan["fate"] == "fails" else 0
    first = f"{noise(hosts)} {plan['size']} {plan['seed']} {max(1, plan['piece'])} {status}"
    if plan["fate"] == "stops":
        first = f"(sleep 0.3; kill -CONT $$) & kill -STOP $$; {first}"
    if plan["fate"] == "hangs":
        first += "; sleep 3600"
    segments = [first] + plan["middle"] + ["sha256sum"]
    words = " ".join(f"{plan['hosts'][i]}:'{text}'" for i, text in enumerate(segments))
    process = hosts.start("local", f"exec rdpipe {plan['options']} {words} </dev/null")
    if plan["fate"] == "hangs":
        time.sleep(0.5)  # the stream may be in any state by then
        process.terminate()
        got, _, err = hosts.end(process, seconds=120 * SLOWNESS)
        expect(got == -signal.SIGTERM, f"{plan}: status {got}: {err}")
        return 0
    got, out, err = hosts.end(process, seconds=200 * SLOWNESS)
    sent = re.findall("NOISE ([0-9a-f]{64})", err)
    expect(got == status and len(sent) == 1 and out.decode().split()[:1] == sent, f"{plan}: status {got}, {out!r}: {err}")
    return plan["size"]


def random_streams(hosts):
    dice = seed_of(hosts)
    plans = [plan_of(dice, LARGEST) for _ in range(COUNT)]
    noise(hosts)
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as workers:
        futures = [workers.submit(run_stream, hosts, plan) for plan in plans]
        try:
            total = sum(future.result() for future in futures)
        except Failure as failure:
            for future in futures:
                future.cancel()
            raise Failure(f"seed {hosts.seed}: {failure}") from None
    print(f"     {COUNT} streams, {total / 1e9:.1f} GB, seed {hosts.seed}")


def more_than_4_gib(hosts):
    plan = {"fate": "whole", "size": (1 << 32) + 12345, "seed": 1, "piece": 1 << 20, "middle": [""], "hosts": ["host1", "host2", "host3"],
            "options": ""}
    run_stream(hosts, plan)


CASES = [random_streams] + ([more_than_4_gib] if os.environ.get("PIPE_HUGE") else [])
