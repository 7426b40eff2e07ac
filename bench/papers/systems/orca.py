"""ORCA: a fixed batch, KV for the longest sequence that the model allows, whole prompts beside decodes.

The batch is EconoServe's (2.1, 4): 8 sequences, 16 for OPT-175B.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.papers.engine.admission import LONGEST
from bench.papers.engine.order import FCFS
from bench.papers.loads import Dataset
from bench.papers.machines import Setting
from bench.papers.systems.system import Parts, Rule, System
from bench.papers.systems.vllm import first_come
from harvester.policy.admission.rule import Admission, WorstCase

MODEL_TOKENS = 2048  # OPT's positions
NO_BOUND = 1_000_000


def batch(setting: Setting) -> int:
    return 16 if setting.name == "opt-175b" else 8


def rules(setting: Setting, dataset: Dataset) -> Rule:
    return {"step_tokens": NO_BOUND, "order": FCFS, "allocation": LONGEST, "max_output": MODEL_TOKENS, "max_seqs": batch(setting)}


def worst(predicted: Mapping[str, int]) -> Admission:
    return WorstCase()


ORCA = System("orca", rules, parts=Parts(first_come, worst))
