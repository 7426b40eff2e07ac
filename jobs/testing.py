"""Fakes for tests and benches of the job engine: a scripted engine, a ledger reached by plain calls, a clock moved by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import ceil
from typing import Any

from jobs.access.marks import UNMARKED, Marks
from jobs.engine import PLAIN, ApiCall, Completion, EngineGone, Message, Prompt, Rendering, RowRequest
from jobs.ledger.ledger import Ledger
from jobs.run.client import LedgerCalls, apply
from jobs.spec import JobPlan, JobSpec, JobView, SliceSpec, SourceSpec
from jobs.tasks.spec import Task
from jobs.usage import Usage

IMAGE_TOKENS = 50  # of each image that a scripted engine is shown


def last_line(prompt: Prompt) -> str:
    """The default script: the last line of the user's message."""
    return prompt.messages[-1]["content"].rstrip("\n").rpartition("\n")[2]


def last_content(call: ApiCall) -> str:
    """The default script of API calls: the content of the last message, or the prompt."""
    messages = call.body.get("messages")
    return str(messages[-1].get("content", "")) if messages else str(call.body.get("prompt", ""))


class Refused(Exception):
    """Raised by a script: the request is answered with this status."""

    def __init__(self, status_code: int, message: str) -> None:
        super().__init__(message)
        self.status_code = status_code


class ScriptedEngine:
    """A `jobs.engine.RowEngine` that follows a script. Used from one event loop.

    ``answer`` gives each prompt's text, or raises what `RowEngine.complete` may raise. ``reply`` gives the content of the response to each
    API call, or raises `Refused`. ``hear`` gets each request before that. ``think`` gives the thinking before the answer to a prompt.

    For an embedding ``answer`` gives a JSON list, which is not cut. Any other text of more than ``max_tokens`` tokens is cut there and
    ends with "length". Each completion takes ``delay_s`` and, after `hold`, waits for `go_on`. After `die` it raises `EngineGone`, and so
    does every later one.
    """

    def __init__(
        self,
        model: str = "scripted",
        context_tokens: int = 8192,
        concurrency: int = 32,
        answer: Callable[[Prompt], str] = last_line,
        delay_s: float = 0.0,
        tokens_per_char: float = 0.25,
        reply: Callable[[ApiCall], str] = last_content,
        hear: Callable[[RowRequest], None] | None = None,
        think: Callable[[Prompt], str] | None = None,
        marks: Marks = UNMARKED,
    ) -> None:
        self.model = model
        self.context_tokens = context_tokens
        self.concurrency = concurrency
        self.answer = answer
        self.reply = reply
        self.hear = hear
        self.think = think
        self.marks = marks
        self.delay_s = delay_s
        self.tokens_per_char = tokens_per_char
        self.finished = 0  # completions that ended
        self.calls = 0  # completions asked for
        self.running = 0  # of them in work now
        self.aborted = 0  # of them cancelled by the caller
        self._dead = False
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Keep every completion in work until `go_on`."""
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    def die(self) -> None:
        """Lose the engine: completions in work and later ones raise `EngineGone`."""
        self._dead = True
        self._open.set()

    @property
    def harvested_s(self) -> float:
        """Each completion takes its ``delay_s`` of the device."""
        return self.finished * self.delay_s

    async def count_tokens(self, messages: tuple[Message, ...], rendering: Rendering = PLAIN) -> int:
        return self._tokens("".join(message["content"] for message in messages)) + IMAGE_TOKENS * len(rendering.images)

    async def complete(self, request: RowRequest) -> Completion:
        if self.hear is not None:
            self.hear(request)
        if isinstance(request.content, ApiCall):
            return await self._response(request.request_id, request.content)
        async with self._in_work():
            text = self.answer(request.content)
        return await self._completion(request.content, text)

    async def _response(self, request_id: str, call: ApiCall) -> Completion:
        try:
            async with self._in_work():
                text = self.reply(call)
        except Refused as refused:
            error = {"message": str(refused), "type": "BadRequestError", "param": None, "code": refused.status_code}
            return Completion(json.dumps({"error": error}), "error", status_code=refused.status_code)
        usage = Usage(prompt_tokens=self._tokens(json.dumps(call.body)), output_tokens=self._tokens(text))
        return Completion(json.dumps(_body(request_id, call, text, usage), ensure_ascii=False), "stop", usage)

    @asynccontextmanager
    async def _in_work(self) -> AsyncIterator[None]:
        """Counts a request; the script runs inside, the wait for its time comes after."""
        self.calls += 1
        self.running += 1
        try:
            yield
            await asyncio.sleep(self.delay_s)
            await self._open.wait()
            self.finished += 1
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1
        if self._dead:
            raise EngineGone("the scripted engine was told to die")

    async def _completion(self, prompt: Prompt, text: str) -> Completion:
        if prompt.max_tokens == 0:
            return Completion(text, "stop", Usage(prompt_tokens=await self.count_tokens(prompt.messages)))
        max_chars = int(prompt.max_tokens / self.tokens_per_char)
        thought = self.think(prompt) if self.think is not None and prompt.rendering.thinking_tokens else None
        said, begin = f"{thought or ''}{text}"[:max_chars], len(thought or "")
        return Completion(
            text=said[begin:],
            finish_reason="stop" if begin + len(text) <= max_chars else "length",
            usage=Usage(prompt_tokens=await self.count_tokens(prompt.messages), output_tokens=self._tokens(said)),
            reasoning=None if thought is None else said[:begin],
        )

    def _tokens(self, text: str) -> int:
        return max(1, ceil(len(text) * self.tokens_per_char))


def _body(request_id: str, call: ApiCall, text: str, usage: Usage) -> dict[str, object]:
    """An OpenAI response with one choice."""
    chat = call.endpoint.endswith("/chat/completions")
    choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    tokens = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.output_tokens}
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": call.body.get("model"),
        "choices": [{"index": 0, "finish_reason": "stop", **choice}],
        "usage": tokens | {"total_tokens": sum(tokens.values())},
    }


class ManualClock:
    """A wall clock that moves only when told; call it for the time in seconds."""

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def scripted_plan(
    job_id: str, rows_total: int = 10, slice_rows: int = 4, *, key: str | None = None, model: str = "scripted", created_at_s: float = 0.0
) -> JobPlan:
    """A plan for the ledger, over one row group of a source that is not there. ``key`` is the id unless given."""
    spec = JobSpec(
        id=job_id,
        key=job_id if key is None else key,
        source=SourceSpec(uri=f"/nowhere/{job_id}.parquet"),
        fingerprint="none",
        task=Task(name="echo", prompt="{text}"),
        column="text",
        keep=(),
        model=model,
        rows_total=rows_total,
        created_at_s=created_at_s,
    )
    cuts = [(start, min(slice_rows, rows_total - start)) for start in range(0, rows_total, slice_rows)]
    slices = [SliceSpec(slice_id=i, group_index=0, offset=at, row_start=at, row_count=count) for i, (at, count) in enumerate(cuts)]
    return JobPlan(spec=spec, slices=tuple(slices))


class DirectLedger(LedgerCalls):
    """A `Ledger` in this process behind the calls that a replica and the jobs application make. ``now_s`` is the wall clock."""

    def __init__(self, ledger: Ledger, now_s: Callable[[], float]) -> None:
        self.ledger = ledger
        self._now_s = now_s

    async def _call(self, method: str, *args: Any) -> Any:
        return apply(self.ledger, method, args, self._now_s())

    async def submit(self, plan: JobPlan, *, new: bool) -> tuple[JobView, bool]:
        return self.ledger.submit(plan, new=new)
