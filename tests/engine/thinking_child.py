"""``python -m tests.engine.thinking_child``: the embedded model with a template that has a thinking switch, asked as rows, chats and calls.

It repeats what it is told to, so what it "thinks" is in its prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.harness.device import on_cpu
from harvester.config import parse_config
from harvester.engine.embedded import embedded_model
from jobs.engine import ApiCall, Prompt, Rendering, RowError, RowRequest
from jobs.run.row import RowWork
from jobs.tasks.spec import Task
from jobs.testing import scripted_plan

THINK = "Repeat: <think>I wonder about it</think>"  # stands in the prompts of tasks: in the text of a row the marks are text
THOUGHT = f"{THINK}yes, it is"
CALL = 'Repeat: <tool_call>{"name": "look", "arguments": {"where": "here"}}</tool_call>'
TEMPLATE = Path(__file__).with_name("templates") / "toy.jinja"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"where": {"type": "string"}}}}}

ROWS: dict[str, tuple[str, dict[str, Any]]] = {  # the row's text, and its task
    "on": ("yes, it is", {"thinking": 40}),
    "bounded": ("yes, it is", {"thinking": 4}),
    "off": ("Repeat: yes, it is", {"thinking": "off", "prompt": "{text}"}),
    "cut": ("yes, it is", {"thinking": 5, "max_tokens": 1}),
    "answer cut": ("yes, it is", {"thinking": 14, "max_tokens": 2}),
    "choice": ("yes", {"thinking": 40, "answer": "choice", "labels": ("yes", "no")}),
    "choice at once": ("Repeat: yes", {"answer": "choice", "labels": ("yes", "no"), "prompt": "{text}"}),
    "opened by its text": ("yes <think> and so on it is", {"thinking": 14}),
}


def model(folder: Path) -> Path:
    made = folder / "thinker"
    shutil.copytree(embedded_model(), made)
    settings = made / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": TEMPLATE.read_text()}))
    return made


async def row(engine: Any, name: str) -> dict[str, Any]:
    text, asked = ROWS[name]
    task = Task(name="ask", temperature=0.0, **{"prompt": f"{THINK}{{text}}", "max_tokens": 40, **asked})
    job = scripted_plan("docs").spec.model_copy(update={"task": task, "column": "text"})
    done = await RowWork(job, engine, time.time).answer(0, {"text": text}, text, 1, name.replace(" ", "-"))
    return {**done.values, "status": done.status, "code": done.error_code, "ended": done.finish_reason, "tokens": done.usage.output_tokens}


async def too_long(engine: Any) -> list[str]:
    """What a prompt above the context is told that nobody has measured, without thinking and with it."""
    told = []
    for number, thinking in enumerate((0, 16)):
        messages = ({"role": "user", "content": "word " * 2000},)
        prompt = Prompt(messages, max_tokens=8, temperature=0.0, rendering=Rendering(thinking_tokens=thinking))
        try:
            await engine.complete(RowRequest(f"long-{number}", prompt))
        except RowError as error:
            told.append(f"{error.code}: {error.message}")
    return told


def chat(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "thinker", "messages": [{"role": "user", "content": text}], "max_tokens": 60, "temperature": 0, **more}


async def streamed(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, str]:
    said = {"reasoning": "", "content": ""}
    async with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                said = {name: text + (delta.get(name) or "") for name, text in said.items()}
    return said


async def run(folder: Path) -> dict[str, Any]:
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments

    config = parse_config({"engine": {"tool_parser": "hermes", "max_model_len": 512}}, "test")
    host = await EngineHost.start(engine_arguments(config, str(model(folder)), "thinker", cpu=on_cpu(), embedded=True))
    try:
        engine = host.offline("thinker", 4)
        found: dict[str, Any] = {"thinking": host.thinking.model_dump(), "rows": {name: await row(engine, name) for name in ROWS}}
        found["too_long"] = await too_long(engine)
        for name, kwargs in (("batch", {}), ("batch off", {"enable_thinking": False})):
            body = chat(THOUGHT if name == "batch" else "Repeat: yes, it is", chat_template_kwargs=kwargs)
            done = await engine.complete(RowRequest(name.replace(" ", "-"), ApiCall("/v1/chat/completions", body)))
            found[name] = json.loads(done.text)["choices"][0]["message"]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(host.app), base_url="http://127.0.0.1") as http:
            found["streamed"] = await streamed(http, chat(THOUGHT))
            answer = await http.post("/v1/chat/completions", json=chat(CALL, tools=[TOOL], chat_template_kwargs={"enable_thinking": False}))
            found["tools"] = answer.json()["choices"][0]
    finally:
        host.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given.output.write_text(json.dumps(asyncio.run(run(Path(folder)))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
