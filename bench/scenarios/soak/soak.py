"""Scenario ``soak``: jobs and chats on a real server whose processes are killed, one to three at once, for as long as is asked.

Ray, Serve, HAProxy, ledger and runner are real, the engine is scripted: a row's answer is its last word, so that a wrong one shows.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from bench.harness.options import Options
from bench.harness.record import ROOT, commit
from bench.harness.servers.server import ServerProcess, scripted
from bench.scenarios.soak.probe import Probe, are_open, wait_calm
from bench.scenarios.soak.victims import ROLES, kill
from bench.scenarios.soak.work import Work
from harvester.errors import HarvesterError

HISTORY = ROOT / "bench" / "results" / "soak.json"  # its kills and rows are added to
DELAY_S = 0.3
MAX_GROUP, APART_S = 3, 1.5  # kills of a group, and at most so long apart
QUICK_S, USUAL_S = 60.0, 600.0
GOAL_KILLS, GOAL_SHUT_S = 1000, 10.0
NOT_BACK = (TimeoutError, HarvesterError)  # what waiting for a server, and starting it, raise
NOT_TRIED = ("engine core and workers: the engine is scripted", "a full disk", "clock jumps (libfaketime)")


class Soak:
    def __init__(self, server: ServerProcess, folder: Path, seed: int) -> None:
        self.server, self.work, self._random = server, Work(server, folder), Random(seed)
        self.probes = {"api": Probe(server.url, False), "chat": Probe(server.url, True)}
        self.groups: list[dict[str, Any]] = []
        self.is_interrupted = False

    def play(self, seconds: float) -> str | None:
        """Kill processes for ``seconds``, then wait until every job has ended.

        Returns why the server did not come back or a job did not end; None where all went well.
        """
        try:
            self.go_on(seconds)
            self.finish()
        except NOT_BACK as error:
            return str(error)
        return None

    def go_on(self, seconds: float) -> None:
        """Kill processes for ``seconds``, or until Ctrl-C."""
        end_s, roles = time.monotonic() + seconds, list[str]()
        try:
            self._calm()
            while time.monotonic() < end_s:
                count = self._random.randint(1, MAX_GROUP)
                while len(roles) < count:
                    roles = self._random.sample(sorted(ROLES), len(ROLES)) + roles
                self._group([roles.pop() for _ in range(count)])
        except KeyboardInterrupt:
            self.is_interrupted = True

    def _group(self, roles: list[str]) -> None:
        """Kill one process of each role and wait for calm. A group that the server does not survive is noted too; its error goes on."""
        began_s, killed = time.monotonic(), list[str]()
        try:
            for role in dict.fromkeys(roles):
                killed.append(role)  # first: a main process is killed and started again in one
                if not kill(self.server, role):
                    killed.pop()
                time.sleep(self._random.uniform(0.0, APART_S))
            if killed:
                self._calm()
                self._note(killed, began_s, came_back=True)
        except NOT_BACK:
            self._note(killed, began_s, came_back=False)
            raise

    def _note(self, roles: list[str], began_s: float, *, came_back: bool) -> None:
        shut = {name: round(probe.longest_s(began_s), 2) for name, probe in self.probes.items()}
        self.groups.append({"roles": roles, "shut_s": shut, "came_back": came_back})

    def _calm(self) -> None:
        """Wait some seconds, and until jobs and chats are answered again. Adds work if none is left."""
        wait_calm(lambda: are_open(self.probes.values()))
        self.work.keep_up()

    def finish(self) -> None:
        """Wait until every job has ended; raises `TimeoutError` if one does not. Ctrl-C may have come while the server was restarted."""
        if not self.server.is_running:
            self.server.start()
        self.work.finish()


def run(options: Options) -> dict[str, Any]:
    seconds = options.seconds or (QUICK_S if options.quick else USUAL_S)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        with ServerProcess(scripted({"replicas": 2}, DELAY_S), folder / "state") as server:
            soak = Soak(server, folder, options.seed + earlier()["kills_in_all"])
            for probe in soak.probes.values():
                probe.start()
            try:
                not_back = soak.play(seconds)
            finally:
                for probe in soak.probes.values():
                    probe.end()
            rows = soak.work.rows()
    story = added(earlier(), soak.groups, rows, came_back=not_back is None)
    summary = {"rows": rows, "longest_shut_s": longest(soak.groups), "probes": {name: one.counted() for name, one in soak.probes.items()}}
    kills = sum(len(group["roles"]) for group in soak.groups)
    return {
        "systems": {"harvester": {"kills": kills, "groups": len(soak.groups), **summary}},
        "interrupted": soak.is_interrupted,
        "not_back": not_back,
        "groups": soak.groups,
        "not_tried": list(NOT_TRIED),
        **story,
        "goals": goals(story, soak.groups),
    }


def longest(groups: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Seconds that API and chat were shut at the longest, by the role that was killed alone; "several" for groups."""
    found: dict[str, dict[str, float]] = {}
    for group in groups:
        role = group["roles"][0] if len(group["roles"]) == 1 else "several"
        before = found.setdefault(role, dict.fromkeys(group["shut_s"], 0.0))
        found[role] = {name: max(before[name], seconds) for name, seconds in group["shut_s"].items()}
    return dict(sorted(found.items()))


def earlier() -> dict[str, Any]:
    """The history in the committed result: kills by commit, the rows of all runs, and the runs whose server did not come back.

    Runs before 2026-11-29 wrote no result where the server did not come back: they are not among those.
    """
    nothing: dict[str, Any] = {"kills_by_commit": {}, "kills_in_all": 0, "rows_in_all": {}, "runs_not_back": 0}
    try:
        told = nothing | json.loads(HISTORY.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return nothing
    return {key: told[key] for key in nothing}


def added(before: dict[str, Any], groups: list[dict[str, Any]], rows: dict[str, Any], *, came_back: bool) -> dict[str, Any]:
    """That history with this run added. ``came_back``: whether the server did and every job ended."""
    kills, here = sum(len(group["roles"]) for group in groups), commit() or "unknown"
    counts = {kind: count for kind, count in rows.items() if isinstance(count, int)}
    return {
        "kills_by_commit": before["kills_by_commit"] | {here: before["kills_by_commit"].get(here, 0) + kills},
        "kills_in_all": before["kills_in_all"] + kills,
        "rows_in_all": {kind: before["rows_in_all"].get(kind, 0) + count for kind, count in counts.items()},
        "runs_not_back": before["runs_not_back"] + (not came_back),
    }


def goals(story: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Over all runs: kills, rows lost, unfinished, twice or wrong, runs that did not end well. In this run: longest outage of one kill."""
    rows, shut_s = story["rows_in_all"], max((max(one["shut_s"].values()) for one in groups if len(one["roles"]) == 1), default=None)
    wrong = {kind: rows[kind] for kind in ("lost", "unfinished", "twice", "wrong", "errors", "unknown_jobs")}
    return {
        "kills": {"goal": GOAL_KILLS, "measured": story["kills_in_all"], "met": story["kills_in_all"] >= GOAL_KILLS},
        "rows": {"goal": 0, "measured": wrong, "met": not any(wrong.values())},
        "runs_not_back": {"goal": 0, "measured": story["runs_not_back"], "met": story["runs_not_back"] == 0},
        "shut_s": {"goal": GOAL_SHUT_S, "measured": shut_s, "met": shut_s is not None and shut_s <= GOAL_SHUT_S},
    }
