"""One measured stretch of one system: offline work beside a plan of online requests, and what both got."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.harness.load.arrivals import Arrival
from bench.harness.measure import counters
from bench.harness.measure.latency import Online, Slo, attainment, late_gaps_share, online_summary, percentile, read_online, windows
from bench.harness.measure.steps import Ran, read_record
from bench.harness.measure.work import Work, work_between
from bench.harness.servers.systems import System, SystemSetup, client_core
from harvester.errors import EngineError

READY_S = 120.0
START_S = 0.5  # from agreeing on the start to the start


@dataclass(frozen=True, slots=True)
class Stretch:
    """A system under one load for ``seconds``. Counters were read at the start and after every ``window_s``.

    ``steps`` and ``rows_s`` (when offline requests ended) are the engine's, between the first and the last sample.
    """

    seconds: float
    window_s: float
    requests: Sequence[Online]
    samples: Sequence[counters.Counters]
    work: Work
    offline: bool
    steps: Sequence[Ran] = ()
    rows_s: Sequence[float] = ()

    def ttft_ms(self) -> list[float]:
        return [request.ttft_ms for request in self.requests]

    def tpot_ms(self) -> list[float]:
        return [gap_ms for request in self.requests for _, gap_ms in request.gaps()]

    def p99(self) -> Slo:
        """P99 TTFT and TPOT. Raises `EngineError` if no request had two tokens."""
        ttft, tpot = percentile(self.ttft_ms(), 99), percentile(self.tpot_ms(), 99)
        if ttft is None or tpot is None:
            raise EngineError("no online request had two tokens; give the run more --seconds or a higher rate")
        return Slo(ttft, tpot)

    def tokens(self, begin: int = 0, end: int = -1) -> tuple[int, int]:
        """(online, all) tokens between two samples: online by the clients, all by the engine's counters."""
        first, last = self.samples[begin], self.samples[end]
        start_s = self.samples[0].at_s
        online = sum(r.tokens_before(last.at_s - start_s) - r.tokens_before(first.at_s - start_s) for r in self.requests)
        return online, last.tokens - first.tokens

    def rates(self, begin: int = 0, end: int = -1) -> dict[str, float]:
        """Tokens per second between two samples; offline is the rest."""
        online, both = self.tokens(begin, end)
        seconds = self.samples[end].at_s - self.samples[begin].at_s
        return {
            "online_tokens_per_s": round(online / seconds, 1),
            "offline_tokens_per_s": round(max(0, both - online) / seconds, 1) if self.offline else 0.0,
            "total_tokens_per_s": round(both / seconds, 1),
        }

    def lines(self, slo: Slo | None) -> list[dict[str, Any]]:
        """`bench.harness.measure.latency.windows`, with the rates of each."""
        lines = windows(self.requests, self.seconds, self.window_s, slo)
        return [line | self.rates(index, index + 1) for index, line in enumerate(lines)]

    def summary(self, slo: Slo | None) -> dict[str, Any]:
        return summary_of([self], slo)


def summary_of(rounds: Sequence[Stretch], slo: Slo | None) -> dict[str, Any]:
    """One system under the same load, round after round: percentiles over all requests, rates as means of the rounds, counters as sums.

    The windows of a later round follow those of the one before it.
    """
    requests = [request for stretch in rounds for request in stretch.requests]
    lines = [
        line | {"from_s": round(line["from_s"] + number * stretch.seconds, 3)}
        for number, stretch in enumerate(rounds)
        for line in stretch.lines(slo)
    ]
    rates = [stretch.rates() for stretch in rounds]
    tokens, recomputed, steps = (sum(getattr(stretch.work, name) for stretch in rounds) for name in ("tokens", "recomputed", "steps"))

    def counted(name: str) -> int:
        return sum(getattr(stretch.samples[-1], name) - getattr(stretch.samples[0], name) for stretch in rounds)

    return {
        **online_summary(requests),
        "late_gaps_share": late_gaps_share(requests, slo) if slo is not None else None,
        **{name: round(fmean(rate[name] for rate in rates), 1) for name in rates[0]},
        "cached_tokens": counted("cached_tokens"),
        "recomputed_tokens": recomputed,
        "recomputed_share": round(recomputed / tokens, 5) if tokens else 0.0,
        "preemptions": counted("preemptions"),
        "engine_steps": steps,
        "slo": attainment(requests, lines, slo) if slo is not None else None,
        "windows": lines,
    }


