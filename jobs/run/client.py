"""The ledger as its clients see it: what a replica needs of it, and all its calls, written once for every way to reach it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from jobs.errors import NotFoundError
from jobs.hint import Demand, SchedulingHint
from jobs.ledger.counts import JobsNow
from jobs.ledger.ledger import Ledger
from jobs.spec import JobChange, JobPlan, JobView, Lease, LeaseProgress, PartStats, Spent

VERBS = ("cancel", "pause", "resume", "retry")


def _is_timed(method: Any) -> bool:
    return inspect.isfunction(method) and "now_s" in inspect.signature(method).parameters


TIMED = frozenset(name for name, _ in inspect.getmembers(Ledger, _is_timed) if not name.startswith("_"))


def apply(ledger: Ledger, method: str, args: Sequence[Any], now_s: float) -> Any:
    """Call a method of the ledger by name. ``now_s`` is added to the arguments of those that take the time."""
    return getattr(ledger, method)(*args, **({"now_s": now_s} if method in TIMED else {}))


class LedgerClient(Protocol):
    """The ledger as a replica sees it. Calls wait while the ledger restarts; they are safe to repeat.

    Each may raise `StorageError` (a full disk): nothing has changed then.
    """

    async def lease(self, holder: str, model: str) -> Lease | None: ...
    async def heartbeat(self, holder: str, progress: Sequence[LeaseProgress]) -> list[str]: ...
    async def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats) -> bool: ...
    async def release(self, lease_id: str) -> None: ...
    async def wanted(self, holder: str) -> list[str]: ...
    async def split(self, lease_id: str, keep_rows: int) -> bool: ...
    async def hints(self) -> dict[str, SchedulingHint]: ...
    async def is_leased(self, lease_id: str) -> bool: ...
    async def keep(self, lease_id: str, stats: PartStats) -> bool: ...
    async def reopen_slice(self, job_id: str, slice_id: int) -> None: ...
    async def fail(self, job_id: str, message: str) -> None: ...
    async def refuse(self, lease_id: str, message: str) -> None: ...
    async def say(self, job_id: str, message: str | None) -> None: ...


class LedgerCalls(ABC):
    """The calls of a replica (`LedgerClient`) and of the applications: methods of `Ledger` without ``now_s``, each over `_call`."""

    @abstractmethod
    async def _call(self, method: str, *args: Any) -> Any:
        """Have the ledger's owner `apply` the method, and return what it returns or raise what it raises."""

    @abstractmethod
    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]:
        """`Ledger.submit`, which is the only call with a keyword."""

    async def lease(self, holder: str, model: str) -> Lease | None:
        lease: Lease | None = await self._call("lease", holder, model)
        return lease

    async def heartbeat(self, holder: str, progress: Sequence[LeaseProgress]) -> list[str]:
        return list(await self._call("heartbeat", holder, list(progress)))

    async def commit(self, lease_id: str, job_id: str, slice_id: int, stats: PartStats) -> bool:
        return bool(await self._call("commit", lease_id, job_id, slice_id, stats))

    async def release(self, lease_id: str) -> None:
        await self._call("release", lease_id)

    async def wanted(self, holder: str) -> list[str]:
        return list(await self._call("wanted", holder))

    async def split(self, lease_id: str, keep_rows: int) -> bool:
        return bool(await self._call("split", lease_id, keep_rows))

    async def hints(self) -> dict[str, SchedulingHint]:
        return dict(await self._call("hints"))

    async def demand(self, model: str) -> Demand:
        demand: Demand = await self._call("demand", model)
        return demand

    async def living(self, model: str, asker: str) -> int:
        return int(await self._call("living", model, asker))

    async def adjust(self, job_id: str, change: JobChange) -> JobView:
        view: JobView = await self._call("adjust", job_id, change)
        return view

    async def is_leased(self, lease_id: str) -> bool:
        return bool(await self._call("holds", lease_id))  # a ledger of an earlier version knows no other name

    async def keep(self, lease_id: str, stats: PartStats) -> bool:
        return bool(await self._call("keep", lease_id, stats))

    async def reopen_slice(self, job_id: str, slice_id: int) -> None:
        await self._call("reopen_slice", job_id, slice_id)

    async def fail(self, job_id: str, message: str) -> None:
        await self._call("fail", job_id, message)

    async def refuse(self, lease_id: str, message: str) -> None:
        await self._call("refuse", lease_id, message)

    async def say(self, job_id: str, message: str | None) -> None:
        await self._call("say", job_id, message)

    async def jobs(self) -> list[JobView]:
        return list(await self._call("jobs"))

    async def newest(self, owner: str | None, count: int | None) -> tuple[list[JobView], int]:
        views, older = await self._call("newest", owner, count)
        return list(views), int(older)

    async def now(self, ended: int, active: int | None = None) -> JobsNow:
        found: JobsNow = await self._call("now", ended, active)
        return found

    async def show(self, job_id: str) -> JobView:
        view: JobView = await self._call("show", job_id)
        return view

    async def change(self, job_id: str, verb: str) -> JobView:
        """``verb``: cancel, pause, resume or retry."""
        if verb not in VERBS:
            raise NotFoundError(f"unknown action {verb!r}; use cancel, pause, resume or retry")
        view: JobView = await self._call(verb, job_id)
        return view

    async def is_read(self, folder: str) -> bool:
        return bool(await self._call("is_read", folder))

    async def remove(self, job_id: str) -> None:
        await self._call("remove", job_id)

    async def spend(self, teller: str, number: int, spent: Sequence[Spent]) -> None:
        await self._call("spend", teller, number, list(spent))

    async def counts(self) -> dict[str, dict[str, int]]:
        return dict(await self._call("counts"))

    async def slices_leased(self, job_id: str) -> int:
        return int(await self._call("held", job_id))  # likewise

    async def expire(self) -> None:
        await self._call("expire")

    async def table(self, name: str, without: tuple[str, ...] = ()) -> pa.Table:
        return await self._call("table", name, without)

    async def specs(self, job_ids: Sequence[str]) -> dict[str, str]:
        return dict(await self._call("specs", list(job_ids)))
