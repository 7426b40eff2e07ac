"""A ledger in a database under a real Ray: its actor needs no state folder, and goes on after what can happen to either."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.postgres import Postgres

pytestmark = pytest.mark.serve


def test_the_actor_goes_on_after_its_death_and_the_databases_and_stops_for_another_owner(tmp_path: Path, database: Postgres) -> None:
    program = [sys.executable, "-m", "tests.serve.ledger_in_database", database.new(), str(tmp_path / "none")]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def told() -> Any:
            return json.loads(process.stdout.readline())  # type: ignore[union-attr]

        def go_on() -> None:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]

        try:
            assert told() == {"after_kill": True}
            go_on()
            assert told() == {"restart": True}
            database.stop()
            database.start()
            go_on()
            assert told()["broken"].endswith("it is opened again")
            go_on()
            assert told() == {"after_restart": True, "rows_ok": 6}
            go_on()
            assert told() == {"other": True, "lasts": True}, "leases go on, and new ones are of the new configuration"
            database.stop()
            go_on()
            assert "does not answer" in told()["away"], "with another configuration again, while the database is away"
            database.start()
            go_on()
            assert told() == {"error": None, "held": True}, "the ledger that could not open has taken the leases over"
            go_on()
            taken_over = told()["taken_over"]
            assert len(taken_over) == 2
            assert all("another server has taken over the ledger" in line for line in taken_over)
            go_on()
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert not (tmp_path / "none").exists()
