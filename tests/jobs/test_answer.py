"""Answers: columns of a task, and texts as their values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from jobs.engine import RowError
from jobs.errors import TaskError
from jobs.tasks.answer import parse_answer, result_fields
from jobs.tasks.load import resolve_task
from jobs.tasks.spec import Task
from jobs.tasks.validator import MAX_STEPS

TEXT = resolve_task("summarize")
CHOICE = resolve_task("classify", options={"labels": "good,so so"})


def json_task(properties: dict[str, Any], **rest: Any) -> Task:
    return resolve_task("extract", options={"schema": {"type": "object", "properties": properties, **rest}})


def column(schema: dict[str, Any], **rest: Any) -> pa.DataType:
    return result_fields(json_task({"a": schema}, **rest))[0].type


def test_text_and_choice_give_one_output_column() -> None:
    assert result_fields(TEXT) == result_fields(CHOICE) == [pa.field("output", pa.string())]


def test_json_gives_a_column_for_each_property_in_order() -> None:
    task = json_task({"z": {"type": "string"}, "a": {"type": "integer"}})
    assert result_fields(task) == [pa.field("z", pa.string()), pa.field("a", pa.int64())]


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        pytest.param({"type": "string"}, pa.string(), id="string"),
        pytest.param({"type": "integer"}, pa.int64(), id="integer"),
        pytest.param({"type": "number"}, pa.float64(), id="number"),
        pytest.param({"type": "boolean"}, pa.bool_(), id="boolean"),
        pytest.param({"type": ["integer", "null"]}, pa.int64(), id="nullable"),
        pytest.param({"type": ["integer", "number"]}, pa.float64(), id="any-number"),
        pytest.param({"type": ["string", "integer"]}, pa.string(), id="union-is-json"),
        pytest.param({"anyOf": [{"type": "integer"}, {"type": "null"}]}, pa.int64(), id="anyof-nullable"),
        pytest.param({"oneOf": [{"type": "integer"}, {"type": "number"}]}, pa.float64(), id="oneof-numbers"),
        pytest.param({"allOf": [{"type": "boolean"}]}, pa.bool_(), id="allof-one"),
        pytest.param({"enum": ["a", "b"]}, pa.string(), id="enum-strings"),
        pytest.param({"enum": [1, 2, None]}, pa.int64(), id="enum-integers"),
        pytest.param({"enum": [1, 2.5]}, pa.float64(), id="enum-numbers"),
        pytest.param({"enum": [1, "a"]}, pa.string(), id="enum-mixed-is-json"),
        pytest.param({"const": True}, pa.bool_(), id="const"),
        pytest.param({"type": "array", "items": {"type": "number"}}, pa.list_(pa.float64()), id="list"),
        pytest.param({"type": "array"}, pa.string(), id="list-of-anything-is-json"),
        pytest.param(
            {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            pa.list_(pa.struct([("n", pa.int64())])),
            id="list-of-objects",
        ),
        pytest.param(
            {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "string"}}}},
            pa.struct([("x", pa.list_(pa.string()))]),
            id="object",
        ),
        pytest.param({"type": "object"}, pa.string(), id="open-object-is-json"),
        pytest.param({}, pa.string(), id="anything-is-json"),
    ],
)
def test_a_schema_type_has_an_arrow_type(schema: dict[str, Any], kind: pa.DataType) -> None:
    assert column(schema) == kind


def test_a_reference_has_the_type_it_leads_to() -> None:
    item = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert column({"type": "array", "items": {"$ref": "#/$defs/item"}}, **{"$defs": {"item": item}}) == pa.list_(
        pa.struct([("n", pa.int64())])
    )


def test_a_schema_that_holds_itself_ends_as_json() -> None:
    node = {"type": "object", "properties": {"name": {"type": "string"}, "child": {"$ref": "#/$defs/node"}}}
    task = json_task({"a": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": node}})
    assert result_fields(task)[0].type == pa.struct([("name", pa.string()), ("child", pa.string())])
    value = parse_answer(task, '{"a": {"name": "x", "child": {"name": "y"}}}', "stop")
    assert value == {"a": {"name": "x", "child": '{"name": "y"}'}}


def test_a_label_that_may_be_the_beginning_of_another_is_none_where_it_was_cut_off() -> None:
    task = resolve_task("classify", options={"labels": "1,2,10"})
    assert [parse_answer(task, answer, end)["output"] for answer, end in (("1", "stop"), ("2", "length"), ("10", "length"))] == [
        "1",
        "2",
        "10",
    ]
    with pytest.raises(RowError) as refused:
        parse_answer(task, "1", "length")
    assert refused.value.code == "cut_off"


def test_a_text_is_kept_as_it_came_even_where_it_was_cut_off() -> None:
    assert parse_answer(TEXT, " A summary.\n", "length") == {"output": " A summary.\n"}


def test_white_space_around_a_label_is_no_part_of_it() -> None:
    assert parse_answer(CHOICE, " so so\n", "stop") == {"output": "so so"}


def test_every_answer_fits_its_columns() -> None:
    task = json_task(
        {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "at": {"type": "object", "properties": {"line": {"type": ["integer", "null"]}}},
            "any": {},
            "missing": {"type": "boolean"},
        }
    )
    text = '{"name": "é", "count": 3.0, "share": 1, "tags": ["a"], "at": {"line": null, "more": 1}, "any": {"k": [1]}, "extra": 0}'
    values = parse_answer(task, text, "stop")
    expected = {"name": "é", "count": 3, "share": 1.0, "tags": ["a"], "at": {"line": None}, "any": '{"k": [1]}', "missing": None}
    assert values == expected
    assert type(values["count"]) is int
    assert type(values["share"]) is float
    assert pa.Table.from_pylist([values], schema=pa.schema(result_fields(task))).to_pylist() == [expected]


@pytest.mark.parametrize("kind", [{"type": "string"}, {}, {"type": "array", "items": {"type": "string"}}], ids=["string", "json", "list"])
def test_half_a_surrogate_pair_does_not_break_the_part(kind: dict[str, Any]) -> None:
    task = json_task({"a": kind})
    value = ["x\ud800"] if kind.get("type") == "array" else "x\ud800"
    values = parse_answer(task, json.dumps({"a": value}), "stop")
    assert "x\ufffd" in pa.Table.from_pylist([values], schema=pa.schema(result_fields(task)))["a"].to_pylist()[0].__str__()


PRICE = json_task({"price": {"type": "integer", "minimum": 0}, "size": {"type": "number"}}, required=["price"])
ANYTHING = json_task({"any": {}})


@pytest.mark.parametrize(
    ("task", "text", "finish_reason", "code", "message"),
    [
        pytest.param(CHOICE, "bad", "stop", "not_a_label", "'bad', not one of: good, so so", id="not-a-label"),
        pytest.param(CHOICE, "so", "length", "cut_off", "max_tokens=32; raise it", id="cut-label"),
        pytest.param(PRICE, "price: 3", "stop", "bad_json", "not JSON", id="bad-json"),
        pytest.param(PRICE, '{"price": 3', "stop", "bad_json", "not JSON", id="open-json"),
        pytest.param(PRICE, '{"price": NaN}', "stop", "bad_json", "NaN is not a JSON value", id="nan"),
        pytest.param(PRICE, '{"price": 3' + "0" * 5000 + "}", "stop", "bad_json", "not JSON", id="endless-number"),
        pytest.param(PRICE, "[" * 100_000, "length", "cut_off", "cut off", id="deep"),
        pytest.param(PRICE, '{"price": 3, "no', "length", "cut_off", "max_tokens=512", id="cut-json"),
        pytest.param(PRICE, '{"price": -3}', "stop", "schema_mismatch", "at price: -3 is less than", id="mismatch"),
        pytest.param(PRICE, '{"price": -3}', "length", "schema_mismatch", "at price", id="whole-mismatch"),
        pytest.param(PRICE, "{}", "stop", "schema_mismatch", "'price' is a required property", id="missing"),
        pytest.param(PRICE, "[]", "stop", "schema_mismatch", "is not of type 'object'", id="list"),
        pytest.param(PRICE, '{"price": 9223372036854775808}', "stop", "schema_mismatch", "outside the range of int64", id="int64"),
        pytest.param(PRICE, f'{{"price": 1, "size": 1{"0" * 400}}}', "stop", "schema_mismatch", "number", id="float64"),
        pytest.param(PRICE, '{"price": 1, "size": -1e400}', "stop", "schema_mismatch", "-1e400 is larger than a double", id="infinity"),
        pytest.param(ANYTHING, '{"any": [1e400]}', "stop", "schema_mismatch", "1e400 is larger than a double", id="infinity-inside"),
    ],
)
def test_a_wrong_answer_is_a_row_error(task: Task, text: str, finish_reason: str, code: str, message: str) -> None:
    with pytest.raises(RowError) as caught:
        parse_answer(task, text, finish_reason)
    assert caught.value.code == code
    assert message in caught.value.message
    assert len(caught.value.message) < 400


def test_a_whole_answer_that_ends_at_the_last_token_is_an_answer() -> None:
    assert parse_answer(PRICE, '{"price": 3}', "length") == {"price": 3, "size": None}
    assert parse_answer(CHOICE, "good", "length") == {"output": "good"}


SLOW = "^(a+)+$"  # Python's `re` takes 2^n steps for n letters a and another
ALMOST = "a" * 40 + "b"
DRAFT_07 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("rest", "answer"),
    [
        pytest.param({"if": {"properties": {"x": {"pattern": SLOW}}}}, {"x": ALMOST}, id="pattern"),
        pytest.param({"patternProperties": {SLOW: False}}, {"x": "", ALMOST: 1}, id="pattern-properties"),
        pytest.param({"patternProperties": {SLOW: {}}, "additionalProperties": {}}, {"x": "", ALMOST: 1}, id="additional-properties"),
        pytest.param(
            {"$schema": DRAFT_07, "if": {"properties": {"x": {"pattern": SLOW}}}, "additionalProperties": {"$ref": "#"}},
            {"x": "", "child": {"x": ALMOST}},
            id="another-draft",
        ),
        pytest.param(
            {"allOf": [{"$schema": DRAFT_07, "if": {"properties": {"x": {"pattern": SLOW}}}}]}, {"x": ALMOST}, id="draft-of-a-subschema"
        ),
    ],
)
def test_a_pattern_is_matched_in_linear_time(rest: dict[str, Any], answer: dict[str, Any]) -> None:
    assert parse_answer(json_task({"x": {"type": "string"}}, **rest), json.dumps(answer), "stop") == {"x": answer["x"]}


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        pytest.param("b", "abc", True, id="anywhere"),
        pytest.param("^é.$", "éa", True, id="letters-not-bytes"),
        pytest.param("^ab$", "ab\n", False, id="the-end-is-after-a-line-break"),
        pytest.param("^\\d$", "٣", False, id="ascii-digits"),
        pytest.param("^x.$", "x\ud800", True, id="half-a-surrogate-pair"),
    ],
)
def test_a_pattern_is_searched_as_json_schema_has_it(pattern: str, text: str, is_found: bool) -> None:
    task = json_task({"x": {"type": "string", "pattern": pattern}})
    if is_found:
        parse_answer(task, json.dumps({"x": text}), "stop")
    else:
        with pytest.raises(RowError, match=r"at x: .* does not match"):
            parse_answer(task, json.dumps({"x": text}), "stop")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        pytest.param({"x": 1, "n_a": 2}, None, id="matched"),
        pytest.param({"n_a": "2"}, "at n_a: '2' is not of type 'integer'", id="of-another-type"),
        pytest.param({"n_a": 2, "m_a": 2}, "Additional properties are not allowed ('m_a' was unexpected)", id="additional"),
    ],
)
def test_properties_that_a_pattern_names_have_its_schema(answer: dict[str, Any], message: str | None) -> None:
    task = json_task({"x": {}}, patternProperties={"^n_": {"type": "integer"}}, additionalProperties=False)
    if message is None:
        parse_answer(task, json.dumps(answer), "stop")
    else:
        with pytest.raises(RowError) as caught:
            parse_answer(task, json.dumps(answer), "stop")
        assert message in caught.value.message


def test_an_identifier_within_a_schema_moves_no_reference() -> None:
    task = json_task(
        {"x": {"$id": "https://example.org/x", "$ref": "#/$defs/d", "$defs": {"d": {"type": "integer"}}}},
        **{"$defs": {"d": {"type": "string"}}},
    )
    assert parse_answer(task, '{"x": "a"}', "stop") == {"x": "a"}


@pytest.mark.parametrize("value", [{"$id": "x"}, {"$schema": "y", "a": [{"$id": "x"}]}], ids=["at the top", "within"])
@pytest.mark.parametrize("schema", [lambda value: {"const": value}, lambda value: {"enum": [1, value]}], ids=["const", "enum"])
def test_an_identifier_in_a_plain_value_is_a_part_of_it(schema: Callable[[Any], dict[str, Any]], value: Any) -> None:
    task = json_task({"x": schema(value)})
    assert parse_answer(task, json.dumps({"x": value}), "stop")["x"] is not None
    with pytest.raises(RowError, match="at x"):
        parse_answer(task, '{"x": {}}', "stop")


@pytest.mark.parametrize("name", ["const", "default", "$id", "properties"])
def test_a_property_may_have_the_name_of_a_keyword(name: str) -> None:
    slow = {"$schema": DRAFT_07, "if": {"pattern": SLOW}, "type": "string"}
    task = json_task({name: slow})
    assert parse_answer(task, json.dumps({name: ALMOST}), "stop") == {name: ALMOST}
    with pytest.raises(RowError, match="is not of type 'string'"):
        parse_answer(task, json.dumps({name: 1}), "stop")


@pytest.mark.parametrize("place", ["const", "enum/0", "examples/0/not", "default"])
def test_no_reference_leads_into_a_plain_value(place: str) -> None:
    slow = {"$schema": DRAFT_07, "if": {"pattern": SLOW}, "not": {}}
    holder = {"const": slow, "enum": [slow], "examples": [slow], "default": slow}
    with pytest.raises(TaskError, match=r"\$ref #/properties/x/.* leads nowhere"):
        json_task({"x": holder, "y": {"$ref": f"#/properties/x/{place}"}})
    json_task({"const": {"type": "string"}, "y": {"$ref": "#/properties/const"}})


DEEPER = {"properties": {"n": {"$ref": "#/$defs/node"}}}


@pytest.mark.parametrize(
    ("task", "few", "many"),
    [
        pytest.param(
            json_task({"n": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": {"allOf": [DEEPER, DEEPER]}}}),
            '{"n": {"n": {"n": {}}}}',
            '{"n": ' * 40 + "{}" + "}" * 40,
            id="branches-of-a-schema-that-holds-itself",
        ),
        pytest.param(
            json_task({"n": {"pattern": "(a?){1000}"}}), '{"n": "aaa"}', json.dumps({"n": "a" * 40_000}), id="a-pattern-of-many-states"
        ),
        pytest.param(
            json_task({"n": {"items": {"pattern": "(a?){1000}"}}}), '{"n": ["a"]}', json.dumps({"n": ["a"] * 4000}), id="compiled-often"
        ),
    ],
)
def test_an_answer_that_takes_too_many_steps_to_check_is_a_row_error(task: Task, few: str, many: str) -> None:
    assert "n" in parse_answer(task, few, "stop")
    with pytest.raises(RowError) as caught:
        parse_answer(task, many, "stop")
    assert caught.value.code == "schema_mismatch"
    assert f"the answer takes more than {MAX_STEPS:,} steps to check against the schema" in caught.value.message


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        pytest.param("^[A-Za-z0-9 ,.'-]{1,100}$", ["John Smith"] * 400, id="names"),
        pytest.param("^[A-Za-z0-9 ,.'-]{1,200}$", ["John Smith " * 7] * 100, id="long-names"),
        pytest.param("^[^<>]{1,500}$", ["x" * 400] * 50, id="without-tags"),
        pytest.param("^[\\s\\S]{10,1000}$", ["x" * 900] * 12, id="of-a-length"),
    ],
)
def test_many_long_texts_are_checked_against_the_patterns_that_people_write(pattern: str, texts: list[str]) -> None:
    task = json_task({"x": {"type": "array", "items": {"type": "string", "pattern": pattern}}})
    assert parse_answer(task, json.dumps({"x": texts}), "stop") == {"x": texts}
    with pytest.raises(RowError, match=r"at x\.1: .* does not match"):
        parse_answer(task, json.dumps({"x": [texts[0], "", *texts]}), "stop")


def test_what_an_earlier_version_accepted_keeps_its_columns_and_takes_no_answers() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?!a)"}}}
    task = json_task({"x": {}}).model_copy(update={"json_schema": schema})
    assert result_fields(task) == [pa.field("x", pa.string())]
    with pytest.raises(TaskError, match=r"the job's schema: pattern .* cannot be matched in linear time"):
        parse_answer(task, '{"x": "b"}', "stop")
