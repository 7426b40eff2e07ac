"""What a batch's input file may hold: each line read or refused with its number, the field and the reason; and the objects clients see."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harvester.errors import NotFoundError, ParameterError, StorageError
from jobs.access.limits import MOST_IN_JSON
from jobs.batches.files import FileStore, StoredFile
from jobs.batches.input import MAX_ERRORS, InputReader, InvalidInput, Stopped
from jobs.batches.line import LONGEST_ID, BadLine, LineRules
from jobs.batches.page import list_object, page
from jobs.batches.record import BatchError, BatchRecord, BatchUsage, BatchWish, Counts
from jobs.batches.states import BatchStatus
from jobs.batches.store import BatchStore
from jobs.config import BatchConfig
from jobs.testing import ManualClock

RULES = LineRules("/v1/chat/completions", ["tiny", "small"])
GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "tiny", "n": 1}}


def raw(**changes: Any) -> bytes:
    return json.dumps({key: value for key, value in {**GOOD, **changes}.items() if value is not ...}).encode()


# -- one line -------------------------------------------------------------------------------------------------------------------------


def test_a_line_becomes_a_request_with_its_body_as_it_was() -> None:
    read = RULES.read(7, raw(body={"model": "small", "messages": [{"content": "ä\u2028"}]}), None)
    assert (read.line, read.custom_id, read.model) == (7, "a", "small")
    assert read.body == '{"model":"small","messages":[{"content":"ä\u2028"}]}'


def test_half_a_surrogate_pair_in_a_body_stays_an_escape_and_the_longest_id_is_taken() -> None:
    assert RULES.read(1, raw(body={"model": "tiny", "x": "ä\ud800"}), "tiny").body == '{"model":"tiny","x":"\\u00e4\\ud800"}'
    assert RULES.read(1, raw(custom_id="x" * LONGEST_ID), None).custom_id == "x" * LONGEST_ID


@pytest.mark.parametrize(
    ("line", "code", "param", "says"),
    [
        (b"\xff", "invalid_json_line", None, "This line is not parseable as valid JSON: it is not UTF-8."),
        (b"{", "invalid_json_line", None, "This line is not parseable as valid JSON: Expecting property name"),
        (b'{"a": NaN}', "invalid_json_line", None, "This line is not parseable as valid JSON: NaN is not a JSON value."),
        (b"[" * 100_000, "invalid_json_line", None, "This line is not parseable as valid JSON: "),
        (b'"' + b"," * (MOST_IN_JSON["commas"].most + 1) + b'"', "too_large", None, "commas; the limit is"),
        (b"[]", "invalid_json_line", None, "This line is a JSON list; it must be an object with custom_id, method, url and body."),
        (
            raw(body={"model": "tiny", "kv_transfer_params": {"remote_prefill_cached_tokens": 2**63}}),
            "invalid_value",
            "body.kv_transfer_params",
            "`kv_transfer_params` is the server's to set; leave it out",
        ),
        (raw(custom_id=...), "missing_required_parameter", "custom_id", "This request has no custom_id; give each its own."),
        (raw(custom_id=""), "missing_required_parameter", "custom_id", "This request has no custom_id; give each its own."),
        (raw(custom_id=7), "invalid_custom_id", "custom_id", "The custom_id 7 is not a string."),
        (raw(custom_id="x" * 513), "invalid_custom_id", "custom_id", "The custom_id has 513 characters; the limit is 512."),
        (raw(custom_id="\ud800"), "invalid_custom_id", "custom_id", "The custom_id contains half a surrogate pair"),
        (raw(method="GET"), "invalid_method", "method", 'The method of this request is "GET"; it must be POST.'),
        (raw(method="G" * 99), "invalid_method", "method", f'is "{"G" * 76}...; it must be POST.'),
        (raw(method="G" * 78), "invalid_method", "method", f'is "{"G" * 78}"; it must be POST.'),
        (
            raw(url="/v1/completions"),
            "mismatched_endpoint",
            "url",
            "The URL of this request is /v1/completions, but the endpoint of the batch is /v1/chat/completions; they must be the same.",
        ),
        (raw(url="/v1"), "invalid_url", "url", 'is "/v1"; a batch takes /v1/chat/completions and /v1/completions.'),
        (raw(body=[]), "missing_required_parameter", "body", "This request has no body; give the endpoint's parameters as an object."),
        (raw(body={}), "missing_required_parameter", "body.model", "The body of this request names no model."),
        (raw(body={"model": ""}), "missing_required_parameter", "body.model", "The body of this request names no model."),
        (raw(body={"model": 7}), "missing_required_parameter", "body.model", "The body of this request names no model."),
        (
            raw(body={"model": "small"}),
            "mismatched_model",
            "body.model",
            'The model of this request is "small", but the lines before name "tiny"; a batch has one model.',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_a_line_that_is_no_request_says_where_and_why(line: bytes, code: str, param: str | None, says: str) -> None:
    with pytest.raises(BadLine) as caught:
        RULES.read(7, line, "tiny")
    error = caught.value.error
    assert (error.code, error.param, error.line) == (code, param, 7)
    assert says in error.message == str(caught.value)


def test_the_first_line_may_name_any_model_that_the_server_has() -> None:
    with pytest.raises(BadLine) as caught:
        RULES.read(1, raw(body={"model": "big"}), None)
    message = 'The model "big" does not exist here; this server has tiny, small.'
    assert caught.value.error == BatchError(code="model_not_found", message=message, line=1, param="body.model")


# -- a whole file ---------------------------------------------------------------------------------------------------------------------


def read(tmp_path: Path, content: bytes, **limits: int) -> tuple[InputReader, list[dict[str, Any]]]:
    reader = InputReader(RULES, BatchConfig(**limits))
    reader.write(io.BytesIO(content), tmp_path / "rows.parquet", "file-1")
    return reader, pq.read_table(tmp_path / "rows.parquet").to_pylist()


def refused(tmp_path: Path, content: bytes, **limits: int) -> tuple[BatchError, ...]:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, content, **limits)
    assert not list(tmp_path.iterdir()), "no rows are left"
    assert str(caught.value) == f"{len(caught.value.errors)} errors"
    return caught.value.errors


def test_rows_keep_their_line_numbers_over_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    reader, rows = read(tmp_path, b"\xef\xbb\xbf" + raw() + b"\r\n\n  \n" + raw(custom_id="b"))
    body = '{"model":"tiny","n":1}'
    assert rows == [{"line": 1, "custom_id": "a", "body": body}, {"line": 4, "custom_id": "b", "body": body}]
    assert (reader.rows, reader.model) == (2, "tiny")


def test_a_file_of_many_lines_is_read_whole(tmp_path: Path) -> None:
    _, rows = read(tmp_path, b"\n".join(raw(custom_id=str(number)) for number in range(3000)))
    assert [row["custom_id"] for row in rows] == [str(number) for number in range(3000)]


def test_a_byte_order_mark_is_taken_away_once(tmp_path: Path) -> None:
    (error,) = refused(tmp_path, raw() + b"\n\xef\xbb\xbf" + raw(custom_id="b"))
    assert (error.code, error.line) == ("invalid_json_line", 2)


@pytest.mark.parametrize("content", [b"", b"\n \n"], ids=["nothing", "blank"])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    message = "The input file is empty; it must hold one request a line."
    assert refused(tmp_path, content) == (BatchError(code="empty_file", message=message),)


def test_a_line_that_is_too_long_is_refused_and_the_next_is_read(tmp_path: Path) -> None:
    long, next_ = raw(custom_id="x" * 5000), raw(method="GET")
    first, second = refused(tmp_path, long + b"\n" + next_ + b"\n", max_line_bytes=1024)
    message = "This line is longer than 1024 bytes, the most that this server takes."
    assert first == BatchError(code="line_too_long", message=message, line=1)
    assert (second.code, second.line) == ("invalid_method", 2)


@pytest.mark.parametrize("end", [b"", b"\n"], ids=["at the end", "with a line end"])
def test_a_line_of_as_many_bytes_as_may_be_is_read(tmp_path: Path, end: bytes) -> None:
    line = raw(custom_id="", body={"model": "tiny", "n": ""})
    fits = raw(body={"model": "tiny", "n": "n" * (1024 - len(line) - 1)})
    assert len(fits) == 1024
    assert len(read(tmp_path, fits + end, max_line_bytes=1024)[1]) == 1


def test_a_file_of_more_requests_than_may_be_stops_there(tmp_path: Path) -> None:
    lines = [raw(custom_id=str(number)) for number in range(4)]
    assert len(read(tmp_path, b"\n".join(lines[:3]), max_lines=3)[1]) == 3
    (tmp_path / "rows.parquet").unlink()
    message = "The input file has more than 3 requests, which is the limit of this server; split the file."
    assert refused(tmp_path, b"\n".join(lines), max_lines=3) == (BatchError(code="too_many_requests", message=message, line=4),)


def test_as_many_errors_as_anybody_would_read_are_listed(tmp_path: Path) -> None:
    errors = refused(tmp_path, b"\n".join([raw(), *[b"{"] * 200]))
    assert [error.line for error in errors] == list(range(2, 2 + MAX_ERRORS))
    assert len(refused(tmp_path, b"\n".join([b"{", raw(), b"["]))) == 2


def test_every_line_with_an_id_that_came_before_is_named(tmp_path: Path) -> None:
    long = "y" * 100
    found = refused(tmp_path, b"\n".join(raw(custom_id=name) for name in ("a", "b", "a", long, "a", long)))
    assert [(error.code, error.param, error.line) for error in found] == [("duplicate_custom_id", "custom_id", line) for line in (3, 5, 6)]
    assert found[0].message == "The custom_id 'a' was used by an earlier request; it must be unique in a batch."
    assert f"'{'y' * 80}'" in found[2].message


def test_a_batch_that_is_cancelled_stops_reading(tmp_path: Path) -> None:
    reader = InputReader(RULES, BatchConfig(), is_stopped=lambda: True)
    with pytest.raises(Stopped):
        reader.write(io.BytesIO(b"\n".join(raw(custom_id=str(i)) for i in range(2000))), tmp_path / "rows.parquet", "file-1")
    assert 0 < reader.rows < 2000


# -- what clients see -----------------------------------------------------------------------------------------------------------------


def test_a_file_is_shown_as_openai_shows_one() -> None:
    file = StoredFile(id="file-1", filename="a.jsonl", purpose="batch", bytes=7, created_at_s=1.9, expires_at_s=9.9)
    shown = {"id": "file-1", "object": "file", "bytes": 7, "created_at": 1, "expires_at": 9, "filename": "a.jsonl"}
    assert file.to_openai() == {**shown, "purpose": "batch", "status": "processed", "status_details": None}
    assert file.model_copy(update={"expires_at_s": None}).to_openai()["expires_at"] is None


def test_a_batch_is_shown_as_openai_shows_one() -> None:
    wish = BatchWish(input_file_id="file-in", endpoint="/v1/completions", completion_window="2h", metadata={"team": "a"})
    record = BatchRecord.of(wish, 100.9)
    for at_s, status in enumerate(BatchStatus, 200):
        record = record.reach(status, at_s + 0.5)
    error = BatchError(code="c", message="m", line=3, param="p")
    usage = BatchUsage(prompt_tokens=10, cached_tokens=4, output_tokens=5, reasoning_tokens=2)
    changes = {"model": "tiny", "errors": (error,), "output_file_id": "file-o", "error_file_id": "file-e", "usage": usage}
    counts = Counts(total=9, completed=6, failed=3)
    shown = record.reach(BatchStatus.CANCELLED, 999.0, counts=counts, **changes).to_openai(None)
    reached = {f"{status}_at": at_s for at_s, status in enumerate(BatchStatus, 200) if status is not BatchStatus.VALIDATING}
    assert shown == {
        **reached,
        "id": record.id,
        "object": "batch",
        "endpoint": "/v1/completions",
        "model": "tiny",
        "errors": {"object": "list", "data": [{"code": "c", "message": "m", "line": 3, "param": "p"}]},
        "input_file_id": "file-in",
        "completion_window": "2h",
        "status": "cancelled",
        "output_file_id": "file-o",
        "error_file_id": "file-e",
        "created_at": 100,
        "expires_at": 7300,
        "request_counts": {"total": 9, "completed": 6, "failed": 3},
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 15,
        },
        "metadata": {"team": "a"},
    }


def test_what_is_not_there_is_named_and_so_is_what_lists_it(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"^No such File object: file-1; list them with GET /v1/files$"):
        FileStore(tmp_path, ManualClock(0.0)).get("file-1")
    with pytest.raises(NotFoundError, match=r"^No such Batch object: batch_1; list them with GET /v1/batches$"):
        BatchStore(tmp_path).get("batch_1")
    with pytest.raises(ParameterError, match=r"^after='x' is not in the list; use the last_id of the previous page, or none$") as caught:
        page([], "x", 2)
    assert caught.value.param == "after"


def test_a_list_names_its_ends() -> None:
    ends = {"first_id": "a", "last_id": "c", "has_more": True}
    assert list_object([{"id": "a"}, {"id": "b"}, {"id": "c"}], True) == {"object": "list", "data": [{"id": n} for n in "abc"], **ends}


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("")
    with pytest.raises(StorageError, match=rf"^cannot list {tmp_path}/files: "):
        FileStore(tmp_path / "files", ManualClock(0.0)).list()
    assert FileStore(tmp_path / "none", ManualClock(0.0)).list() == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / f"file-{'0' * 24}.json"
    path.write_text("{")
    with pytest.raises(StorageError, match=rf"^{path} is damaged; remove it, and upload the file again$"):
        FileStore(tmp_path, ManualClock(0.0)).get(path.stem)
    about = {"id": path.stem, "filename": "a", "purpose": "batch", "bytes": 1, "created_at_s": 0.0}
    path.write_text(json.dumps(about | {"later": 1}))
    with pytest.raises(StorageError, match=rf"^{path} was written by a newer version of harvester, which knows later; start that version"):
        FileStore(tmp_path, ManualClock(0.0)).get(path.stem)
