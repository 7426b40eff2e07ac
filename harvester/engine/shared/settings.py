"""What the engine core is told through vLLM's `additional_config`: the scheduler's config, and the paths of shared state and profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harvester.config import ServeConfig
from harvester.model_config import CheckpointConfig, ScheduleConfig, ShareConfig, SloConfig
from harvester.policy.kv.checkpoint import CPU_COST, CUDA_COST, Thresholds
from harvester.policy.kv.policy import Checkpoints
from harvester.policy.parts import PartsConfig
from harvester.policy.view import PolicyConfig

KEY = "harvester"


@dataclass(frozen=True, slots=True)
class Slo:
    """SLO of an online request, in seconds; inf: none."""

    ttft_s: float
    tpot_s: float


NO_SLO = Slo(math.inf, math.inf)
UNPROMISED_TTFT_S = 0.5  # assumed where there is no TTFT SLO: a step may wait 2% of it for KV that is saved


@dataclass(frozen=True, slots=True)
class Settings:
    share: ShareConfig
    slo: SloConfig
    schedule: ScheduleConfig
    shared: Path | None  # None: nothing is published, and no step ends early
    profile: Path | None  # latency profile, read at start and kept up to date
    checkpoint: CheckpointConfig

    @classmethod
    def parse(cls, additional: Mapping[str, Any]) -> Settings:
        """Read what `pack` wrote."""
        given = additional[KEY]
        shared, profile = (Path(given[name]) if given.get(name) else None for name in ("shared_state", "profile"))
        share, slo, schedule = ShareConfig(**given["share"]), SloConfig(**given.get("slo", {})), ScheduleConfig(**given.get("schedule", {}))
        return cls(share, slo, schedule, shared, profile, CheckpointConfig(**given.get("checkpoint", {})))

    @property
    def policy(self) -> PolicyConfig:
        share = self.share
        return PolicyConfig(
            share.reserved_slots,
            share.reserved_kv,
            share.offline_step_tokens,
            share.reserve_s,
            self.schedule.max_ttft_delay_fraction,
            _seconds(self.slo.ttft_slo_ms),
            self.slo.max_slowdown,
        )

    def parts(self, total_blocks: int) -> PartsConfig:
        """The parts of a brain for an engine with ``total_blocks`` KV blocks. Until the first burst is seen, the fixed reserve is kept."""
        schedule, share = self.schedule, self.share
        return PartsConfig(
            online_order=schedule.online_order,
            offline_order=schedule.offline_order,
            admission=schedule.admission,
            budget=schedule.budget,
            reserve=schedule.reserve,
            tpot=schedule.tpot,
            first_slots=share.reserved_slots,
            first_blocks=int(share.reserved_kv * total_blocks),
        )

    def kv_policy(self, cpu: bool) -> Checkpoints:
        """``cpu``: the engine computes on a CPU, where a copy takes the cores that a step needs."""
        given = self.checkpoint
        cost = given.copy_cost or (CPU_COST if cpu else CUDA_COST)
        thresholds = Thresholds(given.start_free, given.full_free, given.online)
        ttft_s = _seconds(self.slo.ttft_slo_ms)
        return Checkpoints(thresholds, cost, ttft_s if ttft_s < math.inf else UNPROMISED_TTFT_S, given.wait_blocks)

    def slo_of(self, extra: Mapping[str, Any] | None) -> Slo:
        """The SLO of a request with these `vllm_xargs`. An unknown class gets the deployment's."""
        own = self.slo.classes.get(str(extra.get("slo_class"))) if extra and self.slo.classes else None
        ttft_ms = own.ttft_slo_ms if own and own.ttft_slo_ms else self.slo.ttft_slo_ms
        tpot_ms = own.tpot_slo_ms if own and own.tpot_slo_ms else self.slo.tpot_slo_ms
        return Slo(_seconds(ttft_ms), _seconds(tpot_ms))


def pack(config: ServeConfig, shared: Path | None = None, profile: Path | None = None) -> dict[str, Any]:
    """JSON values for `additional_config`."""
    return {
        "share": config.share.model_dump(),
        "slo": config.slo.model_dump(),
        "schedule": config.schedule.model_dump(),
        "checkpoint": config.checkpoint.model_dump(),
        "shared_state": str(shared) if shared else None,
        "profile": str(profile) if profile else None,
    }


def _seconds(milliseconds: float | None) -> float:
    return math.inf if milliseconds is None else milliseconds / 1000
