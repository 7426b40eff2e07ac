"""Spans of a real engine: a chat's beneath its client's, a row's none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.collector import collecting

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_chat_leaves_a_span_beneath_its_client_s_and_a_row_none(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with collecting() as collector:
        command = [sys.executable, "-m", "tests.engine.traces_child", "--collector", collector.url]
        with log.open("wb") as out:
            done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=os.environ, timeout=500, check=False)
        assert done.returncode == 0, log.read_text("utf-8", "replace")[-3000:]
        requests = [span for span in collector.spans if span.name == "llm_request"]
    assert [(span.trace_id.hex(), span.parent_span_id.hex()) for span in requests] == [("ab" * 16, "cd" * 8)]
