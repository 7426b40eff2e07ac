"""The states of a batch, durations, pages and files, without a server."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import FileInfo

from connectors.durable import publish
from harvester.errors import NotFoundError, ParameterError, StorageError
from jobs.access.limits import Limits
from jobs.batches.files import FileStore, new_file_id
from jobs.batches.page import list_object, page
from jobs.batches.record import BatchRecord, BatchWish
from jobs.batches.states import ENDED_BATCH, BatchStatus, BatchStep, final_status, next_step
from jobs.batches.store import BatchStore
from jobs.batches.window import parse_window
from jobs.ledger.ledger import Ledger
from jobs.states import ENDED, JobState
from jobs.storage.mirror import Mirror
from jobs.testing import ManualClock, scripted_plan

OPEN = sorted(set(BatchStatus) - ENDED_BATCH)


@pytest.mark.parametrize(
    ("status", "job", "held", "step"),
    [
        (BatchStatus.VALIDATING, None, 0, BatchStep.VALIDATE),
        (BatchStatus.VALIDATING, JobState.QUEUED, 0, BatchStep.BEGIN),
        (BatchStatus.IN_PROGRESS, JobState.QUEUED, 0, BatchStep.WAIT),
        (BatchStatus.IN_PROGRESS, JobState.RUNNING, 2, BatchStep.WAIT),
        (BatchStatus.IN_PROGRESS, JobState.PAUSED, 0, BatchStep.WAIT),
        (BatchStatus.IN_PROGRESS, JobState.COMPLETED, 0, BatchStep.FINALIZE),
        (BatchStatus.IN_PROGRESS, JobState.EXPIRED, 1, BatchStep.WAIT),
        (BatchStatus.IN_PROGRESS, JobState.EXPIRED, 0, BatchStep.FINALIZE),
        (BatchStatus.IN_PROGRESS, JobState.FAILED, 0, BatchStep.FINALIZE),
        (BatchStatus.IN_PROGRESS, None, 0, BatchStep.LOSE),
        (BatchStatus.CANCELLING, None, 0, BatchStep.DROP),
        (BatchStatus.CANCELLING, JobState.RUNNING, 1, BatchStep.STOP),
        (BatchStatus.CANCELLING, JobState.CANCELLING, 1, BatchStep.WAIT),
        (BatchStatus.CANCELLING, JobState.CANCELLED, 0, BatchStep.FINALIZE),
        (BatchStatus.FINALIZING, JobState.COMPLETED, 0, BatchStep.FINALIZE),
    ],
    ids=str,
)
def test_the_next_step_follows_from_batch_and_job(status: BatchStatus, job: JobState | None, held: int, step: BatchStep) -> None:
    assert next_step(status, job, held) is step


@pytest.mark.parametrize("job", sorted(ENDED))
@pytest.mark.parametrize("status", OPEN)
def test_files_are_made_only_once_no_slice_is_leased_and_every_end_of_a_job_ends_its_batch(status: BatchStatus, job: JobState) -> None:
    assert next_step(status, job, 1) is BatchStep.WAIT
    assert next_step(status, job, 0) is BatchStep.FINALIZE
    assert final_status(status, job) in ENDED_BATCH


def test_who_cancels_gets_a_cancelled_batch_also_where_the_job_was_done_first() -> None:
    assert final_status(BatchStatus.CANCELLING, JobState.COMPLETED) is BatchStatus.CANCELLED
    assert final_status(BatchStatus.IN_PROGRESS, JobState.CANCELLED) is BatchStatus.CANCELLED


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86_400), ("90m", 5400), ("1d12h", 129_600), ("2w", 1_209_600), ("0.5s", 0.5), (" 7D ", 604_800)]
)
def test_a_window_is_any_duration(text: str, seconds: float) -> None:
    assert parse_window(text) == seconds


@pytest.mark.parametrize("text", ["", "24", "h", "1y", "-1h", "0s", "1.2.3h", "1e9h", "999999999w", "24h!", "１h"])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match="use one like 24h"):
        parse_window(text)


@given(st.text())
def test_a_window_of_any_text_is_a_time_or_refused(text: str) -> None:
    with suppress(ParameterError):
        assert parse_window(text) > 0


@dataclass(frozen=True)
class Item:
    id: str


@given(st.integers(0, 30), st.integers(1, 10))
def test_pages_give_every_item_once_and_in_order(count: int, most: int) -> None:
    items = [Item(f"i{number}") for number in range(count)]
    seen: list[Item] = []
    after, has_more = None, True
    while has_more:
        some, has_more = page(items, after, most)
        assert len(some) <= most
        seen += some
        after = seen[-1].id if seen else None
    assert seen == items


def test_an_empty_list_has_no_ends() -> None:
    assert list_object([], False) == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


WISH = BatchWish(input_file_id="file-x", endpoint="/v1/completions", completion_window="1h")


def test_records_are_found_again_and_the_time_of_a_state_is_its_first(tmp_path: Path) -> None:
    store = BatchStore(tmp_path / "batches")
    record = BatchRecord.of(WISH, 100.0)
    store.put(record)
    store.put(record.reach(BatchStatus.IN_PROGRESS, 101.0).reach(BatchStatus.FINALIZING, 102.0).reach(BatchStatus.FINALIZING, 103.0))
    (found,) = BatchStore(tmp_path / "batches").list()
    shown = found.to_openai(None)
    assert (shown["status"], shown["in_progress_at"], shown["finalizing_at"], shown["expires_at"]) == ("finalizing", 101, 102, 3700)


def test_a_batch_shows_the_counts_and_tokens_of_its_job_until_it_has_its_own() -> None:
    ledger = Ledger(Path(":memory:"), Path("/jobs"), lease_s=9.0, now_s=0.0, new_server=True)
    view = ledger.submit(scripted_plan("docs"), new=True)[0].model_copy(
        update={"rows_ok": 5, "rows_error": 2, "prompt_tokens": 70, "cached_tokens": 30, "output_tokens": 20}
    )
    record = BatchRecord.of(BatchWish(input_file_id="f", endpoint="/v1/completions", completion_window="1h"), 0.0)
    shown, none = record.to_openai(view), record.to_openai(None)
    assert shown["request_counts"] == {"total": 10, "completed": 5, "failed": 2}
    assert (shown["usage"]["input_tokens"], shown["usage"]["output_tokens"], shown["usage"]["total_tokens"]) == (70, 20, 90)
    assert shown["usage"]["input_tokens_details"] == {"cached_tokens": 30}
    assert (none["request_counts"], none["errors"]) == ({"total": 0, "completed": 0, "failed": 0}, None)
    ledger.close()


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    (tmp_path / "batch_1.json").write_text("{")
    with pytest.raises(StorageError, match=r"batch_1\.json is damaged; move it away"):
        BatchStore(tmp_path)


def test_a_record_holds_what_is_no_default_so_that_an_older_version_reads_it(tmp_path: Path) -> None:
    record = BatchRecord.of(WISH, 100.0, "ann", Limits(max_tokens=7))
    BatchStore(tmp_path).put(record)
    (path,) = tmp_path.glob("batch_*.json")
    assert json.loads(path.read_bytes())["limits"] == {"max_tokens": 7}
    assert BatchStore(tmp_path).list() == [record]


def test_a_record_of_a_newer_version_is_not_called_damaged(tmp_path: Path) -> None:
    BatchStore(tmp_path).put(BatchRecord.of(WISH, 100.0))
    (path,) = tmp_path.glob("batch_*.json")
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"later": 1, "limits": {"max_dreams": 2}}))
    told = rf"^{path} was written by a newer version of harvester, which knows limits.max_dreams, later; start that version$"
    with pytest.raises(StorageError, match=told):
        BatchStore(tmp_path)


@given(st.text())
def test_no_text_but_the_id_of_a_file_finds_one(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "secret.json").write_text("{}")
    with pytest.raises(NotFoundError):
        FileStore(folder, ManualClock()).get(name)


def test_two_processes_see_each_others_files(tmp_path: Path) -> None:
    clock = ManualClock()
    one, two = FileStore(tmp_path, clock), FileStore(tmp_path, clock)
    file_id = new_file_id()
    with publish(one.content(file_id)) as file:
        file.write(b"abc")
    assert two.list() == []
    stored = one.enter(file_id, "a.jsonl", "batch")
    assert two.list() == [stored] == [two.get(file_id)]
    two.delete(file_id)
    assert one.list() == []


@pytest.mark.parametrize("harm", [Path.mkdir, lambda path: path.write_text("damaged")], ids=["the disk fails", "damaged"])
def test_a_file_that_cannot_be_read_keeps_no_other_from_being_swept(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    clock = ManualClock()
    for _ in range(8):  # in whichever order the folder lists them
        with publish(FileStore(tmp_path, clock).content(file_id := new_file_id())) as file:
            file.write(b"abc")
        FileStore(tmp_path, clock).enter(file_id, "a.jsonl", "batch", expires_after_s=60)
    bad = tmp_path / f"{new_file_id()}.json"
    harm(bad)
    clock.advance(60)
    store = FileStore(tmp_path, clock)  # of a process that has read none of them
    store.sweep()
    assert list(tmp_path.iterdir()) == [bad]
    with pytest.raises(StorageError, match=bad.name):
        store.get(bad.stem)


@pytest.mark.parametrize("harm", [Path.mkdir, lambda path: path.write_text("damaged")], ids=["the disk fails", "damaged"])
def test_a_file_that_cannot_be_read_is_left_out_of_the_list_and_logged(
    tmp_path: Path, harm: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path, ManualClock())
    with publish(store.content(file_id := new_file_id())) as file:
        file.write(b"abc")
    stored = store.enter(file_id, "a.jsonl", "batch")
    bad = tmp_path / f"{new_file_id()}.json"
    harm(bad)
    assert store.list() == [stored]
    assert [bad.name in record.getMessage() for record in caplog.records] == [True]


class PatchyStorage(Mirror):
    """Does not give one file."""

    bad = ""

    def _copied(self, path: Path, info: FileInfo) -> bool:
        if path.name == self.bad:
            raise StorageError(f"cannot read {path.name}")
        return super()._copied(path, info)


def test_a_file_that_the_storage_cannot_give_keeps_no_other_from_being_swept(tmp_path: Path) -> None:
    clock = ManualClock()
    one = tmp_path / "one"
    store = FileStore(one, clock, Mirror(one, str(tmp_path / "shared")))
    for _ in range(8):
        with publish(store.content(file_id := new_file_id())) as file:
            file.write(b"abc")
        store.enter(file_id, "a.jsonl", "batch", expires_after_s=60)
    clock.advance(60)
    storage = PatchyStorage(tmp_path / "two", str(tmp_path / "shared"))
    storage.bad = f"{file_id}.json"
    other = FileStore(storage.root, clock, storage)
    other.sweep()
    assert {path.name for path in (tmp_path / "shared").iterdir()} == {f"{file_id}.json", f"{file_id}.data"}
    clock.advance(-60)
    assert (len(store.list()), other.list()) == (1, [])
    clock.advance(60)
    storage.bad = ""
    other.sweep()
    assert not list((tmp_path / "shared").iterdir())


def test_content_that_nobody_described_is_swept_once_it_is_old(tmp_path: Path) -> None:
    clock = ManualClock()
    store = FileStore(tmp_path, clock)
    file_id = new_file_id()
    with publish(store.content(file_id)) as file:
        file.write(b"abc")
    clock.now_s = store.content(file_id).stat().st_mtime + 60
    store.sweep()
    assert store.content(file_id).exists()
    clock.advance(3600)
    store.sweep()
    assert not store.content(file_id).exists()
