"""Options of a benchmark, the same for every scenario."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Options:
    """``seconds``: approximate duration of one timed run of an engine; None: the scenario decides.

    ``set``: values of knobs by name (`bench.harness.knobs`). ``rate``, ``shares``: the pace of chat (`bench.harness.paced`).
    """

    model: str | None = None
    seconds: float | None = None
    quick: bool = False
    seed: int = 0
    set: dict[str, float] = field(default_factory=dict)
    rate: float | None = None
    shares: tuple[float, ...] = ()
