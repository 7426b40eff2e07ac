"""The short form of the verification decides once: what it cannot decide on this machine is no reason to run it at every start."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.fakes.virtual_loop import run_virtually

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from harvester.config import parse_config
    from harvester.core import WorkClass
    from harvester.engine.frontend.engine import Sizes
    from harvester.engine.shared.settings import KEY, Settings, pack
    from harvester.engine.shared.state import Field, SharedState
    from harvester.engine.verify import kept, short
    from harvester.engine.verify import signals as sent
    from harvester.engine.verify.serving import Verified
    from harvester.engine.verify.verdict import Aspect, Verdict

pytestmark = pytest.mark.engine


class IdleEngine:
    """Answers nothing. ``looks``: how often it was verified."""

    sizes = Sizes(context_tokens=4096, step_tokens=2048, max_seqs=256, block_tokens=16, vocabulary=4096)

    def __init__(self, detect_ms: float = 30.0, *, chats: int = 0) -> None:
        self.settings = Settings.parse({KEY: pack(parse_config({"schedule": {"preempt_detect_ms": detect_ms}}, "test"))})
        self.chats = chats
        self.looks = 0

    def in_flight(self) -> dict[WorkClass, int]:
        return {WorkClass.ONLINE: self.chats, WorkClass.OFFLINE: 0}

    async def on_workers(self, name: str) -> list[bool]:
        self.looks += 1
        return [True]

    async def complete(self, *_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    def stop_signals(self) -> None:
        raise AssertionError("no signal was wrong")


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedState]:
    """A step of 30 ms runs, which could end at each of 32 layers."""

    async def at_once(*_: object) -> tuple[float, int]:
        return 1.0, 20

    monkeypatch.setattr(short, "sum_of_steps", at_once)
    monkeypatch.setattr(short, "error", lambda shared: (1.0, 1.1))
    monkeypatch.setattr(short, "profiler", SimpleNamespace(idle=at_once))
    monkeypatch.setattr(sent, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))
    state = SharedState.make()
    state[Field.PLACES] = 32
    state.planned(1, True, 0.03)
    yield state
    state.remove()


def start(llm: IdleEngine, shared: SharedState, folder: Path) -> Verdict | None:
    """The verdict on signals that a start leaves behind."""
    run_virtually(Verified(llm, shared, CollectorRegistry()).when_absent(folder / "tiny-1.json"))  # type: ignore[arg-type]
    return next((one for one in kept.read(folder / "tiny-1.json") or () if one.part is Aspect.SIGNALS), None)


def test_steps_too_short_for_a_signal_are_looked_at_once(shared: SharedState, tmp_path: Path) -> None:
    llm = IdleEngine()
    for _ in range(2):
        found = start(llm, shared, tmp_path)
        assert found is not None
        assert (found.ok, found.said) == (None, "only 0 steps could be asked to end: most take less than 60 ms")
    assert llm.looks == 1


def test_they_are_looked_at_again_where_shorter_ones_may_get_a_signal(shared: SharedState, tmp_path: Path) -> None:
    start(IdleEngine(), shared, tmp_path)
    llm = IdleEngine(detect_ms=10.0)
    start(llm, shared, tmp_path)
    assert llm.looks == 1
    assert shared[Field.ASKED] > 0


def test_a_look_that_chat_has_cut_short_is_taken_again_until_one_is_whole(shared: SharedState, tmp_path: Path) -> None:
    busy, idle = IdleEngine(chats=1), IdleEngine()
    for _ in range(2):
        found = start(busy, shared, tmp_path)
        assert found is not None
        assert found.shorter_than_s is None
    for _ in range(2):
        found = start(idle, shared, tmp_path)
        assert found is not None
        assert found.shorter_than_s == pytest.approx(0.06)
    assert (busy.looks, idle.looks) == (2, 1)


def test_a_model_whose_layers_have_no_place_for_a_safepoint_gets_no_signals(shared: SharedState, tmp_path: Path) -> None:
    shared[Field.PLACES] = 0
    llm = IdleEngine()
    for _ in range(2):
        assert start(llm, shared, tmp_path) is None
    assert llm.looks == 1
