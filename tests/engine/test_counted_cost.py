"""What the benches' scheduler says that computing again costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def predict_s(load: Any) -> float:
    """5 ms a step, 1 ms a prompt token, 20 ms a decode."""
    return float(0.005 + 0.001 * load.prefill_tokens + 0.020 * load.decode_seqs)


@pytest.mark.parametrize(
    ("scheduled", "again", "cost_s"),
    [
        ({"prompt": 100}, {"prompt": 100}, 0.105),
        ({"prompt": 100}, {"prompt": 60}, 0.060),
        ({"prompt": 100, "other": 50}, {"prompt": 100}, 0.100),
        ({"prompt": 100, "decode": 1}, {"decode": 1}, 0.020),
    ],
    ids=["all of a step", "a part of a prompt", "one of two prompts", "a decode"],
)
def test_it_costs_what_the_step_takes_longer_by_it(scheduled: dict[str, int], again: dict[str, int], cost_s: float) -> None:
    from bench.harness.engine.counting_harvest import Costing

    before = {"prompt": 0, "other": 0, "decode": 300}
    requests = {name: SimpleNamespace(num_computed_tokens=before[name] + tokens) for name, tokens in scheduled.items()}
    scheduler: Any = SimpleNamespace(
        _brain=SimpleNamespace(parts=SimpleNamespace(model=SimpleNamespace(median_s=predict_s))), requests=requests
    )
    output: Any = SimpleNamespace(num_scheduled_tokens=scheduled)
    assert Costing.cost_s(scheduler, output, again) == pytest.approx(cost_s)
