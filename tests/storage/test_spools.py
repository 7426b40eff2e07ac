"""The spools of a slice that a retry computes again: on another machine too it takes over the answers, and then all of them go."""

from __future__ import annotations

from pathlib import Path

from jobs.result import Row
from jobs.run.spool.spools import Spools
from jobs.spec import Lease
from jobs.storage.folder import StateFolder
from jobs.storage.mirror import Mirror
from jobs.testing import scripted_plan
from jobs.usage import NONE_USED


def row(row_id: int, status: str) -> Row:
    return Row(row_id, {"output": "yes"}, "ok" if status == "ok" else "error", None, None, "stop", NONE_USED, 1, 1.0, False, 1.0)


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
