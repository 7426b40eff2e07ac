"""Values that every room may import: the two classes of work and how they are ordered."""

from __future__ import annotations

from enum import StrEnum

__version__ = "0.1.0"

# vLLM orders a waiting queue by ascending ``priority``, then by arrival.
PRIORITY_ONLINE_FIRST = -10
PRIORITY_ONLINE = 0
PRIORITY_OFFLINE = 100


class WorkClass(StrEnum):
    """Online work has someone waiting for it; offline work has a table waiting for it."""

    ONLINE = "online"
    OFFLINE = "offline"


def work_class(priority: int) -> WorkClass:
    """Class of a request by its vLLM ``priority``."""
    return WorkClass.OFFLINE if priority >= PRIORITY_OFFLINE else WorkClass.ONLINE
