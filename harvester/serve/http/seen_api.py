"""Tells a client whether it is the server's own user, and whether the server reads the client's files in place."""

from __future__ import annotations

import asyncio
import time

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from harvester.serve.access.who import Who
from jobs.access.handle import HEADER, is_signed, read_key
from jobs.plan.planner import JobPlanner
from jobs.spec import SeenFile
from jobs.storage.folder import StateFolder

SEEN = "/api/sources/seen"


class SeenFiles(BaseModel):
    files: list[SeenFile] = Field(max_length=100)


async def is_user_of(sent: Request, folder: StateFolder, path: str = "/api/jobs") -> bool:
    """Whether the request is signed by the server's own user, who may read what the server may."""
    key = read_key(folder)
    return key is not None and is_signed(key, sent.headers.get(HEADER), "POST", path, await sent.body(), time.time())


def add_seen(app: FastAPI, planner: JobPlanner) -> None:
    """Add ``POST /sources/seen``."""

    @app.post("/sources/seen", include_in_schema=False)
    async def seen(question: SeenFiles, sent: Request, who: Who) -> dict[str, bool]:
        """Whether the server's own user asks, and whether the server reads these very files for who asks."""
        is_user = await is_user_of(sent, planner.folder, SEEN)
        return {"is_user": is_user, "is_seen": await asyncio.to_thread(planner.sees, question.files, is_user=is_user)}
