"""What `harvester verify` makes of what it finds: ties, verdicts, and what becomes of a part that is wrong."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from harvester.config import parse_config
    from harvester.engine.shared.settings import KEY, Settings, pack
    from harvester.engine.verify import kept, serving
    from harvester.engine.verify.answers import Pressed
    from harvester.engine.verify.serving import Verified
    from harvester.engine.verify.signals import Signals
    from harvester.engine.verify.ties import Compared, compare, moved
    from harvester.engine.verify.times import Times
    from harvester.engine.verify.verdict import Aspect, Verdict, detect_ms, kv_verdict, signals_verdict, times_verdict, tokens_verdict
    from harvester.engine.worker import kvcopy

pytestmark = pytest.mark.engine

STOCK = [5, 6, 7, 8]
TOPS = [{5: -0.1, 9: -3.0}, {6: -0.5, 1: -0.6}, {7: -0.1, 2: -3.0}, {8: -0.1, 3: -3.0}]
PRESSED = Pressed([], ended_steps=10, preempted=3, stored_blocks=0, loaded_blocks=0, failed_copies=0)
ONCE = Compared(answers=1, tokens=4, compared=4)


def test_the_same_answer_is_compared_to_its_end() -> None:
    assert compare([(STOCK, STOCK)], [TOPS], 0.0) == Compared(1, 4, 4, 0, 0)


def test_another_token_within_the_tie_cuts_the_comparison_off_and_is_no_difference() -> None:
    assert compare([([5, 1, 0, 0], STOCK)], [TOPS], 0.2) == Compared(1, 4, 1, 1, 0)


@pytest.mark.parametrize(
    ("ours", "tie"),
    [([5, 1, 7, 8], 0.05), ([5, 4, 7, 8], 0.2), ([9, 6, 7, 8], 0.2), ([5, 6, 7], 0.2), ([5, 6, 7, 8, 9], 0.2)],
    ids=["a lead beyond the tie", "a token not among the likeliest", "a large lead", "too short", "too long"],
)
def test_any_other_token_is_a_difference(ours: list[int], tie: float) -> None:
    found = compare([(ours, STOCK)], [TOPS], tie)
    assert (found.different, found.tied, found.identical) == (1, 0, False)


def test_answers_that_ties_cut_off_at_once_show_nothing() -> None:
    assert not Compared(answers=2, tokens=8, compared=1, tied=2).identical


def test_the_lead_that_moves_most_between_two_computations_is_found() -> None:
    again = [dict(top) for top in TOPS]
    again[1] = {6: -0.45, 1: -0.63}
    assert moved(STOCK, TOPS, again) == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("turns", "tie", "pressed", "ok"),
    [
        ([ONCE], 0.1, PRESSED, True),
        ([ONCE, replace(ONCE, different=1)], 0.1, PRESSED, False),
        ([ONCE], 3.0, PRESSED, None),
        ([ONCE], 0.1, replace(PRESSED, ended_steps=0), None),
        ([ONCE], 0.1, replace(PRESSED, preempted=0), None),
    ],
    ids=["right", "one answer differs", "stock vLLM does not repeat itself", "no step ended", "nobody lost KV"],
)
def test_tokens_are_right_where_no_answer_differs_though_much_was_done_to_them(
    turns: list[Compared], tie: float, pressed: Pressed, ok: bool | None
) -> None:
    assert tokens_verdict(turns, tie, pressed).ok is ok


@pytest.mark.parametrize(("asked", "ended", "ok"), [(100, 95, True), (100, 80, False), (60, 0, False), (3, 3, None)])
def test_signals_are_right_where_nine_of_ten_end_their_step(asked: int, ended: int, ok: bool | None) -> None:
    assert signals_verdict(Signals(asked, [0.01] * ended)).ok is ok


def test_detection_is_told_in_ms_and_not_at_all_where_no_step_ended() -> None:
    assert detect_ms(Signals(4, [0.004, 0.001, 0.003, 0.002])) == {"p50": 2.0, "p90": 4.0, "p99": 4.0}
    assert detect_ms(Signals(4)) == {"p50": None, "p90": None, "p99": None}


@pytest.mark.parametrize(
    ("found", "ok"),
    [
        (Times(1.0, 1.6, 0.95), True),
        (Times(1.0, 1.6, 1.9), False),
        (Times(1.9, 2.6, 0.95), False),
        (Times(1.0, 12.0, 0.95), False),
        (Times(None, None, 0.95), None),
        (Times(None, None, 0.2), False),
    ],
    ids=[
        "right",
        "steps counted twice",
        "twice the prediction",
        "a tail beyond every margin",
        "nothing predicted",
        "steps that are not seen",
    ],
)
def test_times_are_right_where_predictions_hold_and_steps_add_up(found: Times, ok: bool | None) -> None:
    assert times_verdict(found).ok is ok


def test_kv_is_right_where_every_rank_got_its_blocks_back_and_no_copy_failed() -> None:
    assert kv_verdict([True, True]).ok is True
    assert kv_verdict([True, False]).ok is False
    assert kv_verdict([]).ok is False
    assert kv_verdict([True], replace(PRESSED, stored_blocks=9, failed_copies=1)).ok is False


@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_that_come_back_whole_hold_afterwards_what_they_held_before(axis: int) -> None:
    shape = (40, 8, 4) if axis == 0 else (2, 40, 8)
    caches = [torch.randn(shape), torch.randn(shape).to(torch.bfloat16)]
    before = [cache.clone() for cache in caches]
    assert kvcopy.kv_comes_back(caches, 40)
    assert all(torch.equal(*pair) for pair in zip(caches, before, strict=True))


@pytest.mark.parametrize("way", [0, 1], ids=["on the way to the host", "on the way back"])
def test_a_single_bit_that_flips_on_the_way_is_found(way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = 0

    def flipped(sources: Any, targets: Any, wait: bool) -> float:
        nonlocal copies
        targets[0].copy_(sources[0])
        if copies % 2 == way:
            targets[0].view(torch.int32)[3, 2] ^= 1
        copies += 1
        return 0.0

    monkeypatch.setattr(kvcopy, "_timed", flipped)
    assert not kvcopy.kv_comes_back([torch.randn(40, 8)], 40)


def test_blocks_that_a_kernel_sees_as_several_are_looked_at_whole() -> None:
    assert kvcopy.kv_comes_back([torch.randn(10, 2, 8), torch.randn(2, 10, 8)], 5)


def test_a_part_that_is_wrong_is_off_at_the_next_start_and_others_stay_on(tmp_path: Path) -> None:
    profile, config = tmp_path / "profiles" / "tiny-1.json", parse_config({"checkpoint": {"enabled": True}}, "test")
    kept.write(
        profile, [Verdict(Aspect.SIGNALS, False, "0 of 20"), Verdict(Aspect.KV, True, "whole"), Verdict(Aspect.TIMES, None, "too few")]
    )
    reduced = kept.fitted(config, kept.read(profile))
    assert (reduced.schedule.safepoints, reduced.schedule.budget, reduced.checkpoint.enabled) == ("auto", "slo", True), "looked at again"
    kept.write(profile, [Verdict(Aspect.KV, False, "spoiled"), Verdict(Aspect.TIMES, False, "twice")])
    reduced = kept.fitted(config, kept.read(profile))
    assert (reduced.schedule.safepoints, reduced.schedule.budget, reduced.checkpoint.enabled) == ("auto", "fixed", False)


def test_timing_the_copies_writes_nothing_into_kv_that_a_copy_may_be_bringing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = torch.zeros(40, 8)
    timed = kvcopy._timed

    def beside(*given: Any) -> float:
        took_s = timed(*given)
        cache[1] += 1
        return took_s

    monkeypatch.setattr(kvcopy, "_timed", beside)
    assert kvcopy.measure_kv_copy([cache], 40)["block_bytes"] == 32.0
    assert cache[1].eq(2 * kvcopy.ROUNDS).all()


@pytest.mark.parametrize(
    "text", [None, "{", "[]", '{"harvester": "0.0.0", "parts": []}'], ids=["none", "broken", "a list", "of another version"]
)
def test_what_was_kept_by_nobody_or_by_another_harvester_is_looked_at_anew(text: str | None, tmp_path: Path) -> None:
    profile = tmp_path / "tiny-1.json"
    if text is not None:
        kept.kept_path(profile).write_text(text)
    assert kept.read(profile) is None
    plain = parse_config({}, "test")
    assert kept.fitted(plain, None).schedule == plain.schedule


@pytest.mark.parametrize(
    ("tokens", "copies", "enabled", "on"),
    [
        (True, True, "auto", True),
        (None, True, "auto", False),
        (True, None, "auto", False),
        (True, True, False, False),
        (None, None, True, True),
    ],
    ids=["both proven", "tokens unknown", "copies unknown", "turned off by hand", "turned on by hand"],
)
def test_checkpoints_are_on_by_themselves_where_tokens_and_copies_are_proven(
    tokens: bool | None, copies: bool | None, enabled: bool | str, on: bool
) -> None:
    found = [Verdict(Aspect.TOKENS, tokens, ""), Verdict(Aspect.KV, copies, "")]
    config = parse_config({"checkpoint": {"enabled": enabled}}, "test")
    assert kept.fitted(config, found).checkpoint.enabled is on


def test_wrong_is_only_what_was_wrong_both_times() -> None:
    first = [Verdict(Aspect.SIGNALS, False, "3 of 20"), Verdict(Aspect.TIMES, False, "busy"), Verdict(Aspect.KV, True, "whole")]
    second = [Verdict(Aspect.SIGNALS, False, "0 of 20"), Verdict(Aspect.TIMES, True, "quiet"), Verdict(Aspect.KV, False, "spoiled")]
    found = kept.better(first, second)
    assert [(one.part, one.ok) for one in found] == [(Aspect.SIGNALS, False), (Aspect.TIMES, True), (Aspect.KV, True)]


def test_wrong_tokens_turn_off_all_that_could_have_made_them() -> None:
    config = kept.fitted(parse_config({"checkpoint": {"enabled": True}}, "test"), [Verdict(Aspect.TOKENS, False, "")])
    assert (config.schedule.safepoints, config.checkpoint.enabled) == ("off", False)


class FakeLlm:
    def __init__(self) -> None:
        self.settings = Settings.parse({KEY: pack(parse_config({}, "test"))})
        self.stopped = 0

    def stop_signals(self) -> None:
        self.stopped += 1


async def test_signals_that_end_nothing_are_stopped_at_once_and_looked_at_again_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found = [
        Verdict(Aspect.SIGNALS, False, "0 of 20 steps asked to end did"),
        Verdict(Aspect.KV, True, "whole"),
    ]
    looks: list[float] = []

    async def look(llm: Any, shared: Any, detect_s: float, safepoints: bool, max_s: float) -> list[Verdict]:
        looks.append(detect_s)
        return found

    monkeypatch.setattr(serving, "verify_short", look)
    for start in (1, 2):
        llm, registry = FakeLlm(), CollectorRegistry()
        verified = Verified(llm, SimpleNamespace(), registry)  # type: ignore[arg-type]
        await verified.when_absent(tmp_path / "tiny-1.json")
        assert (len(looks), llm.stopped) == (2 * start, 1), f"start {start}"
        assert [line.partition(";")[0] for line in verified.wrong()] == ["signals wrong on this machine: 0 of 20 steps asked to end did"]
        text = generate_latest(registry).decode()
        assert 'harvester_verified{part="signals"} 0.0' in text
        assert 'harvester_verified{part="kv"} 1.0' in text
    assert len([record for record in caplog.records if "0 of 20" in record.message]) == 2
    assert math.isclose(looks[0], 0.03)
    found[0] = Verdict(Aspect.SIGNALS, True, "20 of 20 steps asked to end did")
    for _ in (1, 2):  # the machine is quiet now
        llm = FakeLlm()
        verified = Verified(llm, SimpleNamespace(), CollectorRegistry())  # type: ignore[arg-type]
        await verified.when_absent(tmp_path / "tiny-1.json")
        assert (len(looks), llm.stopped, verified.wrong()) == (5, 0, [])


async def test_a_part_that_was_unknown_is_looked_at_again_and_one_that_is_off_stays_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, unknown = Verdict(Aspect.KV, False, "spoiled"), Verdict(Aspect.TIMES, None, "too few steps")
    told = [[wrong, unknown], [wrong, unknown], [Verdict(Aspect.TIMES, True, "right")]]

    async def look(*given: Any) -> list[Verdict]:
        return told.pop(0)

    monkeypatch.setattr(serving, "verify_short", look)
    for left in (1, 0, 0):
        registry = CollectorRegistry()
        await Verified(FakeLlm(), SimpleNamespace(), registry).when_absent(tmp_path / "tiny-1.json")  # type: ignore[arg-type]
        assert len(told) == left
        assert ('part="times"' in generate_latest(registry).decode()) == (left == 0)
    assert kept.read(tmp_path / "tiny-1.json") == [wrong, Verdict(Aspect.TIMES, True, "right")]
