"""The spools of a slice that a retry computes again: on another machine too it takes over the answers, and then all of them go."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.open import open_source
from jobs.result import Row, part_stats, part_table, result_schema
from jobs.run.slice import STATS_KEY, open_parts, open_slice
from jobs.run.spool.spools import Spools
from jobs.spec import Lease
from jobs.storage.folder import StateFolder, part_name
from jobs.storage.mirror import Mirror
from jobs.testing import scripted_plan
from jobs.usage import NONE_USED


def row(row_id: int, status: str, output: str = "yes") -> Row:
    return Row(row_id, {"output": output}, "ok" if status == "ok" else "error", None, None, "stop", NONE_USED, 1, 1.0, False, 1.0)


def machine(root: Path, uri: str) -> StateFolder:
    return StateFolder(root, Mirror(root, uri))


async def test_a_retry_on_another_machine_goes_on_from_the_spool_before_it(tmp_path: Path, uri: str) -> None:
    plan = scripted_plan("docs", 4)
    first = Lease(lease_id="a", job=plan.spec, slice=plan.slices[0], generation=0, attempt=1, expires_at_s=1.0)
    one, two = machine(tmp_path / "one", uri), machine(tmp_path / "two", uri)
    spools = Spools(one, 5.0)
    spool = spools.open(first)
    spool.finish(row(0, "ok"))
    spool.finish(row(1, "error"))
    await spools.close(spool, is_left=True)

    again, others = first.model_copy(update={"generation": 1}), Spools(two, 5.0)
    spool = others.open(again)
    assert list(spool.rows) == [0], "the failed row is asked again"
    await others.close(spool, is_left=True)
    await others.forget(again)
    assert not list((tmp_path / "two").rglob("slice-*"))
    assert two.mirror is not None
    assert two.mirror.names(spool.path.parent) == set()


def test_a_retry_leaves_published_answers_as_they_are(tmp_path: Path, uri: str) -> None:
    """The first machine was cut off; another one published the slice, whose last row failed; then the first one gets the retry."""
    pq.write_table(pa.table({"text": list("abcd")}), tmp_path / "in.parquet")
    source, folder, plan = open_source(str(tmp_path / "in.parquet")), machine(tmp_path / "one", uri), scripted_plan("docs", 4)
    first = Lease(lease_id="a", job=plan.spec, slice=plan.slices[0], generation=0, attempt=1, expires_at_s=1.0)
    spools = Spools(folder, 5.0)
    unheard = spools.open(first)
    for row_id in range(3):
        unheard.finish(row(row_id, "ok", "never heard"))
    spools.close_unsent(unheard)
    sink = open_parts(folder, "docs")
    rows = [row(row_id, "ok", "published") for row_id in range(3)] + [row(3, "error")]
    part = part_table(result_schema(source.schema, (), plan.spec.task), rows, None)
    sink.write(part_name(0), part, {STATS_KEY: part_stats(part, 0, 0).model_dump_json()})

    again = open_slice(first.model_copy(update={"generation": 1}), source, sink, spools)
    assert again.todo() == [3]
    again.spool.finish(row(3, "ok", "retried"))
    assert again.publish().rows_ok == 4
    assert sink.read(part_name(0)).column("output").to_pylist() == [*["published"] * 3, "retried"]
    source.close()
