"""kill -9 of every part of a real server at random moments: each input row ends in the results exactly once, with its own right answer."""

from __future__ import annotations

import random
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harvester.engine.embedded.answers import lead
from tests.real_server import RealServer, ids

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1800)]
TARGETS = ("worker", "replica", "ledger", "engine core", "everything")
SEED = 1  # `python -m bench soak` tries others, for as long as one likes
SEEN = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbor", "indigo", "jasper", "kelp", "lagoon", "maple", "quartz")
CONFIG = Path(__file__).parent / "slow.yaml"


def telling(row: int) -> str:
    """A text with a long lead that no other row has."""
    chance = random.Random(row)
    seen = ", ".join(f"{chance.choice(SEEN)} {chance.randrange(1000)}" for _ in range(24))
    return f"Row {row} saw {seen}. Nobody saw more. {' '.join(chance.choices(SEEN, k=20))}."


def answers(state: Path) -> dict[int, str]:
    found = duckdb.execute(f"SELECT row_id, output FROM read_parquet('{state}/jobs/*/results/part-*.parquet')").fetchall()
    return {int(row): str(output) for row, output in found}


@pytest.mark.parametrize(
    ("targets", "rows"), [(TARGETS[-2:], 56), pytest.param(TARGETS, 160, marks=pytest.mark.long)], ids=["two kills", "five kills"]
)
def test_every_row_is_in_the_results_once_whatever_is_killed(tmp_path: Path, targets: tuple[str, ...], rows: int) -> None:
    chance, table = random.Random(SEED), tmp_path / "rows.parquet"
    pq.write_table(pa.table({"text": [telling(row) for row in range(rows)]}), table, row_group_size=2048)
    order = chance.sample(targets, len(targets))
    state = tmp_path / "state"
    server = RealServer(state, CONFIG)
    with server:
        job = server.submit(source={"uri": str(table)}, task="summarize", column="text", max_tokens=256)["id"]
        points = sorted(chance.sample(range(5, rows // 2), len(order)))
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
        view = server.wait_rows(job, rows + 1)
        assert view["state"] == "completed", view
        assert ids(state, job) == list(range(rows))
        assert (view["rows_ok"], view["rows_error"]) == (rows, 0)
        wrong = {row: output for row, output in answers(state).items() if output != lead(telling(row))}
        assert wrong == {}, f"{len(wrong)} rows do not have their own answer"
        assert 0 < view["rows_recomputed"] < rows, "rows in flight were lost by each kill, finished ones never"
    assert not list(state.glob("jobs/*/results/.*")), "no temporary file is left"
