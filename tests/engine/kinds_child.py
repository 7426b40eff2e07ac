"""``python -m tests.engine.kinds_child``: the same prompts to tiny models of each kind; answers and what ended early, written down.

``--stock``: vLLM alone, one model after another in this process. Otherwise one engine as `harvester serve` starts it, whose steps of
offline work end at random layers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from bench.harness.device import on_cpu
from harvester.core import PRIORITY_OFFLINE, PRIORITY_ONLINE
from tests.engine.kinds import KINDS, adapter

LONGEST = 512
PROMPTS, FEW, ONLINE, TOKENS, TURNS, MAX_TURNS = 14, 6, 2, 24, 2, 8
SHARED: dict[str, Any] = {"dtype": "float32", "max_model_len": LONGEST}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "sliding": ("sliding", {}),
    "latent": ("latent", {"attention_config": {"backend": "CPU_MLA"}}),
    "recurrent": ("recurrent", {"enable_prefix_caching": False}),
    "lora": ("plain", {"enable_lora": True, "max_lora_rank": 8}),
    "drafts": ("plain", {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}),
    "embed": ("plain", {"runner": "pooling", "convert": "embed"}),
}
# On a CPU vLLM itself answers these otherwise when other requests are in the step, or come from its prefix cache: one is asked at a time.
ALONE = ("latent", "recurrent")


def prompts() -> list[list[int]]:
    """Token ids, the same in every run, with shared beginnings, and longer than a window of `kinds.sliding`."""
    rng = random.Random(11)
    shared = [rng.randrange(10, 4000) for _ in range(200)]
    return [shared[: rng.randrange(1, 200)] + [rng.randrange(10, 4000) for _ in range(rng.randrange(20, 250))] for _ in range(PROMPTS)]


def stock(cases: list[str], models: Path) -> dict[str, Any]:
    """Answers of vLLM's own scheduler and worker. After one with drafts, which load numba, vLLM makes no further engine in a process."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # an engine in this process starts in a few seconds
    from vllm import LLM, SamplingParams
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    found: dict[str, Any] = {}
    plain: dict[str, Any] = {"enforce_eager": True, "max_num_seqs": 16, "max_num_batched_tokens": LONGEST, "block_size": 32}
    memory: dict[str, Any] = {"kv_cache_memory_bytes": 1 << 28, "gpu_memory_utilization": 0.2}
    for case in cases:
        kind, extra = CASES[case]
        llm = LLM(str(KINDS[kind](models)), **plain, **memory, **SHARED, **extra)
        given: Any = [{"prompt_token_ids": ids} for ids in prompts()]
        if case == "embed":
            found[case] = [output.outputs.embedding for output in llm.embed(given, use_tqdm=False)]
        else:
            params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
            adapters = [_adapter(case, models)] * PROMPTS
            whole = [(given, adapters)] if case not in ALONE else [([one], None) for one in given[:FEW]]
            found[case] = [
                list(output.outputs[0].token_ids)
                for some, lora in whole
                for output in llm.generate(some, params, use_tqdm=False, lora_request=lora)
            ]
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    return found


def _adapter(case: str, models: Path) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, str(adapter(models))) if case == "lora" else None


async def ask(llm: Any, case: str, models: Path, number: int, turn: int) -> list[Any]:
    from vllm import PoolingParams, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    prompt, name = TokensPrompt(prompt_token_ids=prompts()[number]), f"{turn}-{number}"
    priority = PRIORITY_ONLINE if number < ONLINE else PRIORITY_OFFLINE
    if case == "embed":
        found: list[Any] = []
        async for output in llm.encode(prompt, PoolingParams(task="embed"), name, priority=priority):
            found = output.outputs.data.tolist()
        return found
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
    async for output in llm.generate(prompt, params, name, priority=priority, lora_request=_adapter(case, models)):
        found = list(output.outputs[0].token_ids)
    return found


