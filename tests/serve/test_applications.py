"""Whose applications are, and how they end. Serve itself is played."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.errors import EngineError
from harvester.serve.session import Deployment
from jobs.storage.folder import StateFolder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.serve import applications, cluster
    from harvester.serve.applications import are_anothers, leave

OWN = "ledger-own"
CHOICE = ModelChoice(path="/model", name="tiny", embedded=True, note=None)


@pytest.mark.parametrize(
    ("running", "found", "expected"),
    [([], ["ledger-x"], False), (["chat"], ["ledger-x"], True), (["chat"], ["ledger-x", OWN], False), (["chat"], [], False)],
    ids=["nothing runs", "another's", "ours", "no ledger at all"],
)
def test_applications_are_anothers_where_only_another_ledger_is(running: list[str], found: list[str], expected: bool) -> None:
    assert are_anothers(running, OWN, found) is expected


class Played:
    """Ray Serve, whose chat application does not end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ledgers: list[str]) -> None:
        self.running = {"chat", "jobs"}
        self.deleted: list[tuple[str, bool]] = []
        self.killed: list[str] = []
        self.is_shut = False
        serve = SimpleNamespace(
            delete=self._delete, status=lambda: SimpleNamespace(applications=dict.fromkeys(self.running)), shutdown=self._shut
        )
        monkeypatch.setattr(applications, "serve", serve)
        monkeypatch.setattr(applications, "ledgers", lambda: ledgers)
        monkeypatch.setattr("ray.get_actor", lambda name, namespace: name)
        monkeypatch.setattr("ray.kill", self.killed.append)

    def _delete(self, name: str, *, _blocking: bool) -> None:
        self.deleted.append((name, _blocking))
        self.running -= {name} - {"chat"}

    def _shut(self) -> None:
        self.is_shut = True


@pytest.mark.parametrize("is_hurried", [False, True], ids=["the wait is over", "told to hurry"])
def test_a_chat_that_does_not_end_keeps_nothing_else_from_ending(monkeypatch: pytest.MonkeyPatch, is_hurried: bool) -> None:
    played, hurry = Played(monkeypatch, [OWN]), threading.Event()
    if is_hurried:
        hurry.set()
    leave(OWN, 3600.0 if is_hurried else 0.0, hurry)
    assert sorted(played.deleted) == [("chat", False), ("jobs", False)]
    assert (played.running, played.killed, played.is_shut) == ({"chat"}, [OWN], False)


def test_nothing_of_another_state_folder_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, ["ledger-other"])
    leave(OWN, 0.0, threading.Event())
    assert (played.deleted, played.killed) == ([], [])


@pytest.mark.parametrize(
    ("found", "error", "stays"),
    [(True, EngineError("no"), True), (False, EngineError("no"), False), (True, None, False)],
    ids=["failed over what ran before", "failed at first", "stopped"],
)
def test_the_cluster_is_remembered_while_applications_are_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bool, error: EngineError | None, stays: bool
) -> None:
    config, folder = ServeConfig(address="10.0.0.1:6379", ingress="proxy"), StateFolder(tmp_path)
    deployment = Deployment(config, folder, CHOICE, {}, "http://x", "mark", True, 1, None)
    left: list[str] = []
    monkeypatch.setattr(cluster, "leave", lambda ledger, wait_s, hurry: left.append(ledger))
    monkeypatch.setattr("ray.shutdown", lambda: None)
    folder.cluster.write_text("10.0.0.1:6379\n")
    joined = cluster.Cluster(deployment, lambda *given: None, threading.Event())  # type: ignore[arg-type]
    joined._is_ours, joined._found = True, found
    joined.__exit__(type(error) if error else None, error, None)
    assert (folder.cluster.exists(), bool(left)) == (stays, not stays)
