"""The systems that share a machine between chat and batch work: stock vLLM, alone or with its priority policy, and harvester."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import yaml

from bench.harness.device import on_cpu
from bench.harness.load.offline_client import USED_UP
from bench.harness.load.table import write_speeches
from bench.harness.measure import counters
from bench.harness.measure.job.job_watch import submit
from bench.harness.servers import run_batch as runbatch
from bench.harness.servers.server import ServerProcess
from harvester.cli.client import Client
from harvester.core import PRIORITY_OFFLINE
from harvester.errors import EngineError
from jobs.states import ENDED

if TYPE_CHECKING:
    from bench.harness.servers.raw_server import RawServer  # imports vLLM

OFFLINE_BEGINS_S = 300.0  # how long the first offline answer may take
CPU_ENGINE: dict[str, Any] = {"enforce_eager": True, "block_size": 32, "gpu_memory_utilization": 0.2, "dtype": "float32"}


@dataclass(frozen=True, slots=True)
class SystemSetup:
    """What all systems of a run have in common: the model, the engine arguments, and the rows of offline work in both forms."""

    folder: Path
    model: str
    name: str  # that clients use
    vocabulary: tuple[int, int]
    engine: dict[str, Any]
    max_tokens: int
    cpu: bool = field(default_factory=on_cpu)

    @property
    def table(self) -> Path:
        return self.folder / "rows.parquet"

    @property
    def requests(self) -> Path:
        return self.folder / "rows.jsonl"

    def write_rows(self, rows: int, seed: int, chars: tuple[int, int]) -> None:
        """The rows as a table for a job, and as the chat requests that the job would make of them."""
        write_speeches(self.table, rows, seed, chars)
        runbatch.write_requests(self.table, self.requests, self.name, self.max_tokens)


class System(Protocol):
    """On enter it answers at ``url``, without offline work; ``counts`` is the file of its `bench.harness.engine.tally`."""

    label: str
    counts: Path

    @property
    def url(self) -> str: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def begin_offline(self) -> None: ...
    def check(self) -> None:
        """Raise `EngineError` where offline work was begun and has ended."""


class _OwnServer:
    """A system with a server of its own, started and stopped with it."""

    def __init__(self, setup: SystemSetup, label: str, server: RawServer | ServerProcess) -> None:
        self.label, self._setup, self._server = label, setup, server
        self.counts = counts_file(setup, label)

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> Self:
        began_s = time.monotonic()
        self._server.__enter__()
        print(f"{self.label}: ready after {time.monotonic() - began_s:.0f} s", file=sys.stderr)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.__exit__(kind, error, trace)


class Stock(_OwnServer):
    """vLLM's own server and scheduler; ``policy``: fcfs or priority. Offline requests come over HTTP, ``concurrency`` of them at a time."""

    def __init__(self, setup: SystemSetup, label: str, *, policy: str = "fcfs", concurrency: int = 0, **engine: Any) -> None:
        from bench.harness.servers.raw_server import RawServer  # imports vLLM

        self._priority = PRIORITY_OFFLINE if policy == "priority" else None
        self._concurrency = concurrency
        own = counted(counts_file(setup, label), f"bench.harness.engine.counting.Counted{'' if setup.cpu else 'Async'}Stock")
        own |= {"scheduling_policy": policy}
        own |= {"worker_cls": "bench.harness.engine.patient.PatientWorker"} if setup.cpu else {}
        arguments = {"model": setup.model, "served_model_name": [setup.name], **setup.engine, **engine}
        super().__init__(setup, label, RawServer(arguments, setup.folder / f"{label}.log", own=own))
        self._client: subprocess.Popen[bytes] | None = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._client is not None:
            self._client.kill()
            self._client.wait()
        super().__exit__(kind, error, trace)

    def begin_offline(self) -> None:
        command = [sys.executable, "-m", "bench.harness.load.offline_client", "--url", self.url, "--requests", str(self._setup.requests)]
        command += ["--concurrency", str(self._concurrency)] + (["--priority", str(self._priority)] if self._priority is not None else [])
        with (self._setup.folder / f"{self.label}.client.log").open("wb") as log:
            self._client = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        await_offline(self)

    def check(self) -> None:
        if self._client is not None and self._client.poll() is not None:
            last = (self._setup.folder / f"{self.label}.client.log").read_text("utf-8", "replace").strip().splitlines()[-1:]
            cause = "no row was left: raise rows_per_s" if self._client.returncode == USED_UP else "".join(last)[:300]
            raise EngineError(f"the offline client of {self.label} ended: {cause}")


class Harvester(_OwnServer):
    """``harvester serve`` with a config file; offline work is a job over the table. ``config``: sections that override its own.

    ``counts_work``: by a file that one engine writes; leave it off for several replicas.
    """

    def __init__(
        self, setup: SystemSetup, label: str, config: dict[str, Any] | None = None, *, counts_work: bool = True, **engine: Any
    ) -> None:
        scheduler = f"bench.harness.engine.counting_harvest.Counted{'' if setup.cpu else 'Async'}Harvest"
        own = counted(counts_file(setup, label), scheduler) if counts_work else {}
        values = {"model": setup.model, "served_model_name": setup.name, "engine": own | setup.engine | engine, **(config or {})}
        file = setup.folder / f"{label}.yaml"
        file.write_text(yaml.safe_dump(values), encoding="utf-8")
        super().__init__(setup, label, ServerProcess(("-m", "harvester", "serve", "--config", str(file)), setup.folder / f"{label}.state"))
        self._job: str | None = None

    def begin_offline(self) -> None:
        with Client(self.url) as client:
            view, _ = submit(client, self._setup.table, max_tokens=self._setup.max_tokens)
        self._job = view.id
        await_offline(self)

    def check(self) -> None:
        if self._job is None:
            return
        with Client(self.url) as client:
            view = client.job(self._job)
        if view.state in ENDED:
            raise EngineError(f"the job of {self.label} is {view.state} after {view.rows_ok} of {view.rows_total} rows; raise rows_per_s")
        if view.rows_error:
            raise EngineError(f"{view.rows_error} rows ended as errors in {self.label}")


def counts_file(setup: SystemSetup, label: str) -> Path:
    return setup.folder / f"{label}.counts"


def counted(counts: Path, scheduler: str) -> dict[str, Any]:
    """Engine arguments that make the scheduler count into a file."""
    return {"scheduler_cls": scheduler, "additional_config": {"bench_counts": str(counts)}}


def await_offline(system: System) -> None:
    """Wait for the first whole offline answer: the prompts that came all at once are done then. Raises `EngineError` if none comes."""
    before, end_s = counters.finished(system.url), time.monotonic() + OFFLINE_BEGINS_S
    while counters.finished(system.url) == before:
        system.check()
        if time.monotonic() > end_s:
            raise EngineError(f"{system.label} gave no offline answer in {OFFLINE_BEGINS_S:.0f} s")
        time.sleep(0.25)


def client_core() -> int | None:
    """A core for the online client alone, where there are enough to spare one."""
    cores: list[int] = []
    with suppress(AttributeError):
        cores = sorted(os.sched_getaffinity(0))
    return cores[-1] if len(cores) >= 8 else None
