"""What the ledger costs, by store: slices a second with every change synced, opening again, a lease where nothing is left to do.

CPU time is this process's; that of a database beside it is reported separately. Wall time depends on this disk and on other load.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.harness.options import Options
from jobs.forecast.lengths import counted
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import Place, PostgresPlace
from jobs.spec import PartStats
from jobs.testing import scripted_plan
from tools.postgres import NoPostgres, Postgres, postgres

MODEL = "scripted"
SLICE_ROWS = 256
HOLDERS = 10
STATS = PartStats(rows_ok=SLICE_ROWS, prompt_tokens=40_000, output_tokens=9_000, lengths=counted([(156, 35)] * SLICE_ROWS))
SYNCS = 50


@dataclass(frozen=True, slots=True)
class Sizes:
    timed: int  # slices leased and committed
    large: int  # slices of the large job
    jobs: int
    calls: int  # leases that find nothing


FULL = Sizes(timed=1_000, large=80_000, jobs=1_000, calls=2_000)
QUICK = Sizes(timed=200, large=2_000, jobs=50, calls=200)


class Bench:
    """Measurements on one store. ``database``: None for the file."""

    def __init__(self, folder: Path, database: Postgres | None, sizes: Sizes) -> None:
        self._folder, self._database, self._sizes = folder, database, sizes

    def place(self, name: str) -> Place:
        if self._database is None:
            (self._folder / name).mkdir()
            return self._folder / name / "ledger.sqlite"
        return PostgresPlace(self._database.new(), name)

    def run(self) -> dict[str, Any]:
        return {"one_job": self._one(), "large_job": self._large(), "many_jobs": self._many()}

    def _one(self) -> dict[str, Any]:
        with self._opened(self.place("one")) as ledger:
            ledger.submit(scripted_plan("one", self._sizes.timed * SLICE_ROWS, SLICE_ROWS), new=True)
            before = _changes(ledger)
            found = self._slices(ledger, self._sizes.timed)
            return {**found, "commits_a_slice": (_changes(ledger) - before) / self._sizes.timed}

    def _large(self) -> dict[str, Any]:
        place = self.place("large")
        plan = scripted_plan("large", self._sizes.large * SLICE_ROWS, SLICE_ROWS)
        with self._opened(place) as ledger:
            submit = self._timed(lambda: ledger.submit(plan, new=True))
            found = self._slices(ledger, self._sizes.timed)
            table = self._timed(lambda: ledger.table("leases"))
        size = {"file_mib": place.stat().st_size / 2**20} if isinstance(place, Path) else {}
        return {"slices": self._sizes.large, **found, "submit": submit, "table_leases": table, "reopen": self._reopen(place), **size}

    def _many(self) -> dict[str, Any]:
        place = self.place("many")
        with self._opened(place) as ledger:
            for number in range(self._sizes.jobs):
                ledger.submit(scripted_plan(f"job-{number}", 2 * SLICE_ROWS, SLICE_ROWS, created_at_s=float(number)), new=True)
            found = self._slices(ledger, self._sizes.jobs)  # one of the two of each
        reopen = self._reopen(place)
        with self._opened(place) as ledger:
            while ledger.lease("a", MODEL, 1.0) is not None:
                pass
            calls = [self._timed(lambda: ledger.lease("a", MODEL, 1.0))["cpu_ms"] for _ in range(self._sizes.calls)]
        return {"jobs": self._sizes.jobs, **found, "reopen": reopen, "lease_with_all_exhausted_cpu_ms": statistics.fmean(calls)}

    def _slices(self, ledger: Ledger, count: int) -> dict[str, Any]:
        """Lease and commit ``count`` slices, `HOLDERS` at work."""
        leases = [ledger.lease(f"h{number}", MODEL, 1.0) for number in range(min(HOLDERS, count))]
        lease_ms, commit_ms = [], []
        database_s, began_s, cpu_s = self._database_cpu_s(), time.monotonic(), time.process_time()
        for number in range(count):
            held = leases[number % len(leases)]
            assert held is not None
            at_s = 1.0 + number / 100
            args = (held.lease_id, held.job.id, held.slice.slice_id, STATS, at_s)
            commit_ms.append(self._timed(lambda args=args: ledger.commit(*args))["wall_ms"])  # type: ignore[misc]
            if number + len(leases) < count:
                begin_s = time.monotonic()
                leases[number % len(leases)] = ledger.lease(held.job.id, MODEL, at_s)
                lease_ms.append(1000 * (time.monotonic() - begin_s))
        wall_s, used_s = time.monotonic() - began_s, time.process_time() - cpu_s
        told: dict[str, Any] = {"slices_per_s": count / wall_s, "cpu_ms_a_slice": 1000 * used_s / count}
        if self._database is not None:
            told["database_cpu_ms_a_slice"] = 1000 * (self._database_cpu_s() - database_s) / count
        return {**told, "lease_ms": _spread(lease_ms), "commit_ms": _spread(commit_ms)}

    def _reopen(self, place: Place) -> dict[str, float]:
        def again() -> None:
            with self._opened(place):
                pass

        return self._timed(again)

    @contextmanager
    def _opened(self, place: Place) -> Iterator[Ledger]:
        ledger = Ledger(place, self._folder / "jobs", lease_s=1e6, now_s=0.0, new_server=True)
        try:
            yield ledger
        finally:
            ledger.close()

    def _timed(self, work: Callable[[], object]) -> dict[str, float]:
        wall_s, cpu_s = time.monotonic(), time.process_time()
        work()
        return {"wall_ms": 1000 * (time.monotonic() - wall_s), "cpu_ms": 1000 * (time.process_time() - cpu_s)}

    def _database_cpu_s(self) -> float:
        if self._database is None:
            return 0.0
        processes = [psutil.Process(self._database.pid), *psutil.Process(self._database.pid).children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


def run(options: Options) -> dict[str, Any]:
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="bench-ledger-", dir=".") as name:
        folder = Path(name).absolute()
        systems: dict[str, Any] = {"sqlite": Bench(folder, None, sizes).run()}
        sync_ms = _syncs(folder / "sync")
    try:
        with tempfile.TemporaryDirectory(prefix="bench-ledger-") as name, postgres() as database:
            systems["postgres"] = Bench(Path(name), database, sizes).run()
    except NoPostgres as error:
        systems["postgres"] = {"skipped": str(error)}
    return {"slice_rows": SLICE_ROWS, "fdatasync_ms": sync_ms, "systems": systems}


def _changes(ledger: Ledger) -> int:
    return int(ledger._book.store.run("owned")[0][2])


def _syncs(path: Path) -> dict[str, float]:
    """Milliseconds of fdatasync after a page is appended to a file, on the disk of the SQLite file."""
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            began_s = time.monotonic()
            os.fdatasync(file.fileno())
            taken.append(1000 * (time.monotonic() - began_s))
    return _spread(taken)


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{share}": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, 99)}
