"""``POST /sql``: read-only SQL in the sandbox, with limits on rows, bytes and time."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pyarrow as pa
from fastapi import FastAPI
from pydantic import BaseModel, Field

from jobs.folder import StateFolder
from jobs.ledger.store import TABLES
from jobs.sql.sandbox import MAX_QUERY_CHARS, ask

AT_ONCE = 2  # chat runs on the same machine


class Tables(Protocol):
    async def table(self, name: str) -> pa.Table: ...


class Question(BaseModel):
    query: str = Field(
        min_length=1, max_length=MAX_QUERY_CHARS, description="One SELECT over jobs, leases, harvest, lengths and results('JOB')."
    )
    limit: int = Field(default=1000, ge=1, le=10_000, description="Maximum rows of the answer.")


class Column(BaseModel):
    name: str
    type: str


class Answered(BaseModel):
    columns: list[Column]
    rows: list[list[Any]]
    is_cut: bool = Field(description="There are more rows than `limit`, or than an answer holds.")


def add_sql(app: FastAPI, tables: Tables, folder: StateFolder) -> None:
    """Add ``POST /sql``. A few queries run at once; others wait."""
    turns = asyncio.Semaphore(AT_ONCE)

    @app.post("/sql")
    async def sql(question: Question) -> Answered:
        async with turns:
            known = {name: await tables.table(name) for name in TABLES}
            answer = await asyncio.to_thread(ask, folder.root, known.__getitem__, question.query, limit_rows=question.limit)
        columns = [Column(name=name, type=kind) for name, kind in answer.columns]
        return Answered(columns=columns, rows=[list(row) for row in answer.rows], is_cut=answer.is_cut)
