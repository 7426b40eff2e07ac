"""How fast chat comes: a share of what an engine can do, or a rate; the loads that are made of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import bench
from bench.__main__ import main
from bench.harness import compare
from bench.harness.compare import POINT_SEEDS, Comparison
from bench.harness.knobs import Knobs
from bench.harness.load.arrivals import Arrival, Trace, read_trace, replay, stretched, synthetic
from bench.harness.measure.counters import Counters
from bench.harness.measure.latency import Online
from bench.harness.measure.prices import Capacity, Prices
from bench.harness.measure.steps import Ran
from bench.harness.measure.stretch import Stretch
from bench.harness.measure.work import Work
from bench.harness.options import Options
from bench.harness.paced import MEASURE_SEED, Pace, Paced, at_share, backlog_of, first_of, while_full
from bench.harness.servers.systems import SystemSetup
from bench.scenarios.catalog import SCENARIOS
from bench.scenarios.coserving.coserve import trace_loads
from harvester.errors import EngineError, UsageError
from harvester.policy.model.load import StepLoad

PRICES = Prices(0.001, 0.0, 0.01, 0.0)
CAPACITY = Capacity(0.9, [0.9] * 8, 10.0, PRICES)
TIMES = [0.0, 1.0, 1.5, 4.0, 9.0, 9.5, 10.0, 12.0]
TRACE = Trace(TIMES, [100 * (number + 1) for number in range(8)], [10] * 8)


def even(rate: float, seconds: float = 100.0) -> list[list[Arrival]]:
    return [[Arrival(number / rate, 90, 2) for number in range(round(rate * seconds))]]


def test_the_rate_is_the_share_of_what_the_engine_answers() -> None:
    """0.1 s of work a chat, 0.9 s of it in a second: nine a second."""
    found = at_share(0.25, CAPACITY, even, 3.0, 100.0)
    assert found.rate == pytest.approx(2.25, rel=0.01)
    line = found.line()
    assert (line["share"], line["rate"]) == (0.25, found.rate)
    assert line["share_drawn"] == pytest.approx(0.25, rel=0.01)
    assert line["capacity"]["requests_per_s"] == pytest.approx(9.0)


def test_the_rate_fits_the_lengths_of_the_load_that_comes_at_it() -> None:
    """A faster load has longer requests here, so that the first guess is not the last."""

    def growing(rate: float) -> list[list[Arrival]]:
        return [[Arrival(0.0, 90 + number // 10, 2) for number in range(round(100 * rate))]]

    found = at_share(0.5, CAPACITY, growing, 3.0, 100.0)
    assert CAPACITY.share_of(found.loads[0], 100.0) == pytest.approx(0.5, rel=0.02)


def test_a_load_at_a_part_of_the_rate_is_that_part_of_the_share() -> None:
    found = at_share(0.4, CAPACITY, even, 3.0, 100.0).shares(0.5, even(1.8)[0])
    assert found == {"share": 0.2, "share_drawn": 0.2}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [0.25, 0.5])
def test_chat_has_its_share_however_its_arrivals_are_drawn(share: float, seed: int) -> None:
    """Twenty seconds have 45 arrivals give or take 7: the rate that fits the mean would be off by as much."""

    def drawn(rate: float) -> list[list[Arrival]]:
        return [synthetic(rate, 1.0, 20.0, (90, 2), np.random.default_rng(seed))]

    found = at_share(share, CAPACITY, drawn, 3.0, 20.0)
    assert CAPACITY.share_of(found.loads[0], 20.0) == pytest.approx(share, abs=1.5 / 20 / 9)


def test_a_run_in_which_no_chat_comes_is_an_error() -> None:
    with pytest.raises(EngineError, match="--seconds"):
        at_share(0.25, CAPACITY, lambda rate: [[]], 3.0, 100.0)
    with pytest.raises(EngineError, match="--seconds"):
        backlog_of([], 4, np.random.default_rng(0))


def test_a_rate_that_is_given_is_told_without_a_share() -> None:
    line = Paced(None, 3.0, None, even(3.0), 100.0).line()
    assert Paced(None, 3.0, None, even(3.0), 100.0).shares(0.5, even(1.5)[0]) == {"share": None, "share_drawn": None}
    assert line == {"share": None, "rate": 3.0, "share_drawn": None, "capacity": None}


@pytest.mark.parametrize(
    ("options", "rate", "shares"),
    [
        (Options(), None, (0.25, 0.5)),
        (Options(quick=True), None, (0.25,)),
        (Options(quick=True, shares=(0.4, 0.6)), None, (0.4, 0.6)),
        (Options(rate=2.0), 2.0, ()),
        (Options(set={"rate": 3.0}), 3.0, ()),
    ],
    ids=["full", "quick", "shares", "rate", "knob"],
)
def test_the_user_sets_the_pace_or_the_scenario_does(options: Options, rate: float | None, shares: tuple[float, ...]) -> None:
    assert Pace.of(options) == Pace(rate, shares)


@pytest.mark.parametrize(
    "options",
    [
        Options(rate=1.0, shares=(0.2,)),
        Options(rate=1.0, set={"rate": 2.0}),
        Options(set={"rate": 2.0}, shares=(0.2,)),
        Options(rate=0.0),
        Options(shares=(1.0,)),
        Options(shares=(0.0,)),
        Options(shares=(25.0,)),
    ],
)
def test_a_pace_that_cannot_be_is_named(options: Options) -> None:
    with pytest.raises(UsageError, match=r"rate|share"):
        Pace.of(options)


@pytest.mark.parametrize("words", [["--rate", "3"], ["--share", "0.3"]], ids=["rate", "share"])
def test_a_scenario_that_measures_no_capacity_takes_no_pace(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scheduler", *words]) == 2
    assert "leave them out" in capsys.readouterr().err


def test_every_scenario_that_has_a_pace_takes_one_and_no_other() -> None:
    files = {name: Path(bench.__file__).parent.joinpath(*one.module.split(".")).with_suffix(".py") for name, one in SCENARIOS.items()}
    paced = {name for name, file in files.items() if "Pace.of(" in file.read_text(encoding="utf-8")}
    assert len(paced) > 3
    assert paced == {name for name, one in SCENARIOS.items() if one.paced}


def test_the_first_share_is_the_result_and_all_are_listed() -> None:
    points = [{**Paced(share, 1.0, CAPACITY, even(1.0), 100.0).line(), "systems": {"a": share}, "ratios": {}} for share in (0.25, 0.5)]
    found = first_of(points, Pace(None, (0.25, 0.5)))
    assert (found["chat"]["share"], found["systems"]) == (0.25, {"a": 0.25})
    assert [point["systems"]["a"] for point in found["shares"]] == [0.25, 0.5]
    assert "shares" not in first_of(points[:1], Pace(3.0, ()))


def test_an_engine_is_measured_with_the_lengths_of_the_load() -> None:
    load = [Arrival(float(number), 10 * (number + 1), number + 2) for number in range(5)]
    found = backlog_of(load, 10, np.random.default_rng(1))
    assert {one.at_s for one in found} == {0.0}
    assert sorted((one.prompt_tokens, one.output_tokens) for one in found) == sorted((a.prompt_tokens, a.output_tokens) for a in load * 2)
    assert len(backlog_of(load, 7, np.random.default_rng(1))) == 7


def chats(ends_s: list[float | None]) -> Stretch:
    """A stretch with a step each second, and chats that ended at these times or were given up (None)."""
    requests = [Online(0.0, 0.0, 9, [(0.5, 1)], end_s is not None, 20.0 if end_s is None else end_s) for end_s in ends_s]
    samples = [Counters(100.0 + at_s, 0, 0, 0, 0) for at_s in (0, 20)]
    steps = [Ran(101.0 + number, StepLoad.decode(9), 1.0, False) for number in range(20)]
    return Stretch(20.0, 20.0, requests, samples, Work(1, 1, 0), False, steps)


def test_steps_count_while_the_engine_is_full() -> None:
    ends_s: list[float | None] = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert [step.at_s for step in while_full(chats(ends_s), slots=2)][-1] == 105.0
    assert len(while_full(chats([2.0, 3.0, None, None, None, None]), slots=2)) == 20, "it was full to the end"
    assert while_full(chats([2.0, 3.0]), slots=2) == [], "it never had more than it takes"


def test_loads_on_one_server_have_prompts_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same prompts would be in its prefix cache, and chat faster than it is."""
    seeds: list[int] = []

    def played(*given: Any, seed: int, **rest: Any) -> Stretch:
        seeds.append(seed)
        return chats([2.0])

    monkeypatch.setattr(compare, "stretch", played)
    comparison = Comparison(SystemSetup(tmp_path, "model", "name", (1, 2), {}, 8), Knobs(), 7, 10.0)
    compare.play_all(comparison, SimpleNamespace(label="one"), even(1.0) * 3, offline=False)  # type: ignore[arg-type]
    assert len({*seeds, comparison.seed + MEASURE_SEED}) == 4
    assert seeds[0] == 7, "one load alone has the prompts of earlier results"


