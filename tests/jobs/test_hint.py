"""The scheduling hint and its one way to vLLM's extra arguments and back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.hint import ARGS, EVEN, MAX_SHARE, SchedulingHint

hints = st.builds(
    SchedulingHint,
    job=st.text(max_size=8),
    window=st.integers(0, 10_000),
    weight=st.floats(1e-3, 1e3),
    boost=st.floats(1.0, 1e3),
    share=st.floats(0.0, MAX_SHARE),
    above_slo=st.booleans(),
    answer_tokens=st.none() | st.integers(1, 10_000),
)


@given(hints)
def test_the_scheduler_reads_what_the_ledger_decided(hint: SchedulingHint) -> None:
    told = SchedulingHint.from_args(hint.to_args() | {"slo_class": "fast"})
    assert told == replace(hint, weight=hint.total_weight, boost=1.0)
    assert tuple(hint.to_args()) == (ARGS if hint.answer_tokens else ARGS[:-1])


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"weight": "7", "share": float("nan")},
        {"slice": "no number", "above_slo": "yes"},
        {"weight": float("inf")},
        {"answer_tokens": 0},
    ],
    ids=["nothing", "no numbers", "other types", "no bound", "no tokens"],
)
def test_what_is_no_hint_counts_as_not_given(args: dict[str, object]) -> None:
    assert SchedulingHint.from_args(args) == EVEN


@pytest.mark.parametrize(("args", "weight", "share"), [({"weight": -1, "share": -1}, 1e-6, 0.0), ({"weight": 0, "share": 5}, 1e-6, 0.9)])
def test_numbers_are_brought_within_their_bounds(args: dict[str, object], weight: float, share: float) -> None:
    assert SchedulingHint.from_args(args) == SchedulingHint(weight=weight, share=share)
