"""Every command that README and the tutorial show runs as it is printed, in a folder like a clone after `make setup`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harvester.ports import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/tutorial.md")
_COMMAND = re.compile(r"^ {4,}((?:harvester|source|make|git|\.venv/bin/\w+) .*?)(?:\s{2,}#.*)?$", re.MULTILINE)
# Commands that this test leaves out, and why or where they run.
ELSEWHERE = {
    "git clone <this repository> harvester && cd harvester": "it names no address",
    "make setup": "its folder is the one that these tests run in",
    "make demo": "tests/acceptance/test_demo.py",
    "make test": "this is part of it",
    "harvester serve --model Qwen/Qwen3-8B": "it downloads a model of 16 GB",
}


def commands(page: Path) -> list[str]:
    return [command for command in _COMMAND.findall(page.read_text(encoding="utf-8")) if command not in ELSEWHERE]


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    for name in (".venv", "examples", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    yield tmp_path
    subprocess.run(["bash", "-c", "source .venv/bin/activate && harvester stop"], cwd=tmp_path, env=environment(tmp_path), check=False)


def environment(clone: Path) -> dict[str, str]:
    """The environment, with a state folder of the test's own: commands must not find another server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HARVESTER_")} | {
        "HARVESTER_STATE": str(clone / "state")
    }


def script(page: Path) -> str:
    """The page's commands in their order. A server that stays runs beside them, on a free port, until `harvester stop`."""
    lines = ["set -e"]
    for command in commands(page):
        if command == "harvester serve":
            lines += [
                f"harvester serve --port {free_port()} > served.log &",
                "until grep -q '^Ready after' served.log; do sleep 1; done",
            ]
        else:
            lines.append(command)
    return "\n".join(lines)


@pytest.mark.parametrize("name", [PAGES[0], *(pytest.param(page, marks=pytest.mark.long) for page in PAGES[1:])])
def test_the_commands_of_a_page_run_as_they_are_printed(clone: Path, name: str) -> None:
    text = script(ROOT / name)
    assert text.count("harvester") >= 4
    done = subprocess.run(["bash", "-c", text], cwd=clone, env=environment(clone), capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert "10/10 rows (100%)" in done.stderr + done.stdout


def test_what_is_said_to_run_elsewhere_is_still_printed() -> None:
    shown = {command for name in PAGES for command in _COMMAND.findall((ROOT / name).read_text(encoding="utf-8"))}
    assert set(ELSEWHERE) - shown == set()
