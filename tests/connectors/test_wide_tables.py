"""Tables of thousands of columns: work that grows with the columns, not with their square. It is done for each slice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa

from connectors.base import checked_columns
from connectors.memory import MemorySource
from connectors.parquet.schema import Footer, common_schema
from connectors.paths.files import DataFile
from jobs.config import HarvestConfig
from jobs.plan.columns import check_column
from jobs.plan.job import plan_job
from jobs.spec import JobRequest, SourceSpec

COLUMNS = 300


class CountedSchema:
    """A schema that counts how often its names are asked for: Arrow makes the list anew each time."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.times = 0

    @property
    def names(self) -> list[str]:
        self.times += 1
        return self.schema.names

    def equals(self, other: CountedSchema) -> bool:
        return self.schema.equals(other.schema)

    def __iter__(self) -> Iterator[pa.Field]:
        return iter(self.schema)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.schema, name)


def wide(columns: int) -> pa.Schema:
    return pa.schema([("text", pa.string()), *((f"c{number}", pa.int64()) for number in range(columns))])


def calls(work: Callable[[], object]) -> int:
    """How many functions ``work`` calls, those of C too."""
    seen = 0

    def count(frame: object, event: str, about: object) -> None:
        nonlocal seen
        seen += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return seen


def test_the_names_of_a_schema_are_made_once_for_a_read() -> None:
    schema = CountedSchema(wide(COLUMNS))
    checked_columns(cast(pa.Schema, schema), schema.schema.names, "docs.parquet")
    for name in schema.schema.names:
        check_column(cast(pa.Schema, schema), name, "--keep")
    assert schema.times <= 2


def test_the_schemas_of_files_are_compared_once_each() -> None:
    first = wide(COLUMNS)
    schemas = [CountedSchema(first), CountedSchema(pa.schema(list(reversed(first)))), CountedSchema(first)]
    files = [DataFile(f"{number}.parquet", f"{number}.parquet", 1, "") for number in range(len(schemas))]
    found = common_schema(files, [Footer(cast(pa.Schema, schema), ()) for schema in schemas])
    assert found == first
    assert sum(schema.times for schema in schemas) <= 3 * len(schemas)


def test_planning_a_job_costs_in_proportion_to_its_columns() -> None:
    def planned(columns: int) -> int:
        schema = wide(columns)
        source = MemorySource(pa.table({field.name: ["a"] if field.name == "text" else [1] for field in schema}))
        request = JobRequest(source=SourceSpec(uri="docs.parquet"), task="ask", options={"prompt": "{text}?"}, keep=tuple(schema.names))
        return calls(lambda: plan_job(request, source, model="m", harvest=HarvestConfig(), now_s=0.0, token="7f3a"))

    planned(10)  # what is loaded once
    assert planned(4 * COLUMNS) < 6 * planned(COLUMNS)
