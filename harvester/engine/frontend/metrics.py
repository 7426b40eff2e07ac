"""harvester's own metrics on `/metrics`, beside vLLM's: what each class of work gets, and what the scheduler does. All labels are bounded.

Names begin with ``harvester_``. Latencies are taken in the replica, as the client's connection sees them.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from harvester.core import ServiceTier
from harvester.engine.shared.settings import Slo
from harvester.engine.shared.state import Count, Field, SharedState

SECONDS = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
WINDOW_S = 60.0
MAX_VALUES = 4096


class TimeWindow:
    """A sliding window: values of the last ``WINDOW_S``, at most the ``MAX_VALUES`` newest. Noting one costs an append."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=MAX_VALUES)  # when, value

    def note(self, value: float, now_s: float) -> None:
        self._values.append((now_s, value))

    def quantiles(self, now_s: float) -> dict[str, float] | None:
        """``count``, ``p50`` and ``p99``; None if the window is empty."""
        while self._values and self._values[0][0] < now_s - WINDOW_S:
            self._values.popleft()
        if not self._values:
            return None
        ordered = sorted(value for _, value in self._values)
        return {"count": len(ordered), "p50": _at(ordered, 0.5), "p99": _at(ordered, 0.99)}


def _at(ordered: list[float], share: float) -> float:
    """The quantile by nearest rank: the smallest value that ``share`` of all values do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class ClassMetrics:
    """Latencies by class of work, and how often SLOs were met."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._ttft = Histogram(
            "harvester_ttft_seconds", "Arrival to first token of online requests.", ["class", "tier"], buckets=SECONDS, registry=registry
        )
        self._tpot = Histogram(
            "harvester_tpot_seconds",
            "One output token to the next of online requests.",
            ["class", "tier"],
            buckets=SECONDS,
            registry=registry,
        )
        self._queue = Histogram(
            "harvester_queue_seconds", "Arrival in the engine to first step.", ["class"], buckets=SECONDS, registry=registry
        )
        self._kept = Counter("harvester_slo_total", "Promises to online requests, kept or not.", ["objective", "kept"], registry=registry)
        # By what was promised, in seconds.
        self._recent: dict[str, defaultdict[float, TimeWindow]] = {name: defaultdict(TimeWindow) for name in ("ttft", "tpot")}

    def first_token(self, seconds: float, promise: Slo, tier: ServiceTier) -> None:
        self._ttft.labels("online", tier).observe(seconds)
        self._took("ttft", seconds, promise.ttft_s)

    def next_token(self, seconds: float, tokens: int, promise: Slo, tier: ServiceTier) -> None:
        """One output brought ``tokens`` tokens, ``seconds`` after the output before it."""
        self._tpot.labels("online", tier).observe(seconds / tokens)
        self._took("tpot", seconds / tokens, promise.tpot_s)

    def queued(self, work: str, seconds: float) -> None:
        self._queue.labels(work).observe(seconds)

    def recent(self, now_s: float, usual: Slo) -> dict[str, Any]:
        """Recent TTFT (``ttft``) and TPOT (``tpot``) of online streams in seconds, see `TimeWindow.quantiles`, with their SLO.

        Of classes with different SLOs, those streams whose P99 is worst for their own. ``ttft_slo_s``, ``tpot_slo_s``: None where none
        was promised; of ``usual`` where there was no stream.
        """
        found: dict[str, Any] = {}
        for name, promised_s in (("ttft", usual.ttft_s), ("tpot", usual.tpot_s)):
            told = {promise_s: values for promise_s, window in self._recent[name].items() if (values := window.quantiles(now_s))}
            _, worst_s = max(((values["p99"] / promise_s, promise_s) for promise_s, values in told.items()), default=(0.0, promised_s))
            found |= {name: told.get(worst_s), f"{name}_slo_s": worst_s if worst_s < math.inf else None}
        return found

    def _took(self, objective: str, seconds: float, promised_s: float) -> None:
        self._recent[objective][promised_s].note(seconds, time.monotonic())
        if promised_s < math.inf:
            self._kept.labels(objective, str(seconds <= promised_s).lower()).inc()


