"""The models and machines of the papers, by their own tables, and three that are served today.

KV of the EconoServe models is what its section 4 gives, not what would fit. Step times are rooflines, as everywhere in `harvester.sim`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harvester.policy.model.load import StepLoad
from harvester.sim.cost import GPUS, MODELS, Cost, Machine, Model, kv_blocks, roofline

LLAMA_33B = Model("llama-33b", 33e9, 60, 6656, 6656)
QWEN3_32B = Model("qwen3-32b", 32.8e9, 64, 5120, 1024)  # its model card and config.json
SEQUENCE_S = 12.5e-6  # vLLM's own scheduling, a sequence and step, on one core of an EPYC
BLOCK_TOKENS = 32  # EconoServe 2.1


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on a machine with so many bytes of KV. ``max_seqs``: most sequences of a step."""

    name: str
    model: Model
    machine: Machine
    kv_bytes: float
    max_seqs: int = 256

    @property
    def kv_tokens(self) -> int:
        return int(self.kv_bytes / self.model.kv_bytes_per_token)

    @property
    def cost(self) -> Cost:
        return roofline(self.model, self.machine)

    @property
    def swap_token_s(self) -> float:
        """Seconds to copy a token's KV between GPU and host; every GPU copies its part over its own link."""
        machine = self.machine
        return self.model.kv_bytes_per_token / (machine.gpus * machine.gpu.link_bytes_per_s * machine.link_share)

    def transfer_token_s(self, link_bytes_per_s: float) -> float:
        """Seconds to send a token's KV to another machine."""
        return self.model.kv_bytes_per_token / link_bytes_per_s

    def costs(self) -> dict[str, float]:
        """Step costs for `Rules`, read off the roofline at loads that are bound by floating-point operations."""
        cost, tokens, pairs, context = self.cost, 10_000, 1e9, 10**9
        base_s = cost(StepLoad(tokens))
        token_s = (cost(StepLoad(2 * tokens)) - base_s) / tokens
        fixed_s = base_s - tokens * token_s
        return {
            "fixed_s": fixed_s,
            "token_s": token_s,
            "weights_s": cost(StepLoad()) - fixed_s,
            "pair_s": (cost(StepLoad(tokens, pairs)) - base_s) / pairs,
            "context_s": (cost(StepLoad(tokens, 0.0, 0, context)) - base_s) / context,
        }


A100 = GPUS["a100-80gb"]
H200 = GPUS["h200"]


def beside_weights(name: str, model: Model, machine: Machine) -> Setting:
    """A setting with the KV that fits beside the weights."""
    return Setting(name, model, machine, kv_blocks(model, machine, BLOCK_TOKENS) * BLOCK_TOKENS * model.kv_bytes_per_token)


PAPER = {
    setting.name: setting
    for setting in (
        Setting("opt-13b", MODELS["opt-13b"], Machine(A100), 12e9),
        Setting("llama-33b", LLAMA_33B, Machine(A100, gpus=2), 19.2e9),
        Setting("opt-175b", MODELS["opt-175b"], Machine(A100, gpus=8), 264e9),
    )
}
TODAY = {
    setting.name: setting
    for setting in (
        beside_weights("llama-3.1-8b", MODELS["llama-3.1-8b"], Machine(H200)),
        beside_weights("qwen3-32b", QWEN3_32B, Machine(H200)),
        beside_weights("llama-3.1-70b", MODELS["llama-3.1-70b"], Machine(H200, gpus=2)),
    )
}


def rules_of(setting: Setting, **given: float) -> dict[str, float]:
    """The machine's part of `Rules`, with what a system adds or overrides."""
    return {
        "total_blocks": setting.kv_tokens // BLOCK_TOKENS,
        "block_tokens": BLOCK_TOKENS,
        "max_seqs": setting.max_seqs,
        "sequence_s": SEQUENCE_S,
        "swap_token_s": setting.swap_token_s,
        "until_s": math.inf,
        **setting.costs(),
        **given,
    }
