"""`harvester chat`: talk to the served model over its chat route."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from harvester.cli.client import Client
from harvester.cli.invocation import Invocation, command
from harvester.cli.server.local import START_S, serving
from harvester.cli.table import visible
from harvester.errors import EngineError, HarvesterError, KeyRefusedError, NoReplicaError, RoleError, UnreachableError, from_json

NO_REPLICA_WAIT_S = 1.0  # at least, between two requests
app = typer.Typer()

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """``content``: the answer; ``reasoning``: the model's thinking before it, None where it did not think."""

    content: str
    reasoning: str | None
    ttft_ms: float | None  # None where no token came
    total_ms: float
    finish_reason: str | None
    usage: dict[str, Any] | None


@command(app)
def chat(
    here: Invocation,
    prompt: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to ask. Without it, a conversation starts.", show_default=False)
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", metavar="S", help="System message of the conversation.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", metavar="N", min=1, help="Maximum output tokens of an answer.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Model or adapter to ask. Default: the server's first.")
    ] = None,
) -> None:
    """Chat with the served model.

    Prints the time to the first token to standard error. If no server answers, one is started for this command and stopped afterwards.

    \b
    Example:
        harvester chat "What is a KV cache?"
        echo "Say hello" | harvester chat --json
        harvester chat "Say hello" --model small
    """
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip() or None
        if prompt is None:
            return
    with serving(here, None, lambda line: print(line, file=sys.stderr, flush=True)) as (client, _):
        model = model or client.server().model
        if prompt is not None:
            _ask(here, client, model, [*opening, {"role": "user", "content": prompt}], max_tokens)
        else:
            _converse(here, client, model, opening, max_tokens)


def _converse(here: Invocation, client: Client, model: str, messages: list[Message], max_tokens: int | None) -> None:
    print(f"Chat with {model}; an empty line or Ctrl-D ends it", file=sys.stderr)
    while line := _next_line():
        messages.append({"role": "user", "content": line})
        try:
            answer = _ask(here, client, model, messages, max_tokens)
        except (KeyRefusedError, RoleError, UnreachableError):
            raise  # the next question would end the same way
        except HarvesterError as error:
            messages.pop()
            print(f"error: {visible(error.message, is_one_line=False)}", file=sys.stderr)
            continue
        messages.append({"role": "assistant", "content": answer.content})


def _next_line() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""


def _ask(here: Invocation, client: Client, model: str, messages: list[Message], max_tokens: int | None) -> ChatAnswer:
    body: dict[str, Any] = {"model": model, "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    answer = _patient_answer(client, body, show=not here.json)
    if here.json:
        fields = {"ttft_ms": answer.ttft_ms, "total_ms": answer.total_ms, "finish_reason": answer.finish_reason, "usage": answer.usage}
        said = {"content": answer.content, "reasoning": answer.reasoning, "text": answer.content}  # `text`: for scripts that read that
        here.print_json({**said, "model": model, **fields})
    else:
        print(flush=True)
        shown = "no token came" if answer.ttft_ms is None else f"first token after {answer.ttft_ms:.0f} ms"
        print(f"[{shown}, all after {answer.total_ms:.0f} ms]", file=sys.stderr)
    return answer


def _patient_answer(client: Client, body: dict[str, Any], show: bool) -> ChatAnswer:
    """`stream_answer`, asked again while no replica answers: when the server says, for `START_S` in all. Then raises `NoReplicaError`."""
    waited_s = 0.0
    while True:
        try:
            return stream_answer(client, body, show)
        except NoReplicaError as error:  # refused before its first byte, so nothing was printed
            wait_s = max(error.retry_after_s, NO_REPLICA_WAIT_S)
            if waited_s + wait_s > START_S:
                raise
        if waited_s == 0.0:
            told = f"No replica answers yet; asking again in {wait_s:.0f} s, for up to {START_S / 60:.0f} min"
            print(told, file=sys.stderr, flush=True)
        time.sleep(wait_s)
        waited_s += wait_s


def stream_answer(client: Client, body: dict[str, Any], show: bool) -> ChatAnswer:
    """Send one chat request and print its thinking, then its answer on a new line, as they stream in. Times count from the request."""
    began_s = time.perf_counter()
    ttft_ms: float | None = None
    content: list[str] = []
    reasoning: list[str] = []
    last: dict[str, Any] = {}
    with client.stream("/v1/chat/completions", body) as lines:
        for event in events(lines):
            choice: dict[str, Any] = next(iter(event.get("choices") or []), {})
            last |= {name: value for name, value in (("finish", choice.get("finish_reason")), ("usage", event.get("usage"))) if value}
            delta = choice.get("delta") or {}
            thought, said = delta.get("reasoning") or delta.get("reasoning_content") or "", delta.get("content") or ""
            if (thought or said) and ttft_ms is None:
                ttft_ms = _since_ms(began_s)
            if show:
                line = "\n" if said and (reasoning or thought) and not content else ""
                told = f"{thought}{line}{said}"
                print(visible(told, is_one_line=False) if sys.stdout.isatty() else told, end="", flush=True)
            reasoning += [thought] if thought else []
            content += [said] if said else []
    thinking = "".join(reasoning) if reasoning else None
    return ChatAnswer("".join(content), thinking, ttft_ms, _since_ms(began_s), last.get("finish"), last.get("usage"))


def events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """JSON events of a server-sent stream up to ``[DONE]``. Raises the error of an error event; `EngineError` if the stream breaks off."""
    for line in lines:
        field, _, data = line.partition(":")
        if field != "data":
            continue
        if data.strip() == "[DONE]":
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise HarvesterError(f"the server sent an event that is not JSON: {data.strip()[:120]!r}") from error
        if isinstance(event, dict) and "error" in event:
            raise from_json(event, 500)
        if isinstance(event, dict):
            yield event
    raise EngineError("the answer ended before it was complete; the server may have stopped")


def _since_ms(began_s: float) -> float:
    return round((time.perf_counter() - began_s) * 1000, 1)
