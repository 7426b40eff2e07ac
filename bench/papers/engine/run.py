"""One run of the compiled loop, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.papers.engine import columns
from bench.papers.engine.columns import Requests
from bench.papers.engine.loop import decoupled_loop, paged_loop

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. Latencies over output tokens in seconds a token; shares of 1. ``rate``: of requests that ended, over the whole run.

    ``ssr``: share of requests that ended within their SLO. ``tbt_s``: mean time between tokens. ``recomputed``: share of prompt and answer
    tokens. ``compute``: share of the GPUs' reachable FLOP/s. ``forward``: tokens a step.
    """

    requests: int
    normalized_s: float
    normalized_p95_s: float
    jct_s: float
    ttft_s: float
    tbt_s: float
    ssr: float
    rate: float
    goodput: float
    kv: float
    compute: float
    forward: float
    preemptions: float
    recomputed: float


def played(requests: Requests, rules: Mapping[str, float], decoupled: bool = False, log: Any = None) -> columns.Engine:
    """Run until all of ``requests`` have ended, whose records are updated in place. Returns the engine.

    ``log``: see `bench.papers.engine.columns.Log`. Raises ValueError for a request that no empty engine could hold.
    """
    engines, given = columns.engines(), columns.rules(**rules)
    engine, rule, found, count = engines[0], given[0], _array(requests), len(requests)
    engine.free_blocks, engine.margin = rule.total_blocks, rule.margin
    most = int((found.prompt + found.output).max())
    if -(-most // rule.block_tokens) > rule.total_blocks:
        raise ValueError(f"a request of {most} tokens needs more than all {rule.total_blocks} KV blocks; clip the lengths")
    running, (waiting, third, queued) = np.zeros(rule.max_seqs + 1, np.int64), (np.zeros(count + 1, np.int64) for _ in range(3))
    kept = np.zeros((0, 0), np.int32) if log is None else log
    if decoupled:
        decoupled_loop(requests, engine, rule, running, waiting, third, queued, kept)
    else:
        paged_loop(requests, engine, rule, running, waiting, third, queued, kept)
    return engine


def figures_of(requests: Requests, allowed_s: Floats, engines: Sequence[columns.Engine]) -> Figures:
    """Figures of a system of these engines, each on the same number of GPUs.

    Shares of KV and FLOP/s are means over the whole run and all engines.
    """
    found, seconds = _array(requests), max(engine.now_s for engine in engines)
    jct_s = found.end_s - found.arrival_s
    normalized_s, in_time = jct_s / found.output, jct_s <= allowed_s
    return Figures(
        requests=len(found),
        normalized_s=float(normalized_s.mean()),
        normalized_p95_s=float(np.quantile(normalized_s, 0.95)),
        jct_s=float(jct_s.mean()),
        ttft_s=float((found.first_s - found.arrival_s).mean()),
        tbt_s=float(((found.end_s - found.first_s) / np.maximum(1, found.output - 1)).mean()),
        ssr=float(in_time.mean()),
        rate=len(found) / seconds,
        goodput=float(in_time.sum() / seconds),
        kv=sum(engine.kv_s for engine in engines) / seconds / len(engines),
        compute=sum(engine.work_s for engine in engines) / seconds / len(engines),
        forward=sum(engine.forward for engine in engines) / sum(engine.steps for engine in engines),
        preemptions=float(found.preemptions.mean()),
        recomputed=float(found.recomputed.sum() / (found.prompt + found.output).sum()),
    )


def _array(requests: Requests) -> Any:
    return requests
