"""What a plan knows of a batch as a whole: a batch after requests left equals one made of those that stay."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from harvester.policy.step.batch import batch_of
from harvester.policy.view import Running
from tests.policy.asked import chat, drafting, prompt

TPOTS_S = st.sampled_from([0.05, 0.1, math.inf])


def decoding(number: int, offline: bool, context: int, tpot_s: float) -> Running:
    blocks = -(-context // 16)
    asks = -(-(context + 1) // 16) - blocks
    return Running(f"r{number}", offline, 1, blocks, 2 * blocks if offline else 0, asks, context, decoding=True, tpot_s=tpot_s)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 100), TPOTS_S), min_size=1, max_size=12), st.data())
def test_a_batch_that_loses_requests_is_the_batch_of_those_that_stay(kinds: list[tuple[bool, int, float]], data: st.DataObject) -> None:
    rows = [decoding(number, *kind) for number, kind in enumerate(kinds)]
    batch = batch_of(rows)
    gone = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    assert batch.without(gone, rows) == batch_of([row for place, row in enumerate(rows) if place not in gone])


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 100), TPOTS_S), max_size=12),
    st.integers(0, 12),
    st.booleans(),
    st.sampled_from([5.0, math.inf]),
    st.data(),
)
def test_a_batch_that_an_online_prompt_joins_is_the_batch_of_all(
    kinds: list[tuple[bool, int, float]], at: int, has_token: bool, due_s: float, data: st.DataObject
) -> None:
    rows = [decoding(number, *kind) for number, kind in enumerate(kinds)]
    prompt = Running("prompt", False, 7, 1, 0, 2, 16, decoding=has_token, due_s=due_s, tpot_s=data.draw(TPOTS_S))
    place = min(at, len(rows))
    rows.insert(place, prompt)
    gone = sorted(data.draw(st.sets(st.sampled_from([other for other in range(len(rows)) if other != place])))) if kinds else []
    rest, moved = [row for other, row in enumerate(rows) if other not in gone], place - sum(other < place for other in gone)
    assert batch_of(rows, [place]).with_prompt(place, prompt) == batch_of(rows)
    assert batch_of(rows, [place]).without(gone, rows).with_prompt(moved, prompt) == batch_of(rest)


def test_chats_with_drafts_go_before_a_prompt_of_better_rank_and_lost_kv_does_not() -> None:
    lost = prompt(400)._replace(name="lost", decoding=True)
    running = [lost, prompt(5000)._replace(name="long"), drafting(), chat(), drafting(1)]
    batch = batch_of(running, (), {"long": 0, "lost": 1})
    assert batch.online == [2, 3, 4, 1, 0]
    assert ([one.step_tokens for one in batch.drafting], batch.prompt_tokens, batch.online_tokens) == ([4, 2], 5400, 5407)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), st.integers(0, 60), st.booleans()), max_size=12))
def test_the_sums_of_a_batch_are_those_of_its_requests(kinds: list[tuple[bool, int, int, bool]]) -> None:
    rows = [Running(f"r{n}", offline, tokens, 2, 9, n % 3, context, made) for n, (offline, tokens, context, made) in enumerate(kinds)]
    batch = batch_of(rows)
    offline, online = [one for one in rows if one.offline], [one for one in rows if not one.offline]
    assert batch.context_sums == [sum(batch.contexts[:count]) for count in range(len(batch.contexts) + 1)]
    assert batch.step_blocks == sum(one.blocks_step for one in rows if not one.offline or one.step_tokens == 1)
    assert (batch.final_blocks, batch.growth_blocks) == (9 * len(offline), 7 * len(offline))
    assert batch.chat_blocks == 2 * len(online)
    assert batch.decoding_tokens == sum(one.step_tokens for one in online if one.step_tokens == 1)
    assert batch.decoding_context == sum(one.context for one in online if one.step_tokens == 1)
    assert batch.first_tokens == any(not one.decoding for one in online)
