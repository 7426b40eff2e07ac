"""Scheduling hint of a job's requests: decided in the ledger, carried by each request, read by the engine's scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from connectors.processes.pickled import across_versions

JOB_ARG = "job"
ARGS = (
    JOB_ARG,
    "slice",
    "weight",
    "share",
    "above_slo",
    "answer_tokens",
)  # keys of a request's extra arguments that only jobs may set, never a chat client
PROFILE, VERIFY = "profile", "verify"  # in place of a job, of the requests that measure and check an engine
MIN_WEIGHT = 1e-6
MAX_SHARE = 0.9


@across_versions
@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of a model's jobs. ``has_work``: rows are left to do; ``is_late``: a job may miss its deadline without more than its share."""

    has_work: bool = False
    is_late: bool = False


@across_versions
@dataclass(frozen=True, slots=True)
class SchedulingHint:
    """Jobs share the engine by tokens served over weight; a ``share`` of it can be guaranteed to one that would miss its deadline."""

    job: str = ""  # id; empty for a chat request of tier flex
    window: int = 0  # of the job's rows: requests of one window may run in any order, windows run in theirs
    weight: float = 1.0  # the job's own
    boost: float = 1.0  # factor on the weight, because of the deadline
    share: float = 0.0  # of slots and KV, guaranteed for its deadline
    above_slo: bool = False  # the share holds even where chat's SLO then does not
    answer_tokens: int | None = None  # median answer length of the task's rows so far; None: too few are known

    @property
    def total_weight(self) -> float:
        return self.weight * self.boost

    @property
    def is_raised(self) -> bool:
        return self.boost > 1.0 or self.share > 0.0

    def in_window(self, window: int) -> SchedulingHint:
        return replace(self, window=window)

    def to_args(self) -> dict[str, str | int | float | bool]:
        """As vLLM's `SamplingParams.extra_args`, or the `vllm_xargs` of an OpenAI request."""
        values = (self.job, self.window, self.total_weight, self.share, self.above_slo, self.answer_tokens)
        return {name: value for name, value in zip(ARGS, values, strict=True) if value is not None}

    @classmethod
    def from_args(cls, args: Mapping[str, object]) -> SchedulingHint:
        """Reads what `to_args` gave: ``weight`` includes the boost. Weight and share are clamped; an invalid value counts as not given."""
        job, window, weight, share, above_slo, answer = (args.get(name) for name in ARGS)
        return cls(
            job="" if job is None else str(job),
            window=window if isinstance(window, int) else 0,
            weight=_bounded(weight, MIN_WEIGHT, math.inf, 1.0),
            share=_bounded(share, 0.0, MAX_SHARE, 0.0),
            above_slo=above_slo is True,
            answer_tokens=answer if isinstance(answer, int) and answer > 0 else None,
        )


def is_job(name: str) -> bool:
    """Whether offline work under this name is a job's: not chat of tier flex, nor a measurement."""
    return name not in ("", PROFILE, VERIFY)


def without_hint(args: Mapping[str, Any]) -> dict[str, Any]:
    """Extra arguments of a request that belongs to no job, without those that only jobs may set."""
    return {name: value for name, value in args.items() if name not in ARGS}


def _bounded(value: object, low: float, high: float, otherwise: float) -> float:
    return min(max(float(value), low), high) if isinstance(value, int | float) and math.isfinite(value) else otherwise


EVEN = SchedulingHint()  # for requests of no job: weight 1, as a job has by default
