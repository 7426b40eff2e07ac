"""What a system of the papers is: rules of the compiled loop, and the brain's parts where they can say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from bench.papers.engine.run import Figures, figures_of, played
from bench.papers.loads import Dataset, Load, drawn
from bench.papers.machines import Setting, rules_of
from harvester.policy.admission.rule import Admission
from harvester.policy.order.offline import OfflineOrder

Rule = Mapping[str, float]


class Simulated(Protocol):
    """A system of the papers. ``gpus``: how many times the GPUs that one copy of the model takes."""

    @property
    def name(self) -> str: ...

    @property
    def gpus(self) -> int: ...

    def simulate(self, load: Load, setting: Setting) -> Figures:
        """One run, until all that came have ended."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Of a brain that holds every request as an offline row of a job of its own. Both are told the predicted answers, by request."""

    order: Callable[[Mapping[str, int]], OfflineOrder]
    admission: Callable[[Mapping[str, int]], Admission]


@dataclass(frozen=True, slots=True)
class System:
    """``rules``: beside the machine's, for a model and a dataset. ``decoupled``: prompts and generation in queues of their own.

    ``padded``: predictions are padded by the dataset's share. ``knows``: it is given the true lengths. ``parts``: the same system as the
    brain plans it.
    """

    name: str
    rules: Callable[[Setting, Dataset], Rule]
    decoupled: bool = False
    padded: bool = True
    knows: bool = False
    parts: Parts | None = None
    gpus: int = 1

    def told(self, load: Load) -> Load:
        """The load with the predictions that this system gets."""
        return load.told(error=0.0 if self.knows else load.error, padding=load.padding if self.padded else 0.0)

    def simulate(self, load: Load, setting: Setting) -> Figures:
        requests, allowed_s = drawn(self.told(load), setting)
        engine = played(requests, rules_of(setting, **self.rules(setting, load.dataset)), self.decoupled)
        return figures_of(requests, allowed_s, [engine])
