"""What runs before a load: batch work alone is measured before any chat, and the simulator plays what a real run plays."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.harness import compare
from bench.harness.compare import Comparison, lead_of
from bench.harness.knobs import LEAD_S, Knobs
from bench.harness.load.arrivals import Arrival
from bench.harness.load.online_client import WARM_UP
from bench.harness.measure.latency import Slo
from bench.harness.measure.steps import Record, Row
from bench.harness.measure.stretch import Span
from bench.harness.servers.systems import SystemSetup
from bench.scenarios.coserving.simulate import CLIENT_START_S, _Bench

LOAD = [Arrival(number / 2, 90 + number, 2) for number in range(60)]
GIVEN = Knobs(seconds=30.0, idle_s=20.0, warm_s=5.0)


def comparison(folder: Path) -> Comparison:
    return Comparison(SystemSetup(folder, "model", "name", (1, 2), {}, 8), GIVEN, 7, GIVEN.seconds)


def test_batch_work_alone_is_measured_before_any_chat_as_a_reserve_is_kept_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    done: list[str] = []
    server = SimpleNamespace(label="harvester", begin_offline=lambda: done.append("job"))
    monkeypatch.setattr(compare, "Harvester", lambda *given: nullcontext(server))
    monkeypatch.setattr(compare, "time", SimpleNamespace(sleep=lambda seconds: done.append(f"{seconds:g} s")))
    monkeypatch.setattr(compare, "idle", lambda system, seconds: done.append("alone") or Span(1.0, seconds))
    monkeypatch.setattr(compare, "stretch", lambda *given, **rest: done.append("lead"))
    monkeypatch.setattr(compare, "play_all", lambda *given, **rest: done.append("load") or [])
    _, alone = compare.harvester(comparison(tmp_path), [LOAD], Slo(100.0, 50.0), idle_s=20.0)
    assert done == ["job", "5 s", "alone", "lead", "5 s", "load"]
    assert alone == Span(1.0, 20.0)


def test_the_simulator_plays_the_lead_of_a_real_run(tmp_path: Path) -> None:
    unused: Any = None
    record = Record(100, 16, [], [Row(1.0, True, 300, 20, 0)])
    earlier, begin_s = _Bench(comparison(tmp_path), LOAD, unused, record, 2, 7).earlier(0.0)
    part, seconds = lead_of(LOAD, GIVEN.seconds)
    alone_s = GIVEN.warm_s + GIVEN.idle_s
    chat = [request for request in earlier if not request.offline]
    lead = [request for request in chat if request.id.startswith("lead")]
    assert seconds == LEAD_S
    assert [request.prompt_tokens for request in lead] == [arrival.prompt_tokens for arrival in part]
    assert min(request.arrival_s for request in chat) > alone_s, "the job is alone until it was measured"
    assert [request.arrival_s - lead[0].arrival_s for request in lead] == [arrival.at_s for arrival in part]
    assert begin_s == lead[0].arrival_s + LEAD_S + GIVEN.warm_s + CLIENT_START_S
    assert len(chat) == len(part) + 2 * WARM_UP
    assert len({request.id for request in earlier}) == len(earlier)
