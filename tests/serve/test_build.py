"""The build of harvester: another source is another build, whatever the version says."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from harvester import core

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    from harvester.engine.verify import kept
    from harvester.serve.deployments.version import digest_of


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A source of two modules and a compiled one, in place of ours."""
    for name in ("harvester/core.py", "jobs/ledger.sql", "jobs/__pycache__/spec.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("before")
    monkeypatch.setattr(core, "SOURCE", tmp_path)
    core.build.cache_clear()
    yield tmp_path
    core.build.cache_clear()


@pytest.mark.parametrize("name", ["harvester/core.py", "jobs/ledger.sql", "connectors/new.py", "harvester/page.js"])
def test_a_changed_source_is_deployed_again_and_verified_again(source: Path, name: str) -> None:
    before, profile = digest_of("x"), source / "profile.json"
    kept.write(profile, [])
    assert (digest_of("x"), kept.read(profile)) == (before, [])
    (source / name).parent.mkdir(exist_ok=True)
    (source / name).write_text("after")
    core.build.cache_clear()
    assert digest_of("x") != before
    assert kept.read(profile) is None


def test_what_is_no_source_changes_nothing(source: Path) -> None:
    before = core.build()
    (source / "jobs/__pycache__/spec.py").write_text("after")
    (source / "jobs/notes.txt").write_text("after")
    shutil.rmtree(source / "jobs/__pycache__")
    core.build.cache_clear()
    assert core.build() == before
    assert before.startswith(f"{core.__version__}+")
