"""The plan of the next step, made while the last one runs, so that the workers wait less.

It is dropped when a request arrives, ends or loses its KV. The rows made for the other requests stay valid.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from harvester.policy.step.batch import Batch, batch_of
from harvester.policy.view import Plan, Running

MAX_GONE = 32  # most requests taken out of a batch; with more the batch is made anew


class PlanAhead:
    """``rows``: makes the brain's rows of requests, given the offset from wall to monotonic clock in seconds."""

    def __init__(self, rows: Callable[[Iterable[Any], float], list[Running]]) -> None:
        self._rows = rows
        self._seen: dict[str, Running] = {}
        self._all: tuple[list[Running], Batch] | None = None  # rows of all that run, and their batch; None: not known
        self._prompt: int | None = None  # place in these rows of the one online prompt; the batch is without it
        self._places: dict[str, int] = {}  # of each request in these rows
        self._gone: list[int] = []  # places of requests that have left since
        self._next: Plan | None = None

    def look(self, running: Sequence[Any]) -> bool:
        """Make the rows of the running requests for the next step. Returns whether no online prompt is among them.

        Rows of online prompts are made again when the step is planned: only then are their rank and the time left to them known.
        """
        shift_s = time.monotonic() - time.time()
        whole = self._rows(running, shift_s)
        self._seen = {row.name: row for row in whole if row.offline or (row.step_tokens <= 1 and row.decoding)}
        self._gone.clear()
        prompts = [place for place, row in enumerate(whole) if row.name not in self._seen] if len(self._seen) < len(whole) else []
        if len(prompts) > 1:
            self._all = None
            return False
        self._places = {row.name: place for place, row in enumerate(whole)}
        self._prompt = prompts[0] if prompts else None
        self._all = whole, batch_of(whole, prompts)
        return not prompts

    def rows(self, running: Sequence[Any], now_s: float) -> tuple[list[Running], Batch | None]:
        """The running requests as the brain sees them, and their batch if it is known already."""
        if self._gone:
            self._take_out()
        shift_s = now_s - time.time()
        if self._all is not None and len(self._all[0]) == len(running):
            return self._all if self._prompt is None else self._with_prompt(self._rows((running[self._prompt],), shift_s)[0])
        unseen = {row.name: row for row in self._rows([one for one in running if one.request_id not in self._seen], shift_s)}
        seen = {**self._seen, **unseen}
        return [seen[request.request_id] for request in running], None

    def _with_prompt(self, row: Running) -> tuple[list[Running], Batch | None]:
        """The rows and the batch of all that run, with the online prompt's row as it is now."""
        assert self._all is not None
        assert self._prompt is not None
        rows, place = list(self._all[0]), self._prompt
        rows[place] = row
        return rows, self._all[1].with_prompt(place, row) if row.step_tokens > 1 else None

    def expect(self, plan: Plan) -> None:
        """Keep the plan of the next step, until `take` or a call that drops it."""
        self._next = plan

    def take(self) -> Plan | None:
        """The plan of the next step, if nothing happened since it was made."""
        plan, self._next = self._next, None
        return plan

    def came(self) -> None:
        """A request arrived."""
        self._next = None

    def left(self, name: str) -> None:
        """The request ended or lost its KV."""
        self._next = None
        if self._seen.pop(name, None) is not None and self._all is not None:
            place = self._places.get(name)
            if place is None:
                self._all = None
            else:
                self._gone.append(place)

    def clear(self) -> None:
        """Drop everything: steps did not come out as planned."""
        self._next = self._all = None
        self._gone.clear()
        self._seen.clear()

    def _take_out(self) -> None:
        """Remove the requests that have left since `look` from the rows and the batch."""
        gone, self._gone = sorted(self._gone), []
        if self._all is None:
            return
        rows, batch = self._all
        rest = list(rows)
        for place in reversed(gone):
            del rest[place]
        keep = len(gone) <= MAX_GONE and not batch.prefills
        self._prompt = None if self._prompt is None else self._prompt - bisect_left(gone, self._prompt)
        self._all = rest, batch.without(gone, rows) if keep else batch_of(rest, () if self._prompt is None else (self._prompt,))
        self._places = {}  # not known any more: if another request leaves before the next `look`, the batch is made anew
