"""`--deadline`: a duration from now, or a time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from harvester.errors import UsageError
from jobs.forecast.duration import seconds_of

_FORMS = "give a span like 90m, 6h or 1d12h, or a time like 18:30 or 2030-01-31T18:30"


def parse_deadline(text: str, now_s: float, what: str = "deadline") -> float:
    """The deadline as Unix time. ``6h`` counts from now; ``18:30`` is the next such local time; an ISO time without a zone is local.

    ``what``: the option, as messages name it. Raises `UsageError` for any other form, and for a time that has passed.
    """
    given = text.strip()
    span_s = seconds_of(given)
    if span_s is not None:
        at_s = now_s + span_s
    elif re.fullmatch(r"\d{1,2}:\d{2}", given):
        at_s = _next_clock(given, text, now_s, what)
    else:
        at_s = _time(given, text, what)
    if at_s <= now_s:
        raise UsageError(f"{what} {text} has passed; give a later one")
    return at_s


def _next_clock(given: str, text: str, now_s: float, what: str) -> float:
    hour, minute = (int(part) for part in given.split(":"))
    now = datetime.fromtimestamp(now_s).astimezone()
    try:
        at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    except ValueError as error:
        raise UsageError(f"{what} {text} is not a time of day; {_FORMS}") from error
    return (at if at > now else at + timedelta(days=1)).timestamp()


def _time(given: str, text: str, what: str) -> float:
    try:
        return datetime.fromisoformat(given).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{what} {text!r} is neither a duration nor a time; {_FORMS}") from error
