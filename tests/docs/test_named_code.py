"""Every module, class and function that the structures and the design notes name with its path is in the code."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTES = (ROOT / "docs" / "structures.md", *sorted((ROOT / "docs" / "design").glob("*.md")))
TOPS = ("harvester", "jobs", "connectors", "bench", "tools", "tests")
ROOMS = ("api", "cli", "engine", "policy", "serve", "sim")  # packages in harvester, which the notes name without that prefix
_PATH = re.compile(r"`([a-z_]\w*(?:\.\w+)+)(?:\(\))?`")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SUPERSEDED = re.compile(r"^Status: superseded", re.MULTILINE)
_FILES = ("py", "md", "json", "sql", "yaml", "in", "log", "toml")
KEYS = ("jobs.retention_days", "engine.api_key")  # keys of the configuration, in sections that are named like packages


def named_in(text: str) -> list[str]:
    """Dotted names in our packages, in the order of the text, without files, configuration keys and other packages."""
    found = dict.fromkeys(_PATH.findall(_FENCED.sub("", text)))
    ours = [name for name in found if name.split(".")[0] in (*TOPS, *ROOMS) and name not in KEYS]
    return [name for name in ours if name.rsplit(".", 1)[1] not in _FILES]


def is_in_code(name: str) -> bool:
    """Whether ``name`` is a module, or a module followed by a name that it holds."""
    parts = name.split(".")
    if parts[0] in ROOMS:
        parts = ["harvester", *parts]
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            return length == len(parts) or ".".join(parts[length:]) in names_of(file)
    return False


@cache
def names_of(file: Path) -> frozenset[str]:
    """What a module defines or imports, and what its classes define, as ``Class.name``."""
    found: set[str] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        here = bound(node)
        found |= here
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for inner in node.body for name in bound(inner)}
    return frozenset(found)


def bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in node.names}
    targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize("note", NOTES, ids=lambda note: note.stem)
def test_what_is_named_exists(note: Path) -> None:
    text = note.read_text(encoding="utf-8")
    if not _SUPERSEDED.search(text):
        assert [name for name in named_in(text) if not is_in_code(name)] == []


def test_the_structures_name_many() -> None:
    assert len(named_in(NOTES[0].read_text(encoding="utf-8"))) > 50


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("policy.brain.Brain", True),
        ("policy.brain.Brain.plan", True),
        ("connectors.select", True),
        ("engine.vllm", True),
        ("policy.brain.Brian", False),
        ("policy.brain.Brain.plane", False),
        ("policy.brian", False),
    ],
)
def test_a_name_is_looked_up_to_its_end(name: str, holds: bool) -> None:
    assert is_in_code(name) is holds


def test_names_are_taken_from_words_in_backticks_alone() -> None:
    text = "`policy.brain.Brain`, policy.other, `torch.cuda`, `engine.worker.places()`\n```\n`sim.loop`\n```\n`ledger.sql`"
    assert named_in(text) == ["policy.brain.Brain", "engine.worker.places"]
