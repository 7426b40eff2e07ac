"""Scenario ``fleet``: jobs and chats on a cluster of three machines, which share no disk, while one machine after the other is lost.

The machines are namespaces of this one, Ray, Serve, ledger (PostgreSQL), storage (S3 by moto) and runner are real, the engine is
scripted. A machine is killed, or its network goes first, as with a power cut: then no other machine hears of it. The head has the ledger,
the applications and Ray's GCS, whose tables are in RocksDB on a volume that outlives it. Lost workers have lost their disks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from bench.harness.fleet.machines import Fleet, lasting, why_not
from bench.harness.fleet.server import JoinedServer
from bench.harness.load.stream import Stream
from bench.harness.options import Options
from bench.harness.servers.server import READY_S
from bench.scenarios.soak.probe import Probe, are_open, wait_calm
from bench.scenarios.soak.victims import ROLES
from bench.scenarios.soak.work import Work
from harvester.errors import HarvesterError, UsageError
from tools.postgres import NoPostgres, postgres
from tools.s3 import CREDENTIALS, s3_server

MACHINES, ROWS, DELAY_S = 3, 5000, 0.3
KILLS, QUICK_KILLS = 20, 3
HARVEST = {"max_slice_rows": 16, "min_slice_rows": 16, "concurrency": 4, "lease_s": 15.0, "spool_send_s": 1.0}
KINDS = ("killed", "cut_off", "head_killed")
OFF_S = 75.0  # without network: longer than Ray needs to notice
AWAY_S = 5.0  # that a head is away before it starts again
STREAMS, STREAM_TOKENS = 9, 300  # ten tokens a second
GOAL_SHUT_S = 5.0
BESIDE = "chat_beside"
REPLICA, LEDGER = ROLES["replica"], ROLES["ledger"]


class Losses:
    """Probes ask the head, and one other machine, which answers chats while the head is away; not what is lost itself."""

    def __init__(self, fleet: Fleet, server: JoinedServer, work: Work, variables: dict[str, str], seed: int) -> None:
        self.fleet, self.server, self.work, self._variables, self._random = fleet, server, work, variables, Random(seed)
        self._beside = fleet.machines[1]
        beside = f"http://{self._beside.address}:{server.port}"
        self.probes = {"api": Probe(server.url, False), "chat": Probe(server.url, True), BESIDE: Probe(beside, True)}
        self.found: list[dict[str, Any]] = []

    def play(self, count: int) -> str | None:
        """Lose ``count`` machines, then wait until every job has ended.

        Returns why the cluster did not come back or a job did not end; None where all went well.
        """
        try:
            self.go_on(count)
            self.work.finish()
        except (TimeoutError, HarvesterError) as error:
            if self.found and "streams" in self.found[-1]:
                self._close(0.0)
            return str(error)
        return None

    def go_on(self, count: int) -> None:
        kinds: list[str] = []
        self.calm()
        for _ in range(count):
            kinds = kinds or self._random.sample(KINDS, len(KINDS))
            self._lose(kinds.pop())
            self.calm()
            self._close()

    def _lose(self, kind: str) -> None:
        machine = self.fleet.head if kind == "head_killed" else self._random.choice(self.fleet.machines[1:])
        asked = self._beside if machine is self.fleet.head else self.fleet.head
        streams = [Stream(f"http://{asked.address}:{self.server.port}", STREAM_TOKENS) for _ in range(STREAMS)]
        for stream in streams:
            stream.begun()
        theirs = {process.pid for process in machine.find(REPLICA)}
        ledger_there = bool(machine.find(LEDGER))
        began_s = time.monotonic()
        if kind == "cut_off":
            machine.unplug()
        machine.kill()
        if machine is self.fleet.head:
            time.sleep(AWAY_S)
            machine.forget_cluster()
            machine.start_node(1, variables=self._variables)
            self.server.start_again()
        else:
            machine.run("rm", "-rf", str(self.server.state))
            if kind == "cut_off":
                time.sleep(OFF_S)
                machine.plug_in()
            self.fleet.join(machine)
        self.found.append(
            {"kind": kind, "machine": machine.name, "ledger_there": ledger_there, "began_s": began_s, "streams": streams, "theirs": theirs}
        )

    def _close(self, wait_s: float = READY_S) -> None:
        """What the last loss has cost, once all is well again, or will not be. ``wait_s``: for the end of each stream."""
        last = self.found[-1]
        began_s, streams, theirs = last.pop("began_s"), last.pop("streams"), last.pop("theirs")
        for stream in streams:
            stream.join(wait_s)
        others = [stream for stream in streams if stream.replica not in theirs]
        asked = {name: probe for name, probe in self.probes.items() if name != BESIDE or last["machine"] != self._beside.name}
        own = [stream.ended_s - began_s for stream in streams if stream.replica in theirs and stream.ended_s is not None]
        last |= {
            "shut_s": {name: round(probe.longest_s(began_s), 2) for name, probe in asked.items()},
            "asked": {name: probe.counted(began_s) for name, probe in asked.items()},
            "streams_of_others": len(others),
            "streams_of_others_cut": sum(not stream.whole for stream in others),
            "own_streams_told_after_s": round(max(own), 1) if own else None,
        }

    def calm(self) -> None:
        """Wait some seconds, and until jobs and chats are answered and each machine has a replica again. Adds work if none is left."""
        wait_calm(lambda: are_open(self.probes.values()) and len(set(self.fleet.where(REPLICA))) == MACHINES)
        self.work.keep_up()


def run(options: Options) -> dict[str, Any]:
    reason = why_not()
    if reason is not None:
        raise UsageError(f"fleet: {reason}")
    count = QUICK_KILLS if options.quick else KILLS
    with _losses(options.seed) as losses:
        for probe in losses.probes.values():
            probe.start()
        try:
            not_back = losses.play(count)
        finally:
            for probe in losses.probes.values():
                probe.end()
        rows = losses.work.rows()
    return {
        "systems": {"harvester": {"machines_lost": len(losses.found), "rows": rows, "by_kind": by_kind(losses.found)}},
        "losses": losses.found,
        "not_back": not_back,
        "goals": goals(rows, losses.found, not_back),
    }


@contextmanager
def _losses(seed: int) -> Iterator[Losses]:
    volume = Path(tempfile.mkdtemp(prefix="fleet-", dir="/tmp"))  # of the head: its state folder, and the tables of Ray's GCS
    variables = CREDENTIALS | lasting(volume / "gcs")
    (volume / "gcs").mkdir()
    os.environ.update(CREDENTIALS)
    try:
        with (
            postgres() as database,
            Fleet(MACHINES, [database.folder], variables=variables, of_head=[volume]) as fleet,
            fleet.head.inside(),
            s3_server(fleet.head.address) as s3,
        ):
            config = {"storage": f"{s3.bucket('jobs')}/harvester{s3.options}", "ledger": database.new(), "harvest": HARVEST}
            with JoinedServer(fleet, volume / "state", delay_s=DELAY_S, replicas=MACHINES, **config) as server:
                yield Losses(fleet, server, Work(server, volume, ROWS, is_far=True), variables, seed)
    except NoPostgres as error:
        raise UsageError(f"fleet: {error}") from error
    finally:
        shutil.rmtree(volume, ignore_errors=True)


def by_kind(losses: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """How many, how long shut at the longest, streams of other machines that were cut, and how late clients of its own streams knew."""
    found = {}
    for kind in KINDS:
        ours = [loss for loss in losses if loss["kind"] == kind]
        if ours:
            names = sorted({name for loss in ours for name in loss["asked"]})
            by_probe = {name: [loss for loss in ours if name in loss["asked"]] for name in names}
            told = [loss["own_streams_told_after_s"] for loss in ours if loss["own_streams_told_after_s"] is not None]
            found[kind] = {
                "count": len(ours),
                "with_the_ledger": sum(loss["ledger_there"] for loss in ours),
                "longest_shut_s": {name: max(loss["shut_s"][name] for loss in those) for name, those in by_probe.items()},
                "failed": {name: sum(loss["asked"][name]["failed"] for loss in those) for name, those in by_probe.items()},
                "answered": {name: sum(loss["asked"][name]["answered"] for loss in those) for name, those in by_probe.items()},
                "streams_of_others": sum(loss["streams_of_others"] for loss in ours),
                "streams_of_others_cut": sum(loss["streams_of_others_cut"] for loss in ours),
                "own_streams_told_after_s": max(told, default=None),
            }
    return found


def goals(rows: dict[str, Any], losses: list[dict[str, Any]], not_back: str | None = None) -> dict[str, dict[str, Any]]:
    """``not_back``: why the cluster did not come back, or a job did not end."""
    wrong = {kind: rows[kind] for kind in ("lost", "unfinished", "twice", "wrong", "errors", "unknown_jobs")}
    told = by_kind(losses)
    shut = {
        f"{name}_shut_s_worker": max(told[kind]["longest_shut_s"][name] for kind in KINDS[:2] if kind in told)
        for name in ("api", "chat")
        if set(KINDS[:2]) & set(told)
    }
    if KINDS[2] in told:
        shut |= {f"{name}_shut_s_head": told[KINDS[2]]["longest_shut_s"][name] for name in ("api", BESIDE)}
    cut = sum(kind["streams_of_others_cut"] for kind in told.values())
    return {
        "came_back": {"goal": True, "measured": not_back is None, "met": not_back is None},
        "machines_lost": {"goal": KILLS, "measured": len(losses), "met": len(losses) >= KILLS},
        **{f"rows_{kind}": {"goal": 0, "measured": count, "met": count == 0} for kind, count in wrong.items()},
        "streams_of_others_cut": {"goal": 0, "measured": cut, "met": cut == 0},
        **{name: {"goal": GOAL_SHUT_S, "measured": seconds, "met": seconds <= GOAL_SHUT_S} for name, seconds in shut.items()},
    }
