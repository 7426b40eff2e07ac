"""What one request has done so far, and what is left of it when it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from harvester.sim.trace import Request


@dataclass(slots=True, eq=False)
class Track:
    """``computed``: tokens whose KV is there, in ``blocks`` on the GPU or ``host_blocks`` on the host, never both."""

    request: Request
    computed: int = 0
    emitted: int = 0
    blocks: int = 0
    host_blocks: int = 0
    reached: int = 0  # most tokens ever computed: below it is computed again
    recomputed: int = 0
    preemptions: int = 0
    token_s: list[float] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Tokens to compute before its next token: 1 in decode."""
        return self.request.prompt_tokens + self.emitted - self.computed

    @property
    def ended(self) -> bool:
        return self.emitted >= self.request.output_tokens

    def advance(self, tokens: int, now_s: float) -> bool:
        """It computed ``tokens``, until ``now_s``. Returns whether that gave it a token."""
        self.recomputed += max(0, min(self.reached, self.computed + tokens) - self.computed)
        self.computed += tokens
        self.reached = max(self.reached, self.computed)
        if self.left:
            return False
        self.emitted += 1
        self.token_s.append(now_s)
        return True

    def drop(self) -> None:
        """Its KV is freed; all of it is computed again."""
        self.computed = self.blocks = 0
        self.preemptions += 1

    def offload(self) -> None:
        """Its KV goes to the host."""
        self.host_blocks, self.blocks = self.blocks, 0
        self.preemptions += 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request that ended."""

    request: Request
    token_s: tuple[float, ...]  # when each token was there
    recomputed: int
    preemptions: int

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
