"""Files as polars writes them: views, views within dictionaries, large types."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import polars
import pytest

from connectors.open import open_source
from connectors.text import rows


@pytest.mark.parametrize("kind", ["parquet", "ipc", "ndjson"])
def test_files_that_polars_writes(tmp_path: Path, kind: str) -> None:
    frame = polars.DataFrame({"text": ["a", None], "number": [2**62, 1], "share": [0.5, None], "day": [dt.date(2024, 1, 2), None]})
    nested = frame.with_columns(
        kind=polars.Series(["x", "y"], dtype=polars.Categorical), tags=polars.Series([["t"], []]), raw=polars.Series([b"1", None])
    )
    path = tmp_path / {"ipc": "f.arrow", "ndjson": "f.jsonl"}.get(kind, f"f.{kind}")
    getattr(frame if kind == "ndjson" else nested, f"write_{kind}")(path)
    with open_source(str(path)) as source:
        found = [dict(row) for group in source.row_groups() for row in rows(source.read(group, 0, group.row_count))]
    assert [row["text"] for row in found] == ["a", None]
    assert [row["number"] for row in found] == [2**62, 1]
    assert [row["share"] for row in found] == [0.5, None]
    assert [str(row["day"]) for row in found] == ["2024-01-02", "None"]
    if kind != "ndjson":
        assert [(row["kind"], row["tags"], row["raw"]) for row in found] == [("x", ["t"], b"1"), ("y", [], None)]
