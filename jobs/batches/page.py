"""Lists by pages, as OpenAI's API gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from jobs.errors import ParameterError


class HasId(Protocol):
    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=HasId)


def page(items: Sequence[Item], after: str | None, most: int) -> tuple[Sequence[Item], bool]:
    """Up to ``most`` of ``items`` behind the one with id ``after``, and whether there are more. Raises `ParameterError`."""
    start = 0
    if after is not None:
        places = [place for place, item in enumerate(items) if item.id == after]
        if not places:
            raise ParameterError(f"after={after[:80]!r} is not in the list; use the last_id of the previous page, or none", "after")
        start = places[0] + 1
    return items[start : start + most], start + most < len(items)


def list_object(data: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    """OpenAI's list of objects that have an ``id``."""
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": list(data), "first_id": first, "last_id": last, "has_more": has_more}
