"""ConServe and what it is compared with, as parts of the brain: chat beside batch work on one engine.

`vllm_pp` is the paper's vLLM++. Chat goes first and takes KV from batch work. Batch work fills a step as far as it fits, however long the
step takes. KV that is lost is swapped, and the step waits. harvester is ConServe's scheduler with its own reserve; its parts are turned on
one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.papers.systems.vllm import Greedy
from harvester.config import ServeConfig
from harvester.engine.shared.settings import KEY, Settings, pack
from harvester.policy.brain import Brain
from harvester.policy.kv.checkpoint import CUDA_COST, Thresholds
from harvester.policy.kv.policy import Checkpoints, KvPolicy
from harvester.policy.model.latency import LatencyModel
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.step.batch import Batch
from harvester.policy.step.share import Space
from harvester.policy.step.view import StepPlan, StepView
from harvester.policy.view import PolicyConfig


class Eager:
    """Every running request gets its tokens, chat first, up to what a step holds."""

    def alone_tokens(self, view: StepView, batch: Batch) -> int | None:
        return None

    def beside_chat(self, view: StepView, batch: Batch, config: PolicyConfig, limit_s: float, space: Space) -> StepPlan:
        return StepPlan((*batch.online, *batch.decodes, *batch.prefills), (), (), None, *space)


@dataclass(frozen=True, slots=True)
class CoServing:
    """``slo``: harvester's scheduler instead of vLLM++'s. ``copies``: KV is copied ahead of need; else when it is lost.

    ``ends``: a step of batch work alone may end for an arrival. ``rows``: there is batch work at all.
    """

    slo: bool = True
    copies: bool = True
    ends: bool = True
    rows: bool = True

    def brain(self, slo_s: tuple[float, float], kv_blocks: int) -> Brain:
        """``slo_s``: TTFT and TPOT that are promised."""
        if not self.slo:
            return self._stock(kv_blocks)
        objectives = {"ttft_slo_ms": round(1000 * slo_s[0], 3), "tpot_slo_ms": round(1000 * slo_s[1], 3)}
        settings = Settings.parse({KEY: pack(ServeConfig.model_validate({"slo": objectives}))})
        kv: KvPolicy = settings.kv_policy(cpu=False) if self.copies else swapped(slo_s[0], kv_blocks)
        return Brain(parts_of(settings.parts(kv_blocks), LatencyModel(), kv), settings.policy)

    def _stock(self, kv_blocks: int) -> Brain:
        config = PartsConfig(online_order="fcfs", offline_order="fcfs", budget="fixed", reserve="fixed")
        parts = parts_of(config, LatencyModel(), swapped(1.0, kv_blocks) if self.rows else None)
        parts.budget, parts.admission = Eager(), Greedy()
        return Brain(parts, PolicyConfig(0, 0.0, 1))


def swapped(ttft_s: float, kv_blocks: int) -> Checkpoints:
    """A policy that copies KV to the host only when it is lost; the step waits for the whole copy."""
    return Checkpoints(Thresholds(1e-9, 0.0), CUDA_COST, ttft_s, wait_blocks=kv_blocks)


SYSTEMS: dict[str, CoServing] = {
    "online_only": CoServing(slo=False, ends=False, rows=False),
    "vllm_pp": CoServing(slo=False, ends=False),
    "harvester": CoServing(),
}
STEPS: dict[str, CoServing] = {
    "vllm_pp": SYSTEMS["vllm_pp"],
    "slo_aware_scheduler": CoServing(copies=False, ends=False),
    "and_ends_steps": CoServing(copies=False),
    "and_checkpoints": SYSTEMS["harvester"],
}
"""ConServe's figure 8: what is added, one after the other."""


def described() -> dict[str, Any]:
    return {name: {"slo_aware": one.slo, "copies_ahead": one.copies, "ends_steps": one.ends} for name, one in (SYSTEMS | STEPS).items()}
