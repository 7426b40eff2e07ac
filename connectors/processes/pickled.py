"""Dataclasses that are pickled, by one version of this program, and read by another: in messages of a rolling update, by Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")


def across_versions(kind: type[T]) -> type[T]:
    """Let instances of an older version, which has fewer fields, have the defaults of the fields added since.

    For frozen dataclasses with slots, whose instances are pickled as the list of their values. So a field is added at the end, with a
    default. The values of fields that only a newer version has are dropped.
    """
    kind.__setstate__ = _fill  # type: ignore[attr-defined]
    return kind


def _fill(one: Any, values: Sequence[Any]) -> None:
    known = fields(one)
    for field, value in zip(known, values, strict=False):
        object.__setattr__(one, field.name, value)
    for field in known[len(values) :]:
        if field.default is not MISSING:
            object.__setattr__(one, field.name, field.default)
        elif field.default_factory is not MISSING:
            object.__setattr__(one, field.name, field.default_factory())
