"""What Serve's status of our applications means for a server that starts, and how they end. Serve itself is played."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harvester.config import ServeConfig
from harvester.engine.launch.models import ModelChoice
from harvester.errors import EngineError
from harvester.model_config import ModelConfig, ReplicasConfig
from harvester.ports import free_port
from harvester.serve.session import Deployment
from jobs.storage.folder import StateFolder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from ray.serve._private.common import DeploymentStatus, DeploymentStatusTrigger, ReplicaState
    from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatusOverview

    from harvester.serve import applications, cluster
    from harvester.serve.applications import are_anothers, has_failed, is_answering, leave
    from harvester.serve.deployments import actor
    from harvester.serve.deployments.replica import replica_app
    from harvester.serve.deployments.version import attempt_at
    from harvester.serve.machine import joined, leaving, nodes

OWN = "ledger-own"
CHOICE = ModelChoice(path="/model", name="tiny", embedded=True, note=None)


def application(status: str, **replicas: int) -> Any:
    states = {ReplicaState(state): number for state, number in replicas.items()}
    deployment = DeploymentStatusOverview(DeploymentStatus.UNHEALTHY, DeploymentStatusTrigger.HEALTH_CHECK_FAILED, states, "")
    return ApplicationStatusOverview(ApplicationStatus(status), "", 0.0, {"replica": deployment})


@pytest.mark.parametrize(
    ("status", "replicas", "found", "expected"),
    [
        ("RUNNING", {"RUNNING": 4}, False, (True, False)),
        ("UNHEALTHY", {"RUNNING": 3, "STARTING": 1}, True, (True, False)),
        ("UNHEALTHY", {"STARTING": 4}, True, (False, False)),
        ("UNHEALTHY", {"RUNNING": 3, "STARTING": 1}, False, (False, True)),
        ("DEPLOYING", {"RUNNING": 4}, True, (False, False)),
        ("DEPLOY_FAILED", {"RUNNING": 3, "STARTING": 1}, True, (False, False)),
        ("DEPLOY_FAILED", {"RUNNING": 3}, True, (False, True)),
        ("DEPLOY_FAILED", {"STARTING": 1}, False, (False, True)),
    ],
    ids=[
        "all there",
        "found with a replica missing",
        "found with none left",
        "new with a replica missing",
        "in a rolling update",
        "found with a replica that Serve tries again",
        "found where Serve has given up",
        "new that did not start",
    ],
)
def test_a_server_waits_for_what_serve_still_starts(
    status: str, replicas: dict[str, int], found: bool, expected: tuple[bool, bool]
) -> None:
    app = application(status, **replicas)
    assert (is_answering(app, found=found), has_failed(app, found=found)) == expected


@pytest.mark.parametrize(
    ("deployed", "has_failed", "expected"),
    [
        (None, False, "ab12"),
        ("ab12", False, "ab12"),
        ("ab12", True, "ab12.2"),
        ("ab12.2", False, "ab12.2"),
        ("ab12.2", True, "ab12.3"),
        ("cd34.2", True, "ab12"),
    ],
)
def test_only_a_failed_deployment_gets_another_version(deployed: str | None, has_failed: bool, expected: str) -> None:
    assert attempt_at("ab12", deployed, has_failed=has_failed) == expected


@pytest.mark.parametrize(("address", "expected"), [(None, 1), ("10.0.0.1:6379", 10)], ids=["our own cluster", "a joined one"])
def test_one_failed_start_of_a_replica_ends_no_update_of_a_joined_cluster(address: str | None, expected: int) -> None:
    app: Any = replica_app(ServeConfig(address=address, ingress="proxy"), CHOICE, Path("/state"), OWN, cpu=True)
    assert app._bound_deployment._deployment_config.max_constructor_retry_count == expected


@pytest.mark.parametrize(
    ("running", "found", "expected"),
    [([], ["ledger-x"], False), (["chat"], ["ledger-x"], True), (["chat"], ["ledger-x", OWN], False), (["chat"], [], False)],
    ids=["nothing runs", "another's", "ours", "no ledger at all"],
)
def test_applications_are_anothers_where_only_another_ledger_is(running: list[str], found: list[str], expected: bool) -> None:
    assert are_anothers(running, OWN, found) is expected


class Played:
    """Ray Serve. A deleted application ends by itself unless it is one of ``slow``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ledgers: list[str], slow: tuple[str, ...] = ("chat",)) -> None:
        self.running = {"chat", "jobs"}
        self.slow = set(slow)
        self.deleted: list[tuple[str, bool]] = []
        self.killed: list[str] = []
        self.is_shut = False
        self.deployments: dict[str, list[str]] = {}  # by application; none told of those that are not in it
        serve = SimpleNamespace(delete=self._delete, status=self._status, shutdown=self._shut)
        monkeypatch.setattr(applications, "serve", serve)
        monkeypatch.setattr(applications, "ledgers", lambda: ledgers)
        monkeypatch.setattr("ray.get_actor", lambda name, namespace: name)
        monkeypatch.setattr("ray.kill", self.killed.append)

    def _status(self) -> Any:
        told = {name: SimpleNamespace(deployments=self.deployments.get(name, [])) for name in self.running}
        return SimpleNamespace(applications=told)

    def _delete(self, name: str, *, _blocking: bool) -> None:
        self.deleted.append((name, _blocking))
        self.running -= {name} - self.slow

    def _shut(self) -> None:
        self.is_shut = True


