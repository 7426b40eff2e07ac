"""harvester's own: KV as vLLM gives it, admission by the curve of what is expected (`expected`), and orders to choose from.

`curve` first come, first served; `curve_shortest` the shortest predicted answer first; `curve_deadline` the earliest deadline;
`curve_econoserve` EconoServe's three keys. `greedy_shortest` orders without the curve. `oracle` knows the lengths. No padding: the margin
of the curve learns from what is computed again.
"""

from __future__ import annotations

from bench.papers.engine.admission import BLOCK, CURVE, LEAST_MARGIN
from bench.papers.engine.order import DEADLINE, ECONOSERVE, FCFS, SHORTEST
from bench.papers.loads import Dataset
from bench.papers.machines import Setting
from bench.papers.systems.srtf import shortest
from bench.papers.systems.system import Parts, Rule, System
from bench.papers.systems.vllm import Greedy

STEP_TOKENS = 2048  # vLLM's


def rules(order: int, allocation: int) -> dict[str, float]:
    return {"step_tokens": STEP_TOKENS, "order": order, "allocation": allocation, "margin": LEAST_MARGIN}


def _by_curve(order: int, setting: Setting, dataset: Dataset) -> Rule:
    return rules(order, CURVE) | {"max_output": dataset.output.most}


GREEDY_SHORTEST = System("greedy_shortest", lambda setting, dataset: rules(SHORTEST, BLOCK), padded=False, parts=Parts(shortest, Greedy))
CURVES = {
    order: System(f"curve{name}", lambda setting, dataset, order=order: _by_curve(order, setting, dataset), padded=False)
    for order, name in ((FCFS, ""), (SHORTEST, "_shortest"), (DEADLINE, "_deadline"), (ECONOSERVE, "_econoserve"))
}
CURVE_ORACLE = System("curve_oracle", lambda setting, dataset: _by_curve(SHORTEST, setting, dataset), padded=False, knows=True)
