"""Templates: places, escapes, values that are never read again."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harvester.errors import ColumnError, TaskError
from jobs.tasks.template import escape, fill, parse, places, plain_text, render


def test_places_come_in_order_and_once() -> None:
    assert places("{b} and {a}, again {b}; not {{c}}") == ("b", "a")


@pytest.mark.parametrize("name", ["text", "Größe", "order-id", "Review Text", "2020 sales", "_x", "a1"])
def test_a_column_name_is_a_place(name: str) -> None:
    assert render(f"<{{{name}}}>", {name: "v"}) == "<v>"


def test_doubled_braces_are_braces() -> None:
    assert render('{{"a": {{}}, "b": {x}}} {{{x}}}', {"x": 1}) == '{"a": {}, "b": 1} {1}'


@given(st.text(), st.text())
def test_a_value_is_inserted_as_it_is(value: str, other: str) -> None:
    assert render("{a}|{b}", {"a": value, "b": other}) == f"{value}|{other}"


@given(st.text())
def test_escaped_text_renders_to_itself(text: str) -> None:
    assert render(escape(text), {}) == text


@given(st.text(), st.text())
def test_a_filled_value_adds_no_place(value: str, text: str) -> None:
    filled = fill("{{x}} {to} {text}", {"to": value})
    assert places(filled) == ("text",)
    assert render(filled, {"text": text}) == f"{{x}} {value} {text}"


@pytest.mark.parametrize(
    ("template", "where", "what"),
    [
        pytest.param("a {", "line 1, character 3", "not closed", id="open"),
        pytest.param("a\nbc {text", "line 2, character 4", "not closed", id="open-on-line-2"),
        pytest.param("a } b", "line 1, character 3", "}}", id="close"),
        pytest.param("{a{b}}", "line 1, character 1", "not closed", id="nested"),
        pytest.param("x {}", "line 1, character 3", "names no column", id="empty"),
        pytest.param("{0}", "line 1, character 1", "{0}", id="number"),
        pytest.param("{a@b}", "line 1, character 1", "{a@b}", id="attribute"),
        pytest.param("{a[0]}", "line 1, character 1", "{a[0]}", id="index"),
        pytest.param("{a!r}", "line 1, character 1", "{a!r}", id="conversion"),
        pytest.param("{a:>9}", "line 1, character 1", "{a:>9}", id="format"),
        pytest.param('{"key": 1}', "line 1, character 1", "{{", id="json"),
        pytest.param("{ text }", "line 1, character 1", "{ text }", id="padded"),
    ],
)
def test_a_bad_template_says_where_and_what(template: str, where: str, what: str) -> None:
    with pytest.raises(TaskError) as caught:
        parse(template, "mine.yaml: prompt")
    assert caught.value.message.startswith(f"mine.yaml: prompt, {where}: ")
    assert what in caught.value.message
    assert "\n" not in caught.value.message


def test_a_place_without_a_value_is_a_column_error() -> None:
    with pytest.raises(ColumnError, match="column b, which the row does not have; it has: a"):
        render("{a} {b}", {"a": 1})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(None, "", id="null"),
        pytest.param("a {b}", "a {b}", id="string"),
        pytest.param(True, "true", id="bool"),
        pytest.param(12, "12", id="int"),
        pytest.param(0.5, "0.5", id="float"),
        pytest.param(Decimal("1E+2"), "100", id="decimal"),
        pytest.param(datetime.date(2024, 2, 29), "2024-02-29", id="date"),
        pytest.param(datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=datetime.UTC), "2024-02-29T01:02:03+00:00", id="timestamp"),
        pytest.param(datetime.time(1, 2), "01:02:00", id="time"),
        pytest.param(b"caf\xc3\xa9\xff", "café\ufffd", id="bytes"),
        pytest.param([1, "é", None], '[1, "é", null]', id="list"),
        pytest.param({"a": {"on": datetime.date(2024, 1, 1)}}, '{"a": {"on": "2024-01-01"}}', id="struct"),
    ],
)
def test_a_value_is_written_as_plain_text(value: object, text: str) -> None:
    assert plain_text(value) == text


def test_any_column_name_stands_in_quotes_and_a_dot_is_part_of_a_name() -> None:
    values = {"Review.Text": 1, "a b": 2, "price (EUR)": 3, 'q"x': 4}
    assert render('{Review.Text} {"a b"} {"price (EUR)"} {"q""x"}', values) == "1 2 3 4"
    assert fill('{"price (EUR)"} {a}', {"a": "{"}) == '{"price (EUR)"} {{'
