"""The base of models that processes send each other, or that Ray keeps, pickled: the reader may be of another version."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticUndefined


class Frozen(BaseModel):
    """A model that does not change. Unknown keys are refused.

    Unpickled, a record of an older version has the defaults of the fields added since, and one of a newer version loses the fields that
    only that knows. So a new field needs a default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __setstate__(self, state: dict[Any, Any]) -> None:
        told, fields = state["__dict__"], type(self).model_fields
        values = {name: told[name] if name in told else field.get_default(call_default_factory=True) for name, field in fields.items()}
        values = {name: value for name, value in values.items() if value is not PydanticUndefined}
        known = state["__pydantic_fields_set__"] & fields.keys()
        super().__setstate__({**state, "__dict__": values, "__pydantic_fields_set__": known})


def of_newer(what: object, error: ValueError) -> str | None:
    """What to tell of a record, named ``what``, with fields that only a newer version can have written; None if it is wrong otherwise."""
    found = error.errors() if isinstance(error, ValidationError) else []
    if not found or any(one["type"] != "extra_forbidden" for one in found):
        return None
    fields = ", ".join(".".join(map(str, one["loc"])) for one in found)[:200]
    return f"{what} was written by a newer version of harvester, which knows {fields}; start that version"


def stored(one: BaseModel) -> str:
    """``one`` as JSON that also an earlier version reads: it refuses fields that it lacks, so those with their default are left out.

    A record that was stored takes the reader's defaults. So a default of such a model must not change.
    """
    return one.model_dump_json(exclude_defaults=True)


def of_other(what: object, error: ValueError) -> str:
    """What to tell of a record, named ``what``, that this version cannot read, although it is whole."""
    return of_newer(what, error) or f"{what} was written by another version of harvester; use that one"
