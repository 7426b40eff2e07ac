"""Logging of a server's processes: text lines, or JSON lines with the values of an event as fields.

A message is written as ``log.warning("slice_storage job=%s slice=%d %s", ...)``: its first word names the event, and the value after
``name=`` is a field. JSON lines derive both from the message, so that no event needs a second call.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from jobs.config import Section

FILE = "harvester.jsonl"  # in the log folder
ROOT = "harvester"  # parent of all our loggers
_EVENT = re.compile(r"[a-z][a-z0-9_]*")
_PLACE = re.compile(r"(?:(\w+)=)?%(?:[-+ #0]*\d*(?:\.\d+)?)([a-zA-Z%])")
_CONTEXT: ContextVar[Mapping[str, str]] = ContextVar("_CONTEXT", default=MappingProxyType({}))


class LogConfig(Section):
    """Log format and level of the server's processes."""

    format: Literal["text", "json"] = Field(
        default="text", description="text: a line an event; json: an object a line, also in `logs/harvester.jsonl` of the state folder."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(default="warning", description="Minimum level to log.")


@contextmanager
def about(**fields: str) -> Iterator[None]:
    """Add these fields to all that is logged within the block and by the asyncio tasks that it starts."""
    token = _CONTEXT.set({**_CONTEXT.get(), **fields})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def write_logs(config: LogConfig, folder: Path, process: str) -> None:
    """Set up the log of this process by ``config``. ``folder``: of the logs; ``process``: its role, such as ``replica``.

    A second call replaces the first. Another program may rotate the file: it is reopened once it was moved.
    """
    logger = logging.getLogger(ROOT)
    logger.setLevel(config.level.upper())
    for handler in [one for one in logger.handlers if isinstance(one.formatter, JsonLines)]:
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = config.format == "text"
    if config.format == "json":
        folder.mkdir(parents=True, exist_ok=True)
        for handler in (logging.StreamHandler(), WatchedFileHandler(folder / FILE, encoding="utf-8")):
            handler.setFormatter(JsonLines(process))
            logger.addHandler(handler)


def event_of(record: logging.LogRecord) -> str | None:
    """The name of the event; None where the message is a sentence."""
    first = str(record.msg).partition(" ")[0]
    return first if _EVENT.fullmatch(first) and ("_" in first or "=" in str(record.msg)) else None


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Values after ``name=`` in the message: numbers stay numbers, all else becomes text."""
    given = iter(record.args if isinstance(record.args, tuple) else ())
    found: dict[str, Any] = {}
    for place in _PLACE.finditer(str(record.msg)):
        name, kind = place.groups()
        if kind == "%":
            continue
        value = next(given, None)
        if name is not None:
            found[name] = value if value is None or isinstance(value, bool | int | float) else str(value)
    return found


class JsonLines(logging.Formatter):
    """One JSON object a record: time (ISO 8601, UTC), level, logger, process, pid, event, message, the fields, the cause of an error."""

    def __init__(self, process: str) -> None:
        from pythonjsonlogger.json import JsonFormatter  # only where JSON is wanted

        super().__init__()
        self._process = process
        self._json = JsonFormatter()

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        told: dict[str, Any] = {"time": at, "level": record.levelname.lower(), "logger": record.name, "process": self._process}
        told |= {"pid": record.process, "event": event_of(record), "message": record.getMessage()}
        told = fields_of(record) | dict(_CONTEXT.get()) | told
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return str(self._json.serialize_log_record({key: value for key, value in told.items() if value is not None}))
