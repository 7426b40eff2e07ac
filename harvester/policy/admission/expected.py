"""Admission by the KV that rows are expected to hold together, instead of the most that each may hold at its end.

The projection is a `Curve` over the tokens that each row has left, by the median answer of its job. A row that has outgrown its median is
expected to go on for 0.3 of what it has made. Where KV runs out all the same, the newest row loses its own (`shortage`), and the `KvMargin`
grows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from harvester.policy.admission.curve import Curve, Row
from harvester.policy.admission.margin import KvMargin
from harvester.policy.admission.rule import Rows, Space, beside_reserve, held, kept, passing, within
from harvester.policy.bisection import largest_from_below
from harvester.policy.model.lengths import AnswerLengths
from harvester.policy.order.offline import OfflineRow
from harvester.policy.step.batch import Batch
from harvester.policy.step.guarantee import opened
from harvester.policy.step.view import StepView
from harvester.policy.view import PolicyConfig, Running

LEAST_LEFT = 16.0  # minimum tokens that a row is expected to have left
LEFT_SHARE = 0.3  # the same, as a share of what it has made
PARTS = 8  # of a token, which tokens per block are counted in
LOOK_AGAIN = 16  # tokens made by running rows, after which a refused row is tried again though none has ended


class _Length(NamedTuple):
    """Lengths of one row, in tokens. All floats: a list of numbers of one kind is sorted in half the time."""

    prompt: float
    expected: float  # of its answer
    most: float


class _Refused(NamedTuple):
    """A row that did not fit, and what it did not fit beside."""

    name: str
    rows: int
    newest: str
    context: int  # of the newest
    cap: float


class _Caps(NamedTuple):
    """Maximum peaks of the curve, in tokens: all KV less chat's, the margin and the reserve.

    ``alone``: without the margin, for a row by itself; ``calm``: without chat.
    """

    beside: float
    alone: float
    calm: float


class Expected:
    """Rows are admitted while the peak of their curve stays within the KV that chat, its reserve and the margin leave."""

    def __init__(self, curve: Curve | None = None) -> None:
        self.lengths, self.margin = AnswerLengths(), KvMargin()
        self._curve = curve or Curve()
        self._by_name: dict[str, _Length] = {}  # lengths by row, from the medians of ``_version``
        self._version = 0
        self._kv_tokens = 0
        self._refused: _Refused | None = None
        self._refused_before: tuple[_Refused | None] | None = None  # ``_refused`` before this step's plan; None: no plan yet

    def blocks(self, row: OfflineRow) -> int:
        return row.blocks

    def holds(self, one: Running, held: Callable[[int], int]) -> int:
        return one.blocks_now if one.step_tokens <= 1 else held(one.context + one.step_tokens)

    def space(self, view: StepView, batch: Batch, config: PolicyConfig) -> Space:
        """The blocks are those that are free now, less what running prompts will take."""
        free = view.free_blocks - _pending(view, batch)
        return opened(beside_reserve(view, config, free), view, free)

    def admitted(self, rows: Rows, space: Space, view: StepView, batch: Batch, config: PolicyConfig) -> tuple[str, ...]:
        """O(running); O(1) while the same row is refused. Shared KV is counted in full for new rows, and discounted for running ones.

        A row by itself may take the margin too: none lacks KV because it is longer than expected.
        """
        self._take_back()
        self._kv_tokens = view.kv_tokens
        head = next(iter(rows(())), None)
        if head is None:  # most steps: nothing else is looked at
            return ()
        if self._version != self.lengths.version:
            self._by_name, self._version = {}, self.lengths.version
        idle = not view.running and not view.loading_rows
        offline, chat = held(view, batch)
        whole = view.total_blocks - view.free_blocks - chat  # blocks in use, without those of running chat
        others = bool(batch.decodes or batch.prefills or view.loading_rows)
        chat_blocks = chat + _prompt_growth(view, batch) + max(0, whole - offline)  # and those in use for requests that do not run
        each = _tokens_per_block(view, batch, head.tokens + _left(self._length(head), head.tokens))
        owed, usual = view.owed, self._caps(view, config, chat_blocks, None, each)
        first = usual if owed is None else self._caps(view, config, chat_blocks, self._rows_hold(view, batch) + owed.blocks, each)

        def caps_of(row: OfflineRow) -> _Caps:
            return first if owed is not None and row.name in owed.names else usual

        def waits_for_rows(row: OfflineRow) -> bool:
            """Whether other rows are what it waits for. One that needs the margin only because of chat waits for chat, unless alone."""
            need, caps = row.tokens + _left(self._length(row), row.tokens) + view.block_tokens / 2, caps_of(row)
            return need <= caps.beside or (need <= caps.alone and (not others or need > caps.calm))

        beside = space if owed is None else beside_reserve(view, config, view.free_blocks - _pending(view, batch))
        waiting = rows(()) if idle else passing(rows, waits_for_rows)
        queue = _Queue(within(waiting, self.blocks, space, beside, owed.names if owed is not None else ()))
        if not queue.reach(1):
            return ()
        if not idle and self._is_still_refused(queue.found[0].name, view, batch, caps_of(queue.found[0]).beside):
            return ()
        self._follow(view, batch)
        shared = each * _shared_blocks(view, batch, offline - whole)
        spare = view.block_tokens / 2 - shared

        def fits(count: int) -> bool:
            if not queue.reach(count):
                return False
            more = [(_left(self._length(row), row.tokens), row.tokens + shared) for row in queue.found[:count]]
            caps = caps_of(queue.found[count - 1])
            return (idle and count == 1) or self._curve.peak_tokens(more, spare) <= (caps.beside if others or count > 1 else caps.alone)

        admitted = queue.found[: largest_from_below(space[0], fits)]
        if not admitted:
            self._refused = _refusal(queue.found[0].name, view, batch, caps_of(queue.found[0]).beside)
        return tuple([row.name for row in admitted])

    def _rows_hold(self, view: StepView, batch: Batch) -> int:
        """KV blocks of the running rows, with those that their prompts will still take."""
        prompts = [view.running[place] for place in batch.prefills]
        growth = sum([self.holds(one, lambda tokens: view.held([tokens])) - one.blocks_now for one in prompts])
        return batch.final_blocks - batch.growth_blocks + growth

    def _caps(self, view: StepView, config: PolicyConfig, chat_blocks: int, given_blocks: int | None, each: float) -> _Caps:
        """``given_blocks``: KV blocks that offline work may hold whatever the reserve, where chat leaves them; ``each``: tokens in one."""

        def tokens(chat_blocks: int, margin: float) -> float:
            blocks = (1.0 - margin) * view.total_blocks - chat_blocks
            cap = blocks - kept(view, config)[1]
            return (cap if given_blocks is None else max(cap, min(blocks, given_blocks))) * each

        return _Caps(tokens(chat_blocks, self.margin.share), tokens(chat_blocks, 0.0), tokens(0, self.margin.share))

    def ended(self, row: OfflineRow, answer_tokens: int | None) -> None:
        self._by_name.pop(row.name, None)
        if answer_tokens is not None:
            self.lengths.learn(row.job, row.prompt_tokens, answer_tokens)

    def ran(self, computed: int, recomputed: int) -> None:
        self.margin.ran(computed, recomputed, self._kv_tokens)
        if computed:
            self._curve.passed()
        self._curve.keep()
        self._refused_before = None

    def _take_back(self) -> None:
        """Undo an earlier plan for this step, which was dropped."""
        self._curve.take_back()
        if self._refused_before is not None:
            (self._refused,) = self._refused_before
        self._refused_before = (self._refused,)

    def _is_still_refused(self, name: str, view: StepView, batch: Batch, cap: float) -> bool:
        """Whether the row would not fit again: the same rows run, a little longer than before, and the cap has not risen."""
        before, now = self._refused, _refusal(name, view, batch, cap)
        if before is None or now[:3] != before[:3]:
            return False
        return now.cap <= before.cap and 0 <= now.context - before.context < LOOK_AGAIN

    def _follow(self, view: StepView, batch: Batch) -> None:
        """Update the curve to the rows that run and those whose KV is read back."""
        running, loading, lengths = view.running, view.loading_rows, self._by_name
        places = [*batch.decodes, *batch.prefills]
        found: dict[str, Running | None] = {one.name: one for one in map(running.__getitem__, places)}
        found.update(dict.fromkeys(loading))

        def now(name: str) -> Row:
            one = found[name]
            if one is not None:
                tokens = one.context + one.step_tokens
                return _left(lengths.get(name) or self._length_of(one, view), tokens), tokens
            row, tokens = view.offline_rows.get(name), loading[name]
            return (_left(self._length(row), tokens) if row is not None else 0.0), tokens

        self._curve.follow(found, now)

    def _length_of(self, one: Running, view: StepView) -> _Length:
        row = view.offline_rows.get(one.name)
        most = float(one.blocks_final * view.block_tokens)
        return _Length(0.0, most, most) if row is None else self._length(row)

    def _length(self, row: OfflineRow) -> _Length:
        known = self._by_name.get(row.name)
        if known is None:
            told = self.lengths.median(row.job, row.prompt_tokens) or row.expected_tokens or row.max_tokens
            known = _Length(float(row.prompt_tokens), float(told), float(row.max_tokens))
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


def _left(length: _Length, tokens: int) -> float:
    """Expected tokens left of a row that has ``tokens`` so far.

    At least `LEAST_LEFT`, and `LEFT_SHARE` of its answer so far; at most what its limit leaves.
    """
    prompt, expected, most = length
    emitted = tokens - prompt
    left, least = expected - emitted, LEFT_SHARE * emitted
    if least < LEAST_LEFT:
        least = LEAST_LEFT
    if left < least:
        left = least
    return left if left < most - emitted else most - emitted


def _refusal(name: str, view: StepView, batch: Batch, cap: float) -> _Refused:
    newest = max(batch.decodes[-1:] + batch.prefills[-1:], default=None)
    rows = len(batch.decodes) + len(batch.prefills) + len(view.loading_rows)
    if newest is None:
        return _Refused(name, rows, "", 0, cap)
    return _Refused(name, rows, view.running[newest].name, view.running[newest].context, cap)


def _tokens_per_block(view: StepView, batch: Batch, row_tokens: float) -> float:
    """Tokens of offline work for each KV block that it holds, which the curve is measured by.

    With several KV groups it is that of the running rows as they are, and of the next one at its end with ``row_tokens``. Rounded down, so
    that it seldom changes: then a refused row need not be tried again.
    """
    if view.groups is None:
        return view.block_tokens
    tokens = batch.context_sums[-1] + sum([view.running[place].context for place in batch.prefills]) + row_tokens
    blocks = batch.final_blocks - batch.growth_blocks + view.groups.held(int(row_tokens))
    return max(1, int(PARTS * tokens / max(1, blocks))) / PARTS


def _pending(view: StepView, batch: Batch) -> int:
    """KV blocks that the running prompts will still take, chat's too."""
    prompts = [*batch.prompts, *[view.running[place] for place in batch.prefills]]
    return view.held([one.context + one.step_tokens for one in prompts]) - sum([one.blocks_now for one in prompts])


def _prompt_growth(view: StepView, batch: Batch) -> int:
    """KV blocks that running chat will still take for what it computes next: the rest of its prompts, or one token each."""
    return view.held([one.context + one.step_tokens for one in map(view.running.__getitem__, batch.online)]) - batch.chat_blocks


def _shared_blocks(view: StepView, batch: Batch, shared_blocks: int) -> float:
    """KV blocks that an offline request shares with others, on average: blocks of a common prefix exist only once.

    ``shared_blocks``: by which the rows' own count exceeds the blocks in use for them.
    """
    rows = len(batch.decodes) + len(batch.prefills) + len(view.loading_rows)
    return max(0, shared_blocks) / rows if rows else 0.0
