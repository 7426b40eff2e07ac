"""A test that failed runs again in CI, alone, and is named; everything else fails as pytest failed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ONE_SERVER
from tools.steady import MAX_AGAIN, is_worth_again

ROOT = Path(__file__).resolve().parents[1]
FIRST_TIME = """
from pathlib import Path

def test_first_time():
    seen = Path("seen")
    is_first = not seen.exists()
    seen.touch()
    assert not is_first
"""
ALWAYS = "def test_always():\n    assert False\n"
NEVER = "def test_never():\n    pass\n"


def run(folder: Path, text: str, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(text)
    env = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "tools.steady", "-p", "no:asyncio", "test_it.py"]
    return subprocess.run(command, cwd=folder, env=env | {"PYTHONPATH": str(ROOT)} | more, capture_output=True, text=True)


def test_one_that_fails_the_first_time_alone_is_named_and_passes(tmp_path: Path) -> None:
    done = run(tmp_path, FIRST_TIME + NEVER, {"CI": "true"})
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("UNSTEADY: test_it.py::test_first_time failed, then passed alone\n")


@pytest.mark.parametrize(
    ("text", "more", "code"),
    [(ALWAYS + NEVER, {"CI": "true"}, 1), (FIRST_TIME, {}, 1), ("def broken(", {"CI": "true"}, 2), (NEVER, {"CI": "true"}, 0)],
    ids=["fails again", "not in CI", "cannot be read", "passes"],
)
def test_all_else_ends_as_pytest_ends(tmp_path: Path, text: str, more: dict[str, str], code: int) -> None:
    done = run(tmp_path, text, more)
    assert (done.returncode, "UNSTEADY" in done.stdout) == (code, False)


def test_many_failures_are_no_matter_of_luck() -> None:
    names = [f"test_{number}" for number in range(MAX_AGAIN + 1)]
    assert is_worth_again(1, names[1:], ci=True)
    assert not is_worth_again(1, names, ci=True)
    assert not is_worth_again(3, names[1:], ci=True), "pytest itself broke"


def test_every_file_that_asks_the_server_of_tests_serve_runs_in_the_same_test_process() -> None:
    asks = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests/serve").glob("test_*.py")
        if "server: RealServer" in (text := path.read_text(encoding="utf-8")) and "def server(" not in text
    }
    assert asks == ONE_SERVER
