"""What a real server reads for a client, and where its SQL runs."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from harvester.serve.processes import marked
from tests.real_server import RealServer, line_of

pytestmark = pytest.mark.serve
WAIT_S = 300.0


def test_a_client_that_is_not_its_user_makes_it_read_no_other_file(server: RealServer, tmp_path: Path) -> None:
    (tmp_path / "passwd.txt").symlink_to("/etc/passwd")
    for uri in (
        "/etc/hosts",
        "/proc/self/environ",
        str(tmp_path / "passwd.txt"),
        str(server.state / "user.key"),
        f"{server.url}/docs.jsonl",
    ):
        answer = httpx.post(f"{server.url}/api/jobs", json={"source": {"uri": uri}}, timeout=WAIT_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_source"), uri


def test_hostile_sql_is_refused_in_a_process_of_its_own(server: RealServer) -> None:
    def ask(query: str) -> httpx.Response:
        return httpx.post(f"{server.url}/api/sql", json={"query": query}, timeout=WAIT_S)

    assert ask("select 1 as a").json() == {"columns": [{"name": "a", "type": "int32"}], "rows": [[1]], "is_cut": False}
    assert ask("select " + "(" * 3000).status_code == 400
    assert ask("with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t").status_code == 400
    assert any("jobs.sql.forkserver" in line_of(process) for process in marked(server.mark))
    assert ask("select count(*) from jobs").status_code == 200
