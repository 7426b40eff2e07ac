"""A replica of one machine and a virtual clock: chat that comes and goes, offline rows without end, and steps planned by `plan_step`."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from harvester.policy.model.latency import LatencyModel, StepLoad, predict_with
from harvester.policy.step.plan import plan_step
from harvester.policy.step.view import StepPlan, StepView
from harvester.policy.view import PolicyConfig, Running
from tests.policy.asked import slo

LIMITS = PolicyConfig(reserved_slots=4, reserved_kv=0.1, offline_step_tokens=64)
BLOCK_TOKENS, MAX_SEQS, MAX_TOKENS, ALL_BLOCKS = 16, 64, 1024, 4096


@dataclass(slots=True)
class Request:
    offline: bool
    prompt: int
    output: int
    due_s: float
    computed: int = 0
    made: int = 0
    token_at_s: float = 0.0

    def step_tokens(self) -> int:
        return self.prompt - self.computed if self.computed < self.prompt else 1


@dataclass
class FakeEngine:
    """``coefficients`` times ``pace`` is the truth; ``noise``: sigma of a log-normal factor of each step."""

    coefficients: tuple[float, ...]
    model: LatencyModel | None
    tpot_s: float
    ttft_s: float = 2.0
    noise: float = 0.05
    pace: float = 1.0
    online_seqs: int = 6  # held there: one ends, one comes
    random: Random = field(default_factory=lambda: Random(1))
    now_s: float = 0.0
    running: list[Request] = field(default_factory=list)
    waiting: list[Request] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)
    offline_tokens: int = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            chat = len(self.waiting) + sum(not r.offline for r in self.running)
            if chat < self.online_seqs and self.random.random() < 0.5:
                self.waiting.append(Request(False, self.random.randint(20, 60), self.random.randint(20, 80), self.now_s + self.ttft_s))
            self._step(plan_step(self._view(), LIMITS, slo(self.model)))

    def _view(self) -> StepView:
        used = sum(-(-r.computed // BLOCK_TOKENS) for r in self.running)
        tokens = sum(r.prompt for r in self.waiting)
        due_s = min((r.due_s for r in self.waiting), default=float("inf"))
        running = [
            Running(
                "one", r.offline, r.step_tokens(), -(-r.computed // BLOCK_TOKENS), -(-(r.prompt + r.output) // BLOCK_TOKENS), 1,
                context=r.computed, decoding=r.made > 0, due_s=r.due_s, tpot_s=self.tpot_s,
            )
            for r in self.running
        ]  # fmt: skip
        return StepView(
            running, len(self.waiting), -(-tokens // BLOCK_TOKENS), 64, ALL_BLOCKS - used, ALL_BLOCKS, MAX_SEQS,
            now_s=self.now_s, waiting_due_s=due_s, waiting_tokens=tokens, max_tokens=MAX_TOKENS,
        )  # fmt: skip

    def _step(self, plan: StepPlan) -> None:
        batch, kept = [self.running[i] for i in plan.run], [self.running[i] for i in (*plan.run, *plan.pause)]
        while self.waiting and len(kept) < MAX_SEQS:
            kept.append(self.waiting.pop(0))
            batch.append(kept[-1])
        for _ in range(plan.offline_slots):
            if len(kept) < MAX_SEQS:
                kept.append(Request(True, self.random.randint(100, 900), self.random.randint(20, 100), float("inf")))
                batch.append(kept[-1])
        self.running = kept
        left, load, done = min(MAX_TOKENS, plan.budget_tokens or MAX_TOKENS), StepLoad(), []
        for request in batch:
            tokens = min(request.step_tokens(), left)
            if tokens > 0:
                left -= tokens
                chunk = request.computed < request.prompt
                load += StepLoad.prefill(tokens, request.computed) if chunk else StepLoad.decode(request.computed)
                done.append((request, tokens))
        if not done:
            self.now_s += 0.001
            return
        seconds = predict_with(self.coefficients, load) * self.pace * self.random.lognormvariate(0.0, self.noise)
        self.now_s += seconds
        if self.model is not None:
            self.model.observe(load, seconds)
        for request, tokens in done:
            self._advance(request, tokens)
        self.running = [r for r in self.running if r.made < r.output]

    def _advance(self, request: Request, tokens: int) -> None:
        request.computed += tokens
        self.offline_tokens += tokens * request.offline
        if request.computed < request.prompt:
            return
        if not request.offline and request.made:
            self.gaps_s.append(self.now_s - request.token_at_s)
        elif not request.offline:
            self.ttfts_s.append(self.now_s - (request.due_s - self.ttft_s))
        request.made, request.token_at_s = request.made + 1, self.now_s

    def late_share(self) -> float:
        """Of the gaps between two tokens of a chat answer, those above the objective."""
        return sum(gap > self.tpot_s for gap in self.gaps_s) / len(self.gaps_s)

    def offline_tokens_per_s(self) -> float:
        return self.offline_tokens / self.now_s
