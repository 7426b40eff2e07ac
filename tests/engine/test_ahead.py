"""What is seen of the running requests while a step runs, and what is left of it when some of them end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from harvester.engine.core.ahead import MAX_GONE, PlanAhead
from harvester.policy.step.batch import batch_of
from harvester.policy.view import Running


@dataclass(frozen=True)
class Held:
    """A request of an engine."""

    request_id: str
    context: int


def each(look: Callable[[Held, float], Running]) -> Callable[[Iterable[Held], float], list[Running]]:
    return lambda requests, shift_s: [look(request, shift_s) for request in requests]


def row(request: Held, shift_s: float) -> Running:
    return Running(request.request_id, request.context % 3 != 0, 1, 2, 4, 1, request.context, decoding=True)


def with_prompts(request: Held, shift_s: float) -> Running:
    """A request named ``prompt...`` is an online prompt, due when it is looked at; the others are rows."""
    if request.request_id.startswith("prompt"):
        return Running(request.request_id, False, request.context, 2, 0, 1, 32, decoding=False, due_s=shift_s)
    return row(request, shift_s)


@pytest.mark.parametrize("gone", [0, 1, 3, MAX_GONE + 2], ids=["none ended", "one ended", "three ended", "most ended"])
def test_who_ends_leaves_the_batch_that_was_seen_and_the_others_are_not_looked_at_again(gone: int) -> None:
    looks = list[str]()

    def counted(request: Held, shift_s: float) -> Running:
        looks.append(request.request_id)
        return row(request, shift_s)

    ahead, running = PlanAhead(each(counted)), [Held(f"r{number}", 10 + number) for number in range(16)]
    assert ahead.look(running)
    stay = [one for place, one in enumerate(running) if place % 16 not in {5 * number % 16 for number in range(gone)}]
    for one in running:
        if one not in stay:
            ahead.left(one.request_id)
    rows, batch = ahead.rows(stay, 0.0)
    assert rows == [row(one, 0.0) for one in stay]
    assert batch == batch_of(rows)
    assert len(looks) == len(running)


def test_requests_that_came_since_are_looked_at() -> None:
    ahead, running = PlanAhead(each(row)), [Held("a", 4), Held("b", 5)]
    ahead.look(running)
    rows, batch = ahead.rows([*running, Held("c", 7)], 0.0)
    assert [one.name for one in rows] == ["a", "b", "c"]
    assert batch is None


def test_one_who_leaves_after_others_were_taken_out_is_not_in_the_batch_either() -> None:
    ahead, running = PlanAhead(each(row)), [Held(f"r{number}", 10 + number) for number in range(4)]
    ahead.look(running)
    ahead.left("r1")
    ahead.rows([one for one in running if one.request_id != "r1"], 0.0)
    ahead.left("r3")
    rows, _ = ahead.rows([running[0], running[2]], 0.0)
    assert [one.name for one in rows] == ["r0", "r2"]


@pytest.mark.parametrize("gone", [[], ["r0"], ["r3", "r1"], [f"r{number}" for number in range(MAX_GONE + 4)]], ids=len)
def test_one_online_prompt_is_looked_at_again_when_it_is_due_and_no_other(gone: list[str]) -> None:
    ahead, running = PlanAhead(each(with_prompts)), [Held(f"r{number}", 10 + number) for number in range(MAX_GONE + 8)]
    running.insert(2, Held("prompt", 9))
    assert not ahead.look(running), "nothing is planned ahead of a prompt"
    for name in gone:
        ahead.left(name)
    stay = [one for one in running if one.request_id not in gone]
    rows, batch = ahead.rows(stay, 1e12)
    assert [one.name for one in rows] == [one.request_id for one in stay]
    assert batch == batch_of(rows)
    assert batch.due_s > 1e11, "as it is now"


@pytest.mark.parametrize("prompts", [["prompt", "prompt too"], ["prompt of 1"]], ids=["two", "the last token of one"])
def test_other_prompts_have_the_batch_made_anew(prompts: list[str]) -> None:
    ahead, running = PlanAhead(each(with_prompts)), [Held("r1", 4), *(Held(name, 1 if "1" in name else 9) for name in prompts)]
    assert not ahead.look(running)
    assert ahead.rows(running, 0.0)[1] is None
