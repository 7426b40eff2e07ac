"""The glossary is sorted, and each name it gives is defined in the folder it says."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"

_ENTRY = re.compile(
    r"^- \*\*(?P<term>[^*]+)\*\*: (?P<meaning>.+?)\n  (?P<where>`(?:harvester|jobs|connectors)[^\n]*)$", re.MULTILINE | re.DOTALL
)
_FOLDER = re.compile(r"`([\w/]+)`: ((?:`\w+`(?:, )?)+)")


def entries() -> list[tuple[str, str, str]]:
    """Term, meaning and where it lives."""
    return _ENTRY.findall(GLOSSARY.read_text(encoding="utf-8"))


@cache
def defined(folder: str) -> frozenset[str]:
    """Names of the classes and functions in a folder's modules, at any depth."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / folder).rglob("*.py")]
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_entry_is_read() -> None:
    assert len(entries()) == GLOSSARY.read_text(encoding="utf-8").count("\n- **")
    assert len(entries()) >= 40


def test_terms_are_sorted_and_there_once() -> None:
    terms = [term.lower() for term, _, _ in entries()]
    assert terms == sorted(set(terms))


@pytest.mark.parametrize(("term", "meaning", "where"), entries(), ids=lambda value: value[:24])
def test_a_term_lives_where_the_glossary_says(term: str, meaning: str, where: str) -> None:
    places = _FOLDER.findall(where)
    assert "; ".join(f"`{folder}`: {names}" for folder, names in places) == where
    for folder, names in places:
        assert (ROOT / folder).is_dir(), f"{term}: there is no folder {folder}"
        assert set(re.findall(r"`(\w+)`", names)) <= defined(folder), f"{term}: {folder} does not define all of {names}"


@pytest.mark.parametrize(("term", "meaning", "where"), entries(), ids=lambda value: value[:24])
def test_a_meaning_is_one_sentence_or_two(term: str, meaning: str, where: str) -> None:
    assert 1 <= len(re.findall(r"[.](?=\s|$)", meaning)) <= 2, f"{term}: {meaning}"
