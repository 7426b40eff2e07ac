"""The parts of a brain, selected by name in the config. A new policy is one file and one line in a table here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from harvester.policy.admission.expected import Expected
from harvester.policy.admission.rule import Admission, WorstCase
from harvester.policy.kv.policy import KvPolicy, NoCheckpoints
from harvester.policy.model.arrivals import BurstReserve
from harvester.policy.model.latency import LatencyModel
from harvester.policy.model.reserve import FixedReserve, Reserve
from harvester.policy.order import offline, online
from harvester.policy.order.econo import Econo
from harvester.policy.order.mlfq import Mlfq
from harvester.policy.order.offline import OfflineOrder
from harvester.policy.order.online import OnlineOrder
from harvester.policy.step.gaps import EachGap, GapRule, MeanGap
from harvester.policy.step.share import Budget, FixedShare, SloBudget

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class PartsConfig:
    """The selected parts, by name, and their initial numbers."""

    online_order: str = "mlfq"
    offline_order: str = "fair"
    admission: str = "expected"
    budget: str = "slo"
    reserve: str = "bursts"
    tpot: str = "each"
    mlfq_levels: int = 12
    starvation_s: float = 0.3
    first_slots: int = 0  # kept for arrivals until the first burst is over
    first_blocks: int = 0


@dataclass(slots=True)
class Parts:
    """The components of one brain. They keep state, so no two brains may share one."""

    model: LatencyModel
    online: OnlineOrder
    offline: OfflineOrder
    reserve: Reserve
    admission: Admission
    budget: Budget
    gaps: GapRule
    kv: KvPolicy


def _mlfq(config: PartsConfig) -> Mlfq:
    return Mlfq(config.mlfq_levels, online.FIRST_QUANTUM_S, config.starvation_s)


ONLINE_ORDERS: dict[str, Callable[[PartsConfig], OnlineOrder]] = {
    "mlfq": lambda config: online.SkipJoin(_mlfq(config)),
    "naive_mlfq": lambda config: online.SkipJoin(_mlfq(config), skip=False),
    "fcfs": lambda config: online.Fcfs(),
    "sjf": lambda config: online.ShortestFirst(),
    "edf": lambda config: online.EarliestDeadline(),
    "econo": lambda config: Econo(),
    "fixed": lambda config: online.ShortestPrompt(),
}
OFFLINE_ORDERS: dict[str, Callable[[PartsConfig], OfflineOrder]] = {
    "fair": lambda config: offline.Fair(),
    "fcfs": lambda config: offline.Fcfs(),
}
ADMISSIONS: dict[str, Callable[[PartsConfig], Admission]] = {"worst": lambda config: WorstCase(), "expected": lambda config: Expected()}
BUDGETS: dict[str, Callable[[PartsConfig, LatencyModel], Budget]] = {
    "slo": lambda config, model: SloBudget(model),
    "fixed": lambda config, model: FixedShare(),
}
GAPS: dict[str, Callable[[PartsConfig], GapRule]] = {"each": lambda config: EachGap(), "mean": lambda config: MeanGap()}
RESERVES: dict[str, Callable[[PartsConfig], Reserve]] = {
    "bursts": lambda config: BurstReserve(slots=config.first_slots, blocks=config.first_blocks),
    "fixed": lambda config: FixedReserve(),
}
TABLES: dict[str, Mapping[str, object]] = {
    "online_order": ONLINE_ORDERS,
    "offline_order": OFFLINE_ORDERS,
    "admission": ADMISSIONS,
    "budget": BUDGETS,
    "reserve": RESERVES,
    "tpot": GAPS,
}


def parts_of(config: PartsConfig, model: LatencyModel, kv: KvPolicy | None = None) -> Parts:
    """New parts. ``kv`` None: no checkpoints. Raises ValueError for a name that is in no table."""
    return Parts(
        model,
        _named(ONLINE_ORDERS, "online_order", config.online_order)(config),
        _named(OFFLINE_ORDERS, "offline_order", config.offline_order)(config),
        _named(RESERVES, "reserve", config.reserve)(config),
        _named(ADMISSIONS, "admission", config.admission)(config),
        _named(BUDGETS, "budget", config.budget)(config, model),
        _named(GAPS, "tpot", config.tpot)(config),
        kv or NoCheckpoints(),
    )


def _named(table: Mapping[str, P], part: str, name: str) -> P:
    check_name(part, name)
    return table[name]


def check_name(part: str, name: str) -> None:
    """Raises ValueError where the table of ``part`` has no such name."""
    if name not in TABLES[part]:
        raise ValueError(f"unknown {part} {name!r}; use one of: {', '.join(TABLES[part])}")
