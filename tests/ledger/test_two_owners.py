"""Two owners of one ledger, as processes: one that was stopped wakes, and may not write any more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connectors.errors import StorageError
from jobs.errors import OwnerError, ReopenError
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import Place, PostgresPlace, open_store
from jobs.spec import Lease, PartStats
from jobs.testing import scripted_plan
from tools.postgres import Postgres

OWNER = """
import json, sys
from pathlib import Path
from typing import Any
from harvester.errors import HarvesterError
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import PostgresPlace
from jobs.spec import PartStats

place = Path(sys.argv[1]) if len(sys.argv) == 3 else PostgresPlace(sys.argv[1], sys.argv[3])
ledger = Ledger(place, Path(sys.argv[2]), lease_s=60.0, now_s=0.0, new_server=True)
lease = ledger.lease("old", "scripted", 0.0)
print(json.dumps(lease.slice.slice_id), flush=True)
for line in sys.stdin:
    try:
        if line == "commit\\n":
            ledger.commit(lease.lease_id, lease.job.id, lease.slice.slice_id, PartStats(rows_ok=3), 1.0)
        else:
            ledger.lease("old", "scripted", 1.0)
        print(json.dumps(None), flush=True)
    except HarvesterError as error:
        print(json.dumps([type(error).__name__, error.message]), flush=True)
"""


class Owner:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, what: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.read()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def owner(place: Place, jobs: Path) -> Iterator[Owner]:
    words = [str(place), str(jobs)] if isinstance(place, Path) else [place.url, str(jobs), place.owner]
    program = [sys.executable, "-c", OWNER, *words]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            one = Owner(process)
            assert one.read() == 0
            yield one
        finally:
            process.kill()


def opened(place: Place, jobs: Path, *, new_server: bool = True) -> Ledger:
    return Ledger(place, jobs, lease_s=60.0, now_s=0.0, new_server=new_server)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return tmp_path / "ledger.sqlite"
    return PostgresPlace(request.getfixturevalue("database").new(), "folder-1")


def take(ledger: Ledger) -> Lease:
    lease = ledger.lease("new", "scripted", 0.0)
    assert lease is not None
    return lease


def test_an_owner_that_was_stopped_writes_nothing_once_another_has_taken_over(place: Place, tmp_path: Path) -> None:
    first = opened(place, tmp_path)
    first.submit(scripted_plan("docs-1", 12, 3), new=True)
    first.close()
    with owner(place, tmp_path) as old:
        old.stop()
        new = opened(place, tmp_path)
        lease = take(new)
        assert lease.slice.slice_id == 0, "freed from the old one"
        old.wake()
        for what in ("commit", "lease", "commit"):
            name, message = old.ask(what)
            assert name == "OwnerError"
            assert message.startswith("another server has taken over the ledger ")
            assert message.endswith("; this one may not write to it any more: stop it")
        assert new.commit(lease.lease_id, "docs-1", 0, PartStats(rows_ok=3), 1.0)
        assert take(new).slice.slice_id == 1
        new.check()
        assert new.show("docs-1").rows_ok == 3
        new.close()
        assert old.ask("lease")[0] == "OwnerError", "nor when nobody owns it"
    again = opened(place, tmp_path)
    again.check()
    again.close()


def test_an_owner_that_was_killed_in_its_work_leaves_what_it_had_written(place: Place, tmp_path: Path) -> None:
    first = opened(place, tmp_path)
    first.submit(scripted_plan("docs-1", 12, 3), new=True)
    first.close()
    with owner(place, tmp_path) as old:
        assert old.ask("commit") is None
        old.process.kill()
        old.process.wait()
        new = opened(place, tmp_path)
        assert (new.show("docs-1").rows_ok, take(new).slice.slice_id) == (3, 1)
        new.check()
        new.close()


def test_the_server_of_another_folder_is_refused_while_one_is_connected(database: Postgres, tmp_path: Path) -> None:
    url = database.new()
    first = opened(PostgresPlace(url, "folder-1"), tmp_path)
    with pytest.raises(StorageError, match="is in use by the server of another state folder; stop that one, or give each its own database"):
        opened(PostgresPlace(url, "folder-2"), tmp_path)
    first.submit(scripted_plan("docs-1"), new=True)
    first.close()
    second = opened(PostgresPlace(url, "folder-2"), tmp_path)
    assert [view.id for view in second.jobs()] == ["docs-1"]
    second.close()


def test_who_opens_the_ledger_again_takes_it_from_nobody_who_opened_it_since(database: Postgres, tmp_path: Path) -> None:
    place = PostgresPlace(database.new(), "folder-1", "first")
    first = opened(place, tmp_path)
    first.close()
    again = opened(replace(place, reopens=True), tmp_path)  # its connection broke
    second = opened(replace(place, opener="second"), tmp_path)  # Ray gave it up, and started it elsewhere
    with pytest.raises(OwnerError, match="another server has taken over the ledger"):
        again.submit(scripted_plan("docs-1"), new=True)
    again.close()
    with pytest.raises(OwnerError, match="another server has taken over the ledger"):
        opened(replace(place, reopens=True), tmp_path)
    second.submit(scripted_plan("docs-1"), new=True)
    second.close()
    with pytest.raises(OwnerError, match="another server has taken over the ledger"):  # nor from one that will be there again
        opened(replace(place, reopens=True), tmp_path)


def test_a_raised_epoch_alone_keeps_a_connected_owner_from_writing(place: Place, tmp_path: Path) -> None:
    old, new = open_store(place), open_store(place)
    assert new.run("owned")[0][1] == 2
    with pytest.raises(OwnerError), old.transaction():
        old.run("set_message", ["lost", "docs-1"])
    new.run("set_message", ["kept", "docs-1"])
    old.close()
    new.close()


def test_a_ledger_whose_database_was_started_again_is_opened_again_with_nothing_lost(database: Postgres, tmp_path: Path) -> None:
    place = PostgresPlace(database.new(), "folder-1")
    ledger = opened(place, tmp_path)
    ledger.submit(scripted_plan("docs-1", 12, 3), new=True)
    lease = take(ledger)
    database.stop()
    with pytest.raises(StorageError, match=r"^the ledger .* does not answer: .*; check the address, the rights and the database$"):
        ledger.commit(lease.lease_id, "docs-1", 0, PartStats(rows_ok=3), 1.0)
    database.start()
    with pytest.raises(ReopenError, match="it is opened again"):
        ledger.commit(lease.lease_id, "docs-1", 0, PartStats(rows_ok=3), 1.0)
    ledger.close()
    again = opened(place, tmp_path, new_server=False)
    again.check()
    assert again.commit(lease.lease_id, "docs-1", 0, PartStats(rows_ok=3), 1.0), "its lease is in force"
    assert again.show("docs-1").rows_ok == 3
    again.check()
    again.close()
