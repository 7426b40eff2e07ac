"""Chosen rows of a source: which, in which order, with which types and numbers, and that the choice stands still."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.base import Source
from connectors.errors import SourceError
from connectors.open import open_source
from connectors.select import BATCH_ROWS
from connectors.selection import Selection
from connectors.text import TextProblem, texts


@pytest.fixture
def docs(tmp_path: Path) -> str:
    ids = pa.array(range(5_000), pa.uint16())
    when = pa.array([number * 10**9 + 1 for number in range(5_000)], pa.timestamp("ns", "UTC"))
    words = pa.array([f"text {number}" for number in range(5_000)]).dictionary_encode()
    pq.write_table(pa.table({"id": ids, "when": when, "text": words}), tmp_path / "docs.parquet", row_group_size=1_700)
    return str(tmp_path / "docs.parquet")


def ids(source: Source) -> list[int]:
    with source:
        return [row for group in source.row_groups() for row in source.read(group, 0, group.row_count, ["id"])["id"].to_pylist()]


def test_a_condition_a_sample_and_a_limit_apply_in_this_order(docs: str) -> None:
    even = Selection(where="id % 2 = 0")
    assert ids(open_source(docs, selection=even)) == list(range(0, 5_000, 2))
    drawn = ids(open_source(docs, selection=Selection("id % 2 = 0", sample=50, seed=3)))
    assert (len(drawn), drawn == sorted(set(drawn)), all(one % 2 == 0 for one in drawn)) == (50, True, True)
    assert ids(open_source(docs, selection=Selection("id % 2 = 0", sample=50, seed=3, limit=7))) == drawn[:7]
    assert ids(open_source(docs, selection=Selection(sample=50, seed=4))) != ids(open_source(docs, selection=Selection(sample=50, seed=5)))
    assert ids(open_source(docs, selection=Selection(sample=9_999))) == list(range(5_000))
    assert ids(open_source(docs, selection=Selection("id = (select max(id) from source)"))) == [4_999]


def test_chosen_rows_keep_the_types_of_the_source(docs: str) -> None:
    with open_source(docs) as whole, open_source(docs, selection=Selection(where="id >= 4998")) as some:
        assert some.schema.remove_metadata() == whole.schema.remove_metadata()
        assert [value.value for value in some.read(some.row_groups()[0], 0, 2)["when"]] == [4_998 * 10**9 + 1, 4_999 * 10**9 + 1]


@pytest.mark.parametrize("chosen", [Selection(where="id % 2 = 0"), Selection(sample=1_500)], ids=["condition", "sample"])
def test_chosen_long_rows_are_kept_in_few_groups(tmp_path: Path, chosen: Selection) -> None:
    """The rows around them are read with them, and count neither as rows nor as memory of a group."""
    table = pa.table({"id": range(4_000), "text": [f"{number:04}" * 1_024 for number in range(4_000)]})
    pq.write_table(table, tmp_path / "long.parquet", compression="zstd", row_group_size=1_000)
    with open_source(str(tmp_path / "long.parquet"), selection=chosen) as source:
        assert [group.row_count for group in source.row_groups()] == [source.row_count]


def test_work_goes_on_with_the_rows_that_were_chosen_whatever_became_of_the_source(docs: str, tmp_path: Path) -> None:
    chosen = Selection(sample=20, seed=1)
    with open_source(docs, selection=chosen, snapshot_dir=tmp_path / "copies") as source:
        known = source.fingerprint()
    with open_source(docs, selection=Selection(sample=20, seed=2)) as other:
        assert other.fingerprint() != known
    first = ids(open_source(docs, selection=chosen, snapshot_dir=tmp_path / "copies", fingerprint=known))
    Path(docs).unlink()
    again = open_source(docs, selection=chosen, snapshot_dir=tmp_path / "copies", fingerprint=known)
    assert (again.fingerprint(), ids(again)) == (known, first)


def test_a_query_sees_any_source_as_a_table(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("lang,text\nen,a\nde,b\nen,c\n")
    with open_source(str(tmp_path / "x.csv"), query="select lang, count(*) as n from source group by lang order by lang") as source:
        assert source.read(source.row_groups()[0], 0, 2).to_pylist() == [{"lang": "de", "n": 1}, {"lang": "en", "n": 2}]


def test_text_that_is_not_utf8_stays_an_error_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"id,text\n1,\xff\n2,\xc3\xbc\n3,c\n")
    with open_source(str(tmp_path / "x.csv"), selection=Selection(limit=2)) as source:
        first, second = texts(source.read(source.row_groups()[0], 0, 2)["text"])
    assert isinstance(first, TextProblem)
    assert second == "ü"


def test_columns_that_differ_in_case_only_are_refused_to_sql(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "A": [2]}), tmp_path / "x.parquet")
    with pytest.raises(Exception, match="differ in case only"):
        open_source(str(tmp_path / "x.parquet"), selection=Selection(where="a = 1"))
    open_source(str(tmp_path / "x.parquet"), selection=Selection(limit=1)).close()


ENDLESS = "(select count(*) from range(1000000000) a, range(1000000000) b where a.range + b.range < 0)"
STALLED = {
    "a query": {"query": f"select {ENDLESS} as n from source"},
    "a condition": {"selection": Selection(where=f"{ENDLESS} = id")},
    "one that reads the source without end": {
        "query": "with recursive t(n) as (select 1 union all select n + 1 from t, source where id = 0) select count(*) from t"
    },
}


@pytest.mark.parametrize("options", STALLED.values(), ids=STALLED.keys())
def test_a_query_without_end_is_stopped(docs: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors.databases.stall.MAX_STALL_S", 0.2)
    with pytest.raises(SourceError, match="made no progress for 0 s and was stopped; simplify it"):
        open_source(docs, **options)


@pytest.mark.parametrize("options", [{"query": "from source"}, {"selection": Selection(where="id >= 0")}], ids=["a query", "a condition"])
def test_each_batch_that_a_query_reads_or_gives_is_progress(docs: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[None] = []
    monkeypatch.setattr("connectors.select.moving", lambda *_: nullcontext(lambda: told.append(None)))
    open_source(docs, **options).close()
    assert len(told) > 5_000 // BATCH_ROWS
