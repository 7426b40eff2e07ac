"""kill -9 of every part of a real server at random moments: each input row ends in the results exactly once."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pytest

from tests.real_server import RealServer, ids

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]
ROWS = 160
SPEECHES = Path(__file__).parents[2] / "examples" / "docs_speeches.parquet"
CONFIG = Path(__file__).parent / "slow.yaml"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "pieces.parquet"
    duckdb.sql(f"""COPY (SELECT i AS piece, title, substr(text, 1 + 200 * i, 200) AS text FROM '{SPEECHES}', range(2) t(i) LIMIT {ROWS})
                   TO '{path}' (ROW_GROUP_SIZE 2048)""")
    return path


@pytest.mark.parametrize("seed", [1, 2])
def test_every_row_is_in_the_results_once_whatever_is_killed(tmp_path: Path, table: Path, seed: int) -> None:
    chance = random.Random(seed)
    order = ["worker", "engine core", "replica", "ledger", "everything"]
    chance.shuffle(order)
    state = tmp_path / "state"
    server = RealServer(state, CONFIG)
    with server:
        job = server.submit(source={"uri": str(table)}, task="summarize", column="text", max_tokens=256)["id"]
        points = sorted(chance.sample(range(5, ROWS // 2), len(order)))
        for target, point in zip(order, points, strict=True):
            view = server.wait_rows(job, point)
            assert view["state"] in ("queued", "running"), f"the job ended before {target} could be killed at {point} rows: {view}"
            if target == "everything":
                server.kill()
                server.start()
            else:
                server.kill_one(target)
            seen = ids(state, job)
            assert len(seen) == len(set(seen)), f"rows twice after killing {target}"
        view = server.wait_rows(job, ROWS + 1)
        assert view["state"] == "completed", view
        assert ids(state, job) == list(range(ROWS))
        assert (view["rows_ok"], view["rows_error"]) == (ROWS, 0)
        assert 0 < view["rows_recomputed"] < ROWS, "rows in flight were lost five times, finished ones never"
    assert not list(state.glob("jobs/*/results/.*")), "no temporary file is left"