def test_points_on_one_server_have_prompts_of_their_own(tmp_path: Path) -> None:
    comparison = Comparison(SystemSetup(tmp_path, "model", "name", (1, 2), {}, 8), Knobs(), 7, 10.0)
    assert [comparison.point(number).seed for number in range(3)] == [7, 7 + POINT_SEEDS, 7 + 2 * POINT_SEEDS]


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_a_stretched_trace_leaves_no_request_out_and_keeps_its_gaps(rate: float) -> None:
    found = stretched(TRACE, rate, 4.0, 1.0, (4096, 512), np.random.default_rng(3))
    start = int(np.random.default_rng(3).integers(8))
    assert len(found) == round(rate * 4.0)
    assert [one.prompt_tokens for one in found] == [100 * ((start + number) % 8 + 1) for number in range(len(found))]
    assert all(0.0 <= one.at_s < 4.0 for one in found)
    unrolled = [*TIMES, *(at_s + 12.0 + 12.0 / 7 for at_s in TIMES)]
    gaps = [after - before for before, after in pairwise(unrolled[start : start + len(found) + 1])]
    times = [*(one.at_s for one in found), 4.0]  # the next request would come at the end
    ratios = [(after - before) / gap for (before, after), gap in zip(pairwise(times), gaps, strict=True)]
    assert all(ratio == pytest.approx(fmean(ratios)) for ratio in ratios)


def test_a_given_rate_repeats_the_load_of_earlier_results_and_a_share_stretches_the_trace() -> None:
    given, trace, most = Knobs(seconds=10.0), read_trace(), (4096, 512)
    (fixed,) = trace_loads(given, 5, Pace(3.0, ()))(3.0)
    assert fixed == replay(trace, 3.0, 10.0, given.trace_scale, most, np.random.default_rng(5))
    (paced,) = trace_loads(given, 5, Pace(None, (0.25,)))(3.0)
    assert paced == stretched(trace, 3.0, 10.0, given.trace_scale, most, np.random.default_rng(5))
