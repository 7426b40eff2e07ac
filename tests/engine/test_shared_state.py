"""The file of the shared state: one for each replica, and none left by those that were killed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harvester.engine.shared import state
from harvester.engine.shared.state import SharedState
from harvester.policy.kv.groups import Group, KvGroups

pytestmark = pytest.mark.engine


def test_a_file_that_a_killed_process_left_is_removed_and_that_of_a_living_one_stays() -> None:
    living, killed = SharedState.make(), SharedState.make()
    assert killed._lock is not None
    os.close(killed._lock)  # as the kernel does
    killed._lock = None
    _age(living.path, killed.path)
    young = SharedState.make()
    another = SharedState.make()
    try:
        assert [path.exists() for path in (living.path, killed.path, young.path)] == [True, False, True]
    finally:
        for one in (living, young, another):
            one.remove()


def test_a_file_that_may_not_be_locked_yet_is_left_alone() -> None:
    first = SharedState.make()
    unlocked = first.path.with_name(f"{state.PREFIX}unlocked-{os.getpid()}")
    unlocked.touch()
    second = SharedState.make()
    try:
        assert unlocked.exists()
    finally:
        unlocked.unlink(missing_ok=True)
        first.remove()
        second.remove()


GEMMA = KvGroups([Group(16), *[Group(16, 1023, 193)] * 6])


@pytest.mark.parametrize("tokens", [1, 160, 1256, 3000, 100_000, 3_000_000])
def test_the_tokens_that_the_kv_holds_follow_from_the_length_of_a_request(tokens: int) -> None:
    told = SharedState.make()
    try:
        assert told.kv_tokens(tokens) is None
        told.tell_kv(9000, GEMMA.held)
        assert told.kv_tokens(tokens) == pytest.approx(9000 * tokens / GEMMA.held(tokens), rel=0.05)
    finally:
        told.remove()


def _age(*paths: Path) -> None:
    then_s = time.time() - 2 * state.YOUNG_S
    for path in paths:
        os.utime(path, (then_s, then_s))
