"""MultiRes of EconoServe's section 2: KV for the predicted answer, and the request whose demand is nearest to what is left of both.

The answers are known beforehand there, as in the paper's first measurement. Each pick looks at all that wait: `LOOK_S` for each, since the
paper's scheduler is Python (34% of its JCT).
"""

from __future__ import annotations

from bench.papers.engine.admission import PREDICTED
from bench.papers.engine.order import NEAREST_FIT
from bench.papers.systems.sarathi import STEP_TOKENS
from bench.papers.systems.system import System

LOOK_S = 1e-6

MULTIRES = System(
    "multires",
    lambda setting, dataset: {"step_tokens": STEP_TOKENS, "order": NEAREST_FIT, "allocation": PREDICTED, "look_s": LOOK_S},
)