@pytest.mark.parametrize("is_hurried", [False, True], ids=["the wait is over", "told to hurry"])
def test_a_chat_that_does_not_end_keeps_nothing_else_from_ending(monkeypatch: pytest.MonkeyPatch, is_hurried: bool) -> None:
    played, hurry = Played(monkeypatch, [OWN]), threading.Event()
    if is_hurried:
        hurry.set()
    assert leave(OWN, 3600.0 if is_hurried else 0.0, hurry) == ["chat"]
    assert sorted(played.deleted) == [("chat", False), ("jobs", False)]
    assert (played.running, played.is_shut) == ({"chat"}, False)
    assert played.killed == [], "the ledger counts the usage of the chat that goes on"


def test_what_a_hurried_stop_left_is_ended_by_the_next_one_with_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    played, hurry = Played(monkeypatch, [OWN], slow=("chat", "jobs")), threading.Event()
    hurry.set()
    assert (leave(OWN, 3600.0, hurry), played.is_shut) == (["chat", "jobs"], False)
    played.running.clear()  # Serve has ended them since
    assert played.killed == []
    assert (leave(OWN, 0.0, threading.Event()), played.is_shut, played.killed) == ([], True, [OWN])


def test_a_ledger_that_another_server_left_for_its_chats_ends_before_ours_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a later stop on its state folder would take our applications for its own."""
    joined = joined_cluster(tmp_path)
    played = Played(monkeypatch, [])
    monkeypatch.setattr(actor, "ledgers", lambda: ["ledger-other", joined._ledger])
    monkeypatch.setattr(cluster, "token_warning", lambda *given: None)
    monkeypatch.setattr(cluster, "head_node", lambda: "head")
    deployed(joined, monkeypatch)
    assert played.killed == ["ledger-other"]


def test_serve_stays_for_an_application_that_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, [OWN], slow=())
    played.running.add("another")
    assert (leave(OWN, 0.0, threading.Event()), played.is_shut) == ([], False)


def test_an_application_that_only_has_a_name_of_ours_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, [], slow=())
    played.deployments = {"chat": ["ChatBot"], "jobs": ["jobs"]}
    leave(OWN, 0.0, threading.Event())
    assert played.deleted == [("jobs", False)]


ROUTES = {"chat": "/", "jobs": "/api"}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"chat": ("/", ["replica"]), "jobs": ("/api", ["jobs"])}, None),
        ({"default": ("/", ["Summarizer"])}, "default at /"),
        ({"chat": ("/bot", ["ChatBot"])}, "chat at /bot"),
        ({"default": ("/summaries", ["Summarizer"]), "inner": (None, ["Inner"])}, None),
        ({"chat": (None, [])}, None),
    ],
    ids=["ours", "another with our route", "another with our name", "another elsewhere", "ours that begins"],
)
def test_an_application_of_somebody_else_is_in_the_way_by_its_name_or_its_route(
    found: dict[str, tuple[str | None, list[str]]], expected: str | None
) -> None:
    details = {name: {"route_prefix": route, "deployments": dict.fromkeys(names)} for name, (route, names) in found.items()}
    assert applications.in_the_way(details, ROUTES) == expected


def test_nothing_of_another_state_folder_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played(monkeypatch, ["ledger-other"])
    leave(OWN, 0.0, threading.Event())
    assert (played.deleted, played.killed) == ([], [])


def joined_cluster(folder: Path) -> cluster.Cluster:
    config = ServeConfig(address="10.0.0.1:6379", ingress="proxy")
    deployment = Deployment(config, StateFolder(folder), CHOICE, {}, "http://x", "mark", True, 1, None)
    return cluster.Cluster(deployment, lambda *given: None, threading.Event())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "error", "ending", "is_left", "stays"),
    [
        ({"chat": False}, EngineError("no"), [], False, True),
        ({}, EngineError("no"), [], True, False),
        ({"chat": False}, None, [], True, False),
        ({"chat": False}, None, ["chat"], True, True),
    ],
    ids=["failed over what ran before", "failed at first", "stopped", "stopped with an open chat"],
)
def test_the_cluster_is_remembered_while_applications_are_left_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    found: dict[str, bool],
    error: EngineError | None,
    ending: list[str],
    is_left: bool,
    stays: bool,
) -> None:
    folder = StateFolder(tmp_path)
    left: list[str] = []

    def leave(ledger: str, wait_s: float, hurry: threading.Event) -> list[str]:
        left.append(ledger)
        return ending

    monkeypatch.setattr(cluster, "leave", leave)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    folder.cluster.write_text("10.0.0.1:6379\n")
    joined = joined_cluster(tmp_path)
    joined._is_ours, joined._found = True, found
    joined.__exit__(type(error) if error else None, error, None)
    assert (folder.cluster.exists(), bool(left)) == (stays, is_left)


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        (0, None, None),
        (leaving.STILL_ENDING, None, "harvester stop again"),
        (1, "no Ray cluster answers", "could not be ended: no Ray cluster answers; end them .* gone for good, remove .*cluster"),
        (-9, None, "could not be ended; end them there with: serve shutdown"),
    ],
    ids=["all ended", "an open chat", "no cluster", "ended by Ray"],
)
def test_a_stop_without_a_server_forgets_the_cluster_once_all_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str | None, message: str | None
) -> None:
    def played(target: Any, args: tuple[Any, ...]) -> Any:
        if reason is not None:
            args[-1].send(reason)
        return SimpleNamespace(start=lambda: None, join=lambda: None, exitcode=code)

    real = multiprocessing.get_context("spawn")
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: SimpleNamespace(Process=played, Pipe=real.Pipe))
    folder = StateFolder(tmp_path)
    folder.prepare()
    folder.cluster.write_text("10.0.0.1:6379\n")
    with nullcontext() if message is None else pytest.raises(EngineError, match=message):
        leaving.end_joined("10.0.0.1:6379", tmp_path)
    assert folder.cluster.exists() is (message is not None)


def crashing(error: str, left: int) -> Any:
    """An application whose replicas fail at their start, as Serve tells it."""
    app = application("UNHEALTHY", STARTING=1)
    app.deployments[
        "replica"
    ].message = f"A replica failed to start with exception. Retrying {left} more time(s). Error:\nValueError: {error}"
    return app


def test_each_reason_why_a_taken_over_application_has_no_replica_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: application("RUNNING", RUNNING=1) for name in applications.PREFIXES}
    chats = [
        crashing("no disk", 9),
        crashing("no disk", 8),
        crashing("no GPU", 7),
        crashing("no disk", 6),
        application("RUNNING", RUNNING=1),
    ]
    seen = iter(chats)
    monkeypatch.setattr(cluster, "STATUS_S", 0.0)
    status = SimpleNamespace(status=lambda: SimpleNamespace(applications={"chat": next(seen), **others}, proxies={}))
    monkeypatch.setattr(cluster, "serve", status)
    joined, told = joined_cluster(tmp_path), []
    joined._found = {"chat": False, **dict.fromkeys(others, False)}
    joined._wait_running(threading.Event(), lambda *line: told.append(line), lambda: None)
    assert told == [
        ("warning", "chat has no replica; Serve tries again: no disk"),
        ("warning", "chat has no replica; Serve tries again: no GPU"),
    ]


@pytest.mark.parametrize(
    ("status", "replicas"),
    [("UNHEALTHY", {"RUNNING": 1, "STARTING": 3}), ("DEPLOYING", {"STARTING": 1}), ("RUNNING", {})],
    ids=["one replica left", "it is deployed", "scaled to none"],
)
def test_an_application_that_only_starts_is_waited_for_without_a_warning(status: str, replicas: dict[str, int]) -> None:
    told: list[str] = []
    applications.tell_of_tries({"chat": application(status, **replicas)}, told.append, set())
    assert told == []


def test_a_start_goes_on_where_serve_itself_waits_too_short_for_an_ingress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []

    def too_short(*given: Any, **named: Any) -> None:
        raise TimeoutError("Proxies not available after 60s.")

    played = SimpleNamespace(start=too_short, run_many=too_short, RunTarget=lambda *given, **named: None)
    stood_in = {"serve": played, "start_ledger": lambda *given: lambda: None, "Reach": lambda *given: Whole(), "shortage": no_shortage}
    for name, value in stood_in.items():
        monkeypatch.setattr(cluster, name, value)
    deployment = Deployment(ServeConfig(ingress="proxy"), StateFolder(tmp_path), CHOICE, {}, "http://x", "mark", True, 1, None)
    own = cluster.Cluster(deployment, lambda *given: None, threading.Event())  # type: ignore[arg-type]
    monkeypatch.setattr(own, "_wait_running", lambda *given: waited.append("running"))
    own.deploy(threading.Event(), lambda *line: None, lambda: None)
    assert waited == ["running"]


def no_shortage(config: ServeConfig, *, cpu: bool) -> None:
    """Ray does not run here, so nobody can say what it has."""


class Whole:
    def is_whole(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("ours", "theirs", "warns"),
    [
        (None, None, True),
        ("disabled", None, True),
        ("token", [("head", True)], False),
        ("token", [("head", False)], True),
        ("token", [], False),
    ],
    ids=["let in without a token", "let in as told to ask without", "a token is asked for", "one is taken, not asked for", "no answer"],
)
def test_a_joined_cluster_that_asks_for_no_token_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: str | None, theirs: list[tuple[str, bool]] | None, warns: bool
) -> None:
    """Ray that asks for none also lets in who sends one, so the head's own environment says it."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if ours is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", ours)
    monkeypatch.setattr(nodes, "_on", lambda ids, work: theirs)
    monkeypatch.setattr(cluster, "head_node", lambda: "head")
    monkeypatch.setattr(actor, "ledgers", list)
    told = deployed(joined_cluster(tmp_path), monkeypatch)
    warnings_told = [what for kind, what in told if kind == "warning"]
    assert len(warnings_told) == warns
    assert all("10.0.0.1:6379 asks for no token" in one and "RAY_AUTH_MODE=token" in one for one in warnings_told)


