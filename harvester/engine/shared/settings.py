"""What the engine core is told through vLLM's `additional_config`: the scheduler's config, and the paths of shared state and profile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harvester.config import CheckpointConfig, ScheduleConfig, ServeConfig, ShareConfig, SloConfig
from harvester.policy.view import PolicyConfig

KEY = "harvester"


@dataclass(frozen=True, slots=True)
class Slo:
    """What an online request is promised, in seconds."""

    ttft_s: float
    tpot_s: float


NOTHING = Slo(math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Settings:
    share: ShareConfig
    slo: SloConfig
    schedule: ScheduleConfig
    shared: Path | None  # None: nobody reads along, and no step is ended
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
    def limits(self) -> PolicyConfig:
        share = self.share
        max_ttft_delay_fraction, ttft_s = self.schedule.max_ttft_delay_fraction, self.slo.ttft_slo_ms / 1000
        return PolicyConfig(
            share.reserved_slots, share.reserved_kv, share.offline_step_tokens, share.reserve_s, max_ttft_delay_fraction, ttft_s
        )

    def promise(self, extra: Mapping[str, Any] | None) -> Slo:
        """Of a request with these `vllm_xargs`. An unknown class gets the deployment's promise."""
        own = self.slo.classes.get(str(extra.get("slo_class"))) if extra and self.slo.classes else None
        ttft_ms = own.ttft_slo_ms if own and own.ttft_slo_ms else self.slo.ttft_slo_ms
        tpot_ms = own.tpot_slo_ms if own and own.tpot_slo_ms else self.slo.tpot_slo_ms
        return Slo(ttft_ms / 1000, tpot_ms / 1000)


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
