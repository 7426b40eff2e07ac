"""Machines made of namespaces: each has a network, host name, /tmp and /dev/shm of its own, and may run a node of a Ray cluster."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

START_S = 300.0
NODE_S = 30.0
DRAIN_S = 600
TRIES = 3  # Ray's own wait for a raylet is a constant, too short on a busy machine
GCS_PORT = 6379
HEAD_ADDRESS = "10.77.0.10"
OBJECT_STORE_BYTES = 100_000_000
_CLONE_NEWNET = 0x40000000
_SCRIPT = Path(__file__).with_name("machine.sh")


def why_not() -> str | None:
    """Why there can be no machines here; None where there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a fleet of namespaces needs root on Linux"
    name = f"hv-probe-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
        _run("ip", "netns", "exec", name, "unshare", "-m", "-u", "mount", "--make-rprivate", "/")
    except (OSError, subprocess.CalledProcessError):
        return "network and mount namespaces are not permitted here"
    finally:
        with suppress(OSError, subprocess.CalledProcessError):
            _run("ip", "netns", "del", name)
    return None


class Machine:
    """One of a `Fleet`. ``address``: in the network that the fleet shares."""

    def __init__(self, fleet: str, number: int, shared: Sequence[Path]) -> None:
        self.name = f"n{number}"
        self.address = f"10.77.0.{10 + number}"
        self.space = f"{fleet}-{number}"
        self._number = number
        disk = Path("/run") / "harvester-fleet" / self.space
        command = ["ip", "netns", "exec", self.space, "unshare", "-m", "-u", str(_SCRIPT), self.name, str(disk), *map(str, shared)]
        self._keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == b"up\n", "the machine did not come up"

    def command(self, *words: str) -> list[str]:
        """The command line that runs ``words`` on this machine. Its process id is that of the process started."""
        return ["nsenter", "--target", str(self._keeper.pid), "--net", "--mount", "--uts", "--", *words]

    def run(self, *words: str) -> None:
        subprocess.run(self.command(*words), env=environment(), check=True, capture_output=True)

    @contextmanager
    def start(self, *words: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command here until the end of the block."""
        process = subprocess.Popen(self.command(*words), env=environment())
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def start_node(self, cpus: int, head: str | None = None, variables: dict[str, str] | None = None) -> None:
        """Start Ray here; ``head``: the address of the machine whose cluster it joins, None for a cluster of its own."""
        ports = {"runtime-env-agent-port": 6401, "dashboard-agent-listen-port": 6402, "metrics-export-port": 6403}
        words = [str(Path(sys.executable).with_name("ray")), "start", f"--num-cpus={cpus}", f"--node-ip-address={self.address}"]
        words += [f"--object-store-memory={OBJECT_STORE_BYTES}", f'--resources={{"{self.name}": 1}}']
        words += [f"--{name}={port}" for name, port in ports.items()]
        words += ["--head", f"--port={GCS_PORT}", "--include-dashboard=false"] if head is None else [f"--address={head}:{GCS_PORT}"]
        for number in range(1, TRIES + 1):
            done = subprocess.run(
                self.command(*words), env=environment(variables), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=START_S
            )
            if done.returncode == 0:
                return
            self.kill()
            assert number < TRIES, f"Ray did not start on {self.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"

    def processes(self) -> list[psutil.Process]:
        told = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=True).stdout
        found = []
        for pid in map(int, told.split()):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return [process for process in found if process.pid not in (self._keeper.pid, os.getpid())]

    def find(self, word: str) -> list[psutil.Process]:
        """Processes here whose command line has ``word`` in it."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if word in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kill(self) -> None:
        """SIGKILL for every process: a machine that is switched off. Its disk stays."""
        found = self.processes()
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(found, timeout=10.0)

    def unplug(self) -> None:
        """Cut the network, so that no other machine hears what happens here; with `kill`, a power cut.

        Not for the head: the network is a bridge on it.
        """
        _run("ip", "-n", self.space, "link", "set", "eth0", "down")

    def plug_in(self) -> None:
        _run("ip", "-n", self.space, "link", "set", "eth0", "up")
        _run("ip", "-n", self.space, "route", "replace", "default", "via", HEAD_ADDRESS)

    def forget_cluster(self) -> None:
        """Remove Ray's files under /tmp of a head that was killed: a machine that starts again does not have them."""
        self.run("rm", "-rf", "/tmp/ray")

    def vanish(self) -> None:
        self.kill()
        self._keeper.kill()
        self._keeper.communicate()  # closes its pipe too

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and the threads and processes that it starts, are in the machine's network."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as before, open(f"/run/netns/{self.space}") as there:  # noqa: PTH123 - for their numbers
            assert libc.setns(there.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(before.fileno(), _CLONE_NEWNET) == 0


class Fleet:
    """``count`` machines on one network; the first is the head of a Ray cluster. On exit everything is removed.

    ``shared``: folders below /tmp that all machines see, besides the checkout and its virtual environment. ``of_head``: folders that only
    the head sees. ``cpus``: of each node, in Ray's count.
    """

    def __init__(
        self,
        count: int,
        shared: Sequence[Path] = (),
        cpus: int = 1,
        variables: dict[str, str] | None = None,
        of_head: Sequence[Path] = (),
    ) -> None:
        self._space = f"hv{os.getpid()}"
        self._count, self._cpus, self._variables = count, cpus, variables
        self._shared = _below_tmp([Path.cwd(), Path(sys.prefix), *shared])
        self._of_head = _below_tmp(of_head)
        self.machines: list[Machine] = []

    def __enter__(self) -> Self:
        try:
            self._connect()
            self.machines = [Machine(self._space, 0, [*self._shared, *self._of_head])]
            self.machines += [Machine(self._space, number, self._shared) for number in range(1, self._count)]
            self.machines[0].start_node(self._cpus, variables=self._variables)
            for machine in self.machines[1:]:
                self.join(machine)
        except BaseException:
            self._remove()
            raise
        return self

    def join(self, machine: Machine) -> None:
        machine.start_node(self._cpus, self.head.address, self._variables)

    def drain(self, machine: Machine) -> None:
        """Drain a node, as an operator does before switching it off: nothing new is placed there."""
        words = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=maintenance", f"--deadline-remaining-seconds={DRAIN_S}"]
        node = self.node_id(machine)
        self.head.run(str(Path(sys.executable).with_name("ray")), "drain-node", f"--address={self.address}", f"--node-id={node}", *words)

    def node_id(self, machine: Machine) -> str:
        """Ray's, as the raylet's own command line tells it."""
        words = (word for process in machine.find("raylet") for word in process.cmdline())
        return next(word.partition("=")[2] for word in words if word.startswith("--node_id="))

    @property
    def head(self) -> Machine:
        return self.machines[0]

    @property
    def address(self) -> str:
        return f"{self.head.address}:{GCS_PORT}"

    def where(self, word: str) -> list[str]:
        """Names of the machines with a process that has ``word`` in its command line, one for each such process."""
        return [machine.name for machine in self.machines for _ in machine.find(word)]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        for machine in self.machines:
            machine.vanish()
        for number in range(self._count):
            subprocess.run(["ip", "netns", "del", f"{self._space}-{number}"], capture_output=True)
            with suppress(OSError):
                (Path("/run/harvester-fleet") / f"{self._space}-{number}").rmdir()
        self.machines = []

    def _connect(self) -> None:
        """A bridge in the first namespace, a wire from each other one to it; nothing in the network of this machine."""
        spaces = [f"{self._space}-{number}" for number in range(self._count)]
        for space in spaces:
            _run("ip", "netns", "add", space)
            _run("ip", "-n", space, "link", "set", "lo", "up")
        head = spaces[0]
        _run("ip", "-n", head, "link", "add", "bridge0", "type", "bridge")
        _run("ip", "-n", head, "addr", "add", f"{HEAD_ADDRESS}/24", "dev", "bridge0")
        _run("ip", "-n", head, "link", "set", "bridge0", "up")
        for number, space in enumerate(spaces[1:], 1):
            _run("ip", "link", "add", f"wire{number}", "netns", head, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("ip", "-n", head, "link", "set", f"wire{number}", "master", "bridge0")
            _run("ip", "-n", head, "link", "set", f"wire{number}", "up")
            _run("ip", "-n", space, "addr", "add", f"10.77.0.{10 + number}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            _run("ip", "-n", space, "route", "add", "default", "via", HEAD_ADDRESS)


def _below_tmp(folders: Sequence[Path]) -> list[Path]:
    return [path for path in sorted({folder.resolve() for folder in folders}) if path.is_relative_to("/tmp")]


def environment(variables: dict[str, str] | None = None) -> dict[str, str]:
    """Environment of processes on a machine: this checkout, and the machine's own /tmp."""
    ours = {"PYTHONPATH": str(Path.cwd()), "TMPDIR": "/tmp", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    ours |= {"RAY_agent_register_timeout_ms": "300000", "RAY_worker_register_timeout_seconds": "300"}
    return os.environ | ours | (variables or {})


def lasting(folder: Path) -> dict[str, str]:
    """Variables for the nodes of a cluster whose head may restart: Ray's GCS keeps its tables in ``folder``, other nodes wait for it.

    Ray calls this store alpha; with Redis in its place the same holds.
    """
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder), "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