def deployed(
    joined: cluster.Cluster, monkeypatch: pytest.MonkeyPatch, reset: Callable[[float], None] = lambda timeout_s: None
) -> list[tuple[str, str]]:
    """What is told while ``joined`` is deployed on a Ray and a Serve that do nothing. ``reset``: called in place of `Scale.reset`."""
    nothing: Any = lambda *given, **options: lambda: None  # noqa: E731
    for name in ("start_ledger", "ledger_options", "jobs_app"):
        monkeypatch.setattr(cluster, name, nothing)
    monkeypatch.setattr(cluster, "openai_apps", lambda *given: {})
    monkeypatch.setattr(cluster, "shortage", no_shortage)
    handle = SimpleNamespace(reset_scale=SimpleNamespace(remote=lambda: SimpleNamespace(result=lambda timeout_s: reset(timeout_s))))
    served = {"start": nothing, "run_many": nothing, "RunTarget": nothing, "get_app_handle": {applications.JOBS_APP: handle}.__getitem__}
    monkeypatch.setattr(cluster, "serve", SimpleNamespace(**served))
    for name in ("_look_around", "_wait_running"):
        monkeypatch.setattr(joined, name, nothing)
    monkeypatch.setattr(joined, "_is_ingress_here", lambda: False)
    told: list[tuple[str, str]] = []
    joined.deploy(threading.Event(), lambda kind, what: told.append((kind, what)), lambda: None)
    return told


