"""What a step computes, counted for all of its requests at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harvester.policy.kv.groups import KvGroups
from harvester.policy.model.load import StepLoad

DECODES = {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("tokens", "computed", "expected"),
    [
        (DECODES, {"a": 5, "b": 7, "c": 9}, StepLoad(0, 0.0, 3, 21, 3)),
        (DECODES, {"a": 5, "b": 7}, StepLoad(1, 0.5, 2, 12, 3)),  # one is gone
        (DECODES, {"a": 5, "b": 7, "c": 0}, StepLoad(1, 0.5, 2, 12, 3)),  # a prompt of one token
        ({"a": 1, "b": 10}, {"a": 5, "b": 20}, StepLoad(10, 250.0, 1, 5, 2)),
        ({"b": 2}, {"b": 3}, StepLoad(2, 8.0, 0, 0, 1)),
        ({}, {}, StepLoad()),
    ],
    ids=["decodes", "one gone", "one token of a prompt", "a chunk", "two tokens", "nothing"],
)
def test_the_load_of_a_step_is_that_of_its_requests(tokens: dict[str, int], computed: dict[str, int], expected: StepLoad) -> None:
    from harvester.engine.vllm.core.reads import load_of

    output: Any = SimpleNamespace(num_scheduled_tokens=tokens)
    assert load_of(output, computed) == expected
    assert sum((load_of(output, computed, [name]) for name in tokens), StepLoad()) == expected


@pytest.mark.parametrize(
    ("known", "computed", "drafts", "step_tokens", "is_drafting"),
    [(30, 29, 3, 4, True), (30, 29, 0, 1, False), (30, 5, 0, 25, False), (20, 0, 0, 20, False)],
    ids=["drafts", "a decode", "lost KV", "a prompt"],
)
def test_a_request_that_decodes_with_drafts_says_so(known: int, computed: int, drafts: int, step_tokens: int, is_drafting: bool) -> None:
    from harvester.engine.vllm.core.reads import running

    request: Any = SimpleNamespace(
        request_id="chat",
        priority=0,
        num_computed_tokens=computed,
        num_tokens=known,
        num_tokens_with_spec=known + drafts,
        num_output_tokens=known - 20,
        num_output_placeholders=0,
        arrival_time=0.0,
    )
    (found,) = running([request], KvGroups.one(16), 512, {}, 0.0)
    assert (found.step_tokens, found.drafting) == (step_tokens, is_drafting)
