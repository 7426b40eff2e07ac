"""An answer that a task does not take, with the reason in full; and the job that a batch's requests become."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.durable import publish
from connectors.text import storable
from harvester.errors import StorageError
from jobs.access.limits import Limits
from jobs.batches.files import FileStore, new_file_id
from jobs.batches.input import BODY, CUSTOM_ID, InvalidInput, Stopped
from jobs.batches.plan import TASK, BatchPlanner
from jobs.batches.record import BatchError, BatchRecord, BatchWish
from jobs.config import BatchConfig, HarvestConfig
from jobs.engine import RowError
from jobs.spec import JobSpec, SourceSpec
from jobs.storage.folder import StateFolder
from jobs.tasks.answer import parse_answer, result_fields
from jobs.tasks.load import resolve_task
from jobs.testing import ManualClock

LABELS = resolve_task("classify", options={"labels": "red,blue"})
TOTALS = resolve_task(
    "extract",
    options={
        "schema": {
            "type": "object",
            "properties": {"total": {"type": "integer"}, "lines": {"type": "array", "items": {"type": "object", "properties": {"n": {}}}}},
            "required": ["total"],
        }
    },
    max_tokens=64,
)


@pytest.mark.parametrize(
    ("answer", "ended", "code", "says"),
    [
        ("green", "stop", "not_a_label", "the answer is 'green', not one of: red, blue"),
        ("r", "length", "cut_off", "the answer was cut off at max_tokens=64; raise it: ...r"),
        ("red " + "x" * 200, "stop", "not_a_label", f"the answer is {'red ' + 'x' * 113 + '...'!r}, not one of: red, blue"),
    ],
)
def test_an_answer_that_is_no_label(answer: str, ended: str, code: str, says: str) -> None:
    task = LABELS.model_copy(update={"max_tokens": 64})
    with pytest.raises(RowError) as caught:
        parse_answer(task, answer, ended)
    assert (caught.value.code, caught.value.message) == (code, says)
    assert parse_answer(task, " blue\n", ended) == {"output": "blue"}


@pytest.mark.parametrize(
    ("answer", "ended", "code", "says"),
    [
        ("no", "stop", "bad_json", "the answer is not JSON (Expecting value: line 1 column 1 (char 0)): no"),
        ('{"total": NaN}', "stop", "bad_json", 'the answer is not JSON (NaN is not a JSON value): {"total": NaN}'),
        ('{"total": ' + " " * 100 + "1", "length", "cut_off", "the answer was cut off at max_tokens=64; raise it: ...1"),
        ('{"total": "x"}', "stop", "schema_mismatch", "the answer does not follow the schema at total: 'x' is not of type 'integer'"),
        ("{}", "stop", "schema_mismatch", "the answer does not follow the schema: 'total' is a required property"),
        (
            '{"total": 1, "lines": [{}, 7]}',
            "stop",
            "schema_mismatch",
            "the answer does not follow the schema at lines.1: 7 is not of type 'object'",
        ),
        (
            '{"total": 9223372036854775808}',
            "stop",
            "schema_mismatch",
            "the answer contains a number that fits no column: 9223372036854775808 is outside the range of int64",
        ),
    ],
    ids=["no JSON", "NaN", "cut off", "type", "missing", "within", "too large"],
)
def test_an_answer_that_is_not_of_the_schema(answer: str, ended: str, code: str, says: str) -> None:
    with pytest.raises(RowError) as caught:
        parse_answer(TOTALS, answer, ended)
    assert (caught.value.code, caught.value.message) == (code, says)


def test_an_answer_of_the_schema_gives_its_columns() -> None:
    assert result_fields(TOTALS) == [pa.field("total", pa.int64()), pa.field("lines", pa.list_(pa.struct([("n", pa.string())])))]
    value = parse_answer(TOTALS, '{"total": 3.0, "lines": [{"n": {"a": "ä"}, "m": 1}, {}]}', "length")
    assert value == {"total": 3, "lines": [{"n": '{"a": "ä"}'}, {"n": None}]}
    assert parse_answer(TOTALS, '{"total": -9223372036854775808}', "stop") == {"total": -(2**63), "lines": None}
    assert storable("a\ud800b") == "a\ufffdb"
    assert storable("\ud83d\ude00") == "😀"


# -- a batch as a job -----------------------------------------------------------------------------------------------------------------


class Desk:
    """Files, a state folder and a planner over both."""

    def __init__(self, root: Path) -> None:
        self.folder = StateFolder(root)
        self.folder.prepare()
        self.folder.files.mkdir()
        self.clock = ManualClock(50.0)
        self.files = FileStore(self.folder.files, self.clock)
        self.planner = BatchPlanner(self.folder, self.files, BatchConfig(), HarvestConfig(), "served")

    def upload(self, *lines: dict[str, Any]) -> str:
        file_id = new_file_id()
        with publish(self.files.content(file_id)) as file:
            file.write(b"\n".join(json.dumps(line).encode() for line in lines))
        return self.files.enter(file_id, "in.jsonl", "batch", 1000).id

    def batch(self, *lines: dict[str, Any]) -> BatchRecord:
        wish = BatchWish(input_file_id=self.upload(*lines), endpoint="/v1/completions", completion_window="1h")
        return BatchRecord.of(wish, self.clock(), limits=Limits(max_tokens=9))


def request(name: str) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {"model": "tiny"}}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_requests_of_a_batch_are_the_rows_of_a_job_of_its_name(desk: Desk) -> None:
    record = desk.batch(request("a"), request("b"))
    plan, model = desk.planner.plan(record, ["tiny"], lambda: False)
    assert plan.spec == JobSpec(
        id=record.id,
        key=record.id,
        source=SourceSpec(uri=str(desk.planner.rows(record.id))),
        fingerprint=plan.spec.fingerprint,
        task=TASK,
        column=BODY,
        keep=(CUSTOM_ID,),
        model="served",
        rows_total=2,
        created_at_s=50.0,
        endpoint="/v1/completions",
        max_tokens=9,
        deadline_at_s=3650.0,
    )
    assert (model, [one.row_count for one in plan.slices], desk.planner.has_rows(record.id)) == ("tiny", [2], True)
    assert [path.name for path in desk.folder.jobs.iterdir()] == [record.id], "nothing is left beside it"
    for _ in range(2):
        desk.planner.forget(record.id)
        assert (desk.planner.has_rows(record.id), list(desk.folder.jobs.iterdir())) == (False, [])


def test_a_batch_whose_results_are_there_loses_its_requests_only(desk: Desk) -> None:
    record = desk.batch(request("a"))
    desk.planner.plan(record, ["tiny"], lambda: False)
    desk.folder.results(record.id).mkdir()
    desk.planner.forget(record.id)
    assert (desk.planner.has_rows(record.id), desk.folder.results(record.id).is_dir()) == (False, True)


def test_an_input_that_is_wrong_gone_or_too_late_leaves_nothing(desk: Desk) -> None:
    wrong = desk.batch(request("a"), request("a"))
    with pytest.raises(InvalidInput):
        desk.planner.plan(wrong, ["tiny"], lambda: False)
    with pytest.raises(Stopped):
        desk.planner.plan(desk.batch(*[request(str(i)) for i in range(1100)]), ["tiny"], lambda: True)
    gone = desk.batch(request("a"))
    desk.files.delete(gone.wish.input_file_id)
    with pytest.raises(InvalidInput) as caught:
        desk.planner.plan(gone, ["tiny"], lambda: False)
    message = f"The input file {gone.wish.input_file_id} was deleted before it was read; upload it again and make a new batch."
    assert caught.value.errors == (BatchError(code="file_not_found", message=message, param="input_file_id"),)
    assert list(desk.folder.jobs.iterdir()) == []


def test_rows_that_cannot_be_put_in_their_place_name_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    record = desk.batch(request("a"))

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(StorageError, match=rf"cannot write {desk.folder.jobs}/\.staging-{record.id}: no space left on device"):
        desk.planner.plan(record, ["tiny"], lambda: False)


def test_a_batch_is_spent_once_its_input_or_all_that_was_made_of_it_is_gone(desk: Desk) -> None:
    output, errors = desk.upload(), desk.upload()
    record = desk.batch(request("a"))
    made = record.model_copy(update={"output_file_id": output, "error_file_id": errors})
    assert desk.planner.spent([record]) == set(), "nothing was made yet"
    desk.files.delete(output)
    assert desk.planner.spent([made]) == set()
    desk.files.delete(errors)
    assert desk.planner.spent([made]) == {made.id}
    desk.files.delete(record.wish.input_file_id)
    assert desk.planner.spent([record]) == {record.id}


def test_an_input_that_is_damaged_was_not_let_go(desk: Desk) -> None:
    record = desk.batch(request("a"))
    (desk.folder.files / f"{record.wish.input_file_id}.json").write_text("{")
    fresh = BatchPlanner(desk.folder, FileStore(desk.folder.files, desk.clock), BatchConfig(), HarvestConfig(), "served")
    assert fresh.spent([record]) == set()
