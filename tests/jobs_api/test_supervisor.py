"""The supervisor with sessions that end as a test wishes, each in its forked process as a real one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.errors import ConfigError, EngineError, StorageError
from harvester.serve import supervisor
from harvester.serve.session import Deployment
from harvester.serve.supervisor import START_TRIES, Supervisor
from jobs.storage.folder import StateFolder

BEFORE_S = 1000.0  # that the server took before the first session
Session = Callable[[Connection, int], None]
CHOICE = ModelChoice(path="/model", name="tiny", embedded=True, note=None)


class World:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lives = folder / "lives"
        self._lives.write_text("")
        self._monkeypatch = monkeypatch
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.ready = 0
        self.shut_s: list[float] = []
        self.stop, self.hurry = threading.Event(), threading.Event()
        self.deployment = Deployment(ServeConfig(), StateFolder(folder), CHOICE, {}, "http://x", "test-supervisor", True, os.getpid(), None)
        monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 0.001)

    @property
    def lives(self) -> int:
        return len(self._lives.read_text())

    def run(self, session: Session) -> None:
        """``session`` is given its end of the pipe, and the number of its life from 1 on."""

        def live(deployment: Deployment, front: None, told: Connection) -> None:
            with self._lives.open("a") as lives:
                lives.write("x")
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            session(told, self.lives)

        self._monkeypatch.setattr(supervisor, "run_session", live)
        began_s = time.monotonic() - BEFORE_S
        Supervisor(self.deployment, None, lambda kind, fields: self.events.append((kind, fields)), self._on_ready, began_s).run(
            self.stop, self.hurry
        )

    def _on_ready(self, seconds: float) -> None:
        self.ready += 1
        self.shut_s.append(seconds)
        if self.ready == 3:
            self.stop.set()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def rest() -> None:
    while True:
        time.sleep(60)


def test_a_server_that_was_ready_is_started_again_however_its_session_ends(world: World) -> None:
    def session(told: Connection, life: int) -> None:
        told.send(("ready", None))
        if life == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if life == 2:
            told.send(("failed", EngineError("the raylet has died")))
        rest()  # the second says why it ends, and hangs

    world.run(session)
    assert (world.ready, world.lives) == (3, 3)
    assert [fields["message"].partition(";")[0] for kind, fields in world.events if kind == "warning"] == [
        "the process that runs the cluster has died",
        "the raylet has died",
    ]
    assert world.events[-1] == ("stopping", {})


def test_a_session_that_is_killed_within_a_message_is_followed_by_another(world: World) -> None:
    def session(told: Connection, life: int) -> None:
        told.send(("ready", None))
        if life < 3:
            os.write(told.fileno(), struct.pack("!i", 1000) + b"the beginning")  # as `Connection.send` writes it
            os.kill(os.getpid(), signal.SIGKILL)
        rest()

    world.run(session)
    assert (world.ready, world.lives) == (3, 3)


def test_ready_tells_how_long_the_server_was_shut_and_not_how_old_it_is(world: World) -> None:
    def session(told: Connection, life: int) -> None:
        told.send(("ready", None))
        time.sleep(0.2)
        told.send(("failed", EngineError("the raylet has died")))

    world.run(session)
    assert world.shut_s[0] >= BEFORE_S
    assert all(seconds < BEFORE_S for seconds in world.shut_s[1:])


@pytest.mark.parametrize(("well_s", "waits"), [(0.0, ["now", "now"]), (1e9, ["in 0.001 s", "in 0.002 s"])], ids=["well", "not for long"])
def test_a_server_that_went_well_is_started_again_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, well_s: float, waits: list[str]
) -> None:
    monkeypatch.setattr(supervisor, "WELL_S", well_s)

    def session(told: Connection, life: int) -> None:
        told.send(("ready", None))
        told.send(("failed", EngineError("the raylet has died")))

    world.run(session)
    assert [fields["message"].partition("again ")[2] for kind, fields in world.events if kind == "warning"] == waits


def test_an_error_of_ours_before_the_server_is_ready_ends_it_at_once(world: World) -> None:
    def session(told: Connection, life: int) -> None:
        told.send(("failed", ConfigError("model nowhere is no folder")))

    with pytest.raises(ConfigError, match="model nowhere is no folder"):
        world.run(session)
    assert world.lives == 1


def test_a_start_that_ray_does_not_manage_is_tried_again_and_not_for_ever(world: World) -> None:
    def session(told: Connection, life: int) -> None:
        told.send(("waiting", "Ray to start"))
        told.send(("lost", "Exception: timed out"))

    with pytest.raises(EngineError, match="timed out"):
        world.run(session)
    assert world.lives == START_TRIES
    assert world.events.count(("waiting", {"message": "Ray to start"})) == START_TRIES


def test_a_full_disk_is_told_in_one_line(world: World) -> None:
    def session(told: Connection, life: int) -> None:
        told.send(("failed", OSError(28, "No space left on device")))

    with pytest.raises(StorageError, match="No space left on device; free space there"):
        world.run(session)


def test_a_message_that_cannot_be_passed_on_ends_the_server_and_starts_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def session(told: Connection, life: int) -> None:
        told.send(("ready", None))
        rest()

    def on_ready(seconds: float) -> None:
        world.ready += 1
        if world.ready == 2:
            world.stop.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(world, "_on_ready", on_ready)
    with pytest.raises(OSError, match="No space left"):
        world.run(session)
    assert (world.ready, world.lives) == (1, 1)
    assert not multiprocessing.active_children()
