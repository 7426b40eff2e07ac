"""``POST /sql``: read-only SQL in a sandboxed process of its own, with limits on rows, bytes, memory and time.

``POST /sql/answers`` has no limit on rows and bytes: the process writes an Arrow IPC stream to a file, which the client then reads from any
byte offset.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from harvester.serve.access.identity import Identity
from harvester.serve.access.who import Who
from harvester.serve.http.answers import Answers
from harvester.serve.http.contract import refusal
from harvester.serve.http.jobs.download import KINDS
from harvester.serve.http.jobs.owned import AskedOnce, LedgerSpecs, own_table
from harvester.serve.refusals import OpenAiRefusal
from jobs.ledger.store.statements import TABLES
from jobs.sql.fetch import JOBS, fetch_results, jobs_named, newest_ids, tables_named
from jobs.sql.pool import QueryPool
from jobs.sql.sandbox import MAX_QUERY_CHARS
from jobs.storage.folder import StateFolder
from jobs.threads import FairThreads

# Queries that fetch results from the storage at the same time; they hold no place in the pool meanwhile.
FETCH_AT_ONCE = 4
CLIENT_FETCHES = 2


class Question(BaseModel):
    query: str = Field(
        min_length=1,
        max_length=MAX_QUERY_CHARS,
        description="One SELECT over jobs, leases, harvest, harvested, lengths, usage, results('JOB').",
    )
    limit: int = Field(default=1000, ge=1, le=10_000, description="Maximum rows of the answer.")


class Column(BaseModel):
    name: str
    type: str


class Answered(BaseModel):
    columns: list[Column]
    rows: list[list[Any]]
    is_cut: bool = Field(description="There are more rows than `limit`, or than an answer holds.")


class KeptQuestion(BaseModel):
    query: str = Field(min_length=1, max_length=MAX_QUERY_CHARS)


def add_sql(app: FastAPI, ledger: LedgerSpecs, folder: StateFolder, pool: QueryPool, min_free_bytes: int = 0) -> None:
    """Add ``POST /sql`` and ``/sql/answers`` over the caller's own part of the ledger."""
    answers = Answers(folder)
    fetching = FairThreads("fetch", FETCH_AT_ONCE, CLIENT_FETCHES)

    async def known(tables: AskedOnce, who: Identity, query: str) -> dict[str, pa.Table]:
        """Only the ledger tables that the query names: leases may have 400,000 rows, and heartbeats wait while the ledger makes a table."""
        found = {name: await own_table(tables, name, who) for name in tables_named(query, TABLES)}
        return found | {JOBS: await tables.with_specs(found[JOBS], jobs_named(query, newest_ids(found[JOBS])))}

    async def fetch(tables: AskedOnce, query: str, client: str, who: Identity) -> None:
        if folder.mirror is None:
            return
        ids = newest_ids(await own_table(tables, JOBS, who))
        if jobs_named(query, ids):
            await fetching.run(client, partial(fetch_results, folder, query, ids))

    def client_of(request: Request, who: Identity) -> str:
        return who.counted_as or str(request.client.host if request.client else "")

    @app.post("/sql", response_model=Answered, responses={429: refusal(429, OpenAiRefusal)})
    async def sql(question: Question, request: Request, who: Who) -> Response:
        query, client, tables = question.query, client_of(request, who), AskedOnce(ledger)
        await fetch(tables, query, client, who)
        answer = await pool.ask(folder.root, partial(known, tables, who, query), query, limit_rows=question.limit, client=client)
        return Response(answer, media_type="application/json")  # as the process wrote it: validating 16 MiB again here would take long

    @app.post("/sql/answers", include_in_schema=False)
    async def ask(question: KeptQuestion, request: Request, who: Who) -> dict[str, Any]:
        client, tables = client_of(request, who), AskedOnce(ledger)
        await fetch(tables, question.query, client, who)
        path = await asyncio.to_thread(answers.new, who)
        draft = path.with_suffix(".draft")
        try:
            told = await pool.ask(
                folder.root,
                partial(known, tables, who, question.query),
                question.query,
                client=client,
                kept=draft,
                min_free_bytes=min_free_bytes,
            )
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        return {"id": path.stem, **json.loads(told)}

    @app.get("/sql/answers/{answer_id}", include_in_schema=False)
    async def answer(answer_id: str, who: Who, offset: Annotated[int, Query(ge=0)] = 0) -> StreamingResponse:
        return StreamingResponse(_bytes_of(answers.opened(answer_id, who), offset), media_type=KINDS["arrow"])


def _bytes_of(path: Path, offset: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(offset)
        while piece := file.read(1 << 20):
            yield piece
