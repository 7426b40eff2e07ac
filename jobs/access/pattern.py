"""Patterns of JSON schemas, matched on a replica's event loop: in time linear in the text, whatever the pattern."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from connectors.text import storable
from jobs.access.limits import pattern_cost

MOST_COMPILED = 100  # patterns of one schema that are kept compiled
_MOST_LETTERS = 200  # of a pattern that is compiled, which takes up to 2 ms
_RE2_UNITS = 500  # letters of a pattern, repeats written out, times letters of a text: what RE2 at its slowest does in a few steps
_RE2_COMPILING = 100  # letters of a text take as long as compiling the pattern for it, which Arrow does in each call
_RE_UNITS = 1000  # the same of `re` at its slowest, in one step

_ESCAPED = r"\\[dwsDWS!-/:-@\[-^`{-~]"
_ITEM = rf"(?:{_ESCAPED}|\[\^?+(?:[^\\\[\]]|{_ESCAPED})++\]|[^\\\[\](){{}}*+?^$|])"
_COUNT = r"(?:0|[1-9]\d{0,3})"
_FIXED = rf"(?:{_ITEM}(?:\{{{_COUNT}\}})?+(?![*+?{{]))*+"
_SIMPLE = re.compile(
    rf"(?!.*(?:--|&&|\|\||~~))\^{_FIXED}(?P<varied>{_ITEM}(?:[*+?]|\{{{_COUNT},{_COUNT}?\}}))?+(?P<after>{_FIXED})(?P<end>\$?+)",
    re.DOTALL | re.ASCII,
)  # none of the letters that `re` warns about in a class; `re` has one place to backtrack to


class _Simple(NamedTuple):
    """A pattern that `re` matches as RE2 does, in linear time: anchored, without groups, and with one quantifier of no fixed count."""

    compiled: re.Pattern[str]
    units: int  # of work, for each letter of a text


class Patterns:
    """Matches the patterns of one schema as `matching` does, and says before what it will cost. Used by one thread."""

    def __init__(self) -> None:
        self._simple: dict[str, _Simple | None] = {}

    def steps(self, pattern: str, texts: Collection[str]) -> int:
        """The most that `matching` takes, in steps of some 10 us."""
        letters = sum(len(text) + 1 for text in texts)
        simple = self._by_re(pattern, texts)
        if simple is not None:
            return letters * simple.units // _RE_UNITS
        return _cost(pattern) * (letters + _RE2_COMPILING) // _RE2_UNITS

    def matching(self, pattern: str, texts: Collection[str]) -> list[str]:
        """As `matching`."""
        simple = self._by_re(pattern, texts)
        if simple is None:
            return matching(pattern, texts)
        return [text for text in texts if simple.compiled.match(storable(text))]

    def _by_re(self, pattern: str, texts: Collection[str]) -> _Simple | None:
        """None where RE2 is to match. It alone takes a vertical tab for no white space."""
        if pattern not in self._simple and len(self._simple) < MOST_COMPILED:
            self._simple[pattern] = _simple(pattern)
        simple = self._simple.get(pattern)
        return None if simple is None or any("\v" in text for text in texts) else simple


def matching(pattern: str, texts: Collection[str]) -> list[str]:
    """Those of ``texts`` in which ``pattern`` is found, by RE2: in time linear in the text, unlike Python's `re`.

    As in JSON Schema's dialect, and unlike in Python's, ``$`` is the end of the text alone, and ``\\d`` and ``\\w`` are ASCII. Raises
    `ValueError` for a pattern that RE2 cannot match, such as one with lookaround.
    """
    found = pc.match_substring_regex(pa.array([storable(text) for text in texts], pa.string()), pattern=pattern)
    return [text for text, is_found in zip(texts, found.to_pylist(), strict=True) if is_found]


_cost = lru_cache(maxsize=1024)(pattern_cost)


def _simple(pattern: str) -> _Simple | None:
    parts = _SIMPLE.fullmatch(pattern) if len(pattern) <= _MOST_LETTERS else None
    if parts is None:
        return None
    try:
        compiled = re.compile(pattern.removesuffix("$") + r"\Z" if parts["end"] else pattern, re.ASCII)
    except re.error:  # a class such as [\d-a]
        return None
    return _Simple(compiled, len(pattern) if parts["varied"] is None else len(parts["varied"]) + pattern_cost(parts["after"]))
