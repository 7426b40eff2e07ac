"""What is used in a `with` block and closed at its end."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """`close` may be called twice; by itself it does nothing, for what holds nothing open."""

    def close(self) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
