"""The wall around the pure suite: a test in these folders that imports Ray, vLLM or torch fails, and so does collecting it.

And the database that several suites ask for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tools.postgres import NoPostgres, Postgres, postgres

# Many short searches in each run, the same ones where CI is set; `--hypothesis-profile=thorough` for a long one.
settings.register_profile("short", max_examples=30, deadline=None, derandomize=bool(os.environ.get("CI")))
settings.register_profile("thorough", max_examples=1000, deadline=None)
settings.load_profile("short")

PURE = {"policy", "sim", "jobs", "docs", "ledger", "sql", "connectors", "cli", "jobs_api", "storage"}
HEAVY = {"ray", "vllm", "torch"}
# These ask the one server of `tests/serve/conftest.py`: one test process gets all of them, so that it starts once and not in each process.
ONE_SERVER = {f"tests/serve/test_{name}.py" for name in ("batches", "browser", "chat", "jobs", "private_files", "ray_node", "reads")}
_HERE = Path(__file__).parent


class _Wall(MetaPathFinder):
    """Import hook that fails a pure test which imports a heavy package. ``inside`` names the pure file or folder being tested."""

    inside: str | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if self.inside is not None and name.partition(".")[0] in HEAVY:
            # Not an ImportError: a library for which the package is optional would swallow it.
            pytest.fail(f"{self.inside} imports {name}: the pure suite runs in seconds, without {', '.join(sorted(HEAVY))}", pytrace=False)

    def enter(self, path: Path) -> None:
        parts = path.relative_to(_HERE).parts if path.is_relative_to(_HERE) else ()
        self.inside = "/".join(("tests", *parts)) if parts and parts[0] in PURE else None


_wall = _Wall()
sys.meta_path.insert(0, _wall)


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    """Commands of servers set the umask of their process, which here is the one that later tests run in."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    _wall.enter(collector.path)
    try:
        return (yield)
    finally:
        _wall.inside = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    _wall.enter(item.path)
    try:
        return (yield)
    finally:
        _wall.inside = None


class _Files(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Whole files for each test process (``--dist loadfile``), and those of `ONE_SERVER` as if they were one."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "the files of one server" if file in ONE_SERVER else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return _Files(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def database() -> Iterator[Postgres]:
    """A real PostgreSQL, one a run."""
    try:
        with postgres() as server:
            yield server
    except NoPostgres as error:
        pytest.skip(str(error))
