"""The reference, written from the code whenever the site is built."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, get_args, get_origin

import duckdb
import pyarrow as pa
import typer.main
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.cli import get_docs_for_click

import harvester
from harvester.api.client import Harvester
from harvester.api.job import Job
from harvester.api.rows import Rows
from harvester.cli.main import app
from harvester.config import ServeConfig
from harvester.errors import HarvesterError
from harvester.serve.access.routes import CHAT_ROUTES, JOBS_ROUTES, OPENAI_ROUTES, RouteTable
from jobs.ledger.counts import JobsNow
from jobs.ledger.store.statements import statements
from jobs.result import result_schema
from jobs.sql.query import _INTERNAL
from jobs.tasks.load import resolve_task


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cli() -> str:
    program: Any = typer.main.get_command(app)
    text = get_docs_for_click(obj=program, ctx=typer.Context(program), name="harvester")
    return "# Commands\n\n" + re.sub(r"^Example:\n", "Example:\n\n", text.replace("# `harvester`", "## `harvester`", 1), flags=re.MULTILINE)


def _row(name: str, field: FieldInfo) -> tuple[str, str, str, str, str]:
    kind = getattr(field.annotation, "__name__", "") if isinstance(field.annotation, type) else str(field.annotation)
    bounds = ", ".join(str(bound) for bound in field.metadata).replace("annotated_types.", "")
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    default = "required" if field.is_required() else "its own" if isinstance(value, BaseModel) else f"`{value}`"
    kind = re.sub(r"typing\.|[a-z_]+\.(?=[a-zA-Z_.]*[A-Z])", "", kind)
    return f"`{name}`", f"`{kind}`", default, bounds, field.description or ""


def sections(model: type[BaseModel], prefix: str = "") -> Iterable[tuple[str, type[BaseModel]]]:
    """Each section of the configuration, by its key; one of many by ``key.NAME``."""
    yield prefix, model
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}".lstrip(".")
        for part, is_one in _parts(field.annotation):
            yield from sections(part, path if is_one else f"{path}.NAME")


def _parts(kind: Any, *, is_one: bool = True) -> Iterable[tuple[type[BaseModel], bool]]:
    """The sections that a type holds, and whether it is one of them or many."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind, is_one
    else:
        for part in get_args(kind):
            yield from _parts(part, is_one=is_one and get_origin(kind) not in (dict, tuple, list))


def config() -> str:
    text = "# Configuration\n\nThe YAML file of `harvester serve --config FILE`. An unknown key is an error.\n"
    seen = set[type[BaseModel]]()
    for prefix, model in sections(ServeConfig):
        if model in seen:  # a further model has the sections of the first
            continue
        seen.add(model)
        rows = [_row(name, field) for name, field in model.model_fields.items()]
        title = f"`{prefix}`" if prefix else "Top level"
        text += f"\n## {title}\n\n{model.__doc__}\n\n" + table(("key", "type", "default", "bounds", "meaning"), rows)
    return text


def http() -> str:
    text = "# HTTP routes\n\nEvery route that is served, and the roles that may use it. Others answer 404.\n"
    parts: dict[str, tuple[str, RouteTable]] = {
        "Chat": ("", CHAT_ROUTES), "Jobs": ("/api", JOBS_ROUTES), "Files and batches": ("", OPENAI_ROUTES)
    }  # fmt: skip
    for title, (prefix, routes) in parts.items():
        rows = []
        for name, needed in routes.routes.items():
            method, _, path = name.partition(" ")
            if needed is None or needed:
                roles = "no key" if needed is None else ", ".join(sorted(role.value for role in needed))
                rows.append((f"`{method}`", f"`{prefix}{path}`", roles))
        text += f"\n## {title}\n\n" + table(("method", "path", "roles"), rows)
    return text


