"""Admission by the KV that rows are expected to hold together, instead of the most that each may hold at its end.

The projection is a `Curve` over the tokens that each row has left, by the median answer of its job. A row that has outgrown its median is
expected to go on for 0.3 of what it has made. Where KV runs out all the same, the newest row loses its own (`shortage`), and the `KvMargin`
grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from harvester.policy.admission.curve import Curve, Row
from harvester.policy.admission.left import RowLength, tokens_left
from harvester.policy.admission.margin import KvMargin
from harvester.policy.admission.room import Room, pending_blocks, room_of
from harvester.policy.admission.rule import Rows, Space, beside_reserve, passing, within
from harvester.policy.bisection import largest_from_below
from harvester.policy.model.lengths import AnswerLengths
from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import Batch
from harvester.policy.step.guarantee import Lack, opened
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig, Running

LOOK_AGAIN = 16  # tokens made by running rows, or steps, after which a refused row is looked at again though none has ended


class _Refused(NamedTuple):
    """What a row did not fit beside."""

    rows: int
    newest: str
    context: int  # of the newest
    cap: float


class _Waits(NamedTuple):
    """Whether a refused row waits for rows of other jobs, as found at ``step``."""

    waits: bool
    refused: _Refused
    step: int


_Asked = tuple[str, bool]
"""A row by name, and whether it is one of `StepView.owed`: then its cap is another."""


class Expected:
    """Rows are admitted while the peak of their curve stays within the KV that chat, its reserve and the margin leave."""

    def __init__(self, curve: Curve | None = None) -> None:
        self.lengths, self.margin = AnswerLengths(), KvMargin()
        self._curve = curve or Curve()
        self._by_name: dict[str, RowLength] = {}  # by row, from the medians of ``_version``
        self._version = 0
        self._kv_tokens = 0
        self._refused: dict[_Asked, _Refused] = {}  # a plan may ask for the first rows of several jobs
        self._waits: dict[str, _Waits] = {}  # by row
        self._steps = 0
        self._refused_before: dict[_Asked, _Refused | None] = {}  # of those that plans for this step asked for: as it was before

    def blocks(self, row: OfflineRow) -> int:
        return row.blocks

    def holds(self, one: Running, blocks_of: Callable[[int], int]) -> int:
        return one.blocks_now if one.step_tokens <= 1 else blocks_of(one.context + one.step_tokens)

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> Space:
        """The blocks are those that are free now, less what running prompts will take."""
        free = view.free_blocks - pending_blocks(view, batch)
        return opened(beside_reserve(view, config, free), view, free)

    def admitted(self, rows: Rows, space: Space, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[str, ...]:
        """O(running); O(1) while the same row is refused. Shared KV is counted in full for new rows, and discounted for running ones.

        A row by itself may take the margin too: none lacks KV because it is longer than expected.
        """
        self._curve.take_back()  # an earlier plan for this step, which was dropped
        self._kv_tokens = view.kv_tokens
        head = next(iter(rows(())), None)
        if head is None:  # most steps: nothing else is looked at
            return ()
        self._renew()
        room = room_of(view, batch, config, self.margin.share, head.tokens + self._left(head))
        queue = self._queue(rows, space, room, view, batch, config)
        if not queue.reach(1):
            return ()
        first = queue.found[0]
        asked, refusal = (first.name, first.name in room.owed), _refusal(view, batch, room.caps_of(first).beside)
        if not room.idle and self._is_still_refused(asked, refusal):
            return ()
        self._follow(view, batch)
        count = largest_from_below(space[0], lambda count: queue.reach(count) and self._fit(queue.found[:count], room))
        if not count:
            self._refused[asked] = refusal
        return tuple([row.name for row in queue.found[:count]])

    def _queue(self, rows: Rows, space: Space, room: Room, view: StepView, batch: Batch, config: PolicyConfig) -> _Queue:
        usual = beside_reserve(view, config, view.free_blocks - pending_blocks(view, batch)) if view.owed is not None else space
        waiting = rows(()) if room.idle else passing(rows, lambda row: room.waits_for_rows(row, self._left(row)))
        return _Queue(within(waiting, self.blocks, space, usual, room.owed))

    def _fit(self, rows: Sequence[OfflineRow], room: Room) -> bool:
        """Whether the peak of the running rows and ``rows`` stays within the cap of the last one."""
        alone, caps = len(rows) == 1, room.caps_of(rows[-1])
        if room.idle and alone:
            return True
        more = [(tokens_left(self._length(row), row.tokens), row.tokens + room.shared_tokens) for row in rows]
        return self._curve.peak_tokens(more, room.spare_tokens) <= (caps.alone if alone and not room.others else caps.beside)

    def waits_for_others(self, row: OfflineRow, lack: Lack, view: StepView, batch: Batch, config: PolicyConfig) -> bool:
        """O(prompts + chats), and a look at each running row of the job. O(1) for `LOOK_AGAIN` steps while the row is refused as before."""
        refused, known = self._refused.get((row.name, True)), self._waits.get(row.name)
        if known is not None and known.refused is refused and self._steps - known.step < LOOK_AGAIN:
            return known.waits
        waits = self._waits_for_others(row, lack, view, batch, config)
        if refused is not None:
            self._waits[row.name] = _Waits(waits, refused, self._steps)
        return waits

    def _waits_for_others(self, row: OfflineRow, lack: Lack, view: StepView, batch: Batch, config: PolicyConfig) -> bool:
        room = room_of(view, batch, config, self.margin.share, row.tokens + self._left(row), lack.share_blocks)
        own, new = [self._now(one, view) for one in lack.own], (self._left(row), row.tokens + room.shared_tokens)
        curve, cap = Curve(), room.first.beside if own else room.first.alone
        if curve.peak_tokens([*own, new], room.spare_tokens) > cap:
            return False
        return curve.peak_tokens(own, room.spare_tokens) < lack.share_blocks * room.tokens_per_block

    def ended(self, row: OfflineRow, answer_tokens: int | None) -> None:
        self._by_name.pop(row.name, None)
        self._waits.pop(row.name, None)
        for owed in (False, True):
            self._refused.pop((row.name, owed), None)
        if answer_tokens is not None:
            self.lengths.learn(row.job, row.prompt_tokens, answer_tokens)

    def ran(self, computed: int, recomputed: int) -> None:
        self._steps += 1
        self.margin.ran(computed, recomputed, self._kv_tokens)
        if computed:
            self._curve.passed()
        self._curve.keep()
        self._refused_before.clear()

    def _is_still_refused(self, asked: _Asked, now: _Refused) -> bool:
        """Whether the row would not fit again: the same rows run, a little longer than before, and the cap has not risen.

        Undoes what an earlier plan for this step has noted of the row.
        """
        before = self._refused_before.setdefault(asked, self._refused.pop(asked, None))
        if before is None or now[:2] != before[:2] or now.cap > before.cap or not 0 <= now.context - before.context < LOOK_AGAIN:
            return False
        self._refused[asked] = before
        return True

    def _follow(self, view: StepView, batch: Batch) -> None:
        """Update the curve to the rows that run and those whose KV is read back."""
        running, loading = view.running, view.loading_rows
        places = [*batch.decodes, *batch.prefills]
        found: dict[str, Running | None] = {one.name: one for one in map(running.__getitem__, places)}
        found.update(dict.fromkeys(loading))

        def now(name: str) -> Row:
            one = found[name]
            if one is not None:
                return self._now(one, view)
            row, tokens = view.offline_rows.get(name), loading[name]
            return (tokens_left(self._length(row), tokens) if row is not None else 0.0), tokens

        self._curve.follow(found, now)

    def _renew(self) -> None:
        """Forget lengths that medians have replaced."""
        if self._version != self.lengths.version:
            self._by_name, self._version = {}, self.lengths.version

    def _left(self, row: OfflineRow) -> float:
        """Expected tokens left of a waiting row."""
        return tokens_left(self._length(row), row.tokens)

    def _now(self, one: Running, view: StepView) -> Row:
        """A running row as the curve has it."""
        tokens = one.context + one.step_tokens
        return tokens_left(self._by_name.get(one.name) or self._length_of(one, view), tokens), tokens

    def _length_of(self, one: Running, view: StepView) -> RowLength:
        row = view.offline_rows.get(one.name)
        most = float(one.blocks_final * view.block_tokens)
        return RowLength(0.0, most, most) if row is None else self._length(row)

    def _length(self, row: OfflineRow) -> RowLength:
        known = self._by_name.get(row.name)
        if known is None:
            told = self.lengths.median(row.job, row.prompt_tokens) or row.expected_tokens or row.max_tokens
            known = RowLength(float(row.prompt_tokens), float(told), float(row.max_tokens))
            self._by_name[row.name] = known
        return known


class _Queue:
    """The first waiting rows that find slots, and KV for their tokens so far, taken lazily."""

    def __init__(self, rows: Iterator[OfflineRow]) -> None:
        self.found: list[OfflineRow] = []
        self._rows = rows

    def reach(self, count: int) -> bool:
        """Whether there are ``count`` such rows."""
        self.found += islice(self._rows, max(0, count - len(self.found)))
        return len(self.found) >= count


def _refusal(view: StepView, batch: Batch, cap: float) -> _Refused:
    newest = max(batch.decodes[-1:] + batch.prefills[-1:], default=None)
    rows = len(batch.decodes) + len(batch.prefills) + len(view.loading_rows)
    if newest is None:
        return _Refused(rows, "", 0, cap)
    return _Refused(rows, view.running[newest].name, view.running[newest].context, cap)
