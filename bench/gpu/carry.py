"""Which files of the repository a machine needs for this bench: all that its modules import, and the data beside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = ("bench", "harvester", "jobs", "connectors")
# Imported by name, in the engine core or in a worker.
BY_NAME = (
    "bench.__main__",
    "bench.harness.engine.counting_harvest",
    "bench.harness.engine.patient",
    "harvester.engine.vllm.worker.workers",
    "harvester.engine.vllm.connector",
)


def carried() -> list[str]:
    """Paths from the repository's root, sorted."""
    own = [path for path in (ROOT / "bench" / "gpu").rglob("*") if path.is_file() and path.suffix in (".py", ".json")]
    found: set[Path] = set(own)
    todo = [path for path in own if path.suffix == ".py"] + [path for name in BY_NAME for path in _files(name)]
    while todo:
        path = todo.pop()
        found.add(path)
        todo += [other for name in _imports(path) for other in _files(name) if other not in found]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def _imports(path: Path) -> Iterator[str]:
    """Names of our own modules that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.split(".")[0] in OURS)


def _files(name: str) -> list[Path]:
    """A module and the packages above it; nothing for a name that is no module."""
    parts = name.split(".")
    packages = [ROOT.joinpath(*parts[: end + 1], "__init__.py") for end in range(len(parts))]
    module = ROOT.joinpath(*parts).with_suffix(".py")
    return [path for path in (*packages, module) if path.is_file()]