class StreamClock:
    """Times the outputs of one online request, whose first ``choices`` choices are chat."""

    def __init__(
        self, metrics: ClassMetrics, promise: Slo, arrived_s: float, tier: ServiceTier = ServiceTier.DEFAULT, choices: int = 1
    ) -> None:
        self._metrics, self._promise, self._tier, self._choices = metrics, promise, tier, choices
        self._arrived_s = arrived_s
        self._last_s: dict[int, float] = {}  # by choice, when its last token came

    def output(self, made: Mapping[int, int]) -> None:
        """An output came just now, with so many tokens of each choice. TTFT is that of the first choice to begin, TPOT of each its own."""
        now_s = time.monotonic()
        for choice, tokens in made.items():
            if tokens == 0 or choice >= self._choices:
                continue
            if choice in self._last_s:
                self._metrics.next_token(now_s - self._last_s[choice], tokens, self._promise, self._tier)
            elif not self._last_s:
                self._metrics.first_token(now_s - self._arrived_s, self._promise, self._tier)
            self._last_s[choice] = now_s


class CheckpointMetrics:
    """Metrics of KV checkpoints: copies, preempted requests that resumed, host memory. All zero where checkpoints are off."""

    COUNTERS = (
        ("harvester_checkpoint_stored_blocks", "KV blocks copied to host memory.", Count.STORED_BLOCKS),
        ("harvester_checkpoint_loaded_blocks", "KV blocks copied back.", Count.LOADED_BLOCKS),
        ("harvester_checkpoint_stored_bytes", "Bytes copied to host memory.", Count.STORED_BYTES),
        ("harvester_checkpoint_loaded_bytes", "Bytes copied back.", Count.LOADED_BYTES),
        ("harvester_checkpoint_store_seconds", "Time spent copying to host memory, of all ranks.", Count.STORE_S),
        ("harvester_checkpoint_load_seconds", "Time spent copying back, of all ranks.", Count.LOAD_S),
        ("harvester_checkpoint_failed_copies", "Copies that failed; their blocks are computed again.", Count.FAILED_COPIES),
        (
            "harvester_checkpoint_waited_blocks",
            "KV blocks copied while a step waited, for a request that lost its KV.",
            Count.WAITED_BLOCKS,
        ),
        ("harvester_checkpoint_evicted_blocks", "Host blocks given up for want of host memory.", Count.EVICTED_BLOCKS),
        ("harvester_resumed", "Preempted requests that run again.", Count.RESUMED),
        ("harvester_resumed_whole", "Of those, with all full blocks back (the prefetch hits).", Count.RESUMED_WHOLE),
        ("harvester_resume_seconds", "From the start of reading back to the first step, summed.", Count.RESUME_S),
        ("harvester_swapped", "Online requests that gave up their KV for one whose turn comes sooner.", Count.SWAPPED),
        ("harvester_lost_tokens", "Tokens whose KV was taken from requests.", Count.LOST_TOKENS),
    )
    GAUGES = (
        ("harvester_checkpoint_host_blocks", "Host blocks in use.", Count.HOST_BLOCKS),
        ("harvester_checkpoint_host_bytes", "Host memory in use.", Count.HOST_BYTES),
        ("harvester_checkpoint_covered_blocks", "KV blocks of running requests that are on the host.", Count.COVERED_BLOCKS),
        ("harvester_checkpoint_lag_tokens", "Computed tokens of running requests that are not.", Count.LAG_TOKENS),
    )
    CAUSES = (("edge", Count.EDGE_TOKENS), ("uncovered", Count.UNCOVERED_TOKENS), ("failed", Count.FAILED_TOKENS))

    @classmethod
    def recomputed(cls, shared: SharedState) -> Metric:
        tokens = CounterMetricFamily("harvester_recomputed_tokens", "Tokens computed again after a preemption.", labels=["cause"])
        for cause, place in cls.CAUSES:
            tokens.add_metric([cause], shared.count(place))
        return tokens


class LengthMetrics:
    """How well the lengths of online answers are predicted."""

    QUANTILES = (("0.5", Count.WITHIN_MEDIAN), ("0.9", Count.WITHIN_HIGH))

    @classmethod
    def collect(cls, shared: SharedState) -> Iterator[Metric]:
        answers = shared.count(Count.PREDICTED_ANSWERS)
        yield CounterMetricFamily(
            "harvester_predicted_answers", "Online answers that ended after their length was predicted.", value=answers
        )
        covered = CounterMetricFamily(
            "harvester_predicted_answers_covered", "Of those, answers no longer than the predicted quantile.", labels=["quantile"]
        )
        for quantile, place in cls.QUANTILES:
            covered.add_metric([quantile], shared.count(place))
        yield covered
        if answers:
            text = "Median of abs(predicted - made) / made of the latest such answers, by the predicted median."
            yield GaugeMetricFamily("harvester_predicted_length_error", text, value=shared.count(Count.LENGTH_ERROR))


