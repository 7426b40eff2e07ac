"""Answers as objects of a Pydantic model: as the model itself would have read the answer's JSON."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from pydantic import AliasChoices, BaseModel, Field, RootModel

from harvester.api.rows import Rows
from jobs.tasks.answer import parse_answer, result_fields
from jobs.tasks.schema import check_schema
from jobs.tasks.spec import AnswerKind, Task


class Item(BaseModel):
    name: str
    tags: list[str] = []
    quantity: int = 1
    price: float | None = None


class Order(BaseModel):
    items: list[Item]
    first: Item | None = None
    extra: dict[str, Item] = {}
    note: str = "none"


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Tree(BaseModel):
    top: Node


class Guess(BaseModel):
    number: int | None = 5
    kind: Literal["a", "b", None] = "a"
    any: Any = 1
    either: int | Item | None = 2


class Renamed(BaseModel):
    number: int = Field(validation_alias="no")
    other: int = Field(alias="more", default=3)
    third: int = Field(validation_alias=AliasChoices("three", "drei"), default=4)


def rows_of(model: type[BaseModel], answer: str) -> list[Any]:
    """The answer stored in the columns of a job with this model's schema, then read as the API does."""
    schema = check_schema(model.model_json_schema(), "the model")
    task = Task(name="extract", prompt="{text}", answer=AnswerKind.JSON, json_schema=schema)
    values, fields = parse_answer(task, answer, "stop"), pa.schema(result_fields(task))
    batch = pa.RecordBatch.from_pylist([values] * 2, fields)
    return list(Rows(lambda: (fields, iter([batch])), model))


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        (Order, '{"items": [{"name": "pen"}, {"name": "ink", "quantity": 3, "tags": ["x"]}]}'),
        (Order, '{"items": [], "first": {"name": "pen", "price": null}, "extra": {"more": {"name": "ink"}}, "note": "fast"}'),
        (Tree, '{"top": {"name": "a", "children": [{"name": "b"}]}}'),
        (Guess, '{"number": null, "kind": null, "any": null, "either": null}'),
        (Guess, '{"number": 1, "kind": "b", "any": [null, {"x": null}], "either": {"name": "pen"}}'),
        (Renamed, '{"no": 1}'),
        (Renamed, '{"no": 1, "more": 2, "three": 5}'),
    ],
)
def test_an_answer_is_the_object_that_its_json_stands_for(model: type[BaseModel], answer: str) -> None:
    assert rows_of(model, answer) == [model.model_validate_json(answer)] * 2


def test_an_absent_property_that_takes_null_is_null() -> None:
    """The column holds null for both. An answer's own null must not become another value."""
    assert rows_of(Guess, "{}") == [Guess(number=None, kind=None, any=None, either=None)] * 2


def test_a_model_without_properties_is_read_from_the_output() -> None:
    batch = pa.record_batch({"output": ["[1, 2]"], "status": ["ok"]})
    model = RootModel[list[int]]
    assert list(Rows(lambda: (batch.schema, iter([batch])), model)) == [model([1, 2])]


def test_a_relation_has_floats_for_half_floats_and_text_for_long_decimals() -> None:
    halves = pa.array([1.5, 2.5], pa.float32()).cast(pa.float16())
    vectors, long = pa.FixedSizeListArray.from_arrays(halves, 2), pa.array([Decimal("1" * 45)], pa.decimal256(50, 0))
    batch = pa.record_batch({"vector": vectors, "list": pa.ListArray.from_arrays([0, 2], halves), "long": long})
    assert Rows(lambda: (batch.schema, iter([batch]))).duckdb().fetchall() == [((1.5, 2.5), [1.5, 2.5], "1" * 45)]
