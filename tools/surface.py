"""Write `harvester/engine/vllm/surface.json`: all that `harvester.engine.vllm` uses of the vLLM that is installed.

    .venv/bin/python -m tools.surface [--check]

It lists names imported, methods overridden with their parameters, attributes of vLLM's objects that are read or written, and parts of vLLM
that are replaced. The class that an attribute belongs to is found by annotations, by the bases of our classes, and by `CALLED`.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harvester.engine.vllm.surface import FILE, Surface, installed_version, names_of, parameters_of

PACKAGE = FILE.parent
# Classes of vLLM's objects by the package's names for them, where no annotation gives the class: variables, and attributes in a chain.
CALLED = {
    "scheduler": "vllm.v1.core.sched.scheduler:Scheduler",
    "request": "vllm.v1.request:Request",
    "r": "vllm.v1.request:Request",
    "kv_cache_manager": "vllm.v1.core.kv_cache_manager:KVCacheManager",
    "coordinator": "vllm.v1.core.kv_cache_coordinator:KVCacheCoordinator",
    "block_pool": "vllm.v1.core.block_pool:BlockPool",
    "pool": "vllm.v1.core.block_pool:BlockPool",
    "manager": "vllm.v1.core.single_type_kv_cache_manager:SingleTypeKVCacheManager",
    "block": "vllm.v1.core.kv_cache_utils:KVCacheBlock",
    "scheduler_output": "vllm.v1.core.sched.output:SchedulerOutput",
    "scheduled_cached_reqs": "vllm.v1.core.sched.output:CachedRequestData",
    "cached": "vllm.v1.core.sched.output:CachedRequestData",
    "new": "vllm.v1.core.sched.output:NewRequestData",
    "runner": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
    "model_runner": "vllm.v1.worker.gpu_model_runner:GPUModelRunner",
    "vllm_config": "vllm.config:VllmConfig",
    "parallel_config": "vllm.config:ParallelConfig",
    "parallel": "vllm.config:ParallelConfig",
    "scheduler_config": "vllm.config:SchedulerConfig",
    "model_config": "vllm.config:ModelConfig",
    "cache_config": "vllm.config:CacheConfig",
    "compilation_config": "vllm.config:CompilationConfig",
    "compilation": "vllm.config:CompilationConfig",
    "output_processor": "vllm.v1.engine.output_processor:OutputProcessor",
}
# Bases of our mixins, in the classes that vLLM loads by name.
MIXED_INTO = {
    "HarvestScheduling": "vllm.v1.core.sched.scheduler:Scheduler",
    "PreemptibleWorker": "vllm.v1.worker.gpu_worker:Worker",
}


def class_of(owner: str) -> Any:
    module, _, name = owner.partition(":")
    return getattr(import_module(module), name)


def find_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # what is before the last dot is a class
        return False


class Reader(ast.NodeVisitor):
    """What one module of the package uses of vLLM."""

    def __init__(self, tree: ast.Module) -> None:
        self.imports: dict[str, set[str]] = defaultdict(set)
        self.overrides: dict[str, dict[str, str]] = defaultdict(dict)
        self.attributes: dict[str, set[str]] = defaultdict(set)
        self.written: set[str] = set()
        self.replaced: set[str] = set()
        self._known: dict[str, str] = {}  # our names for what is imported
        self._scopes: list[dict[str, str]] = [{}]
        self._owners: list[tuple[str, ...]] = []
        self.visit(tree)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:  # the name that `ast` calls
        if node.module and node.module.split(".")[0] == "vllm":
            for alias in node.names:
                self.imports[node.module].add(alias.name)
                self._known[alias.asname or alias.name] = f"{node.module}:{alias.name}"

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self._known[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in self._known]
        owners = tuple(bases) or ((MIXED_INTO[node.name],) if node.name in MIXED_INTO else ())
        for owner in owners:
            for item in node.body:
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) and item.name != "__init__":
                    parameters = parameters_of(class_of(owner), item.name)
                    if parameters is not None:
                        self.overrides[owner][item.name] = parameters
        self._owners.append(owners)
        self.generic_visit(node)
        self._owners.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        scope = {}
        for argument in (*node.args.args, *node.args.kwonlyargs):
            owner = self._annotated(argument.annotation)
            if owner:
                scope[argument.arg] = owner
        self._scopes.append(scope)
        self.generic_visit(node)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        owner = self._annotated(node.annotation)
        if owner and isinstance(node.target, ast.Name):
            self._scopes[-1][node.target.id] = owner
        if isinstance(node.target, ast.Name) and isinstance(node.value, ast.Name) and node.value.id in self._known:
            self._known[node.target.id] = self._known[node.value.id]
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                root = self._known.get(target.value.id, "").replace(":", ".") or {"torch": "torch"}.get(target.value.id)
                if root:
                    self.replaced.add(f"{root}.{target.attr}")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in self._known:
            module = self._known[node.value.id].replace(":", ".")
            if find_module(module):
                self.imports[module].add(node.attr)
        for owner in self._owners_of(node.value):
            if node.attr in names_of(class_of(owner)):
                self.attributes[owner].add(node.attr)
                if isinstance(node.ctx, ast.Store):
                    self.written.add(f"{owner.partition(':')[2]}.{node.attr}")
        self.generic_visit(node)

    def _owners_of(self, node: ast.expr) -> tuple[str, ...]:
        """The vLLM classes that the value of the expression may have."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            return self._owners[-1] if self._owners else ()
        if isinstance(node, ast.Attribute):
            return (CALLED[node.attr],) if node.attr in CALLED else ()
        if not isinstance(node, ast.Name):
            return ()
        if node.id == "self":
            return self._owners[-1] if self._owners else ()
        found = next((scope[node.id] for scope in reversed(self._scopes) if node.id in scope), None) or CALLED.get(node.id)
        return (found,) if found else ()

    def _annotated(self, node: ast.expr | None) -> str | None:
        """The vLLM class that an annotation names, alone or with None."""
        names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)] if node is not None else []
        known = [self._known[name] for name in names if name in self._known]
        return known[0] if len(known) == 1 and len(names) == 1 and isinstance(class_of(known[0]), type) else None


