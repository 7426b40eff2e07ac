"""Spans of a real engine: a chat's beneath its client's, a row's none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.forks import run
from tests.fakes.collector import collecting

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_chat_leaves_a_span_beneath_its_client_s_and_a_row_none(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with collecting() as collector:
        run("traces_child", ["--collector", collector.url], log)
        requests = [span for span in collector.spans if span.name == "llm_request"]
    assert [(span.trace_id.hex(), span.parent_span_id.hex()) for span in requests] == [("ab" * 16, "cd" * 8)]
