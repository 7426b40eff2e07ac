"""harvester's own: KV as vLLM gives it, admission by the curve of what is expected (`expected`), and orders to choose from.

`curve` first come, first served; `curve_shortest` the shortest predicted answer first; `curve_deadline` the earliest deadline;
`curve_econoserve` EconoServe's three keys. `greedy_shortest` orders without the curve. `oracle` knows the lengths. No padding: the margin
of the curve learns from what is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.papers.engine.admission import BLOCK, CURVE, LEAST_MARGIN
from bench.papers.engine.order import DEADLINE, ECONOSERVE, FCFS, SHORTEST
from bench.papers.loads import Dataset
from bench.papers.machines import Setting
from bench.papers.systems.srtf import shortest
from bench.papers.systems.system import Parts, Rule, System
from bench.papers.systems.vllm import first_come, greedy
from harvester.policy.admission.curve import Curve
from harvester.policy.admission.expected import Expected
from harvester.policy.admission.rule import Admission
from harvester.policy.model.lengths import AnswerLengths

STEP_TOKENS = 2048  # vLLM's


def rules(order: int, allocation: int) -> dict[str, float]:
    return {"step_tokens": STEP_TOKENS, "order": order, "allocation": allocation, "margin": LEAST_MARGIN}


GREEDY_SHORTEST = System("greedy_shortest", lambda setting, dataset: rules(SHORTEST, BLOCK), padded=False, parts=Parts(shortest, greedy))


def by_curve(order: int) -> Callable[[Setting, Dataset], Rule]:
    return lambda setting, dataset: {**rules(order, CURVE), "max_output": dataset.output.most}


class Told(AnswerLengths):
    """The given predictions instead of lengths learned from ended answers. Each request is a job of its own."""

    def __init__(self, predicted: Mapping[str, int]) -> None:
        super().__init__()
        self._predicted = predicted

    def median(self, job: str, prompt_tokens: int) -> int | None:
        return self._predicted[job]


def expected(predicted: Mapping[str, int]) -> Admission:
    made = Expected(Curve(width=1e-6, anew=1))  # of every row by itself, as the compiled loop has it
    made.lengths = Told(predicted)
    return made


PARTS = {FCFS: Parts(first_come, expected), SHORTEST: Parts(shortest, expected)}
NAMES = {FCFS: "curve", SHORTEST: "curve_shortest", DEADLINE: "curve_deadline", ECONOSERVE: "curve_econoserve"}
CURVES = {order: System(name, by_curve(order), padded=False, parts=PARTS.get(order)) for order, name in NAMES.items()}
CURVE_ORACLE = System("curve_oracle", by_curve(SHORTEST), padded=False, knows=True)
