"""The worker's part of a step that ends early, with both of vLLM's model runners played."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine

NAMES = {"a": 3, "b": 1}


@dataclass
class Output:
    """What of vLLM's `SchedulerOutput` the worker looks at."""

    num_scheduled_tokens: dict[str, int] = field(default_factory=lambda: dict(NAMES))
    total_num_scheduled_tokens: int = 4
    finished_req_ids: set[str] = field(default_factory=lambda: {"gone"})


class Transfers:
    """The KV connector as Model Runner V2 holds it; each call is noted."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def finish_forward(self) -> None:
        self.calls.append("finish_forward")

    def post_forward(self, finished: set[str]) -> str:
        self.calls.append(("post_forward", finished))
        return f"told {len(self.calls)}"


class Worker:
    """Makes a `PreemptibleWorker` of a runner that notes the tokens it was to compute, and runs one layer."""

    def __init__(self, v2: bool) -> None:
        from harvester.engine.shared.state import SharedState
        from harvester.engine.vllm.worker.workers import PreemptibleWorker
        from harvester.engine.worker.device import HostDevice
        from harvester.engine.worker.places import SafepointSite
        from harvester.engine.worker.safepoint import Safepoints

        computed: list[int] = []
        layer = SimpleNamespace(forward=lambda: None)
        runner = SimpleNamespace(execute_model_state=None, **({"kv_connector": Transfers()} if v2 else {}))

        class Stock:
            model_runner: Any = runner
            rank = 0

            def execute_model(self, output: Output) -> Any:
                computed.append(output.total_num_scheduled_tokens)
                if not output.total_num_scheduled_tokens:
                    return SimpleNamespace(kv_connector_output="from a step without tokens")
                layer.forward()
                return None

            def sample_tokens(self, grammar: Any) -> str:
                return "sampled"

        self.shared, self.computed, self.runner = SharedState.make(), computed, runner
        self.real: Any = type("Real", (PreemptibleWorker, Stock), {})()
        device = HostDevice()
        safepoints = Safepoints(self.shared, leader=True, ranks=1, device=device)
        safepoints.install([SafepointSite("0", layer, "forward")])
        self.real._end_steps(safepoints, device, self.shared)

    def run(self, number: int, epoch: int, *, ends: bool = False) -> Any:
        """The answer to one step."""
        from harvester.engine.shared.steporder import ORDER, Order

        output = Output()
        setattr(output, ORDER, Order(number, 1, epoch))
        self.shared.planned(number, True, 1.0)
        if ends:
            self.shared.ask_to_end(number, 0.0)
        assert self.real.execute_model(output) is None
        return self.real.sample_tokens(None)


@pytest.fixture(params=[False, True], ids=["runner V1", "runner V2"])
def worker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    from harvester.engine.vllm.worker import workers as preemptible

    made = Worker(request.param)
    monkeypatch.setattr(preemptible, "has_kv_transfer_group", lambda: request.param)
    yield made
    made.shared.remove()


def test_a_step_that_nobody_ends_is_sampled(worker: Worker) -> None:
    assert worker.run(1, 0) == "sampled"
    assert worker.computed == [4]


def test_a_step_that_ends_answers_for_each_of_its_requests_with_no_token(worker: Worker) -> None:
    from harvester.engine.shared.steporder import ENDED_EARLY

    answer = worker.run(1, 0, ends=True)
    assert getattr(answer, ENDED_EARLY)
    assert (answer.req_ids, answer.sampled_token_ids) == (["a", "b"], [])


def test_a_void_step_never_reaches_the_model_and_says_what_became_of_transfers(worker: Worker) -> None:
    from harvester.engine.shared.steporder import ENDED_EARLY

    worker.run(1, 0, ends=True)
    answer = worker.run(2, 0)
    assert worker.computed == [4, 0], "its input holds tokens that the ended step was to sample"
    assert getattr(answer, ENDED_EARLY)
    assert answer.kv_connector_output == "from a step without tokens"
    assert worker.run(3, 1) == "sampled"


@pytest.mark.parametrize("worker", [True], indirect=True, ids=["runner V2"])  # V1 reports its transfers as it leaves the forward pass
def test_an_ended_step_tells_of_its_transfers_once(worker: Worker) -> None:
    answer = worker.run(1, 0, ends=True)
    assert worker.runner.kv_connector.calls == ["finish_forward", ("post_forward", {"gone"})]
    assert answer.kv_connector_output == "told 2"
    worker.run(2, 0)
    assert len(worker.runner.kv_connector.calls) == 2


def test_what_a_connector_has_told_is_told_once() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults

    from harvester.engine.vllm.connector import CheckpointConnector

    connector = CheckpointConnector.__new__(CheckpointConnector)
    connector._told, connector._told_meta = KVConnectorTransferResults(finished_recving={"a"}), None
    assert connector.take_report().finished_recving == {"a"}
    assert not connector.take_report().finished_recving
