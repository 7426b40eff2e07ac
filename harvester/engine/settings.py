"""What the engine core is told through vLLM's `additional_config`: the scheduler's part of the config, where its board and profile are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harvester.config import CheckpointConfig, ScheduleConfig, ServeConfig, ShareConfig, SloConfig
from harvester.policy.view import Limits

KEY = "harvester"


@dataclass(frozen=True, slots=True)
class Promise:
    """What an online request is promised, in seconds."""

    ttft_s: float
    tpot_s: float


NOTHING = Promise(math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class Settings:
    share: ShareConfig
    slo: SloConfig
    schedule: ScheduleConfig
    board: Path | None  # None: nobody reads along, and no step is ended
    profile: Path | None  # latency profile, read at start and kept up to date
    checkpoint: CheckpointConfig

    @classmethod
    def parse(cls, additional: Mapping[str, Any]) -> Settings:
        """Read what `pack` wrote."""
        given = additional[KEY]
        board, profile = (Path(given[name]) if given.get(name) else None for name in ("board", "profile"))
        share, slo, schedule = ShareConfig(**given["share"]), SloConfig(**given.get("slo", {})), ScheduleConfig(**given.get("schedule", {}))
        return cls(share, slo, schedule, board, profile, CheckpointConfig(**given.get("checkpoint", {})))

    @property
    def limits(self) -> Limits:
        share = self.share
        intrusion, ttft_s = self.schedule.intrusion, self.slo.ttft_slo_ms / 1000
        return Limits(share.reserved_slots, share.reserved_kv, share.offline_step_tokens, share.reserve_s, intrusion, ttft_s)

    def promise(self, extra: Mapping[str, Any] | None) -> Promise:
        """Of a request with these `vllm_xargs`. An unknown class gets the deployment's promise."""
        own = self.slo.classes.get(str(extra.get("slo_class"))) if extra and self.slo.classes else None
        ttft_ms = own.ttft_slo_ms if own and own.ttft_slo_ms else self.slo.ttft_slo_ms
        tpot_ms = own.tpot_slo_ms if own and own.tpot_slo_ms else self.slo.tpot_slo_ms
        return Promise(ttft_ms / 1000, tpot_ms / 1000)


def pack(config: ServeConfig, board: Path | None = None, profile: Path | None = None) -> dict[str, Any]:
    """JSON values for `additional_config`."""
    return {
        "share": config.share.model_dump(),
        "slo": config.slo.model_dump(),
        "schedule": config.schedule.model_dump(),
        "checkpoint": config.checkpoint.model_dump(),
        "board": str(board) if board else None,
        "profile": str(profile) if profile else None,
    }