@pytest.mark.parametrize("found", [{}, {"chat": False}], ids=["a new application", "one that is taken over"])
def test_a_joined_cluster_returns_to_the_configured_numbers_of_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: dict[str, bool]
) -> None:
    """The application reads what an earlier server was asked for on the machine that it runs on, maybe not this one."""
    monkeypatch.setattr(cluster, "token_warning", lambda *given: None)
    monkeypatch.setattr(cluster, "head_node", lambda: "head")
    monkeypatch.setattr(cluster, "next_attempt", lambda app, *given, **more: app)
    monkeypatch.setattr(actor, "ledgers", list)
    asked: list[float] = []
    joined = joined_cluster(tmp_path)
    joined._found = found
    deployed(joined, monkeypatch, asked.append)
    assert len(asked) == 1


def test_a_model_that_no_gpu_is_left_for_starts_without_a_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ModelConfig(replicas=ReplicasConfig(min=0, max=1))
    config = ServeConfig(ingress="proxy", models={"a": turns, "b": turns})
    deployment = Deployment(config, StateFolder(tmp_path), CHOICE, {"a": CHOICE, "b": CHOICE}, "http://x", "mark", False, 1, None)
    apps: dict[str, Any] = {}
    played = SimpleNamespace(run_many=lambda *given, **more: None, RunTarget=lambda app, name, **more: apps.update({name: app}))
    monkeypatch.setattr(cluster, "serve", played)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0, "GPU": 2.0})
    told: list[str] = []
    own = cluster.Cluster(deployment, partial(replica_app, cpu=False), threading.Event())
    own._deploy_apps(lambda kind, what: told.append(what))
    ranges = {name: apps[f"model-{name}"]._bound_deployment._deployment_config.autoscaling_config for name in config.models}
    assert {name: one.initial_replicas for name, one in ranges.items()} == {"a": 1, "b": 0}
    assert told == ["b starts without a replica, as all GPUs are taken: its next chat or job loads it once one is free"]


