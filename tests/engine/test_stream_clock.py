"""TTFT and TPOT of a stream, of one choice and of several."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from harvester.core import ServiceTier
from harvester.engine.frontend import metrics
from harvester.engine.frontend.metrics import ClassMetrics, StreamClock
from harvester.engine.shared.settings import Slo

PROMISE: Any = Slo


class Heard:
    """Stands in for `ClassMetrics`."""

    def __init__(self) -> None:
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []

    def first_token(self, seconds: float, promise: object, tier: object) -> None:
        self.ttft_s.append(seconds)

    def next_token(self, seconds: float, tokens: int, promise: object, tier: object) -> None:
        self.tpot_s.append(seconds / tokens)


def timed(monkeypatch: pytest.MonkeyPatch, choices: int, outputs: list[tuple[float, dict[int, int]]]) -> Heard:
    """``outputs``: when each came, and its tokens by choice. The request arrived at 10 s."""
    now_s = [0.0]
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    heard: Any = Heard()
    clock = StreamClock(heard, PROMISE, 10.0, choices=choices)
    for now_s[0], made in outputs:
        clock.output(made)
    return heard


def test_one_choice_has_the_times_of_its_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = timed(monkeypatch, 1, [(11.0, {0: 0}), (12.0, {0: 1}), (16.0, {0: 2}), (17.0, {0: 1})])
    assert (heard.ttft_s, heard.tpot_s) == ([2.0], [2.0, 1.0])


def test_the_tokens_of_several_choices_do_not_make_each_of_them_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = timed(monkeypatch, 3, [(12.0, {0: 1, 1: 1}), (13.0, {2: 1}), (16.0, {0: 1, 1: 2, 2: 1})])
    assert (heard.ttft_s, heard.tpot_s) == ([2.0], [4.0, 2.0, 3.0])


def test_choices_that_are_no_chat_are_promised_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = timed(monkeypatch, 1, [(12.0, {0: 1}), (13.0, {0: 1, 1: 1}), (19.0, {1: 1})])
    assert (heard.ttft_s, heard.tpot_s) == ([2.0], [1.0])


@pytest.mark.parametrize(("gold_s", "shown"), [(0.3, (0.3, 0.2)), (0.1, (2.0, 2.5))], ids=["gold is late", "gold is quick"])
def test_recent_latencies_are_told_with_the_promise_that_they_had(gold_s: float, shown: tuple[float, float]) -> None:
    usual, gold = Slo(2.5, math.inf), Slo(0.2, math.inf)
    found = ClassMetrics(CollectorRegistry())
    now_s = time.monotonic()
    assert found.recent(now_s, usual) == {"ttft": None, "ttft_slo_s": 2.5, "tpot": None, "tpot_slo_s": None}
    found.first_token(2.0, usual, ServiceTier.DEFAULT)
    found.first_token(gold_s, gold, ServiceTier.DEFAULT)
    found.next_token(0.4, 2, gold, ServiceTier.DEFAULT)
    told = found.recent(now_s, usual)
    assert (told["ttft"], told["ttft_slo_s"]) == ({"count": 1, "p50": shown[0], "p99": shown[0]}, shown[1])
    assert (told["tpot"], told["tpot_slo_s"]) == ({"count": 1, "p50": 0.2, "p99": 0.2}, None)
