"""``POST /sql``: read-only SQL in the sandbox of a process of its own, with limits on rows, bytes, memory and time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from harvester.serve.access.who import Who
from harvester.serve.http.contract import refusal
from harvester.serve.http.owned import LedgerTables, own_table
from harvester.serve.openai.objects import OpenAiRefusal
from jobs.folder import StateFolder
from jobs.ledger.store import TABLES
from jobs.sql.pool import QueryPool
from jobs.sql.sandbox import MAX_QUERY_CHARS


class Question(BaseModel):
    query: str = Field(
        min_length=1, max_length=MAX_QUERY_CHARS, description="One SELECT over jobs, leases, harvest, lengths, usage and results('JOB')."
    )
    limit: int = Field(default=1000, ge=1, le=10_000, description="Maximum rows of the answer.")


class Column(BaseModel):
    name: str
    type: str


class Answered(BaseModel):
    columns: list[Column]
    rows: list[list[Any]]
    is_cut: bool = Field(description="There are more rows than `limit`, or than an answer holds.")


def add_sql(app: FastAPI, tables: LedgerTables, folder: StateFolder, pool: QueryPool) -> None:
    """Add ``POST /sql`` over what of the ledger is the asker's."""

    @app.post("/sql", response_model=Answered, responses={429: refusal(429, OpenAiRefusal)})
    async def sql(question: Question, request: Request, who: Who) -> Response:
        async def known() -> dict[str, pa.Table]:
            return {name: await own_table(tables, name, who) for name in TABLES}

        client = who.name or str(request.client.host if request.client else "")
        answer = await pool.ask(folder.root, known, question.query, limit_rows=question.limit, client=client)
        return Response(answer, media_type="application/json")  # as the process wrote it: this one would take long to check 16 MiB
