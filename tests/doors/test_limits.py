"""What a request asks, read as the engine would, and what a grammar costs."""

from __future__ import annotations

import base64
import json
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.engine.frontend.door import prompt_tokens
from jobs.access.limits import MAX_COST, Limits, check_job, check_json, check_own, check_size, grammar_cost, pattern_cost
from jobs.access.media import check_media
from jobs.errors import TooLargeError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)
CHOICES = [f"choice-{number}" for number in range(100_000)]


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": "3"}, 3),
        ({"n": 3.0}, 3),
        ({"n": None}, 1),
        ({"n": 0}, 1),
        ({"n": 2, "best_of": 5}, 5),
        ({"n": 2, "prompt": "one"}, 2),
        ({"n": 2, "prompt": ["one", "two", "three"]}, 6),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]]}, 2),
        ({"prompt": []}, 1),
    ],
    ids=str,
)
def test_choices_are_counted_for_each_prompt(body: dict[str, Any], choices: int) -> None:
    assert check_size(body, Limits()) == choices


PART = {"content": [{"type": "text", "text": "a"}]}


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ({"input": "one"}, 1),
        ({"input": ["one", "two"]}, 2),
        ({"input": [1, 2, 3]}, 1),
        ({"input": [[1, 2], [3]]}, 2),
        ({"input": [{"role": "user", **PART}] * 3}, 1),
        ({"input": [[{"role": "user", **PART}]] * 3}, 3),
        ({"messages": [{"role": "user", **PART}] * 3}, 1),
        ({"messages": [[{"role": "user", **PART}]] * 3}, 3),
        ({"messages": [{"role": "user", **PART}], "input": ["one", "two"]}, 2),
        ({"messages": [{"role": "user", **PART}], "documents": [{"title": "a", "content": "b"}] * 3}, 1),
        ({"query": "one", "documents": ["two", "three"]}, 2),
        ({"query": "one", "documents": [PART, PART, "three"]}, 3),
        ({"query": "one", "documents": PART}, 1),
        ({"queries": "one", "items": ["two", "three"]}, 2),
        ({"data_1": ["one", "two", "three"], "data_2": ["four"]}, 3),
        ({"text_1": "one", "text_2": ["two", "three"]}, 2),
        ({"texts": ["one", "two"]}, 2),
        ({"images": ["data:,"] * 2}, 2),
        ({"inputs": [PART] * 4}, 4),
    ],
    ids=lambda value: str(value)[:60],
)
def test_inputs_of_embeddings_and_scores_are_counted_as_requests(body: dict[str, Any], inputs: int) -> None:
    assert check_size(body, Limits()) == inputs


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2000}, "n"),
        ({"n": "2000"}, "n"),
        ({"n": 1e300}, "n"),
        ({"n": 10**400}, "n"),
        ({"prompt": ["a"] * 200}, "n"),
        ({"input": ["a"] * 2049}, "input"),
        ({"query": "a", "documents": ["a"] * 2049}, "documents"),
        ({"max_tokens": 101}, "max_tokens"),
        ({"max_completion_tokens": "101"}, "max_completion_tokens"),
        ({"structured_outputs": {"choice": CHOICES}}, "structured_outputs"),
        ({"structured_outputs": {"json": json.dumps({"enum": CHOICES})}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "|".join(CHOICES)}}, "structured_outputs"),
        ({"repetition_detection": {"max_pattern_size": 5000, "min_pattern_size": 2500, "min_count": 2}}, "repetition_detection"),
        ({"repetition_detection": {"max_pattern_size": 20, "min_count": "65"}}, "repetition_detection"),
        ({"structured_outputs": {"regex": "((a{1000}){1000}){1000}"}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": 'root ::= ("a"{1000}){1000}'}}, "structured_outputs"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": CHOICES}}}}, "response_format"),
        ({"tools": [{"function": {"parameters": {"properties": {"x": {"enum": CHOICES}}}}}]}, "tools"),
        ({"response_format": {"schema": {"properties": {f"p{i}": {"pattern": "[a-z]{1,2000}"} for i in range(200)}}}}, "response_format"),
        ({"response_format": {"schema": {"type": "array", "minItems": 10_000_000}}}, "response_format"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_request_that_would_stop_the_others_is_refused(body: dict[str, Any], param: str) -> None:
    with pytest.raises(TooLargeError) as refused:
        check_size(body, Limits(max_tokens=100))
    assert refused.value.param == param
    assert len(refused.value.message) < 200


def test_what_has_no_limit_passes() -> None:
    check_job(10**9, CHOICES, 10**12, None)
    for length in ({"max_tokens": 100}, {"max_completion_tokens": 100}, {}):
        check_size({"messages": [], "use_beam_search": True, **length}, Limits(max_tokens=100))
    check_size({"structured_outputs": {"json": "no JSON, which the engine refuses"}}, Limits())
    unlimited = Limits(max_choices=None, max_inputs=None, max_grammar_cost=None)
    check_size({"n": 2000, "max_tokens": 10**9, "structured_outputs": {"choice": CHOICES}, "input": CHOICES}, unlimited)


@pytest.mark.parametrize(
    ("pattern", "cost"),
    [
        ("", 0),
        ("abc", 3),
        (r"\d{4}-\d{2}-\d{2}", 18),
        ("[0-9a-f]{8}-[0-9a-f]{4}", 8 * 8 + 1 + 8 * 4),
        ("(ab{3}){10}", (1 + 3 + 2) * 10),
        ("a{2,5}", 6),
        ("a{2,9}", 9),
        ("a{,7}b", 8),
        ("a{3,}", 5),
        ("a{1}" * 9, 36),
        ("a*b+c?", 6),
        ("[]{9}]{2}", 12),
        ("[^]a]{3}", 15),
        (r"\({3}", 6),
        ("a)b", 3),
        ("((((", 4),
        ("a{x}", 4),
        ("[abc", 4),
        ("\\", 2),
        ("(a{1000}){1000}" * 2, 2_000_000 + 2 * 2 * 1000),
    ],
)
def test_a_pattern_costs_its_length_with_its_repeats_written_out(pattern: str, cost: int) -> None:
    assert pattern_cost(pattern) == cost


@given(st.text(alphabet="ab{}[]()\\,0123456789^*|", max_size=60))
def test_any_text_has_a_cost(pattern: str) -> None:
    assert 0 <= pattern_cost(pattern) <= MAX_COST


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_json_has_a_cost_and_is_checked(value: Any) -> None:
    assert grammar_cost(value) >= 0
    check_size({"n": 1, "tools": value, "prompt": value if not isinstance(value, list) else "a"}, Limits())
    check_own({"vllm_xargs": value} if not isinstance(value, dict) else {})


@pytest.mark.parametrize(
    ("value", "cost"),
    [
        ({"regex": "(a{99}){99}" * 50}, len("regex") + 11 * 50),
        ({"regex": "(" * 500}, len("regex") + 500),
        ([["a" * 1000]] * 500, 500),
        ({"k" * 500: "v" * 1000}, 500),
        ({"json": json.dumps(["a" * 1000])}, len("json") + 1004),
        ([{"minItems": 1000}, "a" * 500], 2 + 500),
    ],
    ids=["a long pattern", "open groups", "a list", "an object", "JSON as text", "what comes behind"],
)
def test_a_grammar_is_counted_no_further_than_its_limit(value: Any, cost: int) -> None:
    assert grammar_cost(value, 400) == cost


MANY = 1_000_000


@pytest.mark.parametrize(
    "check",
    [
        lambda ids: check_media({"prompt": ids, "messages": ids}, ()),
        lambda ids: check_size({"prompt": ids}, Limits()),
        lambda ids: prompt_tokens({"prompt": ids}),
    ],
    ids=["media", "size", "tokens"],
)
def test_a_prompt_of_a_million_token_ids_is_not_copied_to_be_checked(check: Callable[[list[int]], Any]) -> None:
    ids = [0] * MANY
    tracemalloc.start()
    try:
        check(ids)
        assert tracemalloc.get_traced_memory()[1] < MANY, "less than a byte for each"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": list(range(MANY))},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": base64.b64encode(bytes(range(256)) * 90_000)}}]}
            ]
        },
        {"messages": [{"role": "user", "content": 'Well, it said {x}, and "no".\n' * 120_000}]},
        {"messages": [{"role": "user", "content": "\u6c49" * MANY}]},
        {"input": [list(range(100_000, 101_000))] * 2048},
        {"input": [" ".join(f'"key{number}": "value",' for number in range(200))] * 2048},
    ],
    ids=["token ids", "an image", "text", "text in escapes", "inputs of token ids", "inputs of JSON"],
)
def test_a_large_request_that_a_model_can_answer_passes(body: Any) -> None:
    check_json(json.dumps(body, default=bytes.decode).encode())


def test_a_file_in_base64_is_bounded_by_the_limit_of_the_body_alone() -> None:
    file = base64.b64encode(os.urandom(3 << 20)) * 32
    check_json(b'{"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,%b"}}]}]}' % file)


def test_a_deep_schema_is_read_without_recursion() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    assert grammar_cost(schema) == 5000 * len("items")
