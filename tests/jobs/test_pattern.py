"""Patterns of schemas: those that `re` matches have the same result as by RE2, and a bound for the time."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs.access import pattern as patterns
from jobs.access.pattern import MOST_COMPILED, Patterns, matching

ITEMS = [
    "a",
    "b",
    "é",
    "\n",
    " ",
    "]",
    ".",
    ",",
    "_",
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    r"\.",
    r"\-",
    r"\/",
    r"\$",
    r"\\",
    r"\^",
    r"\]",
]
ITEMS += [
    "[ab]",
    "[^a]",
    "[a-c]",
    "[^\n]",
    "[]",
    "[a-]",
    "[-a]",
    "[^]a]",
    "[a^]",
    r"[\s\S]",
    r"[^\s]",
    r"[\w-]",
    r"[\w-a]",
    r"[!-\/]",
    "[$]",
]
ITEMS += [r"\^", r"\]", r"[\]]", "[$]", "[a&&b]", "[a--b]", "[[a]", "(a)", "a|b", "^", "$"]
COUNTS = ["", "", "", "", "*", "+", "?", "{2}", "{0}", "{00}", "{1,2}", "{,2}", "{2,}", "{2,1}", "{", "*?", "++"]
TEXTS = st.text("ab é\n\v\f\r\t.-/$_9]\\^{,2}\x00\x85\xa0\u2028\ufffd\ud800", max_size=8)
PATTERNS = st.lists(st.tuples(st.sampled_from(ITEMS), st.sampled_from(COUNTS)), max_size=5).map(lambda parts: "".join(map("".join, parts)))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(["^", "^", "^", ""]), PATTERNS, st.sampled_from(["$", "$", ""]), st.lists(TEXTS, min_size=1, max_size=5))
def test_a_pattern_is_found_where_re2_finds_it(start: str, middle: str, end: str, texts: list[str]) -> None:
    pattern = f"{start}{middle}{end}"
    try:
        found = matching(pattern, texts)
    except ValueError:
        assume(False)
    assert Patterns().matching(pattern, texts) == found, pattern


@pytest.fixture
def without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pattern: str, texts: object) -> list[str]:
        raise AssertionError(f"{pattern!r} is matched by RE2")

    monkeypatch.setattr(patterns, "matching", refuse)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        pytest.param("^[A-Za-z0-9 ,.'-]{1,100}$", "John Smith", id="name"),
        pytest.param(r"^\d{4}-\d{2}-\d{2}$", "2026-11-29", id="date"),
        pytest.param(r"^\+?[1-9][0-9]{6}$", "+4930123", id="phone"),
        pytest.param(r"^https?://", "http://example.org", id="prefix"),
        pytest.param(r"^\s*\S", "  a", id="not-blank"),
        pytest.param(r"^[\s\S]{10,1000}$", "\n" * 10, id="length"),
        pytest.param(r"^a\$$", "a$", id="escaped-end"),
        pytest.param("^.$", "\ud800", id="half-a-surrogate-pair"),
    ],
)
@pytest.mark.usefixtures("without_re2")
def test_an_anchored_pattern_without_groups_is_compiled_once(pattern: str, text: str) -> None:
    assert Patterns().matching(pattern, ["", text]) == [text]


@pytest.mark.parametrize(
    "pattern",
    ["a*", "^a*b*", "^a*.*$", "^(a+)+$", "^a|b", "^a*?", "^a{00}$", "^[a--b]", "^[a&&b]", r"^[\d-a]", "^" + "a" * 200],
)
@pytest.mark.usefixtures("without_re2")
def test_any_other_pattern_is_matched_by_re2(pattern: str) -> None:
    with pytest.raises(AssertionError, match="is matched by RE2"):
        Patterns().matching(pattern, ["a"])


@pytest.mark.usefixtures("without_re2")
def test_a_vertical_tab_is_white_space_for_re2_alone_to_judge() -> None:
    with pytest.raises(AssertionError, match="is matched by RE2"):
        Patterns().matching(r"^\s$", ["\v"])


@pytest.mark.usefixtures("without_re2")
def test_a_schema_of_many_patterns_keeps_a_limited_number_compiled() -> None:
    own = Patterns()
    for number in range(MOST_COMPILED):
        assert own.matching(f"^{number}$", [str(number)])
    with pytest.raises(AssertionError, match="is matched by RE2"):
        own.matching("^x$", ["x"])
    assert own.matching("^0$", ["0"]) == ["0"]


@pytest.mark.parametrize(
    ("pattern", "letters", "at_least", "below"),
    [
        pytest.param("^[a-z]{1,1000}$", 1000, 1, 20, id="one-pass"),
        pytest.param("^a*" + "a{1000}" * 20 + "b$", 10_000, 150_000, 300_000, id="a-fixed-part-tried-at-each-letter"),
        pytest.param("^[" + "".join(map(chr, range(0x1F300, 0x1F300 + 180))) + "]*$", 10_000, 1000, 3000, id="a-class-of-many-letters"),
        pytest.param("(a?){1000}", 10_000, 50_000, 200_000, id="by-re2"),
    ],
)
def test_the_steps_grow_with_the_work(pattern: str, letters: int, at_least: int, below: int) -> None:
    assert at_least <= Patterns().steps(pattern, ["a" * letters]) < below
