"""What is verified: a deployment, and the engine arguments that each part of the verification makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harvester.config import ServeConfig
from harvester.engine.launch.arguments import engine_arguments
from harvester.engine.shared.steporder import SAFEPOINTS_KEY
from harvester.model_config import ShareConfig

CONTEXT_TOKENS, STEP_TOKENS, SLOTS = 512, 128, 12  # many steps for few tokens
# Of the engines whose tokens are compared. Their prompts are text: an image that vLLM must not cut may have more tokens than such a step.
SMALL = {
    "max_model_len": CONTEXT_TOKENS,
    "max_num_batched_tokens": STEP_TOKENS,
    "max_num_seqs": SLOTS,
    "language_model_only": True,
}
FEW_REQUESTS = 4  # that fit into the KV of the engine under pressure
DETECT_MS = 2.0  # safepoints at most this far apart, so that short steps have several


@dataclass(frozen=True, slots=True)
class Subject:
    """``model``: what vLLM loads. ``engine``: arguments laid over those of ``config``."""

    config: ServeConfig
    model: str
    embedded: bool
    cpu: bool
    engine: dict[str, Any] = field(default_factory=dict)
    name: str = "verify"  # by which its profile is found

    def small(self) -> dict[str, Any]:
        """Arguments of both engines whose tokens are compared. They include harvester's own, which the stock engine leaves out."""
        return self._arguments(self.config, None, SMALL)

    def pressed(self, shared: Path, request_blocks: int, longest_tokens: int, chaos: float) -> dict[str, Any]:
        """As `small`, with KV for few requests, no reserve, and steps with offline work that end at random with probability ``chaos``.

        ``request_blocks``: KV blocks that a request of `CONTEXT_TOKENS` may hold; ``longest_tokens``: prompt and answer of the longest one.
        """
        schedule = self.config.schedule.model_copy(update={"safepoints": self._safepoints, "reserve": "fixed", "preempt_detect_ms": 0.1})
        share = ShareConfig(reserved_slots=1, reserved_kv=0.0)
        checkpoint = self.config.checkpoint
        if checkpoint.enabled == "auto":  # the verification finds out whether they may be on
            checkpoint = checkpoint.model_copy(update={"enabled": True})
        config = self.config.model_copy(update={"schedule": schedule, "share": share, "checkpoint": checkpoint})
        values = self._arguments(config, shared, SMALL | {"num_gpu_blocks_override": few_blocks(request_blocks, longest_tokens)})
        values["additional_config"][SAFEPOINTS_KEY]["chaos"] = chaos
        return values

    def timed(self, shared: Path) -> dict[str, Any]:
        """The deployment's own arguments, with safepoints close enough together for a short step to have several."""
        detect_ms = min(DETECT_MS, self.config.schedule.preempt_detect_ms)
        schedule = self.config.schedule.model_copy(update={"safepoints": self._safepoints, "preempt_detect_ms": detect_ms})
        return self._arguments(self.config.model_copy(update={"schedule": schedule}), shared, {})

    @property
    def _safepoints(self) -> str:
        return "all" if self.config.schedule.safepoints == "all" else "auto"

    def _arguments(self, config: ServeConfig, shared: Path | None, engine: dict[str, Any]) -> dict[str, Any]:
        config = config.model_copy(update={"engine": {**config.engine, **self.engine, **engine}})
        return engine_arguments(config, self.model, "verify", cpu=self.cpu, embedded=self.embedded, shared=shared)


def few_blocks(request_blocks: int, longest_tokens: int) -> int:
    """KV blocks for `FEW_REQUESTS` of the longest, and what vLLM needs to start: one request of `CONTEXT_TOKENS` beside its null block.

    A request holds blocks of every group of layers, which all come from one pool. ``request_blocks``: those of `CONTEXT_TOKENS`.
    """
    longest_blocks = -(-request_blocks * longest_tokens // CONTEXT_TOKENS)
    return max(FEW_REQUESTS * longest_blocks, request_blocks) + 2