def results() -> str:
    schema = result_schema(pa.schema([pa.field("text", pa.string())]), [], resolve_task("summarize"))
    rows = [(f"`{field.name}`", f"`{field.type}`") for field in schema]
    return (
        "# Results\n\nColumns of the result of a task with a text answer. The input columns stand after `row_id`. "
        "A task with a JSON schema has its properties in place of `output`.\n\n" + table(("column", "Arrow type"), rows)
    )


def sql() -> str:
    text = "# SQL tables\n\nThe views of `harvester sql` and of `POST /api/sql`.\n"
    with duckdb.connect() as connection:
        connection.execute(statements()["schema"])
        for (name,) in connection.sql("SHOW TABLES").fetchall():
            columns = connection.sql(f"DESCRIBE {name}").fetchall()
            shown = [(f"`{column[0]}`", f"`{column[1]}`") for column in columns if column[0] not in _INTERNAL]
            text += f"\n## `{name}`\n\n" + table(("column", "type"), shown)
    return text


def metric_families() -> Iterable[Metric]:
    """Every metric of ours: of a replica, of the keys, and of the jobs application."""
    from harvester.engine.frontend.metrics import ClassMetrics, SharedStateMetrics
    from harvester.engine.shared.state import SharedState
    from harvester.serve.access.meter import Meter
    from harvester.serve.access.quota import Quotas
    from harvester.serve.http.metrics_api import job_metrics, ledger_metric, replica_metrics

    registry = CollectorRegistry()
    ClassMetrics(registry)
    Meter(Quotas(lambda: 0.0), registry)
    return [
        *registry.collect(),
        *SharedStateMetrics(SharedState.make()).collect(),
        *job_metrics(JobsNow([], {}, 0), {}, 0.0),
        ledger_metric(is_up=True),
        *replica_metrics([], {"": 0}, ""),
    ]


def metrics() -> str:
    rows = [(f"`{metric.name}`", metric.type, metric.documentation) for metric in metric_families()]
    return (
        "# Metrics\n\n`/api/metrics` shows those of jobs and of every replica, with the labels `replica` and `model`; "
        "`/metrics` those of one replica. A counter's sample ends in `_total`.\n\n" + table(("metric", "type", "meaning"), sorted(rows))
    )


def _public(kind: type) -> Iterable[tuple[str, Any]]:
    for name, member in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            yield name, member


def python() -> str:
    text = "# Python\n\n`import harvester` needs httpx and Arrow alone. `connect_async` gives the same methods as coroutines.\n\n"
    text += _described("harvester.connect", harvester.connect)
    for kind in (Harvester, Job, Rows):
        text += f"\n## `{kind.__name__}`\n\n{inspect.getdoc(kind)}\n\n"
        text += "".join(_described(f"{kind.__name__}.{name}", member) for name, member in _public(kind))
    return text


def _described(name: str, member: Any) -> str:
    """Signature and contract of one function, method or property."""
    is_value = isinstance(member, property)
    signature = "" if is_value else str(inspect.signature(member)).replace("(self, ", "(").replace("(self)", "()")
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature).replace("(/, ", "(")
    signature = re.sub(r"\bJ\b", "Job", re.sub(r"Flow\[(.*)\]$", r"\1", signature))  # what a blocking call of it returns
    return f"### `{name}`\n\n    {name}{signature}\n\n{inspect.getdoc(member) or ''}\n\n"


def _tree(kind: type[HarvesterError]) -> Iterable[type[HarvesterError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _tree(child)


def errors() -> str:
    kinds = {kind.code: kind for kind in _tree(HarvesterError) if kind.__module__.endswith("errors")}
    rows = [(f"`{kind.code}`", f"`{kind.__name__}`", kind.http_status, kind.exit_code) for kind in kinds.values()]
    return "# Errors\n\nThe code is in the body of an HTTP answer; the exit code is the command's.\n\n" + table(
        ("code", "class", "HTTP status", "exit code"), rows
    )


PAGES: dict[str, Callable[[], str]] = {
    "cli": cli, "config": config, "http": http, "python": python, "results": results, "sql": sql, "metrics": metrics, "errors": errors
}  # fmt: skip
