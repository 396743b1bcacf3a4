# SPDX-License-Identifier: Apache-2.0
"""Hosts for the tests of rdpipe: network namespaces on one bridge, each with its own sshd.

All names contain the process ID, so several runs can be in progress. close() removes everything.
"""
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time

SLOWNESS = float(os.environ.get("BEAMWAY_TEST_SLOWNESS", "1"))
DISK = 3_000_000
# The time allowed for something that takes a moment on a quiet machine.
SOON = 20 * SLOWNESS


class Failure(Exception):
    """Raised by a test case that has failed."""


def wait_for(what, is_so, seconds=SOON):
    """Waits until is_so() returns a true value, and returns that value."""
    deadline = time.monotonic() + seconds
    while True:
        answer = is_so()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise Failure(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.02)


def run(*words, check=True):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise Failure(f"{' '.join(words)}: status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


class Hosts:
    """The host `local`, on which rdpipe is called, and the hosts named in `remote`, which run an sshd."""

    made = 0

    def __init__(self, programs, remote):
        self.programs = os.path.abspath(programs)
        self.remote = list(remote)
        self.names = ["local"] + self.remote
        Hosts.made += 1
        self.tag = f"rp{os.getpid()}-{Hosts.made}"
        self.folder = tempfile.mkdtemp(prefix="beamway-pipe-")
        self.temporary = os.path.join(self.folder, "tmp")
        self.disk = os.path.join(self.folder, "disk")  # has DISK bytes, and is shared by all hosts
        self.daemons = []
        self.told = set()  # leftovers that were already reported
        try:
            os.mkdir(self.temporary)
            os.mkdir(self.disk)
            # Before any host is created, because hosts may not see later mounts.
            run("mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", self.disk)
            self._make_network()
            self._make_keys()
            for name in self.remote:
                self._start_sshd(name)
        except BaseException:
            self.close()
            raise

    def space(self, name):
        return f"{self.tag}-{name}"

    def address(self, name):
        return f"10.213.7.{self.names.index(name) + 1}"

    def _make_network(self):
        switch = self.space("switch")
        run("ip", "netns", "add", switch)
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        for i, name in enumerate(self.names):
            space, port = self.space(name), f"p{i}"
            run("ip", "netns", "add", space)
            run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
            run("ip", "-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")

    def link(self, name, state):
        run("ip", "-n", self.space("switch"), "link", "set", f"p{self.names.index(name)}", state)

    def _path(self, name):
        return os.path.join(self.folder, name)

    def _make_keys(self):
        for name in ("host_key", "user_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._path(name))
        shutil.copy(self._path("user_key.pub"), self._path("authorized"))
        with open(self._path("ssh_config"), "w", encoding="utf-8") as config:
            for name in self.remote:
                print(f"Host {name}\n HostName {self.address(name)}", file=config)
            print(f"""Host *
 User root
 IdentityFile {self._path("user_key")}
 IdentitiesOnly yes
 StrictHostKeyChecking no
 UserKnownHostsFile /dev/null
 LogLevel ERROR
 ConnectTimeout {int(SOON)}""", file=config)
        self.ssh = self._path("ssh")
        with open(self.ssh, "w", encoding="utf-8") as program:
            print(f'#!/bin/sh\nexec ssh -F {self._path("ssh_config")} "$@"', file=program)
        os.chmod(self.ssh, 0o755)

    def _start_sshd(self, name):
        os.makedirs("/run/sshd", exist_ok=True)
        # An account without a password may count as locked, which only PAM ignores.
        with open("/etc/shadow", encoding="utf-8") as shadow:
            is_locked = any(line.startswith("root:!") for line in shadow)
        config = self._path(f"sshd_{name}")
        with open(config, "w", encoding="utf-8") as file:
            print(f"""ListenAddress {self.address(name)}
HostKey {self._path("host_key")}
AuthorizedKeysFile {self._path("authorized")}
PidFile none
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM {"yes" if is_locked else "no"}
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
PrintMotd no
SetEnv PATH={self.programs}:/usr/local/bin:/usr/bin:/bin TMPDIR={self.temporary} HOME={self.folder}""", file=file)
        log = open(self._path(f"sshd_{name}.log"), "w", encoding="utf-8")
        self.daemons.append(subprocess.Popen(
            ["ip", "netns", "exec", self.space(name), "/usr/sbin/sshd", "-D", "-e", "-f", config],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True))
        wait_for(f"sshd of {name} listens (see {log.name})",
                 lambda: ":22 " in run("ip", "netns", "exec", self.space(name), "ss", "-Hltn"))

    def environment(self, **more):
        return {"PATH": f"{self.programs}:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": self.folder, "LC_ALL": "C.UTF-8",
                "TMPDIR": self.temporary, "RDPIPE_SSH": self.ssh, **more}

    def start(self, name, command, stdin=subprocess.DEVNULL, **more):
        """Starts a shell command line (bash, pipefail) on a host, in a new session."""
        return subprocess.Popen(["ip", "netns", "exec", self.space(name), "bash", "-o", "pipefail", "-c", command],
                                stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env=self.environment(**more), start_new_session=True)

    def end(self, process, data=None, seconds=60 * SLOWNESS):
        """Waits until the process exits. Returns its status, standard output and standard error."""
        try:
            out, err = process.communicate(data, timeout=seconds)
        except subprocess.TimeoutExpired:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            out, err = process.communicate()
            raise Failure(f"did not end within {seconds:.0f} s; said: {err.decode(errors='replace')[-500:]}") from None
        return process.returncode, out, err.decode(errors="replace")

    def call(self, command, data=b"", name="local", seconds=60 * SLOWNESS, **more):
        process = self.start(name, command, stdin=subprocess.PIPE, **more)
        return self.end(process, data, seconds)

    @contextlib.contextmanager
    def slow(self, name, rate="80mbit"):
        """Limits the rate at which the host sends."""
        qdisc = ["ip", "netns", "exec", self.space(name), "tc", "qdisc"]
        run(*qdisc, "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms")
        try:
            yield
        finally:
            run(*qdisc, "del", "dev", "eth0", "root")

    @contextlib.contextmanager
    def path(self, one, other, **settings):
        """Creates a second network between two hosts, with a given rate, delay and loss (native/test/path/README.md). Yields their addresses on it."""
        native = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../native"))
        run("make", "-C", native, "--no-print-directory", "-s", "path-emulator")
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        spaces = [self.space(name) for name in (one, other)]
        program = subprocess.Popen([os.path.join(native, "build/path_emulator"), *spaces, *words],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            said = program.stdout.readline()
            if said != "ready\n":
                raise Failure(said)
            addresses = [f"10.213.8.{i}" for i in (1, 2)]
            for space, address in zip(spaces, addresses):
                run("ip", "-n", space, "address", "add", f"{address}/30", "dev", "path0")
            yield addresses
        finally:
            program.communicate()  # closes its standard input, which makes it exit

    def on_a_terminal(self, command):
        """Runs a command on a terminal while host1 is slow. Returns its status and progress lines."""
        with self.slow("host1"):
            status, out, _ = self.call(f"script -qec \"{command}\" /dev/null </dev/null")
        return status, out.decode().split("\r")

    def processes(self, name):
        """Returns {pid: arguments} of the processes on a host, except for our sshd and the sshd processes that it has forked."""
        found = {}
        ours = {daemon.pid for daemon in self.daemons}
        for pid in map(int, run("ip", "netns", "pids", self.space(name)).split()):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().decode(errors="replace").split("\0")
                with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                    is_zombie = file.read().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if pid not in ours and not is_zombie and not words[0].startswith("sshd:"):
                found[pid] = words
        return found

    def listeners(self, name):
        lines = run("ip", "netns", "exec", self.space(name), "ss", "-Hltn").splitlines()
        return [line for line in lines if ":22 " not in line]

    def leftovers(self):
        found = []
        for name in self.names:
            found += [f"{name}: process {pid} {' '.join(words)[:80]}" for pid, words in self.processes(name).items()]
            found += [f"{name}: {line}" for line in self.listeners(name)]
        return found + [f"file {path}" for path in os.listdir(self.temporary)]

    def check_nothing_is_left(self):
        deadline = time.monotonic() + SOON
        left = set(self.leftovers()) - self.told
        while left and time.monotonic() < deadline:
            time.sleep(0.05)
            left = set(self.leftovers()) - self.told
        self.told |= left  # so that the next case is not blamed for it
        if left:
            raise Failure("left behind: " + "; ".join(sorted(left)[:6]))

    def close(self):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait()
        for name in self.names + ["switch"]:
            space = self.space(name)
            for pid in run("ip", "netns", "pids", space, check=False).split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            run("ip", "netns", "del", space, check=False)
        run("umount", "-l", self.disk, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