class SharedStateMetrics(Collector):
    """The engine core's counters, read from the shared state at each scrape."""

    COUNTERS = (
        ("harvester_steps", "Engine steps.", Count.STEPS),
        ("harvester_offline_steps", "Steps with offline work alone.", Count.OFFLINE_STEPS),
        ("harvester_mixed_steps", "Steps with online and offline work.", Count.MIXED_STEPS),
        ("harvester_steps_ended", "Steps that ended between two layers for an arrival.", Count.ENDED_STEPS),
        ("harvester_taken_back_tokens", "Tokens planned in such steps, to be computed again.", Count.TAKEN_BACK_TOKENS),
        ("harvester_evicted", "Offline requests that lost their KV to an arrival.", Count.PREEMPTED),
        ("harvester_paused", "Offline requests left out of a step, KV kept, summed over steps.", Count.PAUSED_STEPS),
        ("harvester_busy_seconds", "Time in steps.", Count.BUSY_S),
        ("harvester_harvested_seconds", "Time in steps with offline work alone.", Count.HARVESTED_S),
    )
    GAUGES = (
        ("harvester_offline_budget_tokens", "Offline tokens that the last step beside online work had room for.", Count.BUDGET_TOKENS),
        ("harvester_reserved_slots", "Slots kept for arrivals.", Count.RESERVED_SLOTS),
        ("harvester_reserved_blocks", "KV blocks kept for arrivals.", Count.RESERVED_BLOCKS),
        ("harvester_running_online", "Online requests in the last step.", Count.ONLINE_RUNNING),
        ("harvester_running_offline", "Offline requests in the last step.", Count.OFFLINE_RUNNING),
    )

    CHAT = (
        ("harvester_chat_ttft_seconds", "Time to first token of online requests, in the engine.", Count.FIRST_TOKENS, Count.TTFT_S),
        (
            "harvester_chat_ttft_alone_seconds",
            "The same, as it would have been without jobs, by the latency model.",
            Count.FIRST_TOKENS,
            Count.TTFT_ALONE_S,
        ),
        ("harvester_chat_gap_seconds", "Time between two tokens of online requests, in the engine.", Count.GAPS, Count.GAP_S),
        (
            "harvester_chat_gap_alone_seconds",
            "The same, as it would have been without jobs, by the latency model.",
            Count.GAPS,
            Count.GAP_ALONE_S,
        ),
    )

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared

    def collect(self) -> Iterator[Metric]:
        for name, text, place in self.COUNTERS + CheckpointMetrics.COUNTERS:
            yield CounterMetricFamily(name, text, value=self._shared.count(place))
        for name, text, place in self.GAUGES + CheckpointMetrics.GAUGES:
            yield GaugeMetricFamily(name, text, value=self._shared.count(place))
        asked, places = self._shared[Field.ASKED], self._shared[Field.PLACES]
        yield CounterMetricFamily("harvester_steps_asked_to_end", "Signals that asked steps in flight to end.", value=asked)
        yield GaugeMetricFamily("harvester_safepoint_places", "Layers where a step may end; 0: no step is ended.", value=places)
        yield self._by_class()
        yield CheckpointMetrics.recomputed(self._shared)
        yield self._error()
        yield from LengthMetrics.collect(self._shared)
        detected = SummaryMetricFamily("harvester_abort_detection_seconds", "Signal to the end of the step.")
        detected.add_metric([], int(self._shared.count(Count.DETECTED)), self._shared.count(Count.DETECT_S))
        yield detected
        for name, text, count, total in self.CHAT:
            summary = SummaryMetricFamily(name, text)
            summary.add_metric([], int(self._shared.count(count)), self._shared.count(total))
            yield summary

    def _by_class(self) -> Metric:
        tokens = CounterMetricFamily("harvester_tokens", "Prompt tokens computed and tokens made, by class of work.", labels=["class"])
        tokens.add_metric(["online"], self._shared.count(Count.ONLINE_TOKENS))
        tokens.add_metric(["offline"], self._shared.count(Count.OFFLINE_TOKENS))
        return tokens

    def _error(self) -> Metric:
        ratio = GaugeMetricFamily("harvester_step_time_ratio", "Actual over predicted time of the last steps.", labels=["quantile"])
        ratio.add_metric(["0.5"], self._shared.count(Count.ERROR_P50))
        ratio.add_metric(["0.99"], self._shared.count(Count.ERROR_P99))
        return ratio
