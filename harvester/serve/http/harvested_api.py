"""``GET /harvested``: GPU-hours harvested and what they would have cost, summed by job, key and day."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa
from fastapi import FastAPI
from pydantic import BaseModel

from harvester.serve.access.who import Who
from harvester.serve.http.jobs.owned import own_table

_SUMS = ("rows", "prompt_tokens", "output_tokens", "gpu_hours", "cost")


class Group(StrEnum):
    JOB = "job"
    KEY = "key"
    DAY = "day"


_COLUMN = {Group.JOB: "job_id", Group.KEY: "owner", Group.DAY: "day"}


class Harvested(BaseModel):
    """``cost`` is null where no price was configured. ``name`` is null for a server without keys. One row for each currency."""

    name: str | None
    currency: str | None
    rows: int
    prompt_tokens: int
    output_tokens: int
    gpu_hours: float
    cost: float | None


class Report(BaseModel):
    by: Group
    harvested: list[Harvested]


class Tables(Protocol):
    async def table(self, name: str) -> pa.Table: ...


def summed(table: pa.Table, by: Group) -> list[Harvested]:
    """Sums over rows of the ledger's table ``harvested``. By day the latest comes first, else the most GPU-hours."""
    found = table.group_by([_COLUMN[by], "currency"]).aggregate([(name, "sum") for name in _SUMS]).to_pylist()
    rows = [_row(one, _COLUMN[by]) for one in found]
    return sorted(rows, key=lambda row: row.name or "" if by is Group.DAY else row.gpu_hours, reverse=True)


def _row(one: dict[str, Any], column: str) -> Harvested:
    return Harvested(name=one[column], currency=one["currency"], **{name: one[f"{name}_sum"] for name in _SUMS})


def add_harvested(app: FastAPI, tables: Tables) -> None:
    """Add ``GET /harvested`` over the caller's own part of the ledger."""

    @app.get("/harvested")
    async def harvested(who: Who, by: Group = Group.JOB) -> Report:
        return Report(by=by, harvested=summed(await own_table(tables, "harvested", who), by))
