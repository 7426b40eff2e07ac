"""Labels of a choice: two or more different texts."""

from __future__ import annotations

from typing import Any

from jobs.errors import TaskError


def parse_labels(given: Any, origin: str) -> tuple[str, ...]:
    """Labels from a list, or from text separated by commas. Raises `TaskError` naming ``origin`` and the label."""
    entries = given.split(",") if isinstance(given, str) else given
    if not isinstance(entries, list | tuple):
        raise TaskError(f"{origin}: labels must be a list, given {str(given)[:80]!r}; e.g. positive,negative")
    for entry in entries:
        # YAML reads a bare `yes` or `no` as true or false.
        if isinstance(entry, bool) or not isinstance(entry, str | int | float):
            raise TaskError(f'{origin}: label {entry!r} is not text; put it in quotes, e.g. "yes"')
    labels = tuple(str(entry).strip() for entry in entries)
    shown = ", ".join(repr(label) for label in labels)[:120]
    if "" in labels:
        raise TaskError(f"{origin}: label {labels.index('') + 1} is empty in {shown}; give each label a name")
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise TaskError(f"{origin}: label {twice!r} is given twice; give each label once")
    if len(labels) < 2:
        raise TaskError(f"{origin}: at least two labels are needed, given {shown or 'none'}; e.g. positive,negative")
    return labels
