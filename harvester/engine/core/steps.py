"""The steps that are planned and not yet answered, each with its state.

PLANNED ──▶ SENT ──▶ ANSWERED        computed
   └──────────┴────▶ ROLLED_BACK     it, or one before it, ended early: it counts for nothing, and is answered as such later
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from harvester.policy.model.load import StepLoad
from harvester.policy.ran import StepRan

SAME_ROW_S = 0.003


class StepState(Enum):
    PLANNED = auto()  # vLLM has scheduled it
    SENT = auto()  # the workers have it, and its fields below ``estimate_s`` are filled in
    ANSWERED = auto()
    ROLLED_BACK = auto()


@dataclass(slots=True)
class Step:
    """One planned step. ``number``: None if it has no tokens. The fields below ``estimate_s`` are filled in when it has been sent."""

    number: int | None
    output: Any  # vLLM's `SchedulerOutput`
    tokens: int
    alone: bool  # offline work alone
    began_s: float
    estimate_s: float  # predicted P99 duration; 0: unknown
    state: StepState = StepState.PLANNED
    load: StepLoad = field(default_factory=StepLoad)
    computed: dict[str, int] = field(default_factory=dict)  # tokens of each of its requests that were computed before it
    admitted: frozenset[str] = frozenset()  # came from the waiting queue in this step
    registered: list[tuple[Any, Any]] = field(default_factory=list)  # blocks with the hash that the step gave them
    online: list[str] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)  # offline tokens by job
    admitted_tokens: int = 0  # of the offline rows that this step admitted
    cached_tokens: int = 0  # of those, tokens computed before
    chat_admitted_tokens: int = 0  # the same of the online requests that it admitted
    chat_cached_tokens: int = 0
    chat_blocks: int = 0  # KV blocks that those ask for, if none is shared
    chat_taken_blocks: int = 0  # of those, what no request that ran before holds
    online_load: StepLoad = field(default_factory=StepLoad)
    first_tokens: list[str] = field(default_factory=list)  # online requests whose first token it makes
    gaps: int = 0  # online requests that it gives a further token
    recomputed: dict[str, int] = field(default_factory=dict)  # of offline rows that had lost their KV, as `StepRan` has it

    @property
    def ran(self) -> StepRan:
        """The step as the brain is told of it, once it is answered."""
        if self.rolled_back:
            return StepRan(StepLoad())
        rows = self.admitted_tokens, self.cached_tokens
        chat = self.chat_admitted_tokens, self.chat_cached_tokens, self.chat_blocks, self.chat_taken_blocks
        tokens = self.first_tokens, self.gaps
        return StepRan(self.load, self.online, self.served, *rows, self.online_load, *tokens, self.recomputed, *chat)

    @property
    def rolled_back(self) -> bool:
        return self.state is StepState.ROLLED_BACK


class StepsInFlight:
    """Oldest first. The engine answers steps in the order in which they were planned."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._planned = 0

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @property
    def next_number(self) -> int:
        """Number of the next step with tokens."""
        return self._planned + 1

    def plan(self, step: Step) -> None:
        """Add a step that was scheduled."""
        assert self.unsent() is None, "a step is planned before the one before it was sent"
        self._planned = self._planned if step.number is None else step.number
        self._steps.append(step)

    def unsent(self) -> Step | None:
        """The step that was planned and not sent; None where all are."""
        return self._steps[-1] if self._steps and self._steps[-1].state is StepState.PLANNED else None

    def answer(self, now_s: float) -> Step:
        """The oldest step is answered; the next one has begun by now. Returns the answered step, which may have been rolled back."""
        step = self._steps.popleft()
        if not step.rolled_back:
            step.state = StepState.ANSWERED
        if self._steps:
            self._steps[0].began_s = max(now_s, self._steps[0].began_s)
        return step

    def roll_back(self, ended: Step) -> tuple[Step, ...]:
        """``ended`` and all that are in flight behind it count for nothing."""
        steps = (ended, *self._steps)
        for step in steps:
            step.state = StepState.ROLLED_BACK
        return steps


def seconds_of(step: Step, updated_s: float, now_s: float) -> float:
    """How long a step took that ends now; ``updated_s``: when the step before it ended.

    A short gap between two steps in a row counts as part of the later one, since it is part of the time between two tokens.
    """
    return now_s - (updated_s if 0.0 <= step.began_s - updated_s < SAME_ROW_S else step.began_s)


def first_computed(steps: Iterable[Step], computed: dict[str, int]) -> dict[str, int]:
    """The fewest computed tokens of each request in ``computed`` before ``steps``. Steps that were rolled back do not count.

    vLLM hashes a block when its last token is known, which may be as the step after the one that fills it is planned.
    """
    first = dict(computed)
    for step in steps:
        for name, tokens in step.computed.items() if not step.rolled_back else ():
            if name in first:
                first[name] = min(first[name], tokens)
    return first
