"""Jobs on a LoRA adapter: what names one, which are refused, and what the engine is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.open import open_source
from jobs.config import HarvestConfig
from jobs.engine import Prompt, RowRequest
from jobs.errors import TaskError
from jobs.plan.job import plan_job
from jobs.run.row import RowWork
from jobs.spec import JobPlan, JobRequest, SourceSpec
from jobs.tasks.abilities import Abilities
from jobs.tasks.load import resolve_task
from jobs.testing import ManualClock, ScriptedEngine, scripted_plan


def planned(folder: Path, adapters: Sequence[str] | None, **asked: Any) -> JobPlan:
    path = folder / "docs.parquet"
    pq.write_table(pa.table({"text": ["a", "b"]}), path)
    request = JobRequest(source=SourceSpec(uri=str(path)), **asked)
    able = Abilities(adapters=None if adapters is None else tuple(adapters))
    with open_source(str(path), snapshot_dir=folder / "snapshot") as source:
        return plan_job(request, source, model="m", harvest=HarvestConfig(), now_s=0.0, token="0000", able=able)


REFUSED = {
    "none": (
        [],
        "m is served without adapters, so task summarize cannot run on polit; name it under adapters in the server's config, "
        "or leave --adapter out",
    ),
    "another": (["polite", "terse"], "m has no adapter 'polit'; did you mean polite?"),
}


@pytest.mark.parametrize(("adapters", "message"), REFUSED.values(), ids=REFUSED)
def test_an_adapter_that_the_server_does_not_have_is_refused(tmp_path: Path, adapters: list[str], message: str) -> None:
    with pytest.raises(TaskError) as refused:
        planned(tmp_path, adapters, adapter="polit")
    assert refused.value.message == message


@pytest.mark.parametrize("adapters", [["polite"], None])
def test_one_that_it_has_or_that_nobody_knows_of_is_taken(tmp_path: Path, adapters: list[str] | None) -> None:
    assert planned(tmp_path, adapters, adapter="polite").spec.task.adapter == "polite"


def test_an_adapter_makes_another_job_and_none_leaves_the_task_as_it_was(tmp_path: Path) -> None:
    keys = {planned(tmp_path, None, adapter=name).spec.key for name in (None, "polite", "terse")}
    assert len(keys) == 3
    assert "adapter" not in resolve_task("summarize").key_fields()


def test_the_adapter_of_a_request_stands_in_the_place_of_the_task_file_s() -> None:
    inline = {"prompt": "{text}", "adapter": "polite"}
    assert resolve_task("mine", inline=inline).adapter == "polite"
    assert resolve_task("mine", inline=inline, adapter="terse").adapter == "terse"


@pytest.mark.parametrize("name", [None, "polite"])
def test_every_request_of_a_row_names_the_adapter(name: str | None) -> None:
    """Also the second question, after an answer that is out of shape."""
    asked: list[str | None] = []

    def hear(request: RowRequest) -> None:
        assert isinstance(request.content, Prompt)
        asked.append(request.content.adapter)

    task = resolve_task("classify", options={"labels": ["a", "b"]}, adapter=name)
    job = scripted_plan("docs").spec.model_copy(update={"task": task})
    work = RowWork(job, ScriptedEngine(answer=lambda prompt: "neither", hear=hear), ManualClock())
    row = asyncio.run(work.answer(0, {"text": "x"}, "x", 1, "one"))
    assert row.status == "error"
    assert asked == [name, name]
