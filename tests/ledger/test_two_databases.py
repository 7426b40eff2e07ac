"""Two servers, each with its own database of one PostgreSQL: one that starts again leaves the other alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from connectors.errors import StorageError
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import PostgresPlace
from jobs.testing import scripted_plan
from tools.postgres import Postgres

OPTIONS: dict[str, Any] = {"lease_s": 60.0, "now_s": 0.0, "new_server": True}


def own_database(database: Postgres, role: str) -> str:
    address = database.new()
    name = address.split("@/")[1].split("?")[0]
    with psycopg.connect(database.address("postgres"), autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN".encode())
        db.execute(f"ALTER DATABASE {name} OWNER TO {role}".encode())
    return address.replace("harvester@", f"{role}@")


@pytest.mark.parametrize("roles", [False, True], ids=["one role", "a role each"])
def test_a_takeover_ends_no_connection_to_another_database(database: Postgres, tmp_path: Path, roles: bool) -> None:
    urls = [own_database(database, name) if roles else database.new() for name in ("own_a", "own_b")]
    ours, theirs = (PostgresPlace(url, f"folder-{number}") for number, url in enumerate(urls))
    other = Ledger(theirs, tmp_path, **OPTIONS)
    old = Ledger(ours, tmp_path, **OPTIONS)
    new = Ledger(ours, tmp_path, **OPTIONS)  # takes over from the old one, which hangs
    with pytest.raises(StorageError):
        old.submit(scripted_plan("docs", 8, 4), new=True)
    for ledger in (other, new):
        view, created = ledger.submit(scripted_plan("docs", 8, 4), new=True)
        assert (view.id, created) == ("docs", True)
        ledger.close()
    old._book.store.close()