@dataclass(frozen=True, slots=True)
class Span:
    """Offline work alone for a while."""

    tokens_per_s: float
    seconds: float
    steps: Sequence[Ran] = ()
    rows_s: Sequence[float] = ()


def idle(system: System, seconds: float) -> Span:
    """Throughput of offline work, which must have begun, with no online request."""
    print(f"{system.label}: offline work alone for {seconds:g} s", file=sys.stderr)
    first = counters.read(system.url)
    time.sleep(seconds)
    last = counters.read(system.url)
    system.check()
    tokens_per_s = (last.tokens - first.tokens) / (last.at_s - first.at_s)
    return Span(round(tokens_per_s, 1), round(last.at_s - first.at_s, 1), *ran_between(system.counts, first.at_s, last.at_s, every=True))


def ran_between(counts: Path, begin_s: float, end_s: float, *, every: bool = False) -> tuple[list[Ran], list[float]]:
    """The engine's steps in a span of the monotonic clock, and the ends of its offline requests.

    ``every``: of all requests. Without online ones, stock vLLM gets offline requests that are not marked as such.
    """
    path = counts.with_suffix(".steps")
    if not path.exists():  # of a system that counts no work
        return [], []
    record = read_record(path)
    rows_s = [row.at_s for row in record.rows if (row.offline or every) and begin_s <= row.at_s < end_s]
    return [step for step in record.steps if begin_s <= step.at_s < end_s], rows_s


def stretch(
    system: System,
    setup: SystemSetup,
    load: Sequence[Arrival],
    seconds: float,
    window_s: float,
    *,
    seed: int,
    offline: bool,
    drain_s: float,
) -> Stretch:
    """Play ``load`` against the system. Raises `EngineError` where a request fails or offline work ends.

    An answer that has not ended ``drain_s`` after the load counts as unfinished, with the time it waited until then; so does a refused one.
    """
    print(f"{system.label}: {len(load)} online requests in {seconds:g} s{', beside offline work' if offline else ''}", file=sys.stderr)
    plan, output = _plan(system, setup, load, seconds + drain_s, seed)
    client = _start_client(plan, output, system.label)
    try:
        start_s = time.monotonic() + START_S
        assert client.stdin is not None
        client.stdin.write(f"{start_s!r}\n".encode())
        client.stdin.flush()
        count = max(1, round(seconds / window_s))
        samples = counters.Sampler(system.url, [start_s + seconds * index / count for index in range(count + 1)]).samples()
        if client.wait(drain_s + READY_S) != 0:
            raise EngineError(f"the online client of {system.label} ended with {client.returncode}: {_last(output)}")
    finally:
        client.kill()
        client.wait()
    system.check()
    requests, errors = read_online(output, [arrival.prompt_tokens for arrival in load])
    if errors:
        raise EngineError(f"{len(errors)} of {len(load)} online requests failed at {system.label}; the first: {errors[0]}")
    span = system.counts, samples[0].at_s, samples[-1].at_s
    return Stretch(seconds, seconds / count, requests, samples, work_between(*span), offline, *ran_between(*span))


def _plan(system: System, setup: SystemSetup, load: Sequence[Arrival], limit_s: float, seed: int) -> tuple[Path, Path]:
    output = setup.folder / f"{system.label}-{time.monotonic_ns()}.jsonl"
    plan = output.with_suffix(".plan")
    values = {
        "url": system.url,
        "model": setup.name,
        "seed": seed,
        "vocabulary": setup.vocabulary,
        "limit_s": limit_s,
        "requests": [(a.at_s, a.prompt_tokens, a.output_tokens, dict(a.body)) for a in load],
    }
    plan.write_text(json.dumps(values), encoding="utf-8")
    return plan, output


def _start_client(plan: Path, output: Path, label: str) -> subprocess.Popen[bytes]:
    """The online client, warmed up and waiting for its start."""
    command = [sys.executable, "-m", "bench.harness.load.online_client", "--plan", str(plan), "--output", str(output)]
    core = client_core()
    command += ["--core", str(core)] if core is not None else []
    with output.with_suffix(".log").open("wb") as log:
        client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert client.stdout is not None
    if client.stdout.readline().strip() != b"ready":
        client.kill()
        client.wait()
        raise EngineError(f"the online client of {label} did not get ready: {_last(output)}")
    return client


def _last(output: Path) -> str:
    with suppress(OSError):
        return "".join(output.with_suffix(".log").read_text("utf-8", "replace").strip().splitlines()[-1:])[:300]
    return "it said nothing"
