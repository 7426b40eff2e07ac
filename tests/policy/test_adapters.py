"""Who gives way to a chat whose adapter has no place in a step."""

from __future__ import annotations

import pytest

from harvester.policy.admission.adapters import rows_in_the_way

CHAT, ROW = False, True


@pytest.mark.parametrize(
    ("wanted", "running", "gone"),
    [
        (0, [(1, ROW), (2, ROW)], []),
        (1, [(1, ROW), (2, ROW)], []),
        (3, [(1, ROW), (0, ROW)], []),
        (3, [(1, ROW), (2, ROW), (1, ROW)], [1]),
        (3, [(1, CHAT), (2, ROW), (1, ROW), (2, ROW)], [1, 3]),
        (3, [(1, CHAT), (2, CHAT), (2, ROW), (0, ROW)], []),
        (3, [(1, ROW), (2, ROW)], [0]),
    ],
    ids=["no adapter", "runs already", "room", "the fewest rows", "none that a chat has", "chats have all", "a tie"],
)
def test_rows_of_one_adapter_give_way(wanted: int, running: list[tuple[int, bool]], gone: list[int]) -> None:
    assert rows_in_the_way(wanted, running, places=2) == gone
