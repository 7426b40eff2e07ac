"""The engine's state after some of its running requests have lost their KV."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from harvester.policy.view import EngineView, Running
from harvester.policy.waiting import Waiting, WithMore


def at(places: Sequence[int] | None, found: Sequence[int]) -> tuple[int, ...]:
    """Translates the places ``found`` in a reduced view into the full view's. ``places``: see `without`; None: nothing was removed."""
    return tuple(found) if places is None else tuple([places[i] for i in found])


def newest_offline(view: EngineView) -> tuple[int, ...]:
    """The offline request to preempt when nothing could run though chat waits: the newest, whatever the engine lacks. Empty: none runs.

    One that holds images goes first, where there are any: room for images may be what is lacking.
    """
    rows = [place for place in range(len(view.running) - 1, -1, -1) if view.running[place].offline]
    first = next((place for place in rows if view.running[place].name in view.item_holders), None)
    return (first,) if first is not None else tuple(rows[:1])


def without(view: EngineView, lost: Collection[int]) -> tuple[EngineView, list[int]]:
    """The view after the requests at ``lost`` have lost their KV, and the old place of each request that still runs."""
    gone = set(lost)
    places = [place for place in range(len(view.running)) if place not in gone]
    freed, frees = [view.running[place] for place in lost], view.freeing()
    again = [_again(one, view) for one in freed if not one.offline]
    rest = replace(
        view,
        running=[view.running[place] for place in places],
        waiting=WithMore(view.waiting, again) if again else view.waiting,
        free_blocks=view.free_blocks + sum(frees(one) for one in freed),
        batch=None,
    )
    return rest, places


def _again(one: Running, view: EngineView) -> Waiting:
    tokens = one.context + one.step_tokens
    return Waiting(one.name, tokens, view.blocks_of(tokens), one.due_s)
