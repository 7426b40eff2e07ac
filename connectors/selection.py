"""Which rows of a source are asked for, as a request says it; `connectors.select` reads them. Loads no library of tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Selection:
    """Applied in this order. ``where``: an SQL condition. ``sample``: number of rows drawn with ``seed``. ``limit``: maximum rows."""

    where: str | None = None
    sample: int | None = None
    limit: int | None = None
    seed: int = 0

    def __bool__(self) -> bool:
        return (self.where, self.sample, self.limit) != (None, None, None)

    @property
    def head_rows(self) -> int | None:
        """As many of the first rows, where nothing else is asked for."""
        return self.limit if self.where is None and self.sample is None else None

    @property
    def label(self) -> str:
        """Name used in messages."""
        given = {"--where": self.where, "--sample": self.sample, "--limit": self.limit}
        return " ".join(f"{option} {value}" for option, value in given.items() if value is not None)
