"""A web source that trickles is given up before it holds a thread for hours; one that is only far away is read."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs

from connectors.errors import SourceAwayError
from connectors.open import open_source
from connectors.paths.pace import PacedHandler
from connectors.paths.rules import SourceRules
from tests.web_site import Site, web_site

RULES = SourceRules(hosts=("127.0.0.1",))


@pytest.fixture
def site() -> Iterator[Site]:
    with web_site() as site:
        yield site


def answers_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = itertools.count(0.0, seconds)
    monkeypatch.setattr("connectors.paths.pace.monotonic", lambda: next(times_s))


def bytes_alone_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are found and opened at once, and each read of their bytes takes so long."""

    def at_once(method: Callable[[PacedHandler, Any], Any]) -> Callable[[PacedHandler, Any], Any]:
        def call(handler: PacedHandler, asked: Any) -> Any:
            answers_take(0.0, monkeypatch)
            found = method(handler, asked)
            answers_take(seconds, monkeypatch)
            return found

        return call

    for name in ("get_file_info", "stamp", "open_input_file"):
        monkeypatch.setattr(PacedHandler, name, at_once(getattr(PacedHandler, name)))


@pytest.mark.parametrize("rules", [None, RULES], ids=["own", "client"])
@pytest.mark.parametrize("path", ["/docs.jsonl", "/plain/docs.jsonl"])
def test_a_source_that_trickles_is_given_up(site: Site, rules: SourceRules | None, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files[path] = b'{"text": "one"}\n' * 1000
    bytes_alone_take(61.0, monkeypatch)
    with pytest.raises(SourceAwayError, match=rf"{path}: in 61 s its server gave [\d,]+ bytes, less than 32,768 a second; try again later"):
        open_source(f"{site.url}{path}", rules=rules)


def test_a_source_whose_list_trickles_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/docs.jsonl"] = b'{"text": "one"}\n'
    answers_take(61.0, monkeypatch)
    with pytest.raises(SourceAwayError, match=r"/docs\.jsonl: in 61 s its server gave 65,536 bytes"):
        open_source(f"{site.url}/docs.jsonl", rules=RULES)


def test_rows_of_a_parquet_file_that_trickle_are_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"text": [f"row {number}" for number in range(1000)]}), table)
    site.files["/docs.parquet"] = table.getvalue()
    with open_source(f"{site.url}/docs.parquet", rules=RULES) as source:
        answers_take(61.0, monkeypatch)
        with pytest.raises(SourceAwayError, match="its server gave"):
            source.read(source.row_groups()[0], 0, 10)


def test_many_small_answers_are_no_trickle(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/docs.jsonl"] = b'{"text": "one"}\n'
    monkeypatch.setattr("connectors.paths.pace.WINDOW_S", 1.0)
    answers_take(1.5, monkeypatch)
    with open_source(f"{site.url}/docs.jsonl", rules=RULES) as source:
        assert source.row_count == 1


def test_each_entry_of_a_list_counts_as_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """fsspec may ask for each of them."""
    memory = MemoryFileSystem()
    for number in range(100):
        memory.pipe(f"/many/{number}.jsonl", b"{}")
    answers_take(100.0, monkeypatch)
    selector = fs.FileSelector("/many")
    assert len(PacedHandler(memory, "https://host/many").get_file_info_selector(selector)) == 100
    memory.rm("/many", recursive=True)
    memory.mkdir("/many")
    with pytest.raises(SourceAwayError, match="in 100 s its server gave 65,536 bytes"):
        PacedHandler(memory, "https://host/many").get_file_info_selector(selector)


def test_a_large_source_of_unknown_length_is_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files["/plain/docs.jsonl"] = b'{"text": "one"}\n' * 100_000
    monkeypatch.setattr("connectors.paths.pace.WINDOW_S", 0.1)
    answers_take(0.04, monkeypatch)
    with open_source(f"{site.url}/plain/docs.jsonl", rules=RULES) as source:
        assert source.row_count == 100_000
