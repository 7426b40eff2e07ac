"""Brains and engines for simulations, without what a test does not ask for."""

from __future__ import annotations

from typing import Any

from harvester.policy.brain import Brain
from harvester.policy.kv.policy import KvPolicy
from harvester.policy.model.latency import LatencyModel, StepLoad
from harvester.policy.order.mlfq import Mlfq
from harvester.policy.order.online import OnlineOrder, SkipJoin
from harvester.policy.parts import PartsConfig, parts_of
from harvester.policy.view import PolicyConfig
from harvester.sim.engine import SimEngine

LIMITS = PolicyConfig(reserved_slots=2, reserved_kv=0.1, offline_step_tokens=64)
PLAIN = PartsConfig(online_order="fcfs", budget="fixed", reserve="fixed")


def a_brain(
    config: PartsConfig = PLAIN,
    limits: PolicyConfig = LIMITS,
    model: LatencyModel | None = None,
    kv: KvPolicy | None = None,
    order: OnlineOrder | None = None,
) -> Brain:
    """``order`` takes the place of the one that ``config`` names; ``model`` None: a new one."""
    parts = parts_of(config, model or LatencyModel(), kv)
    parts.online = order or parts.online
    return Brain(parts, limits)


def patient(skip: bool = False, levels: int = 6) -> SkipJoin:
    """MLFQ in which nobody starves within a test."""
    return SkipJoin(Mlfq(levels, 1.0, 1000.0), skip)


def second_a_step(load: StepLoad) -> float:
    return 1.0


def an_engine(total_blocks: int = 100, max_seqs: int = 8, max_tokens: int = 64, **rest: Any) -> SimEngine:
    """Each step takes a second."""
    return SimEngine(second_a_step, total_blocks, max_seqs, max_tokens, 16, **rest)