def read_package(folder: Path = PACKAGE) -> Surface:
    """What the modules in ``folder`` use."""
    readers = [Reader(ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(folder.rglob("*.py"))]
    version = installed_version()
    assert version is not None, "vLLM is not installed"
    return Surface(
        version=version,
        imports=_merged(reader.imports for reader in readers),
        overrides={owner: dict(sorted(found.items())) for owner, found in _by_owner(readers)},
        attributes=_merged(reader.attributes for reader in readers),
        written=sorted({one for reader in readers for one in reader.written}),
        replaced=sorted({one for reader in readers for one in reader.replaced}),
    )


def _merged(found: Iterator[Mapping[str, set[str]]]) -> dict[str, list[str]]:
    merged: dict[str, set[str]] = defaultdict(set)
    for each in found:
        for name, names in each.items():
            merged[name] |= names
    return {name: sorted(names) for name, names in sorted(merged.items())}


def _by_owner(readers: list[Reader]) -> list[tuple[str, dict[str, str]]]:
    merged: dict[str, dict[str, str]] = defaultdict(dict)
    for reader in readers:
        for owner, methods in reader.overrides.items():
            merged[owner] |= methods
    return sorted(merged.items())


def private(surface: Surface) -> list[str]:
    """``Class.name`` of every underscored name that is overridden, read or written."""
    found = [*surface.attributes.items(), *surface.overrides.items()]
    names = {f"{owner.partition(':')[2]}.{name}" for owner, given in found for name in given if name.startswith("_")}
    return sorted(name for name in names if not name.endswith("__"))


def main() -> int:
    """With ``--check`` nothing is written, and the exit code is 1 if the file is not up to date."""
    surface = read_package()
    if sys.argv[1:] == ["--check"]:
        return int(surface != Surface.read())
    FILE.write_text(json.dumps(asdict(surface), indent=1) + "\n", encoding="utf-8")
    names, methods, attributes = (sum(map(len, found.values())) for found in (surface.imports, surface.overrides, surface.attributes))
    sys.stdout.write(
        f"vLLM {surface.version}, private: {', '.join(private(surface))}\n"
        f"{names} names of {len(surface.imports)} modules, {methods} methods overridden, {attributes} attributes, "
        f"{len(surface.written)} of them written, {len(surface.replaced)} functions and classes replaced\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
