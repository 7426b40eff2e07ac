"""An engine's own counters over time: from its Prometheus text, and from `bench.harness.engine.tally`."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import httpx

from harvester.errors import EngineError

FINISHED = "vllm:request_success_total"
OPEN = ("vllm:num_requests_running", "vllm:num_requests_waiting")
PROMPT, OUTPUT, CACHED, PREEMPTED = (
    "vllm:prompt_tokens_total",
    "vllm:generation_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:num_preemptions_total",
)


@dataclass(frozen=True, slots=True)
class Counters:
    """Running totals at ``at_s`` of the monotonic clock. A prompt is in ``prompt_tokens`` from its first output token on, once."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    preemptions: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def total(metrics: str, name: str) -> float:
    """Sum over all label sets of one counter. Ray's exporter knows a name without its ``vllm:`` prefix's colon."""
    lines = (line for line in metrics.splitlines() if line.partition("{")[0].partition(" ")[0] == name)
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def read(url: str) -> Counters:
    """Raises `EngineError` where the server has no such counters."""
    answer = httpx.get(f"{url}/metrics", timeout=60, trust_env=False)
    at_s = time.monotonic()
    if PROMPT not in answer.text:
        raise EngineError(f"{url}/metrics has no {PROMPT}; its first line is {answer.text[:100]!r}")
    return Counters(at_s, *(round(total(answer.text, name)) for name in (PROMPT, OUTPUT, CACHED, PREEMPTED)))


def finished(url: str) -> int:
    """Requests that have ended by themselves."""
    return round(total(httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text, FINISHED))


def open_requests(url: str) -> int:
    """Requests that run or wait now."""
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    return round(sum(total(text, name) for name in OPEN))


class Sampler:
    """Reads the counters at each of the times given (seconds of the monotonic clock), in a thread of its own."""

    def __init__(self, url: str, times_s: list[float]) -> None:
        self._url = url
        self._times_s = times_s
        self._found: list[Counters] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="counters", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for at_s in self._times_s:
                time.sleep(max(0.0, at_s - time.monotonic()))
                self._found.append(read(self._url))
        except (httpx.HTTPError, EngineError) as error:
            self._error = error

    def samples(self) -> list[Counters]:
        self._thread.join()
        if self._error is not None:
            raise EngineError(f"the counters of {self._url} could not be read: {self._error}")
        return self._found
