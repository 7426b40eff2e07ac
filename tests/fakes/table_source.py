"""A source that is a table in memory, and plans of jobs over it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from connectors.base import RowGroup
from connectors.errors import SourceError
from jobs.config import HarvestConfig
from jobs.plan.job import plan_job
from jobs.spec import JobPlan, JobRequest, SourceSpec


class TableSource:
    """A table in row groups, that counts what is read of it."""

    def __init__(self, table: pa.Table, group_rows: int = 100) -> None:
        self.table = table
        self.rows_read = 0
        self.fails = False
        starts = range(0, table.num_rows, group_rows)
        self.groups = [RowGroup(index, start, min(group_rows, table.num_rows - start)) for index, start in enumerate(starts)]

    name = "docs"

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    @property
    def row_count(self) -> int:
        return self.table.num_rows

    def fingerprint(self) -> str:
        return "f1"

    def row_groups(self) -> Sequence[RowGroup]:
        return self.groups

    def read(self, group: RowGroup, offset: int, count: int, columns: Sequence[str] | None = None) -> pa.Table:
        if self.fails:
            raise SourceError("docs.parquet is gone; put it back")
        self.rows_read += count
        return self.table.slice(group.row_start + offset, count).select(columns or self.table.schema.names)

    def close(self) -> None: ...

    def __enter__(self) -> TableSource:
        return self

    def __exit__(self, *_: object) -> None: ...


def source(group_rows: int = 100, rows: int = 3, **columns: Any) -> TableSource:
    """Columns of strings by name, or of the type given."""
    kinds = {name: kind if isinstance(kind, pa.DataType) else pa.string() for name, kind in columns.items()}
    return TableSource(pa.table({name: pa.array([None] * rows, kind) for name, kind in kinds.items()}), group_rows)


def ids(values: list[Any], group_rows: int = 2, kind: pa.DataType | None = None) -> TableSource:
    return TableSource(pa.table({"text": ["t"] * len(values), "id": pa.array(values, kind)}), group_rows)


def plan(of: TableSource, model: str = "m", now_s: float = 5.0, token: str = "7f3a", **request: Any) -> JobPlan:
    asked = JobRequest(source=SourceSpec(uri="/data/docs.parquet"), **request)
    return plan_job(asked, of, model=model, harvest=HarvestConfig(), now_s=now_s, token=token)


def ask(prompt: str) -> dict[str, Any]:
    return {"task": "ask", "options": {"prompt": prompt}}
