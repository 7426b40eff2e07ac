"""`submit --dry-run`: collect what the estimate needs, and print it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from harvester.cli.client import Client, ServerInfo
from harvester.cli.invocation import Invocation
from harvester.cli.job.text import duration
from harvester.cli.table import visible
from harvester.errors import HarvesterError
from jobs.engine import Message
from jobs.forecast.finish import Span
from jobs.forecast.lengths import Lengths
from jobs.ledger.history import recent_spans, task_key
from jobs.ledger.store.place import read_ledger
from jobs.plan.estimate import CHARS_PER_TOKEN, Known, estimate
from jobs.spec import JobRequest, JobSpec
from jobs.tasks.abilities import UNKNOWN, check_served

NEWEST = 100  # jobs that are looked at for a rate


def print_estimate(here: Invocation, request: JobRequest) -> None:
    reached = here.try_reach()
    if reached is None:
        found = estimate(request, _of_folder(here, request.model))
    else:
        client, info = reached
        with client:
            found = estimate(request, _of_server(client, info, request.model))
    if here.json:
        here.print_json(found)
    else:
        print(*map(visible, _lines(found)), sep="\n")


def _of_folder(here: Invocation, model: str | None) -> Known:
    """What the state folder knows from its last server."""

    def table(name: str) -> list[dict[str, Any]]:
        try:
            found = read_ledger(here.state_dir, name)
        except HarvesterError:  # held by a server that does not answer
            return []
        return [] if found is None else found.to_pylist()

    return Known(model=model or "unknown", spans=recent_spans(table("harvest"), model, time.time()), lengths=_lengths(table))


def _of_server(client: Client, info: ServerInfo, asked: str | None) -> Known:
    def table(name: str) -> list[dict[str, Any]]:
        rows: pa.Table = client.ledger(name)
        return list(rows.to_pylist())

    model = asked or info.model
    check_served(model, (info.model, *info.models))
    spans = recent_spans(table("harvest"), model, time.time()) or _newest_rate(client, model)
    return Known(
        model=model,
        spans=spans,
        lengths=_lengths(table),
        price=info.price,
        able=info if model not in info.models else info.models[model] or UNKNOWN,
        count=lambda messages: _count(client, model, messages),
    )


def _newest_rate(client: Client, model: str) -> list[Span]:
    """Rate of the newest job that has one, of the last `NEWEST`; for a state folder without harvest hours."""
    views, _ = client.newest(NEWEST)
    rates = [view.offline_tokens_per_s for view in views if view.offline_tokens_per_s and view.model == model]
    return [Span(1.0, rates[0])] if rates else []


def _lengths(table: Callable[[str], list[dict[str, Any]]]) -> Callable[[JobSpec], Lengths | None]:
    def of(job: JobSpec) -> Lengths | None:
        key = task_key(job.task, job.model)
        line = next((line for line in table("lengths") if line["task_key"] == key), None)
        return None if line is None else Lengths.from_json(json.loads(line["counts"]))

    return of


def _count(client: Client, model: str, messages: tuple[Message, ...]) -> int | None:
    try:
        return client.count_tokens(model, messages)
    except HarvesterError:
        return None


def _lines(found: dict[str, Any]) -> Iterator[str]:
    way = f"the server's tokenizer on {found['counted_rows']:,}" if found["counted_rows"] else f"characters / {CHARS_PER_TOKEN}"
    output, most, price = found["estimated_output_tokens"], found["most_output_tokens"], found["price"]
    yield f"rows           {found['rows']:,} in {found['slices']:,} slices"
    yield f"task           {found['task']}" + (f", over column {found['column']}" if found["column"] else "")
    yield f"prompt tokens  about {found['estimated_prompt_tokens']:,} (an estimate: {way} of {found['sampled_rows']:,} rows)"
    earlier = "" if output is None else f"about {output:,}, as this task's rows before; "
    yield f"output tokens  {earlier}at most {most:,}"
    yield f"time           {_time(found)}"
    if price is not None:
        yield f"price          about {price['amount']:,.2f} {price['currency']}"
    for note in found["notes"]:
        yield f"note           {note}"


def _time(found: dict[str, Any]) -> str:
    if found["estimated_s"] is None:
        return "unknown: no server has measured a job yet"
    bound = "at most about" if found["estimated_output_tokens"] is None else "about"
    spread = f"{duration(found['estimated_low_s'])} to {duration(found['estimated_high_s'])}"
    return f"{bound} {duration(found['estimated_s'])} ({spread}), at the {found['tokens_per_s']:,.0f} tokens/s of the last days"
