"""``python -m tests.engine.answers_child``: ask the embedded model what it is known to answer, and write down what it said.

The engine is short of KV, and its steps of offline work end at random layers. What is right comes from the rules in
`harvester.engine.embedded.answers`, not from another run. Of held-out samples those are asked that the model gets right by itself, in one
pass of `transformers`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.harness.device import on_cpu
from harvester.config import parse_config
from harvester.engine.embedded import EMBEDDED_NAME, embedded_model
from tests.engine.asking import likeliest
from tests.engine.checkpoint_child import NO_RESERVE
from tools.embedded_model.evaluation import LESSONS, Grammars, exact, exported
from tools.embedded_model.lessons.corpus import read_speeches
from tools.embedded_model.lessons.documents import Library
from tools.embedded_model.lessons.sample import Encoder, Ids

ASKED = {"lead": (128, 40), "extract": (300, 24), "classify": (200, 24), "chat": (128, 24)}  # tokens, and samples
AT_ONCE = 24
KV_BLOCKS = 33
MAX_S = 500.0
ENGINE = {"max_model_len": 512, "max_num_seqs": 10, "max_num_batched_tokens": 256}


@dataclass(frozen=True, slots=True)
class Question:
    lesson: str
    ids: Ids
    right: str
    schema: dict[str, Any] | None
    labels: list[str] | None


def questions() -> tuple[list[Question], int]:
    """What the model gets right by itself, and how many samples were drawn."""
    logits, tokenizer = exported(embedded_model())
    library, grammars = Library(Encoder(tokenizer), read_speeches(held_out=True), 2), Grammars(tokenizer)
    found: list[Question] = []
    for lesson, (tokens, count) in ASKED.items():
        for number in range(count):
            sample = LESSONS[lesson](library, random.Random(f"{lesson}/{number}"), tokens)
            free, guided = exact(logits, grammars, sample)
            if free if guided is None else guided:
                begins = sample.answer.index(True)
                ends = sample.ids.index(library.encoder.stop, begins)
                right = library.encoder.text(sample.ids[begins:ends])
                found.append(Question(lesson, sample.ids[:begins], right, sample.schema, sample.labels))
    random.Random(3).shuffle(found)
    return found, sum(count for _, count in ASKED.values())


async def answer(llm: Any, name: str, question: Question, *, online: bool) -> str:
    from vllm.sampling_params import StructuredOutputsParams

    outputs = None
    if question.schema is not None:
        outputs = StructuredOutputsParams(json=question.schema | {"required": list(question.schema["properties"])})
    elif question.labels is not None:
        outputs = StructuredOutputsParams(choice=question.labels)
    found = await likeliest(llm, name, question.ids, online=online, tokens=200, outputs=outputs)
    return str(found.text)


async def ask_all(llm: Any, asked: list[Question], turns: int) -> list[str]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(turn: int, number: int) -> str:
        online = number % 8 == 7
        if online:
            await asyncio.sleep(0.1 * number)
            return await answer(llm, f"{turn}-{number}", asked[number], online=True)
        async with gate:
            return await answer(llm, f"{turn}-{number}", asked[number], online=False)

    said: list[str] = []
    for turn in range(turns):
        said += await asyncio.wait_for(asyncio.gather(*(ask(turn, number) for number in range(len(asked)))), MAX_S)
    return said


async def run(given: argparse.Namespace) -> dict[str, Any]:
    from harvester.engine.frontend.host import EngineHost
    from harvester.engine.launch.arguments import engine_arguments
    from harvester.engine.shared.state import Count, SharedState

    asked, drawn = questions()
    checkpoint = {"enabled": given.checkpoints, "host_gib": 0.25, "verify": True}
    config = parse_config({"engine": ENGINE, "slo": {"ttft_slo_ms": 50.0}, "checkpoint": checkpoint} | NO_RESERVE, "test")
    shared = SharedState.make()
    values = engine_arguments(config, str(embedded_model()), EMBEDDED_NAME, cpu=on_cpu(), embedded=True, shared=shared.path)
    values |= {"scheduler_cls": "tests.fakes.greedy_scheduler.GreedyScheduler", "num_gpu_blocks_override": KV_BLOCKS}
    values["additional_config"]["harvester_safepoints"]["chaos"] = given.chaos
    host = await EngineHost.start(values)
    try:
        said = await ask_all(host.llm, asked, given.turns)
    finally:
        host.close()
    pairs = [[question.lesson, question.right, text] for question, text in zip(asked * given.turns, said, strict=True)]
    return {"drawn": drawn, "answers": pairs, "counts": {count.name.lower(): shared.count(count) for count in Count}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chaos", type=float, default=0.0, help="probability that a step of offline work ends at a random layer")
    parser.add_argument("--checkpoints", action="store_true", help="keep the KV of preempted requests in host memory")
    parser.add_argument("--turns", type=int, default=1, help="how often everything is asked")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    given.output.write_text(json.dumps(asyncio.run(run(given))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
