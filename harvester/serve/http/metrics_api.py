"""``GET /metrics`` of the jobs application: the metrics of every replica, labelled so that they add up, and those of jobs.

A replica's own `/metrics` is behind a proxy that picks a replica for each scrape: its counters would jump. Here are all, with labels
``replica`` (a number that it keeps, and that is given again when it has gone) and ``model``. A replica that does not answer is missing for
one scrape.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from harvester.errors import HarvesterError
from jobs.ledger.counts import JobsNow, LedgerCount
from jobs.spec import JobView
from jobs.states import JobState

ReplicaTexts = Callable[[], Awaitable[list[dict[str, Any]]]]
LOOK_WAIT_S = 5.0
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_COUNTERS = (
    ("harvester_leases_granted", "Slices leased to replicas.", LedgerCount.LEASED),
    ("harvester_leases_lost", "Leases that were not renewed in time; their slices are leased again.", LedgerCount.LOST),
    ("harvester_leases_split", "Leases whose holder gave rows back for an idle replica.", LedgerCount.SPLIT),
    ("harvester_job_rows_recomputed", "Rows begun more than once.", LedgerCount.ROWS_RECOMPUTED),
)


class LedgerSeen(Protocol):
    async def now(self, ended: int) -> JobsNow: ...
    async def counts(self) -> dict[str, dict[str, int]]: ...


@dataclass(frozen=True, slots=True)
class Fleet:
    """Sources of a scrape. ``wanted``: target number of replicas by model; of a range, the minimum."""

    ledger: LedgerSeen
    replicas: ReplicaTexts
    model: str
    wanted: Callable[[], Mapping[str, int]]


class Numbers:
    """Numbers replicas from 0, by model, for the label ``replica``. A replica keeps its number for as long as it answers.

    Ray's rank is no such number: when a replica goes, another one gets its rank, and counters under that label would jump.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}  # by model and id; of one that is silent until another takes its number

    def numbered(self, told: Sequence[Mapping[str, str]], model: str) -> list[Mapping[str, str]]:
        """The same, of each replica its number in place of its rank. A new one gets its rank if that is free, else the lowest free one.

        Of two replicas of one rank the second is left out: it is stopping, and the first is its successor.
        """
        firsts: dict[tuple[str, str], Mapping[str, str]] = {}
        ids: dict[str, list[str]] = {}
        for one in told:
            own = one.get("model", model)
            if firsts.setdefault((own, one["replica"]), one) is one:
                ids.setdefault(own, []).append(one["id"])
        return [{**one, "replica": str(self._number(own, one["id"], int(rank), ids[own]))} for (own, rank), one in firsts.items()]

    def _number(self, model: str, name: str, rank: int, answering: Sequence[str]) -> int:
        known = self._known.setdefault(model, {})
        if name not in known:
            taken = {known[one] for one in answering if one in known}
            number = rank if rank not in taken else next(free for free in range(len(answering)) if free not in taken)
            self._known[model] = {other: place for other, place in known.items() if place != number} | {name: number}
        return self._known[model][name]