HEAD = "10.0.0.1:6379"
MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.49.0
    Python: 3.12.4
This process on node 10.0.0.2 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (
            RuntimeError(MISMATCH),
            EngineError,
            "at 10.0.0.1:6379 runs Ray 2.49.0 on Python 3.12.4, this machine Ray 2.60.0 on Python 3.11.7",
        ),
        (ConnectionError("refused"), EngineError, "no Ray cluster answers at 10.0.0.1:6379, or it takes another token"),
        (RuntimeError("too slow"), RuntimeError, "too slow"),
    ],
    ids=["other versions", "no cluster", "a busy one, to be tried again"],
)
def test_a_cluster_that_cannot_be_joined_is_told_on_one_line(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, kind: type[Exception], message: str
) -> None:
    def init(**given: Any) -> None:
        raise raised

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(joined, "_meet", lambda address: None)
    monkeypatch.setattr(joined, "_sockets", list)
    with pytest.raises(kind, match=message) as told:
        joined.join("10.0.0.1:6379")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (["seen"], "joined"),
        (["hidden", "seen"], "joined"),
        ([], "joined"),
        (["late"], "joined"),
        (["hidden"], "hidden, cannot be opened; run harvester serve as the user of ray start, and in the same /tmp"),
    ],
    ids=["seen", "one of two is seen", "no node of Ray's here", "one that only starts", "in another /tmp"],
)
def test_a_node_whose_sockets_are_out_of_reach_is_told_before_ray_aborts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[str], expected: str
) -> None:
    """Each look takes a second here; the socket of the late one is there at the third."""
    looks: list[float] = []

    def runs() -> list[Any]:
        looks.append(1.0)
        if len(looks) == 3:
            (tmp_path / "late").touch()
        return [SimpleNamespace(cmdline=lambda path=tmp_path / name: ["raylet", f"--raylet_socket_name={path}"]) for name in shown]

    def init(**given: Any) -> None:
        raise RuntimeError("joined")

    (tmp_path / "seen").touch()
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("psutil.process_iter", runs)
    monkeypatch.setattr(joined, "_meet", lambda address: None)
    monkeypatch.setattr(joined, "time", SimpleNamespace(monotonic=lambda: sum(looks), sleep=lambda seconds: None))
    with pytest.raises((RuntimeError, EngineError), match=expected):
        joined.join(HEAD)


