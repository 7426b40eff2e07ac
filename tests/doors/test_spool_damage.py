"""A job whose spools have each lost a bit: every row ends as it would have, and none with an answer that nobody gave."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from jobs.run.spool.records import Spool
from jobs.spec import JobPlan
from jobs.states import JobState
from jobs.storage.folder import StateFolder
from jobs.testing import ManualClock
from tests.fakes.scripted_job import SLICE_ROWS, SPOOLED, harvest, opened, planned, results, spooled_row

SPOOLED_ROWS = 5  # of each slice: finished by a holder that died; the next one was begun
SEED = 20


def flip_a_bit_of_each_spool(folder: StateFolder, plan: JobPlan, chance: random.Random) -> None:
    for cut in plan.slices:
        spool = Spool(folder.spool(plan.spec.id, cut.slice_id, 0))
        for row_id in range(cut.row_start, cut.row_start + SPOOLED_ROWS):
            spool.begin(row_id)
            spool.finish(spooled_row(row_id))
        spool.begin(cut.row_start + SPOOLED_ROWS)
        spool.close()
        data = bytearray(spool.path.read_bytes())
        bit = chance.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        spool.path.write_bytes(data)


@pytest.mark.parametrize("trials", [300, pytest.param(3000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
async def test_a_flipped_bit_in_a_spool_costs_rows_a_recomputation_and_nothing_else(tmp_path: Path, trials: int) -> None:
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    plan = planned(tmp_path, trials, clock)
    flip_a_bit_of_each_spool(folder, plan, random.Random(SEED))
    ledger = opened(Path(":memory:"), folder, clock)
    ledger.submit(plan, new=True)
    await harvest(ledger, folder, clock)
    view = ledger.show(plan.spec.id)
    assert (view.state, view.message) == (JobState.COMPLETED, None)
    assert (view.rows_ok, view.rows_error) == (trials * SLICE_ROWS, 0)
    ledger.check()
    ledger.close()
    found = results(folder, plan.spec.id)
    assert [row["row_id"] for row in found] == list(range(trials * SLICE_ROWS))
    again = 0
    for row in found:
        told = (row["output"], row["prompt_tokens"], row["output_tokens"], row["latency_ms"])
        if told != (f"spooled {row['row_id']}", SPOOLED.prompt_tokens, SPOOLED.output_tokens, 1.5):
            assert (row["output"], row["latency_ms"]) == (f"text {row['row_id']}", 0.0)
            assert row["prompt_tokens"] < SPOOLED.prompt_tokens
            again += row["row_id"] % SLICE_ROWS < SPOOLED_ROWS
    assert again <= 2 * trials, "a bit damages one record, or the two that it joins"