class _Shown(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def merged(told: Sequence[Mapping[str, str]], model: str) -> str:
    """The metric families of all replicas, each once, as one text in place of several.

    ``told``: ``replica`` (its number), ``text`` (of `generate_latest`), and ``model`` if it is a further one. The labels are put into the
    lines as they are: to parse those of a hundred replicas takes seconds.
    """
    families: dict[str, _Family] = {}
    for one in told:
        labels = _escaped(one.get("model", model)), _escaped(one["replica"])
        family = families.setdefault("", _Family())  # of samples before any HELP
        for line in one["text"].split("\n"):
            if line.startswith(("# HELP ", "# TYPE ")):
                _, kind, name, *_ = line.split(" ", 3)
                family = families.setdefault(name, _Family())
                family.heads.setdefault(kind, line)
            elif line:
                family.samples.append(_labelled(line, *labels))
    return "".join(f"{line}\n" for family in families.values() for line in (*family.heads.values(), *family.samples))


@dataclass(slots=True)
class _Family:
    heads: dict[str, str] = field(default_factory=dict)  # its HELP and TYPE
    samples: list[str] = field(default_factory=list)


def _labelled(sample: str, model: str, replica: str) -> str:
    """A sample's line with the label ``model``, unless it has one, and with the label ``replica``, in place of one it has."""
    name, brace, rest = sample.partition("{")
    if not brace:
        name, _, value = sample.partition(" ")
        return f'{name}{{model="{model}",replica="{replica}"}} {value}'
    if 'model="' in rest or 'replica="' in rest:
        labels, _, value = rest.rpartition("} ")
        texts = {"model": model, **dict(_LABEL.findall(labels)), "replica": replica}
        labels = ",".join(f'{label}="{text}"' for label, text in texts.items())
        return f"{name}{{{labels}}} {value}"
    return f'{name}{{model="{model}",replica="{replica}",{rest}'


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def job_metrics(now: JobsNow, counts: Mapping[str, Mapping[str, int]], now_s: float) -> list[Metric]:
    """Metrics of jobs, labelled by model and never by job, so that the number of series does not grow."""
    at_risk = Counter(view.model for view in now.views if is_at_risk(view, now_s))
    models = sorted({*counts, *(model for model, _ in now.states)})
    jobs = GaugeMetricFamily("harvester_jobs", "Jobs by state.", labels=["model", "state"])
    for model in models:
        for state in JobState:
            jobs.add_metric([model, state.value], now.states.get((model, state), 0))
    risks = GaugeMetricFamily("harvester_jobs_at_risk", "Active jobs that may end after their deadline.", labels=["model"])
    leases = GaugeMetricFamily("harvester_leases", "Slices that are leased now.", labels=["model"])
    rows = CounterMetricFamily("harvester_job_rows", "Rows of jobs in published parts.", labels=["model", "status"])
    for model in models:
        told = counts.get(model, {})
        risks.add_metric([model], at_risk[model])
        leases.add_metric([model], told.get("leases", 0))
        rows.add_metric([model, "ok"], told.get(LedgerCount.ROWS_OK, 0))
        rows.add_metric([model, "error"], told.get(LedgerCount.ROWS_ERROR, 0))
    return [jobs, risks, leases, rows, *_counters(models, counts)]


def _counters(models: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    for name, text, what in _COUNTERS:
        family = CounterMetricFamily(name, text, labels=["model"])
        for model in models:
            family.add_metric([model], counts.get(model, {}).get(what, 0))
        yield family


def ledger_metric(*, is_up: bool) -> Metric:
    """Shown in every scrape: while the ledger is away there are no metrics of jobs."""
    told = "Whether the ledger answers: 0 while it does not, or its store cannot be opened."
    return GaugeMetricFamily("harvester_ledger_up", told, value=float(is_up))


def is_at_risk(view: JobView, now_s: float) -> bool:
    """Whether the late end of the forecast, now plus ``eta_high_s``, is after the deadline; without a forecast, what the ledger says."""
    if view.deadline_at_s is None or view.eta_high_s is None:
        return view.deadline_at_s is not None and view.standing is not None
    return now_s + view.eta_high_s > view.deadline_at_s


def replica_metrics(told: Sequence[Mapping[str, str]], wanted: Mapping[str, int], model: str) -> list[Metric]:
    """By model, so that one without replicas is seen beside others. ``told``: what replicas answered; ``model``: the first one's name."""
    found = Counter(one.get("model", model) for one in told)
    answering = GaugeMetricFamily("harvester_replicas", "Replicas that answered this scrape.", labels=["model"])
    configured = GaugeMetricFamily("harvester_replicas_wanted", "Replicas that there are to be; of a range the fewest.", labels=["model"])
    for name in sorted({*wanted, *found}):
        answering.add_metric([name], found[name])
        configured.add_metric([name], wanted.get(name, 0))
    return [answering, configured]


def add_metrics(app: FastAPI, fleet: Fleet) -> None:
    """Add ``GET /metrics``. It answers even without replicas and without a ledger, so that alerts see that they are missing.

    One scrape is made at a time: who asks meanwhile gets the same.
    """
    scrape: asyncio.Task[bytes] | None = None
    numbers = Numbers()

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        nonlocal scrape
        if scrape is None or scrape.done():
            scrape = asyncio.create_task(_scraped(fleet, numbers))
        return Response(await asyncio.shield(scrape), media_type=CONTENT_TYPE_LATEST)


async def _scraped(fleet: Fleet, numbers: Numbers) -> bytes:
    told, jobs = await asyncio.gather(_replicas(fleet), _jobs(fleet))
    own = [*replica_metrics(told, fleet.wanted(), fleet.model), *jobs]
    return await asyncio.to_thread(_text, numbers.numbered(told, fleet.model), own, fleet.model)


def _text(told: Sequence[Mapping[str, str]], own: Iterable[Metric], model: str) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Shown(own))
    return generate_latest(registry) + merged(told, model).encode()


async def _replicas(fleet: Fleet) -> list[dict[str, Any]]:
    try:
        async with asyncio.timeout(LOOK_WAIT_S):
            return await fleet.replicas()
    except (TimeoutError, HarvesterError):
        return []


async def _jobs(fleet: Fleet) -> list[Metric]:
    try:
        async with asyncio.timeout(LOOK_WAIT_S):
            found = job_metrics(await fleet.ledger.now(0), await fleet.ledger.counts(), time.time())
    except (TimeoutError, HarvesterError):
        return [ledger_metric(is_up=False)]
    return [ledger_metric(is_up=True), *found]
