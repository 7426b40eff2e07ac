"""`harvester verify` with real engines: this machine is right, and a worker that writes into wrong KV blocks is found out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine import kinds

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from harvester.config import parse_config
    from harvester.engine.embedded import embedded_model
    from harvester.engine.processes.in_subprocess import run_in_process
    from harvester.engine.verify.subject import CONTEXT_TOKENS, Subject
    from harvester.engine.verify.ties import compare
    from harvester.engine.verify.tokens import pressed_tokens, stock_tokens
    from harvester.engine.verify.verdict import tokens_verdict

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]


@pytest.mark.long
def test_the_command_finds_tokens_signals_and_kv_right_on_this_machine(tmp_path: Path) -> None:
    """Times are a matter of the machine's other work: a wrong one may end the command with 1."""
    command = [sys.executable, "-m", "harvester", "verify", "--json", "--state", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=1400, check=False)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    found = json.loads(done.stdout)
    parts = {part["part"]: part for part in found["parts"]}
    assert found["tokens_identical"] is True, parts["tokens"]["said"]
    assert found["tokens"]["ended_steps"] > 20
    assert found["tokens"]["preempted"] > 0
    assert found["tokens"]["distinct_tokens"] > 40
    assert found["kv_identical"] is True
    assert found["ended"] >= 0.9 * found["asked"] > 0
    assert set(found["detect_ms"]) == {"p50", "p90", "p99"}
    assert (done.returncode == 0) == found["ok"] == (parts["times"]["ok"] is not False)
    assert "engine" in (tmp_path / "logs" / "verify.log").read_text("utf-8", "replace").lower()


def test_a_worker_that_spoils_kv_blocks_is_found_out() -> None:
    subject = Subject(parse_config({}, "test"), str(embedded_model()), embedded=True, cpu=True)
    spoiled = Subject(
        parse_config({"engine": {"worker_cls": "tests.fakes.spoiling_worker.SpoilingWorker"}}, "test"), subject.model, True, True
    )
    stock = run_in_process(stock_tokens, subject)
    pressed = run_in_process(pressed_tokens, spoiled, stock.request_blocks, stock.longest_tokens)
    turns = [compare(zip(turn, stock.tokens, strict=True), stock.tops, stock.tie) for turn in pressed.turns]
    verdict = tokens_verdict(turns, stock.tie, pressed)
    assert verdict.ok is False, verdict.said


@pytest.mark.long
@pytest.mark.parametrize("made", [kinds.windows, kinds.recurrent], ids=["windows", "recurrent"])
def test_a_model_with_several_kv_cache_groups_starts_under_pressure(made: Callable[[Path], Path], tmp_path: Path) -> None:
    """Each request holds blocks of all groups. Without them vLLM refuses to start, and the verification has shown nothing."""
    config = parse_config({"engine": {"dtype": "float32", "block_size": 32}}, "test")
    subject = Subject(config, str(made(tmp_path)), embedded=False, cpu=True)
    stock = run_in_process(stock_tokens, subject)
    assert stock.request_blocks > CONTEXT_TOKENS // 32, "of one group"
    pressed = run_in_process(pressed_tokens, subject, stock.request_blocks, stock.longest_tokens)
    assert [len(turn) for turn in pressed.turns] == [len(stock.tokens)] * 2
    assert pressed.preempted > 0
