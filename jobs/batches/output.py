"""The output and the error file of a batch, made from its job's parts as they lie there, in any order, with the memory of a few rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from connectors.durable import publish
from connectors.parquet.parts import read_batches
from jobs.batches.files import FileStore
from jobs.batches.input import CUSTOM_ID
from jobs.batches.record import BatchRecord, BatchUsage, Counts
from jobs.result import ROW_ID, Row
from jobs.run.row import HTTP
from jobs.run.spool.records import spooled_rows
from jobs.storage.folder import StateFolder
from jobs.storage.parts import results_of
from jobs.tasks.answer import OUTPUT
from jobs.usage import NONE_USED, Usage

_LINE_ENDS = [(end, f"\\u{ord(end):04x}") for end in "\x85\u2028\u2029"]  # JSON may hold them, but readers end a line there
_ROWS = 256  # a batch of rows: bounds memory where answers are long
_STATUS = ("status", "error_code", "error_message")
_COLUMNS = (ROW_ID, CUSTOM_ID, OUTPUT, *_STATUS, *Usage.model_fields)


@dataclass(frozen=True, slots=True)
class BatchFiles:
    counts: Counts
    usage: BatchUsage
    output_file_id: str | None  # None: no such line
    error_file_id: str | None


@dataclass(slots=True)
class _Lines:
    """A file that is made with its first line. Nothing is published before the stack ends without error."""

    path: Path
    stack: ExitStack
    count: int = 0
    _file: BinaryIO | None = None

    def add(self, line: str) -> None:
        if self._file is None:
            self._file = self.stack.enter_context(publish(self.path))
        self._file.write(line.encode())
        self.count += 1


@dataclass(slots=True)
class _Tally:
    seen: bytearray  # by row_id
    usage: Usage = NONE_USED
    reasoning_tokens: int = 0

    def add(self, item: dict[str, Any]) -> None:
        self.seen[item[ROW_ID]] = 1
        self.usage += Usage(**{name: item[name] for name in Usage.model_fields})
        self.reasoning_tokens += _reasoning_tokens(item[OUTPUT])


def write_outputs(
    record: BatchRecord, rows_total: int, requests: Path, folder: StateFolder, files: FileStore, *, never_run_expired: bool
) -> BatchFiles:
    """Make the files of an ended job, no slice of which is leased. Written again, they replace the first ones.

    ``requests``: the Parquet file of the batch's rows. With ``never_run_expired`` each row without a result gets a `batch_expired` line.
    Raises `StorageError`; no file is made then.
    """
    tally = _Tally(bytearray(rows_total))
    with ExitStack() as stack:
        good = _Lines(files.content(record.output_id), stack)
        bad = _Lines(files.content(record.error_id), stack)
        for item in _results(record.id, requests, folder, tally.seen):
            tally.add(item)
            (good if item["status"] == "ok" else bad).add(_line(record.id, item))
        if never_run_expired:
            for row_id, custom_id in _not_seen(requests, tally.seen):
                bad.add(_expired_line(record.id, row_id, custom_id))
    expires_after_s = record.wish.output_expires_after.seconds if record.wish.output_expires_after else None
    for lines, file_id, name in ((good, record.output_id, "output"), (bad, record.error_id, "error")):
        if lines.count:
            files.enter(file_id, f"{record.id}_{name}.jsonl", "batch_output", expires_after_s, record.owner)
    return BatchFiles(
        Counts(total=rows_total, completed=good.count, failed=bad.count),
        BatchUsage(**tally.usage.model_dump(), reasoning_tokens=tally.reasoning_tokens),
        record.output_id if good.count else None,
        record.error_id if bad.count else None,
    )


def _results(batch_id: str, requests: Path, folder: StateFolder, seen: bytearray) -> Iterator[dict[str, Any]]:
    """Every finished row once: first those in parts, then those in the spools of unfinished slices."""
    sink = results_of(folder, batch_id)
    for name in sink.names():
        yield from _read(sink.path(name), _COLUMNS)
    spooled: dict[int, Row] = {}
    if folder.mirror is not None:
        folder.mirror.fetch_folder(folder.spools(batch_id))
    for path in sorted(folder.spools(batch_id).glob("slice-*.jsonl")):
        spooled |= {row_id: row for row_id, row in spooled_rows(path).items() if row_id < len(seen) and not seen[row_id]}
    if spooled:
        for row_id, custom_id in _not_seen(requests, seen):
            if row_id in spooled:
                row = spooled[row_id]
                told = {ROW_ID: row_id, CUSTOM_ID: custom_id, OUTPUT: row.values.get(OUTPUT)}
                yield told | {name: getattr(row, name) for name in _STATUS} | row.usage.model_dump()


def _read(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for batch in read_batches(path, columns, _ROWS):
        yield from batch.to_pylist()


def _not_seen(requests: Path, seen: bytearray) -> Iterator[tuple[int, str]]:
    """row_id and custom_id of the rows without a result; ``seen`` is looked up for each row when its turn comes."""
    for row_id, item in enumerate(_read(requests, (CUSTOM_ID,))):
        if not seen[row_id]:
            yield row_id, item[CUSTOM_ID]


def _line(batch_id: str, item: dict[str, Any]) -> str:
    """One line of a file. The response's body is inserted nearly unchanged, because it is JSON already."""
    code = item["error_code"]
    request_id = _request_id(batch_id, item[ROW_ID])
    if item["status"] != "ok" and not code.startswith(HTTP):
        return _json_line(request_id, item[CUSTOM_ID], "null", json.dumps({"code": code, "message": item["error_message"]}))
    status_code = 200 if item["status"] == "ok" else int(code.removeprefix(HTTP))
    body = item[OUTPUT]
    for end, escaped in _LINE_ENDS:
        body = body.replace(end, escaped)
    response = f'{{"status_code": {status_code}, "request_id": "{request_id}", "body": {body}}}'
    return _json_line(request_id, item[CUSTOM_ID], response, "null")


def _expired_line(batch_id: str, row_id: int, custom_id: str) -> str:
    message = "This request could not be executed before the completion window expired."
    return _json_line(_request_id(batch_id, row_id), custom_id, "null", json.dumps({"code": "batch_expired", "message": message}))


def _json_line(request_id: str, custom_id: str, response: str, error: str) -> str:
    return f'{{"id": "batch_req_{request_id}", "custom_id": {json.dumps(custom_id)}, "response": {response}, "error": {error}}}\n'


def _request_id(batch_id: str, row_id: int) -> str:
    """The same each time the files are made."""
    return hashlib.sha256(f"{batch_id} {row_id}".encode()).hexdigest()[:24]


def _reasoning_tokens(body: str | None) -> int:
    if body is None or '"reasoning_tokens"' not in body:
        return 0
    try:
        return int(json.loads(body)["usage"]["completion_tokens_details"]["reasoning_tokens"])
    except (ValueError, TypeError, KeyError):
        return 0
