"""``python -m tests.engine.images_child``: rows that show images to a tiny model, and the same as chats; what came, written down."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
import time
from pathlib import Path
from typing import Any

from tests.engine.host_child import main, with_host
from tests.engine.kinds import seeing

COLOURS = ("red", "green", "navy", "white")
TOKENS = 24
PROMPT = "What is in this picture?"


def picture(colour: str) -> bytes:
    from PIL import Image

    made = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(made, "PNG")
    return made.getvalue()


def shown(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


async def found(host: Any) -> dict[str, Any]:
    import httpx

    from jobs.access.images import ImageBounds
    from jobs.engine import PLAIN, Rendering
    from jobs.run.row import RowWork
    from jobs.tasks.load import resolve_task
    from jobs.testing import scripted_plan

    engine, name = host.offline("tiny", 8), host.models()[0]

    def work(prompt: str, column: str | None) -> RowWork:
        task = resolve_task("ask", options={"prompt": prompt}, max_tokens=TOKENS, images=["photo"])
        job = scripted_plan("photos").spec.model_copy(update={"task": task, "column": column})
        return RowWork(job, engine, time.time, images=ImageBounds(hosts=("127.0.0.1",)))

    async def row(number: int, cell: object, prompt: str = PROMPT, text: str | None = None, *, tag: str = "one") -> dict[str, Any]:
        asks = work(prompt, None if text is None else "text")
        return (await asks.answer(number, {"photo": cell}, text, 1, tag)).to_json()

    async def chat(colour: str) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": shown(picture(colour))}}, {"type": "text", "text": PROMPT}]
        body = {"model": name, "messages": [{"role": "user", "content": parts}], "max_tokens": TOKENS, "temperature": 0}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(host.app), base_url="http://127.0.0.1") as http:
            return dict((await http.post("/v1/chat/completions", json=body)).json())

    whole = picture("red")
    messages = ({"role": "user", "content": PROMPT},)
    return {
        "max_images": host.max_images,
        "rows": [await row(number, picture(colour)) for number, colour in enumerate(COLOURS)],
        "chats": [await chat(colour) for colour in COLOURS],
        "together": await asyncio.gather(*(row(number, picture(colour), tag="two") for number, colour in enumerate(COLOURS))),
        "damaged": await row(8, whole[: len(whole) // 2]),
        "refused by its host": await row(9, "http://127.0.0.1:9/cat.png"),
        "long": await row(10, whole, "{text}", "Some words. " * 2000),
        "bound": await engine.count_tokens(messages, Rendering(images=(shown(whole),))),
        "text": await engine.count_tokens(messages, PLAIN),
    }


async def run(models: Path) -> dict[str, Any]:
    wanted = {"engine": {"dtype": "float32", "max_model_len": 512, "allowed_media_domains": ["127.0.0.1"]}}
    return await with_host(seeing(models), wanted, found)


if __name__ == "__main__":
    sys.exit(main(__doc__, run))
