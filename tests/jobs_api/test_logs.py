"""A log line says what happened once, as text or as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harvester.logs import FILE, LogConfig, about, fields_of, write_logs

LOG = logging.getLogger("harvester.tests")


@pytest.fixture
def _as_before() -> Iterator[None]:
    logger = logging.getLogger("harvester")
    level, propagate = logger.level, logger.propagate
    yield
    write_logs(LogConfig(), Path(), "tests")
    logger.setLevel(level)
    logger.propagate = propagate


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


@pytest.mark.usefixtures("_as_before")
def test_an_event_is_an_object_with_its_numbers_as_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_logs(LogConfig(format="json"), tmp_path / "logs", "replica")
    LOG.warning("slice_storage job=%s slice=%d after_s=%.1f %s", "docs-1", 7, 2.5, "no space; 100% full")
    (line,) = lines(tmp_path / "logs")
    assert line.pop("time").endswith("Z")
    assert isinstance(line.pop("pid"), int)
    assert line == {
        "level": "warning",
        "logger": "harvester.tests",
        "process": "replica",
        "event": "slice_storage",
        "message": "slice_storage job=docs-1 slice=7 after_s=2.5 no space; 100% full",
        "job": "docs-1",
        "slice": 7,
        "after_s": 2.5,
    }
    assert json.loads(capsys.readouterr().err)["slice"] == 7, "on standard error too"


@pytest.mark.usefixtures("_as_before")
def test_a_sentence_is_no_event_and_an_error_has_its_cause(tmp_path: Path) -> None:
    write_logs(LogConfig(format="json"), tmp_path, "ledger")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        LOG.exception("this machine could not be verified: %s", "why")
    (line,) = lines(tmp_path)
    assert "event" not in line
    assert line["exception"].endswith("ValueError: two\nlines")


@pytest.mark.usefixtures("_as_before")
def test_the_least_level_is_the_configurations(tmp_path: Path) -> None:
    write_logs(LogConfig(format="json", level="info"), tmp_path, "jobs")
    LOG.info("job_removed job=%s", "docs-1")
    LOG.debug("look_failed")
    write_logs(LogConfig(format="json"), tmp_path, "jobs")
    LOG.info("job_removed job=%s", "docs-2")
    assert [line["job"] for line in lines(tmp_path)] == ["docs-1"]


@pytest.mark.usefixtures("_as_before")
def test_text_goes_where_it_always_went(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_logs(LogConfig(format="json"), tmp_path, "jobs")
    write_logs(LogConfig(), tmp_path, "jobs")
    LOG.warning("usage_waits %s", "why")
    assert caplog.messages == ["usage_waits why"]
    assert lines(tmp_path) == []


@pytest.mark.usefixtures("_as_before")
async def test_what_is_logged_for_a_request_names_it_also_in_tasks_of_its_own(tmp_path: Path) -> None:
    write_logs(LogConfig(format="json"), tmp_path, "replica")

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        LOG.warning("worked number=%d", number)

    with about(request_id="r-1"):
        inside = asyncio.create_task(work(1))
    outside = asyncio.create_task(work(2))
    await asyncio.gather(inside, outside)
    assert {line["number"]: line.get("request_id") for line in lines(tmp_path)} == {1: "r-1", 2: None}


@pytest.mark.usefixtures("_as_before")
def test_a_file_that_was_moved_is_opened_anew(tmp_path: Path) -> None:
    write_logs(LogConfig(format="json"), tmp_path, "jobs")
    LOG.warning("first number=%d", 1)
    (tmp_path / FILE).rename(tmp_path / "old.jsonl")
    LOG.warning("second number=%d", 2)
    assert [line["number"] for line in lines(tmp_path)] == [2]


@pytest.mark.parametrize(
    ("message", "given", "fields"),
    [
        ("a=%s", ("x",), {"a": "x"}),
        ("%d%% of %s, left=%d", (50, "docs", 3), {"left": 3}),
        ("clock_set by_s=%.1f", (1.25,), {"by_s": 1.25}),
        ("ids=%s", ([1, 2],), {"ids": "[1, 2]"}),
        ("is=%s none=%s", (True, None), {"is": True, "none": None}),
        ("a=%(a)s", ({"a": 1},), {}),
        ("no place", (), {}),
    ],
)
def test_fields_are_what_stands_behind_a_name(message: str, given: tuple[Any, ...], fields: dict[str, Any]) -> None:
    record = logging.LogRecord("harvester", logging.WARNING, __file__, 1, message, given, None)
    assert fields_of(record) == fields
