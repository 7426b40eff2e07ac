"""What a process of our own is given of our environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from connectors.processes.environment import environment


def test_a_process_imports_our_modules_and_sees_neither_keys_nor_where_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVESTER_API_KEY", "secret")
    monkeypatch.setenv("TZ", "UTC")
    given = environment(MARK="here")
    assert (given["TZ"], given["MARK"], given["OMP_NUM_THREADS"]) == ("UTC", "here", "1")
    assert "secret" not in given.values()
    assert given["PYTHONSAFEPATH"] == "1"
    assert "" not in given["PYTHONPATH"].split(os.pathsep)
    subprocess.run([sys.executable, "-c", "import connectors.files.sheets"], env=given, cwd="/", check=True)
