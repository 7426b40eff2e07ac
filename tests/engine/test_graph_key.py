"""The key under which vLLM keeps compiled graphs is the same at each start, and harvester's settings have no part in it."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harvester.config import parse_config
from harvester.engine.embedded import embedded_model
from harvester.engine.shared.state import SharedState
from tests.engine.child import Mode, child

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.vllm.launch import configure
    from harvester.engine.vllm.platform import additional

pytestmark = pytest.mark.engine


@pytest.fixture
def shared() -> Iterator[Path]:
    state = SharedState.make()
    yield state.path
    state.remove()


def configured(shared: Path, **given: Any) -> Any:
    config = parse_config(given, "test")
    return configure(engine_arguments(config, str(embedded_model()), "m", cpu=True, embedded=True, shared=shared))[1]


def key(**given: Any) -> str:
    """Of one start, which has its own shared state."""
    state = SharedState.make()
    try:
        return str(configured(state.path, **given).compute_hash())
    finally:
        state.remove()


OWN = {"gdn_prefill_backend": "triton"}


@pytest.mark.parametrize(
    "given",
    [{}, {"slo": {"ttft_slo_ms": 500}}, {"schedule": {"safepoints": "off"}}, {"share": {"reserved_slots": 3}}],
    ids=["nothing", "slo", "schedule", "share"],
)
def test_each_start_finds_the_graphs_of_the_one_before(given: dict[str, Any]) -> None:
    assert key(**given) == key()


def test_values_of_the_user_are_in_the_key() -> None:
    assert key(engine={"additional_config": OWN}) == key(engine={"additional_config": OWN}) != key()


def test_every_process_of_the_engine_reads_the_settings_of_harvester(shared: Path) -> None:
    found = configured(shared, engine={"additional_config": OWN})
    assert dict(found.additional_config) == OWN, "where layers of vLLM look for it"
    there = additional(pickle.loads(pickle.dumps(found)))
    assert there == additional(found)
    assert there["harvester"]["shared_state"] == there["harvester_safepoints"]["shared_state"] == str(shared)
    assert there["gdn_prefill_backend"] == "triton"


@pytest.mark.long
@pytest.mark.timeout(1600)
def test_a_second_start_finds_the_graphs_of_the_first_and_its_steps_end_early_too(tmp_path: Path) -> None:
    """On a CPU vLLM compiles them anew all the same: it cannot load what its mode there, DYNAMO_TRACE_ONCE, has saved."""
    cache = tmp_path / "cache"
    mode = Mode({"enforce_eager": False}, environment={"VLLM_CACHE_ROOT": str(cache)})
    words = ("--chaos", "0.6", "--least", "20", "--short")
    first = child("tokens_child", tmp_path, *words, mode=mode)
    graphs = sorted(cache.rglob("model"))
    assert len(graphs) == 1
    second = child("tokens_child", tmp_path, *words, mode=mode)
    assert sorted(cache.rglob("model")) == graphs
    assert re.search(f"from (path )?{re.escape(str(graphs[0]))}", (tmp_path / "log.txt").read_text("utf-8", "replace"))
    assert second["ended"] >= 20
    assert second["tokens"][0] == first["tokens"][0]
