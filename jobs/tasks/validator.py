"""The validator of answers against a JSON schema. It runs on a replica's event loop, so its work is bounded whatever the schema says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import jsonschema

from jobs.access.pattern import Patterns
from jobs.engine import RowError

MAX_STEPS = 100_000  # of one answer, of some 10 us each: keywords evaluated, and what `Patterns` says of the patterns
NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})  # hold subschemas by name
PLAIN = frozenset({"enum", "const", "default", "examples"})  # hold values that are no schemas
_RESOURCES = frozenset({"$schema", "$id"})

Errors = Iterator[jsonschema.ValidationError]
Keyword = Callable[[Any, Any, Any, Any], Errors | None]
_DRAFT = jsonschema.Draft202012Validator


class AnswerValidator:
    """Checks values against one schema, read as draft 2020-12 with every reference resolved from its root, as `check_schema` has it.

    The schema has passed `check_schema`. Used by one thread.
    """

    def __init__(self, schema: dict[str, Any]) -> None:
        self._steps = 0
        self._patterns = Patterns()
        own: dict[str, Keyword] = {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
        }
        keywords = {name: self._counted(keyword) for name, keyword in {**_DRAFT.VALIDATORS, **own}.items()}
        extended: type[jsonschema.protocols.Validator] = jsonschema.validators.extend(_DRAFT, keywords)  # type: ignore[no-untyped-call]
        self._validator = extended(_without_resources(schema))

    def error(self, value: Any) -> jsonschema.ValidationError | None:
        """What is most wrong with ``value``. Raises `RowError` (``schema_mismatch``) where finding it would take over `MAX_STEPS`."""
        self._steps = 0
        worst: jsonschema.ValidationError | None = jsonschema.exceptions.best_match(self._validator.iter_errors(value))
        return worst

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise RowError(
                "schema_mismatch",
                f"the answer takes more than {MAX_STEPS:,} steps to check against the schema; use fewer allOf, anyOf and oneOf within each "
                "other or within what refers to itself, and shorter patterns",
            )

    def _counted(self, keyword: Keyword) -> Keyword:
        def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Errors | None:
            self._spend(1)
            return keyword(validator, value, instance, schema)

        return counted

    def _matching(self, pattern: str, texts: Collection[str]) -> list[str]:
        self._spend(self._patterns.steps(pattern, texts))
        return self._patterns.matching(pattern, texts)

    def _pattern(self, validator: Any, pattern: str, instance: Any, schema: Any) -> Errors:
        if validator.is_type(instance, "string") and not self._matching(pattern, [instance]):
            yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")

    def _pattern_properties(self, validator: Any, patterns: Any, instance: Any, schema: Any) -> Errors:
        if validator.is_type(instance, "object"):
            for pattern, subschema in patterns.items():
                for name in self._matching(pattern, instance):
                    yield from validator.descend(instance[name], subschema, path=name, schema_path=pattern)

    def _additional_properties(self, validator: Any, additional: Any, instance: Any, schema: Any) -> Errors | None:
        """The draft's own, for a schema that names the properties which its patterns match."""
        known = dict(schema.get("properties", {}))
        if validator.is_type(instance, "object"):
            for pattern in schema.get("patternProperties", {}):
                known |= dict.fromkeys(self._matching(pattern, instance))
        draft: Keyword = _DRAFT.VALIDATORS["additionalProperties"]
        return draft(validator, additional, instance, {"properties": known})


def _without_resources(node: Any) -> Any:
    """A schema, or a list of them, without ``$schema`` and ``$id``: another draft's validator, or another root, would apply below them."""
    if isinstance(node, list):
        return [_without_resources(entry) for entry in node]
    if not isinstance(node, dict):
        return node
    return {key: _cleared(key, value) for key, value in node.items() if key not in _RESOURCES or not isinstance(value, str)}


def _cleared(keyword: str, value: Any) -> Any:
    if keyword in PLAIN:
        return value
    if keyword in NAMED and isinstance(value, dict):
        return {name: _without_resources(subschema) for name, subschema in value.items()}
    return _without_resources(value)
