"""The error tree as it is drawn in `harvester.errors`, beside the classes of the three rooms that own its errors."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import harvester.errors
from harvester.errors import HarvesterError, from_json

EXIT_CODE = re.compile(r"exit (\d)")


def drawn() -> dict[str, tuple[str | None, int | None]]:
    """By name: the parent's name, and the exit code where the drawing gives one."""
    found: dict[str, tuple[str | None, int | None]] = {}
    above: list[tuple[int, str]] = []
    for line in (harvester.errors.__doc__ or "").splitlines():
        name = re.search(r"\b[A-Z]\w+Error\b", line)
        if name is None or line.lstrip(" │├└─")[: len(name.group())] != name.group():
            continue
        above = [(column, parent) for column, parent in above if column < name.start()]
        code = EXIT_CODE.search(line)
        found[name.group()] = (above[-1][1] if above else None, int(code.group(1)) if code else None)
        above.append((name.start(), name.group()))
    return found


def classes(root: type[HarvesterError] = HarvesterError) -> list[type[HarvesterError]]:
    """The product's error classes; a test may derive its own."""
    own = [root] if root.__module__ in ("connectors.errors", "jobs.errors", "harvester.errors") else []
    return own + [kind for child in root.__subclasses__() for kind in classes(child)]


def test_the_drawing_shows_every_error_below_its_parent() -> None:
    parents = {name: parent for name, (parent, _) in drawn().items()}
    assert parents == {kind.__name__: None if kind is HarvesterError else kind.__bases__[0].__name__ for kind in classes()}


def test_the_drawing_gives_the_exit_codes() -> None:
    """A line without one has its parent's."""
    tree = drawn()

    def exit_code(name: str) -> int | None:
        parent, code = tree[name]
        return exit_code(parent) if code is None and parent is not None else code

    assert {name: exit_code(name) for name in tree} == {kind.__name__: kind.exit_code for kind in classes()}


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_an_error_comes_back_from_its_answer_as_it_was_raised(kind: type[HarvesterError]) -> None:
    again = from_json(kind("a part is missing; write it again").to_json(), kind.http_status)
    assert type(again) is kind
    assert again.message == "a part is missing; write it again"
    assert getattr(harvester.errors, kind.__name__) is kind


def test_errors_cost_no_import_of_a_table_library() -> None:
    """The engine's processes import them too."""
    asked = "import sys, harvester.errors, harvester.config; print(*({'pyarrow', 'duckdb', 'fsspec'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == ""
