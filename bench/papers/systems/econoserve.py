"""EconoServe and what is left of it without its parts (section 4): -D decouples the queues, -SD groups generation by predicted length,
-SDO orders both queues, EconoServe lends KV as well. Oracle knows the lengths.

Time-synced groups are scheduled when one ends: a tenth of the time a sequence and step.
"""

from __future__ import annotations

from bench.papers.engine.order import ECONOSERVE as ORDERED
from bench.papers.engine.order import FCFS
from bench.papers.loads import Dataset
from bench.papers.machines import BLOCK_TOKENS, SEQUENCE_S, Setting
from bench.papers.systems.sarathi import STEP_TOKENS
from bench.papers.systems.system import Rule, System

SYNCED_S = SEQUENCE_S / 10


def decoupled(setting: Setting, dataset: Dataset) -> Rule:
    """KV for the predicted answer; reserves as EconoServe sets them for the dataset."""
    blocks = setting.kv_tokens // BLOCK_TOKENS
    return {
        "step_tokens": STEP_TOKENS,
        "order": FCFS,
        "prompt_blocks": int(dataset.prompt_reserve * blocks),
        "reserve_blocks": int(dataset.reserve * blocks),
        "buffer": dataset.buffer,
    }


def synced(setting: Setting, dataset: Dataset) -> Rule:
    return {**decoupled(setting, dataset), "synced": True, "sequence_s": SYNCED_S}


def ordered(setting: Setting, dataset: Dataset) -> Rule:
    return {**synced(setting, dataset), "order": ORDERED}


def lending(setting: Setting, dataset: Dataset) -> Rule:
    return {**ordered(setting, dataset), "lends": True}


ECONOSERVE_D = System("econoserve_d", decoupled, decoupled=True)
ECONOSERVE_SD = System("econoserve_sd", synced, decoupled=True)
ECONOSERVE_SDO = System("econoserve_sdo", ordered, decoupled=True)
ECONOSERVE = System("econoserve", lending, decoupled=True)
ORACLE = System("econoserve_oracle", lending, decoupled=True, padded=False, knows=True)