def texts() -> list[str]:
    """Rows of a job, some with a beginning in common."""
    return [f"{'The same beginning of a row. ' * (number % 3)}Row {number} says {number * 37 % 101}." for number in range(PROMPTS)]


async def embedded(host: Any) -> dict[str, Any]:
    """`texts` as rows of a job alone, as a client's requests alone, and both at once; and a row that is too long."""
    import httpx

    from jobs.run.row import RowWork
    from jobs.spec import OnLong
    from jobs.tasks.load import resolve_task
    from jobs.testing import scripted_plan

    about = {"task": resolve_task("embed"), "column": "text", "on_long": OnLong.ERROR}
    work = RowWork(scripted_plan("docs").spec.model_copy(update=about), host.offline("tiny", 8), time.time)
    name = host.models()[0]

    async def rows(tag: str) -> list[dict[str, Any]]:
        done = await asyncio.gather(*(work.answer(number, {"text": text}, text, 1, tag) for number, text in enumerate(texts())))
        return [row.to_json() for row in done]

    async with httpx.AsyncClient(transport=httpx.ASGITransport(host.app), base_url="http://127.0.0.1") as http:

        async def asked() -> list[dict[str, Any]]:
            bodies = [{"model": name, "input": text} for text in texts()]
            return [answer.json() for answer in await asyncio.gather(*(http.post("/v1/embeddings", json=body) for body in bodies))]

        found: dict[str, Any] = {"rows": await rows("alone"), "asked": await asked()}
        found["rows beside"], found["asked beside"] = await asyncio.gather(rows("beside"), asked())
    long = "word " * 2 * LONGEST
    return {**found, "long": (await work.answer(99, {"text": long}, long, 1, "long")).to_json(), "gives": list(host.gives)}


def by_transformers(model: Path) -> list[list[float]]:
    """What the library itself gives for `texts`: the normed state of the last token."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, plain = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        states = [plain(torch.tensor([tokenizer.encode(text)])).last_hidden_state[0, -1] for text in texts()]
    return [torch.nn.functional.normalize(state, dim=0).tolist() for state in states]


async def ours(case: str, models: Path, chaos: float, least: int) -> dict[str, Any]:
    from harvester.config import parse_config
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.shared.state import Count, SharedState

    kind, extra = CASES[case]
    model = KINDS[kind](models)
    wanted = {"engine": {**SHARED, **extra}, "schedule": {"preempt_detect_ms": 0.1}, "checkpoint": {"enabled": True, "host_gib": 0.1}}
    shared = SharedState.make()
    values = engine_arguments(parse_config(wanted, "test"), str(model), model.name, cpu=on_cpu(), embedded=False, shared=shared.path)
    values["additional_config"]["harvester_safepoints"]["chaos"] = chaos
    host = await EngineHost.start(values)
    answers: list[Any] = []
    try:
        while len(answers) < TURNS or (shared.count(Count.ENDED_STEPS) < least and len(answers) < MAX_TURNS):
            turn = len(answers)
            if case in ALONE:
                answers.append([await ask(host.llm, case, models, number, turn) for number in range(FEW)])
            else:
                answers.append(await asyncio.gather(*(ask(host.llm, case, models, number, turn) for number in range(PROMPTS))))
        beyond = {**await embedded(host), "transformers": by_transformers(model)} if case == "embed" else {}
        scheduler, told = str(host.llm.vllm_config.scheduler_config.scheduler_cls), host.now()["wrong"]
    finally:
        host.close()
    return {"answers": answers, "ended": shared.count(Count.ENDED_STEPS), "scheduler": scheduler, "told": told, "texts": beyond}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=CASES)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--chaos", type=float, default=0.5)
    parser.add_argument("--least", type=int, default=0, help="ask everything again until so many steps ended early")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    alone = given.cases[0]
    found = stock(given.cases, given.models) if given.stock else asyncio.run(ours(alone, given.models, given.chaos, given.least))
    given.output.write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
