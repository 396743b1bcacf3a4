# SPDX-License-Identifier: Apache-2.0
"""The code that the programs of `bench pipe` and `bench copy` share: the hosts of rdpipe/test/hosts, a long path between two of them, the measurement of time, and the loop that answers the benchmark's requests."""
import contextlib
import json
import os
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
sys.path.insert(0, os.path.join(ROOT, "rdpipe/test/hosts"))

from hosts import Failure, Hosts, run, wait_for  # noqa: E402

PROGRAMS = os.path.join(ROOT, "rdpipe/build/bin")
FAR_PORT = 2222  # the port of the sshd at the end of a long path


class Meter:
    """A bash that runs a command and, when the command has ended, reports its elapsed time and its processor time."""

    def __init__(self, hosts, name, command, **environment):
        self.hosts = hosts
        self.process = hosts.start(name, f"TIMEFORMAT='METER %3R %3U %3S'; time {{ {command}; }}", **environment)

    def end(self, seconds=120):
        """Waits until the command has ended. Returns its elapsed time and its processor time, in seconds."""
        status, _, err = self.hosts.end(self.process, seconds=seconds)
        told = re.search(r"METER ([0-9.]+) ([0-9.]+) ([0-9.]+)", err)
        if status != 0 or not told:
            raise Failure(f"{self.process.args[-1]}: status {status}: {err[-300:]}")
        return float(told[1]), float(told[2]) + float(told[3])


def listens(hosts, name, port):
    return f":{port} " in run("ip", "netns", "exec", hosts.space(name), "ss", "-Hltn")


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return file.read().split()


def processor_time(pid):
    """Returns the processor time of a process in seconds, including that of the children for which it has waited."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


class Daemons:
    """The sshd of a host. Its processor time is complete once nothing else runs on the host."""

    def __init__(self, hosts, name):
        self.hosts = hosts
        self.name = name
        self.pids = self.running()

    def running(self):
        return set(run("ip", "netns", "pids", self.hosts.space(self.name)).split())

    def is_idle(self):
        return self.running() == self.pids and not any(map(children, self.pids))

    def time(self):
        """Returns the processor time so far in seconds, including that of the processes that the daemons have started."""
        wait_for(f"nothing but sshd runs on {self.name}", self.is_idle)
        return sum(map(processor_time, self.pids))


def use_cubic(hosts, name, network, device, address):
    """Selects cubic, Linux's default congestion control, whatever this machine's default is. It is set for the route, because a namespace may not select an
    algorithm that the machine reserves for root."""
    run("ip", "-n", hosts.space(name), "route", "change", network, "dev", device, "proto", "kernel", "scope", "link", "src", address, "congctl", "cubic")


@contextlib.contextmanager
def long_path(hosts, ms, loss):
    """Creates a path of 1 Gbit/s between host1 and host2, with a round trip of `ms` milliseconds and a second sshd of host2 at its end. Yields the two
    addresses of the path."""
    with hosts.path("host1", "host2", rate=10**9, delay=int(ms) * 500, loss=loss, queue=1 << 21, offload=1, seed=1) as addresses:
        daemon = subprocess.Popen(["ip", "netns", "exec", hosts.space("host2"), "/usr/sbin/sshd", "-D", "-f", os.path.join(hosts.folder, "sshd_host2"),
                                   "-o", f"ListenAddress={addresses[1]}:{FAR_PORT}"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            wait_for("sshd listens", lambda: listens(hosts, "host2", FAR_PORT))
            for name, address in zip(("host1", "host2"), addresses):
                use_cubic(hosts, name, "10.213.8.0/30", "path0", address)
            yield addresses
        finally:
            daemon.terminate()
            daemon.wait()


def serve(bench, measure):
    """Splits each line of standard input into words, and prints what measure(*words) returns, as a line of JSON. Closes `bench` at the end of the input."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            try:
                print(json.dumps(measure(*line.split())), flush=True)
            except Failure as failure:
                print(json.dumps({"failure": str(failure)[-900:].replace("\n", " ")}), flush=True)
    finally:
        bench.close()