@pytest.mark.parametrize(
    ("address", "faults", "stop_at", "tries", "told"),
    [
        (HEAD, 0, None, 1, []),
        (HEAD, 90, None, 91, [f"the head of the Ray cluster at {HEAD}"]),
        (HEAD, 1000, 3, 3, [f"the head of the Ray cluster at {HEAD}"]),
        (HEAD, 1000, None, 120, [f"the head of the Ray cluster at {HEAD}"]),
        ("auto", 1000, None, 0, []),
        (None, 1000, None, 0, []),
    ],
    ids=["there at once", "late, as beside a head that starts too", "told to stop", "never there", "found by Ray itself", "of our own"],
)
def test_a_server_waits_two_minutes_for_the_head_and_says_so(
    monkeypatch: pytest.MonkeyPatch, address: str | None, faults: int, stop_at: int | None, tries: int, told: list[str]
) -> None:
    """Each try takes a second here."""
    seen: list[str] = []
    said: list[str] = []

    def connect(at: tuple[str, int], timeout: float) -> Any:
        seen.append(f"{at[0]}:{at[1]}")
        if len(seen) <= faults:
            raise ConnectionRefusedError(111, "Connection refused")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr("socket.create_connection", connect)
    monkeypatch.setattr(joined, "time", SimpleNamespace(monotonic=lambda: float(len(seen)), sleep=lambda seconds: None))
    joined.await_head(address, lambda: len(seen) == stop_at, said.append)
    assert (seen, said) == ([HEAD] * tries, told)


def test_a_stop_whose_cluster_is_not_there_says_so_without_a_traceback(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    folder.prepare()
    folder.cluster.write_text(f"127.0.0.1:{free_port()}\n")
    line = [sys.executable, "-m", "harvester", "stop", "--state", str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1, done.stderr
    assert "could not be ended: no Ray cluster answers at 127.0.0.1:" in done.stderr
