"""Run pytest over tests with real servers, processes and files, and in CI a second time over the few that failed.

    python -m tools.steady -n 2 --dist loadfile -m 'not long' tests/serve

A test that passes alone at its second run is unsteady, not broken: it is named, as a defect to repair, and the run goes on. One that
fails again fails the run. So does a run in which more tests failed than `MAX_AGAIN`, and any run outside CI (`CI` is not set).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MAX_AGAIN = 8
PYTEST = (sys.executable, "-m", "pytest", "-q")
FAILED = Path(".pytest_cache/v/cache/lastfailed")
TESTS_FAILED = 1  # pytest's exit code; others mean that it could not run


def failed(cache: Path = FAILED) -> list[str]:
    """Names of the tests that failed in the last run, by pytest's own record."""
    return sorted(json.loads(cache.read_text(encoding="utf-8"))) if cache.is_file() else []


def is_worth_again(code: int, names: Sequence[str], *, ci: bool) -> bool:
    return ci and code == TESTS_FAILED and 0 < len(names) <= MAX_AGAIN


def main(words: Sequence[str]) -> int:
    FAILED.unlink(missing_ok=True)
    code = subprocess.run([*PYTEST, *words]).returncode
    names = failed()
    if not is_worth_again(code, names, ci=bool(os.environ.get("CI"))):
        return code
    code = subprocess.run([*PYTEST, *names]).returncode
    if code == 0:
        sys.stdout.write("".join(f"UNSTEADY: {name} failed, then passed alone\n" for name in names))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
