"""Brains for simulated runs: harvester's with its shipped defaults, and one that only serves in order."""

from __future__ import annotations

from typing import Any

from harvester.config import ServeConfig
from harvester.engine.shared.settings import KEY, Settings, pack
from harvester.policy.brain import Brain
from harvester.policy.model.latency import LatencyModel
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.view import PolicyConfig

FIRST_COME = PartsConfig(online_order="fcfs", budget="fixed", reserve="fixed")
NOTHING_KEPT = PolicyConfig(0, 0.0, 1)


def settings_with(ttft_s: float, tpot_s: float, **sections: Any) -> Settings:
    """The shipped defaults with this SLO. ``sections``: of the deployment's config, laid over them."""
    slo = {"ttft_slo_ms": 1000 * ttft_s, "tpot_slo_ms": 1000 * tpot_s}
    return Settings.parse({KEY: pack(ServeConfig.model_validate({"slo": slo, **sections}))})


def shipped(settings: Settings, total_blocks: int) -> Brain:
    """The brain of an engine with ``total_blocks`` KV blocks, without checkpoints."""
    return Brain(parts_of(settings.parts(total_blocks), LatencyModel()), settings.policy)


def first_come() -> Brain:
    """Chat alone, first come, first served; without a latency model there is nothing to be kept from it."""
    return Brain(parts_of(FIRST_COME, LatencyModel()), NOTHING_KEPT)
