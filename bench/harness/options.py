"""What every scenario is told."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Options:
    """``seconds``: about how long one timed run of an engine takes; None leaves it to the scenario.

    ``set``: by name, see `bench.harness.knobs`. ``rate`` and ``shares`` set the pace of chat, see `bench.harness.paced`.
    """

    model: str | None = None
    seconds: float | None = None
    quick: bool = False
    seed: int = 0
    set: dict[str, float] = field(default_factory=dict)
    rate: float | None = None
    shares: tuple[float, ...] = ()
