"""A folder with packages of the user's named `jobs` and `connectors`: ours are found by our processes, the user's by the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [
    ["tasks"],
    ["jobs"],
    ["sql", "select 40 + 2 as answer"],
    ["doctor"],
    ["key", "list"],
    ["repair"],
    ["submit", "rows.jsonl", "--dry-run"],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("jobs", "connectors"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"WHOSE = 'the user'\nprint('the user\\'s {name}')\n", encoding="utf-8")
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n', encoding="utf-8")
    return tmp_path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH", "HARVESTER_URL")}
    env |= {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "HARVESTER_STATE": str(folder / "state")}
    return subprocess.run([sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_every_command_works_beside_them(folder, words):
    done = run(folder, "-m", "harvester", *words)
    assert "the user's" not in done.stdout + done.stderr
    assert "internal" not in done.stderr
    assert done.returncode in (0, 1, 3)


def test_what_a_command_starts_finds_ours_too(folder):
    grandchild = "import harvester, jobs.spec, connectors.base; print(jobs.spec.__name__)"
    child = "import subprocess, sys; from harvester.own import claim; claim(); import jobs.spec\n"
    child += f"subprocess.run([sys.executable, '-c', {grandchild!r}], check=True)"
    done = run(folder, "-c", child)
    assert (done.returncode, done.stdout) == (0, "jobs.spec\n"), done.stderr


def test_a_program_of_the_user_keeps_its_own(folder):
    done = run(folder, "-c", "import harvester, jobs, connectors; print(jobs.WHOSE, connectors.WHOSE)")
    assert done.stdout.splitlines()[-1] == "the user the user", done.stderr


def test_importing_harvester_imports_neither(folder):
    done = run(folder, "-c", "import sys, harvester; print({'jobs', 'connectors'} & set(sys.modules))")
    assert done.stdout == "set()\n", done.stderr
