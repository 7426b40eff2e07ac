"""A database that nobody reaches for a while, and one behind a pooler that shares its sessions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from connectors.errors import StorageError
from jobs.errors import ReopenError
from jobs.ledger.ledger import Ledger
from jobs.ledger.store import postgres
from jobs.ledger.store.place import PostgresPlace
from jobs.testing import ManualClock, scripted_plan
from tools.postgres import Postgres

CONNECT_S = 10.0


def test_a_database_that_nobody_reaches_makes_one_caller_wait_and_not_each(
    database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(PostgresPlace(database.new(), "folder-1"), tmp_path, lease_s=60.0, now_s=0.0, new_server=True)
    ledger.submit(scripted_plan("docs-1", 12, 3), new=True)
    store: Any = ledger._book.store
    clock, waits = ManualClock(), 0

    def dropped(*_: object, **__: object) -> None:
        nonlocal waits
        waits += 1
        clock.advance(CONNECT_S)
        raise psycopg.OperationalError("connection timeout expired")

    def lease() -> None:
        ledger.lease("a", "scripted", 1.0)

    monkeypatch.setattr(postgres, "time", SimpleNamespace(monotonic=clock), raising=False)
    store._db.close()
    with monkeypatch.context() as network:
        network.setattr(psycopg, "connect", dropped)
        for _ in range(20):
            with pytest.raises(StorageError, match="does not answer: "):
                lease()
        assert waits == 1
        assert [view.id for view in ledger.jobs()] == ["docs-1"], "what is in memory is told"
        clock.advance(CONNECT_S)
        for _ in range(20):
            with pytest.raises(StorageError, match="does not answer: "):
                lease()
        assert waits == 2
    clock.advance(CONNECT_S)
    with pytest.raises(ReopenError, match="it is opened again"):
        lease()
    ledger.close()


class Pooled:
    """A connection through a pooler that runs each statement in whichever session of ``pids`` is next."""

    def __init__(self, pids: Iterator[int]) -> None:
        self._pids = pids

    def execute(self, statement: object, values: object = ()) -> SimpleNamespace:
        return SimpleNamespace(fetchone=lambda: (next(self._pids),))

    def close(self) -> None:
        return


@pytest.mark.parametrize("pids", [repeat(7), count(7)], ids=["one session for two connections", "another session each time"])
def test_a_pooler_that_shares_its_sessions_is_refused(monkeypatch: pytest.MonkeyPatch, pids: Iterator[int]) -> None:
    monkeypatch.setattr(postgres, "_connected", lambda url, name: Pooled(pids))
    with pytest.raises(StorageError, match=r"^a pooler before the ledger db shares its sessions; set its pool_mode to session"):
        postgres.PostgresStore("postgresql://db", "folder-1", "db")


def test_a_database_that_gives_no_second_connection_is_opened_all_the_same(
    database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, given = postgres._connected, 0

    def only_one(url: str, name: str) -> Any:
        nonlocal given
        given += 1
        if given > 1:
            raise StorageError("too many connections")
        return connected(url, name)

    monkeypatch.setattr(postgres, "_connected", only_one)
    ledger = Ledger(PostgresPlace(database.new(), "folder-1"), tmp_path, lease_s=60.0, now_s=0.0, new_server=True)
    assert ledger.submit(scripted_plan("docs-1"), new=True)[1]
    ledger.close()
