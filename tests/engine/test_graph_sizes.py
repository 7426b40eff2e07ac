"""The CUDA graphs that the latency model is told of, against the code of vLLM that picks one for a step, of either model runner."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harvester.model_config import CheckpointConfig, ScheduleConfig, ShareConfig, SloConfig
from harvester.policy.model.graphs import DECODE, EAGER, MIXED, GraphSizes
from harvester.policy.model.latency import FEATURES, LatencyModel, StepLoad

if TYPE_CHECKING:
    from harvester.engine.shared.settings import Settings

pytestmark = pytest.mark.engine

MODES = ["FULL_AND_PIECEWISE", "FULL_DECODE_ONLY", "FULL", "PIECEWISE"]
SEQS = [1, 6, 250, 1024]


@cache
def a_config(seqs: int) -> Any:
    from vllm.config import ModelConfig, SchedulerConfig, VllmConfig

    from harvester.engine.embedded import embedded_model

    return VllmConfig(
        model_config=ModelConfig(model=str(embedded_model()), dtype="float32", max_model_len=2048),
        scheduler_config=SchedulerConfig(
            max_num_seqs=seqs, max_num_batched_tokens=2048, max_model_len=2048, is_encoder_decoder=False, async_scheduling=False
        ),
    )


def with_graphs(mode: str, seqs: int, sizes: list[int] | None = None) -> Any:
    """A configuration with CUDA graphs as on a GPU; that of a CPU has none."""
    from vllm.config import CompilationMode, CUDAGraphMode

    config = a_config(seqs)
    compilation = config.compilation_config
    compilation.mode, compilation.cudagraph_mode = CompilationMode.VLLM_COMPILE, CUDAGraphMode[mode]
    compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size = sizes, None
    config._set_cudagraph_sizes()
    compilation.splitting_ops = None
    compilation.set_splitting_ops_for_v1(all2all_backend="none")
    return config


def first_runner(config: Any) -> Callable[[int, bool], tuple[str, int]]:
    """How Model Runner V1 runs a step, by its number of tokens and by whether all of them are decodes."""
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

    dispatcher = CudagraphDispatcher(config)
    dispatcher.initialize_cudagraph_keys(config.compilation_config.cudagraph_mode, 1)

    def runs(tokens: int, decodes: bool) -> tuple[str, int]:
        mode, batch = dispatcher.dispatch(tokens, uniform_decode=decodes)
        return mode.name, batch.num_tokens

    return runs


def second_runner(config: Any) -> Callable[[int, bool], tuple[str, int]]:
    """The same for V2; its manager is made without a GPU to capture on."""
    from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager

    manager = CudaGraphManager.__new__(CudaGraphManager)
    manager.vllm_config, manager.compilation_config = config, config.compilation_config
    manager.max_num_reqs, manager.cudagraph_mode = config.scheduler_config.max_num_seqs, config.compilation_config.cudagraph_mode
    manager.decode_query_len, manager.varlen_decode, manager.ubatch_runner = 1, False, None
    manager.lora_capture_cases, manager._lora_dispatch_map, manager._max_lora_case = [0], {}, 0
    manager._candidates, manager._capture_descs, manager._graphs_captured = {}, {}, True
    manager._init_candidates()

    def runs(tokens: int, decodes: bool) -> tuple[str, int]:
        seqs = tokens if decodes else 1
        batch = manager.dispatch(seqs, tokens, 1 if decodes else None, 0, 1 if decodes else None)
        return batch.cg_mode.name, batch.num_tokens

    return runs


@pytest.mark.parametrize("runner", [first_runner, second_runner], ids=["runner v1", "runner v2"])
@pytest.mark.parametrize("sizes", [None, [1, 8, 64, 250, 256]], ids=["default sizes", "own sizes"])
@pytest.mark.parametrize("seqs", SEQS)
@pytest.mark.parametrize("mode", MODES)
def test_every_step_is_told_to_run_as_vllm_runs_it(
    mode: str, seqs: int, sizes: list[int] | None, runner: Callable[[Any], Callable[[int, bool], tuple[str, int]]]
) -> None:
    from harvester.engine.vllm.platform import graph_sizes

    config = with_graphs(mode, seqs, sizes)
    graphs, runs = graph_sizes(config), runner(config)
    assert graphs is not None
    names = {DECODE: "FULL", MIXED: config.compilation_config.cudagraph_mode.mixed_mode().name, EAGER: "NONE"}
    for tokens in range(1, 600):
        kind, padded = graphs.padded(tokens, 0)
        assert (names[kind], padded) == runs(tokens, False)
        if tokens <= seqs:
            kind, padded = graphs.padded(0, tokens)
            assert (names[kind], padded) == runs(tokens, True)


def test_a_cpu_has_no_graphs_nor_has_an_engine_told_to_be_eager() -> None:
    from vllm.config import CUDAGraphMode

    from harvester.engine.vllm.platform import graph_sizes

    on_cpu = a_config(SEQS[0])
    on_cpu.compilation_config.cudagraph_mode, on_cpu.compilation_config.cudagraph_capture_sizes = CUDAGraphMode.NONE, []
    assert graph_sizes(on_cpu) is None
    eager = with_graphs("FULL_AND_PIECEWISE", 6)
    eager.model_config.enforce_eager = True
    eager._set_cudagraph_sizes()
    eager.model_config.enforce_eager = False
    assert graph_sizes(eager) is None


def test_with_speculative_decoding_no_step_of_one_token_a_request_is_one_of_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    from harvester.engine.vllm.platform import graph_sizes

    config = with_graphs("FULL_AND_PIECEWISE", 6)
    monkeypatch.setattr(type(config), "num_speculative_tokens", 3)
    graphs = graph_sizes(config)
    assert graphs is not None
    assert (graphs.decode, graphs.mixed) == ((), tuple(config.compilation_config.cudagraph_capture_sizes))


# -- where they go ------------------------------------------------------------------------------------------------------------------

SIZES = GraphSizes((1, 2, 4), (1, 2, 4, 8))


def told(profile: Path) -> Settings:
    from harvester.engine.shared.settings import Settings

    return Settings(ShareConfig(), SloConfig(), ScheduleConfig(), None, profile, CheckpointConfig())


@pytest.mark.parametrize("later", [None, GraphSizes((), (1, 2, 4, 8))], ids=["none", "others"])
def test_a_profile_learnt_with_other_graphs_is_not_used(tmp_path: Path, later: GraphSizes | None) -> None:
    from harvester.engine.core.profile import Profile

    path = tmp_path / "profile.json"
    profile = Profile(path, SIZES)
    for _ in range(100):
        profile.model.observe(StepLoad.decode(100), 0.01)
    profile.save()
    while profile.is_saving:
        time.sleep(0.001)
    assert json.loads((tmp_path / "profile.json").read_text())["graphs"] == {"decode": [1, 2, 4], "mixed": [1, 2, 4, 8]}
    assert Profile(path, SIZES).model.reach_tokens == 2
    anew = Profile(path, later).model
    assert (anew.graphs, anew.reach_tokens) == (later, 0)


def test_the_front_end_predicts_a_prompt_from_the_board_as_the_engine_core_does() -> None:
    from harvester.engine.frontend.signal import ArrivalSignal
    from harvester.engine.shared.state import Field, SharedState

    model = LatencyModel(SIZES)
    for prompt in (1, 3, 7, 30) * 50:
        load = StepLoad.prefill(prompt)
        model.observe(load, 0.001 * SIZES.padded(prompt, 0)[1] + 0.002 * (prompt > 8))
    shared = SharedState.make()
    try:
        for place, value in enumerate(model.coefficients):
            shared[Field.MODEL + place] = value
        shared[Field.MARGIN], shared[Field.READY] = model.margin, 1.0
        signal = ArrivalSignal(shared, graphs=SIZES)
        assert len(model.coefficients) == FEATURES
        for prompt in (1, 3, 7, 9, 30):
            assert signal.bound_s(StepLoad.prefill(prompt)) == pytest.approx(model.bound(StepLoad.prefill(prompt)))
    finally:
        shared.remove()
