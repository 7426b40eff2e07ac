"""Long texts in parts: what they hold, where they are cut, and how their answers become one."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harvester.errors import TaskError
from jobs.engine import Completion, EngineGone, Prompt, RowError, RowRequest
from jobs.longtext.combine import grouped, joined
from jobs.longtext.split import OVERLAP_SHARE, spans, split
from jobs.result import Row
from jobs.run.row import RowWork
from jobs.spec import JobSpec, OnLong
from jobs.tasks.load import resolve_task
from jobs.testing import ScriptedEngine, scripted_plan

TASK = {"prompt": "Sum up.\n{text}", "combine": "Put together.\n{text}"}


async def chars(text: str) -> int:
    return len(text)


def job(inline: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    task = resolve_task("digest", inline=inline or TASK, max_tokens=20)
    return scripted_plan("docs").spec.model_copy(update={"task": task, "on_long": OnLong.SPLIT, **changes})


async def answered(spec: JobSpec, engine: ScriptedEngine, text: str, slots: asyncio.Semaphore | None = None) -> Row:
    return await RowWork(spec, engine, lambda: 0.0, slots).answer(0, {}, text, 1, "t")


SENTENCES = " ".join(f"This is sentence number {i}." for i in range(400))


async def test_parts_end_and_start_at_sentences_and_overlap_a_little() -> None:
    parts = await split(SENTENCES, chars, 600)
    assert all(len(part) <= 600 and part.startswith("This is") and part.endswith(".") for part in parts)
    numbers = [[int(found) for found in re.findall(r"\d+", part)] for part in parts]
    assert {number for part in numbers for number in part} == set(range(400))
    shared = [len(set(one) & set(two)) for one, two in pairwise(numbers)]
    assert set(shared) <= {1, 2}, "one or two sentences of about twenty are told again"
    assert len(parts) <= 1.1 * len(SENTENCES) / 600 / (1 - OVERLAP_SHARE)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab. \n。é", max_size=400), st.integers(3, 60))
def test_parts_fit_and_hold_every_character_in_order(text: str, budget: int) -> None:
    if not text.strip():
        return
    found = asyncio.run(spans(text, chars, budget))
    assert all(0 < end - start <= budget for start, end in found)
    assert found == sorted(found)
    reached = 0
    for start, end in found:
        assert not text[reached:start].strip(), "nothing but white space is left out"
        assert end > reached, "each part goes on"
        reached = end
    assert not text[reached:].strip()


async def test_one_count_a_part_is_usual() -> None:
    calls = 0

    async def count(text: str) -> int:
        nonlocal calls
        calls += 1
        return len(text)

    parts = await split(SENTENCES * 5, count, 2000)
    assert calls < 2 * len(parts)


class Sliced(str):
    """A text that counts the characters copied out of it."""

    copied = 0

    def __getitem__(self, place: Any) -> str:
        part = super().__getitem__(place)
        self.copied += len(part)
        return part


async def test_each_part_is_copied_a_few_times_and_never_what_comes_after_it() -> None:
    text = Sliced(SENTENCES * 50)
    found = await spans(text, chars, 1000)
    assert len(found) > 500
    assert text.copied < 20 * len(text)


async def test_answers_are_grouped_without_counting_many_more_than_fit() -> None:
    counted: list[int] = []

    async def count(text: str) -> int:
        counted.append(len(text))
        return len(text)

    groups, _ = await grouped(["An answer."] * 1000, count, 600)
    assert len(groups) > 40
    assert max(counted) < 3 * 600


async def test_answers_are_grouped_in_order_and_every_group_but_the_last_has_two() -> None:
    answers = [f"Answer {i}." for i in range(11)]
    groups, was_cut = await grouped(answers, chars, 100)
    assert [answer for group in groups for answer in group] == answers
    assert all(len(joined(group)) <= 100 for group in groups)
    assert all(len(group) >= 2 for group in groups[:-1])
    assert not was_cut


async def test_two_answers_that_do_not_fit_together_are_cut_so_that_they_do() -> None:
    groups, was_cut = await grouped(["One. " * 30, "Two. " * 30], chars, 200)
    assert was_cut
    assert len(groups) == 1
    assert len(joined(groups[0])) <= 200
    assert all(answer for answer in groups[0])


def digest(prompt: Prompt) -> str:
    """The numbers read, as ``first-last``; combined ones likewise."""
    numbers = [int(found) for found in re.findall(r"\d+", re.sub(r"Part \d+ of \d+:", "", prompt.messages[-1]["content"]))]
    return f"{min(numbers)}-{max(numbers)}"


async def test_a_long_text_is_answered_in_parts_and_combined_level_by_level() -> None:
    seen: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        seen.append(prompt)
        return digest(prompt)

    names: set[str] = set()
    # 40 tokens of prompt: 160 characters
    engine = ScriptedEngine(context_tokens=60, answer=answer, hear=lambda request: names.add(request.request_id))
    row = await answered(job(), engine, SENTENCES)
    mapped = [prompt for prompt in seen if prompt.messages[-1]["content"].startswith("Sum up.")]
    combined = seen[len(mapped) :]
    assert (row.status, row.values, row.truncated) == ("ok", {"output": "0-399"}, False)
    assert row.parts == len(mapped) >= 80
    assert row.requests == len(seen)
    assert all(prompt.messages[-1]["content"].startswith("Put together.") for prompt in combined)
    assert len(combined) > 10, "several levels"
    assert len(names) == len(seen)
    for prompt in seen:
        assert await engine.count_tokens(prompt.messages) <= 40
    assert row.usage.output_tokens == sum([engine._tokens(digest(prompt)) for prompt in seen])


async def test_a_text_that_fits_is_one_request() -> None:
    engine = ScriptedEngine(answer=digest)
    row = await answered(job(), engine, "Number 7.")
    assert (row.values, row.parts, row.requests, engine.calls) == ({"output": "7-7"}, 1, 1, 1)


async def test_parts_are_in_the_engine_at_once_as_far_as_there_are_slots() -> None:
    most = 0

    class Engine(ScriptedEngine):
        async def complete(self, request: RowRequest) -> Completion:
            nonlocal most
            most = max(most, self.running + 1)
            return await super().complete(request)

    row = await answered(job(), Engine(context_tokens=60, answer=digest), SENTENCES, asyncio.Semaphore(5))
    assert row.status == "ok"
    assert most == 5


async def test_a_part_that_fails_fails_its_row_and_names_itself() -> None:
    def answer(prompt: Prompt) -> str:
        if "number 200." in prompt.messages[-1]["content"]:
            raise RowError("refused", "not this one")
        return digest(prompt)

    row = await answered(job(), ScriptedEngine(context_tokens=60, answer=answer), SENTENCES)
    assert (row.status, row.error_code) == ("error", "refused")
    assert re.fullmatch(r"part \d+ of \d+: not this one", row.error_message or "")


async def test_a_lost_engine_says_nothing_about_the_row() -> None:
    engine = ScriptedEngine(context_tokens=60, answer=digest)
    engine.die()
    with pytest.raises(EngineGone):
        await answered(job(), engine, SENTENCES)


async def test_each_parts_answer_holds_the_schema_and_so_does_the_whole() -> None:
    schema = {"type": "object", "properties": {"top": {"type": "integer"}}, "required": ["top"]}
    inline = {"prompt": "{text}", "answer": "json", "json_schema": schema}
    tries: list[int] = []

    def answer(prompt: Prompt) -> str:
        if prompt.messages[-1]["content"].startswith("That cannot be used"):
            tries.append(1)
            return '{"top": 399}'
        return "no" if prompt.messages[-1]["content"].startswith("A text was too long") else f'{{"top": {digest(prompt).split("-")[1]}}}'

    engine = ScriptedEngine(context_tokens=300, answer=answer)
    row = await answered(job(inline), engine, SENTENCES)
    assert (row.status, row.values, row.parts > 1, bool(tries)) == ("ok", {"top": 399}, True, True)


def test_a_combining_prompt_without_a_place_for_the_answers_is_refused() -> None:
    with pytest.raises(TaskError, match=r"combine lacks \{text\}"):
        resolve_task("digest", inline={"prompt": "{text}", "combine": "Put together."})


@pytest.mark.parametrize(
    ("task", "options"),
    [("summarize", {}), ("classify", {"labels": "a,b"}), ("extract", {"schema": {"type": "object", "properties": {"a": {}}}})],
    ids=["summarize", "classify", "extract"],
)
def test_a_built_in_task_says_how_to_combine(task: str, options: dict[str, Any]) -> None:
    assert "{text}" in (resolve_task(task, options=options).combine or "")


async def test_answers_that_were_cut_to_be_combined_mark_the_row_though_later_levels_fit() -> None:
    def answer(prompt: Prompt) -> str:
        return "ok" if prompt.messages[-1]["content"].startswith("Put together.") else "Long. " * 13

    row = await answered(job(), ScriptedEngine(context_tokens=60, answer=answer), SENTENCES)
    assert (row.status, row.values, row.truncated) == ("ok", {"output": "ok"}, True)
