"""A table's own files name others: classes, hosts, splits, data files. None leads to what its reader may not read, and none runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog

from connectors.open import open_source
from connectors.paths.rules import SourceRules

DOCS = pa.table({"text": ["a"]})


class Called:
    """What a table's properties may name: keeps what it was called with."""

    calls: ClassVar[list[Any]] = []

    def __init__(self, properties: Any) -> None:
        self.calls.append(properties)


def texts(uri: str, rules: SourceRules | None, table: str | None = None) -> list[str]:
    with open_source(uri, rules=rules, table=table) as source:
        return [text for group in source.row_groups() for text in source.read(group, 0, group.row_count)["text"].to_pylist()]


def iceberg(warehouse: str, properties: dict[str, str]) -> None:
    """A table of one row in the folder `n/docs`."""
    catalog = InMemoryCatalog("test", warehouse=warehouse)
    catalog.create_namespace("n")
    catalog.create_table("n.docs", DOCS.schema, properties=properties).append(DOCS)


@pytest.mark.parametrize("is_client", [True, False], ids=["client", "own"])
def test_no_class_that_an_iceberg_table_names_is_called(tmp_path: Path, is_client: bool) -> None:
    iceberg(f"file://{tmp_path}", {})
    newest = max((tmp_path / "n/docs/metadata").glob("*.metadata.json"))
    told = json.loads(newest.read_text())
    name = f"{Called.__module__}.{Called.__qualname__}"
    told["properties"] = {"py-io-impl": name, "write.py-location-provider.impl": name, "s3.retry-strategy-impl": name}
    newest.write_text(json.dumps(told))
    Called.calls.clear()
    assert texts(str(tmp_path / "n/docs"), SourceRules((str(tmp_path),)) if is_client else None) == ["a"]
    assert Called.calls == []
