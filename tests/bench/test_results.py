"""The committed results: what made each is known, and nothing lies beside them that no result made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.harness.plot import MAKERS
from bench.harness.record import is_clean
from bench.scenarios.catalog import SCENARIOS

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"
FILES = sorted(RESULTS.glob("*.json"))
EVERY_RESULT = {"scenario", "versions", "commit", "machine", "model", "seed", "arguments", "started_at", "seconds"}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("commit", [None, "", COMMIT[:12], f"{COMMIT}-dirty"])
def test_a_commit_that_is_missing_cut_or_dirty_is_not_clean(commit: str | None) -> None:
    assert not is_clean(commit)
    assert is_clean(COMMIT)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_committed_result_names_its_scenario_and_a_clean_commit(path: Path) -> None:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found.keys() >= EVERY_RESULT
    assert found["scenario"] in SCENARIOS
    assert is_clean(found["commit"]), f"{path.name} was made at commit {found['commit']}; commit the changes and measure again"


def test_beside_a_result_lies_its_picture_and_nothing_else() -> None:
    drawn = {path.with_suffix(".png").name for path in FILES if json.loads(path.read_text(encoding="utf-8"))["scenario"] in MAKERS}
    others = {path.name for path in RESULTS.iterdir()} - {path.name for path in FILES}
    assert FILES
    assert others <= drawn
