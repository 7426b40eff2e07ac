"""Sarathi-Serve: vLLM's KV, and steps of the fewest tokens that keep the GPU busy, prompts in chunks between decodes.

That is what vLLM does since it has chunked prefill, with smaller steps: 512 tokens, the size that the paper found for an A100.
"""

from __future__ import annotations

from bench.papers.engine.admission import BLOCK
from bench.papers.engine.order import FCFS
from bench.papers.systems.system import Parts, System
from bench.papers.systems.vllm import first_come, greedy

STEP_TOKENS = 512

SARATHI = System(
    "sarathi",
    lambda setting, dataset: {"step_tokens": STEP_TOKENS, "order": FCFS, "allocation": BLOCK},
    parts=Parts(first_come, greedy),
)
