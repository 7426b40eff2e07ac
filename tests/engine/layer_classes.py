"""The classes that vLLM's source defines, read without importing it: much of it imports on no machine but one with its accelerator."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CLASS = re.compile(r"^\s*class\s+(\w+)\s*\(([^)]*)\)\s*:", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A class by ``module:Class``; what it defines; its ancestors that vLLM defines, itself first."""

    name: str
    methods: frozenset[str]
    ancestry: tuple[str, ...]


def descendants(root: str) -> dict[str, Source]:
    """``root`` (``module:Class``) and all classes below it."""
    found = _families(root.partition(":")[2])
    below: dict[str, Source] = {}
    for name in found:
        ancestry = _ancestry(name, found)
        if root in ancestry:
            below[name] = Source(name, found[name][1], ancestry)
    return below


@cache
def _texts() -> dict[Path, str]:
    return {path: path.read_text("utf-8") for path in _package().rglob("*.py")}


def _package() -> Path:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _families(root: str) -> dict[str, tuple[tuple[str, ...], frozenset[str]]]:
    """Bases and methods of each class that may be below ``root``, judged by class names alone."""
    package, texts = _package(), _texts()
    parents = {path: [(name, set(re.findall(r"\w+", bases))) for name, bases in CLASS.findall(text)] for path, text in texts.items()}
    names = {root}
    while True:
        more = {name for classes in parents.values() for name, bases in classes if bases & names} - names
        if not more:
            break
        names |= more
    classes: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {}
    for path, defined in parents.items():
        if any(name in names for name, _ in defined) or f"class {root}" in texts[path]:
            classes |= _classes(path, package, texts[path])
    return classes


def _classes(path: Path, package: Path, text: str) -> dict[str, tuple[tuple[str, ...], frozenset[str]]]:
    parts = ("vllm", *path.relative_to(package).with_suffix("").parts)
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    tree = ast.parse(text)
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = parts[: -node.level] if node.level else ()
            source = ".".join((*above, *((node.module,) if node.module else ())))
            imported |= {alias.asname or alias.name: f"{source}:{alias.name}" for alias in node.names}
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
            names = tuple(imported.get(base.id, f"{module}:{base.id}") for base in bases if isinstance(base, ast.Name))
            methods = frozenset(item.name for item in node.body if isinstance(item, ast.FunctionDef))
            found[f"{module}:{node.name}"] = names, methods
    return found


def _ancestry(name: str, classes: dict[str, tuple[tuple[str, ...], frozenset[str]]]) -> tuple[str, ...]:
    """The class and its ancestors, breadth first. A class that is imported from a package that re-exports it is found by its name."""
    order: list[str] = []
    waiting = [name]
    while waiting:
        one = _defined(waiting.pop(0), classes)
        if one is not None and one not in order:
            order.append(one)
            waiting += classes[one][0]
    return tuple(order)


def _defined(name: str, classes: dict[str, tuple[tuple[str, ...], frozenset[str]]]) -> str | None:
    if name in classes:
        return name
    package, _, short = name.partition(":")
    same = [one for one in classes if one.endswith(f":{short}")]
    near = [one for one in same if one.startswith(package)] or same
    return near[0] if len(near) == 1 else None
