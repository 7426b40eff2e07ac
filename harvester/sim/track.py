"""The progress of one request, and its outcome when it has ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from harvester.sim.trace import Request


@dataclass(slots=True, eq=False)
class Track:
    """``computed``: tokens whose KV is there, in ``blocks``. ``arrival_s``: unique, even where several requests arrive at the same time."""

    request: Request
    arrival_s: float
    computed: int = 0
    emitted: int = 0
    blocks: int = 0
    reached: int = 0  # most tokens ever computed: what is below it is computed again
    recomputed: int = 0
    preemptions: int = 0
    token_s: list[float] = field(default_factory=list)
    name: str = field(init=False)
    offline: bool = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.offline = self.request.id, self.request.offline

    @property
    def tokens(self) -> int:
        """Known so far: prompt and answer."""
        return self.request.prompt_tokens + self.emitted

    @property
    def left(self) -> int:
        """Tokens to compute before its next token: 1 in decode."""
        return self.request.prompt_tokens + self.emitted - self.computed

    @property
    def ended(self) -> bool:
        return self.emitted >= self.request.output_tokens

    def advance(self, tokens: int, now_s: float) -> bool:
        """The request computed ``tokens`` by ``now_s``. Returns whether that gave it an output token."""
        if self.computed < self.reached:
            self.recomputed += min(self.reached - self.computed, tokens)
        self.computed += tokens
        self.reached = max(self.reached, self.computed)
        if self.left:
            return False
        self.emitted += 1
        self.token_s.append(now_s)
        return True

    def drop(self) -> None:
        """Its KV is freed."""
        self.computed = self.blocks = 0

    def outcome(self) -> Outcome:
        """Its outcome so far."""
        return Outcome(self.request, tuple(self.token_s), self.recomputed, self.preemptions, self.reached)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, when it ended or a simulation was stopped."""

    request: Request
    token_s: tuple[float, ...]  # when each output token was made
    recomputed: int
    preemptions: int
    reached: int  # tokens computed, of prompt and answer, none of them counted twice

    @property
    def latency_s(self) -> float:
        return self.token_s[-1] - self.request.arrival_s

    @property
    def normalized_s(self) -> float:
        """Latency over output tokens, the measure of the FastServe, Orca and vLLM papers."""
        return self.latency_s / len(self.token_s)

    @property
    def ttft_s(self) -> float:
        return self.token_s[0] - self.request.arrival_s

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.token_s, self.token_s[1:], strict=False)]

    def tokens_between(self, begin_s: float, end_s: float) -> int:
        """Prompt and output tokens processed in this time; a prompt counts at its first token, as in vLLM's counter."""
        made = sum(begin_s <= at_s < end_s for at_s in self.token_s)
        return made + (self.request.prompt_tokens if self.token_s and begin_s <= self.token_s[0] < end_s else 0)
