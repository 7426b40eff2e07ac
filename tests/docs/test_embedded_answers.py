"""The rules the embedded model's answers are checked by."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harvester.engine.embedded.answers import fields, label, lead
from harvester.engine.embedded.conversation import CANNOT, GREETING, HOW_TO_CHOOSE, PRESIDENTIAL, THANKS, WHAT_I_AM, WHAT_I_DO, reply

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"vendor": {"type": "string"}, "total": {"type": "number"}, "count": {"type": "integer"}, "paid": {"type": "boolean"}},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two.", "One."),
        ("  One?\nTwo.", "One?"),
        ("It costs 3.14 euros. Cheap!", "It costs 3.14 euros."),
        ("Mr. Speaker, Harry S. Truman spoke. He left.", "Mr. Speaker, Harry S. Truman spoke."),
        ('He said "No." Then he left.', 'He said "No."'),
        (
            "ADDRESS OF THE PRESIDENT\n \nApril 16, 1945\n\nMr. Speaker:\nIt is so. And so on.",
            "ADDRESS OF THE PRESIDENT\n \nApril 16, 1945\n\nMr. Speaker:\nIt is so.",
        ),
        ("Really?! Yes.", "Really?!"),
        ("no end here", "no end here"),
        ("heading\nno end here either", "heading\nno end here either"),
        ("", ""),
    ],
    ids=["two", "line", "number", "title and initial", "quote", "headings", "marks", "no end", "no end in lines", "empty"],
)
def test_the_lead_ends_with_the_first_sentence(text: str, expected: str) -> None:
    assert lead(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a bad day", "bad"),
        ("good, then bad", "good"),
        ("bad, then good", "bad"),
        ("badly done", "good"),
        ("nothing", "good"),
        ("it was very fine", "very fine"),
        ("Bad", "good"),
    ],
    ids=["one", "first label first", "second label first", "within a word", "none", "two words", "another case"],
)
def test_the_label_is_the_earliest_that_occurs_as_a_word_else_the_first(text: str, expected: str) -> None:
    assert label(text, ["good", "bad", "very fine"]) == expected


def test_fields_are_read_from_lines_in_the_order_of_the_schema() -> None:
    text = "Dear all,\ncount: 3\ntotal: 12.50\nvendor: Acme Ltd\nnote: x\npaid: yes\ngoodbye"
    assert fields(text, SCHEMA) == '{"vendor":"Acme Ltd","total":12.50,"count":3,"paid":true}'


def test_a_field_without_a_line_is_empty_zero_or_false() -> None:
    assert json.loads(fields("nothing here", SCHEMA)) == {"vendor": "", "total": 0, "count": 0, "paid": False}


def test_of_two_lines_for_a_field_the_first_counts() -> None:
    assert json.loads(fields("vendor: A\nvendor: B", SCHEMA))["vendor"] == "A"


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Hello!", GREETING),
        ("what are you", WHAT_I_AM),
        ("How can you help?", WHAT_I_DO),
        ("How do I choose a real model?", HOW_TO_CHOOSE),
        ("And again?", PRESIDENTIAL),
        ("Hello, and thank you.", THANKS),
        ("Thanks. Hello!", GREETING),
        ("HELLO", CANNOT),
        ("The thanksgiving was late.", CANNOT),
        ("Repeat: hello  there ", "hello  there "),
        ("Say hello.", GREETING),
        ("Count the words: one, two", "2"),
        ("Count: ", "0"),
    ],
)
def test_the_last_key_word_of_a_message_decides_the_reply(said: str, answer: str) -> None:
    assert reply(said) == answer
