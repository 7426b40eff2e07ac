"""LoRA adapters: an engine computes a bounded number of them in one step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


def rows_in_the_way(wanted: int, running: Sequence[tuple[int, bool]], places: int) -> list[int]:
    """Rows to preempt so that a chat on adapter ``wanted`` can run, as indices in ``running``.

    They are all rows of one adapter: the one with the fewest rows, of those that no chat uses. ``running``: adapter (0: none) of each
    request, and whether it is offline. ``places``: adapters that one step can hold. Empty where there is room, or chats use all of them.
    """
    held = {adapter for adapter, _ in running if adapter}
    if not wanted or wanted in held or len(held) < places:
        return []
    of_chats = {adapter for adapter, offline in running if not offline}
    rows = Counter(adapter for adapter, _ in running if adapter and adapter not in of_chats)
    if not rows:
        return []
    fewest = min(rows, key=lambda adapter: (rows[adapter], adapter))
    return [place for place, (adapter, _) in enumerate(running) if adapter == fewest]
