"""``python -m tests.engine.adapters_child``: rows and chats on two adapters and none, of a tiny model; what came, written down."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from tests.engine.host_child import main, with_host
from tests.engine.kinds import adapter, plain

NAMES = (None, "first", "second")
TEXTS = ("a red house", "two grey cats")
TOKENS = 16


async def found(host: Any, model: str) -> dict[str, Any]:
    import httpx

    from jobs.run.row import RowWork
    from jobs.tasks.load import resolve_task
    from jobs.testing import scripted_plan

    engine = host.offline(model, 8)

    async def row(text: str, name: str | None, tag: str) -> str:
        task = resolve_task("ask", options={"prompt": "{text}"}, max_tokens=TOKENS, adapter=name)
        job = scripted_plan("docs").spec.model_copy(update={"task": task})
        told = (await RowWork(job, engine, time.time).answer(0, {"text": text}, text, 1, f"{tag}-{name}-{len(text)}")).to_json()
        return str(told["values"].get("output") or told["error_message"])

    async def chat(text: str, name: str | None) -> str:
        body = {"model": name or model, "messages": [{"role": "user", "content": text}], "max_tokens": TOKENS, "temperature": 0}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(host.app), base_url="http://127.0.0.1") as http:
            return str((await http.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]["content"])

    asked = [(text, name) for text in TEXTS for name in NAMES]
    return {
        "adapters": host.adapters(),
        "models": host.models(),
        "rows": [await row(text, name, "one") for text, name in asked],
        "together": await asyncio.gather(*(row(text, name, "two") for text, name in asked)),
        "chats": await asyncio.gather(*(chat(text, name) for text, name in asked)),
        "unknown": await row(TEXTS[0], "third", "one"),
    }


async def run(models: Path) -> dict[str, Any]:
    model = plain(models)
    adapters = {name: str(adapter(models / name, seed, of=model)) for seed, name in enumerate(("first", "second"))}
    wanted = {"engine": {"dtype": "float32", "max_model_len": 512}, "adapters": adapters}
    return await with_host(model, wanted, lambda host: found(host, model.name))


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
