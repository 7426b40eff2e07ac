"""The engine's state when some of its running requests have given up their KV."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from harvester.policy.view import EngineView, Running
from harvester.policy.waiting import Waiting, WithMore


def at(places: Sequence[int] | None, found: Sequence[int]) -> tuple[int, ...]:
    """Where those ``found`` in a shorter view are in the whole one; ``places`` None: it is the whole one."""
    return tuple(found) if places is None else tuple([places[i] for i in found])


def newest_offline(view: EngineView) -> tuple[int, ...]:
    """Nothing could run though chat waits: whatever the engine lacks, the newest offline request gives up its KV for it.

    One that holds images first, where there are any: what they lie in may be what is lacking.
    """
    rows = [place for place in range(len(view.running) - 1, -1, -1) if view.running[place].offline]
    first = next((place for place in rows if view.running[place].name in view.item_holders), None)
    return (first,) if first is not None else tuple(rows[:1])


def without(view: EngineView, lost: Collection[int]) -> tuple[EngineView, list[int]]:
    """The view when the requests at ``lost`` have given up their KV, and where each of its running requests was."""
    gone = set(lost)
    places = [place for place in range(len(view.running)) if place not in gone]
    freed, frees = [view.running[place] for place in lost], view.freeing()
    again = [_again(one, view.block_tokens) for one in freed if not one.offline]
    rest = replace(
        view,
        running=[view.running[place] for place in places],
        waiting=WithMore(view.waiting, again) if again else view.waiting,
        free_blocks=view.free_blocks + sum(frees(one) for one in freed),
        batch=None,
    )
    return rest, places


def _again(one: Running, block_tokens: int) -> Waiting:
    tokens = one.context + one.step_tokens
    return Waiting(one.name, tokens, -(-tokens // block_tokens), one.due_s)
