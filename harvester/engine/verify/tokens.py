"""Sends the same prompts to stock vLLM and to harvester under pressure, each in an engine of its own.

The prompts are made to find wrong KV: they have common prefixes, and some have several chunks. Chat takes the KV of offline work away, and
steps end between two layers. All prompts are sent a second time, which uses the prefix cache of the first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from harvester.engine.frontend.engine import TokenEngine, Top
from harvester.engine.launch.arguments import without_harvester
from harvester.engine.shared.state import Count, SharedState
from harvester.engine.verify.answers import Pressed, Stock
from harvester.engine.verify.ask import ask, in_time, random_ids
from harvester.engine.verify.subject import CONTEXT_TOKENS, Subject
from harvester.engine.verify.ties import first_other, lead, moved
from harvester.engine.vllm.frontend.client import HarvestLLM
from harvester.engine.vllm.launch import engine
from harvester.errors import EngineError

OFFLINE, ONLINE, BURST = 20, 12, 4
PROMPT_TOKENS, ANSWER_TOKENS = (24, 200), 40
SHARED_WORDS, OWN_WORDS = 16, (12, 32)
WORDS = """
    apple river stone window garden silver morning letter bridge candle forest hammer island jacket kitchen ladder market needle ocean paper
    queen rabbit shadow table umbrella valley winter yellow zebra anchor basket copper desert engine feather glass harbor iron
""".split()  # noqa: SIM905  # a list of one-word strings is harder to read
TOP = 5  # likeliest tokens reported for each position
CHAOS = 0.5
TURNS = 2
AGAIN_AT_ONCE = 3  # requests at a time when repeated, so that steps hold other requests than at first


def prompts(llm: HarvestLLM) -> list[list[int]]:
    """The prompts, the same in every run, offline ones first; two of three share a prefix.

    A model with a tokenizer is asked to repeat words drawn at random. Its answer then depends on the KV of every one of them, and nearly
    every token has a large lead, so that ties cut off little. Other models, of random weights, get random tokens.
    """
    rng = random.Random(7)
    vocabulary = llm.sizes.vocabulary
    try:
        tokenizer = llm.get_tokenizer()
    except ValueError:  # the engine runs without one
        tokenizer = None
    shared = rng.choices(WORDS, k=SHARED_WORDS), random_ids(rng, vocabulary, PROMPT_TOKENS[1] // 2)
    found = []
    for number in range(OFFLINE + ONLINE):
        common, length = number % 3, rng.randint(*PROMPT_TOKENS)
        if tokenizer is None:
            ids = shared[1][: length // 2] if common else []
            found.append(ids + random_ids(rng, vocabulary, length - len(ids)))
        else:
            words = shared[0] if common else []
            found.append(_rendered(tokenizer, " ".join(words + rng.choices(WORDS, k=rng.randint(*OWN_WORDS)))))
    return found


def _rendered(tokenizer: Any, text: str) -> list[int]:
    asked = f"Repeat: {text}"
    if getattr(tokenizer, "chat_template", None):
        message = [{"role": "user", "content": asked}]
        ids = tokenizer.apply_chat_template(message, tokenize=True, add_generation_prompt=True, return_dict=False)
    else:
        ids = tokenizer.encode(f"{asked}\n\n{text[: len(text) // 8]}")  # a base model continues a repetition that has begun
    return list(ids)[: CONTEXT_TOKENS - ANSWER_TOKENS - 1]


def stock_tokens(subject: Subject) -> Stock:
    """Stock vLLM's answers, and how well it reproduces them. Run by `run_in_process`."""
    return asyncio.run(_stock(subject))


def pressed_tokens(subject: Subject, request_blocks: int, longest_tokens: int) -> Pressed:
    """Harvester's answers, with KV for few requests and steps that end early. Run by `run_in_process`."""
    return asyncio.run(_pressed(subject, request_blocks, longest_tokens))


async def _stock(subject: Subject) -> Stock:
    async with engine(without_harvester(subject.small())) as llm, in_time():
        given = prompts(llm)
        outputs = await asyncio.gather(*(ask(llm, f"{i}", ids, ANSWER_TOKENS, logprobs=TOP) for i, ids in enumerate(given)))
        tokens = [output.token_ids for output in outputs]
        tops = [output.tops for output in outputs]
        gate = asyncio.Semaphore(AGAIN_AT_ONCE)
        as_prompts = await asyncio.gather(*(_as_prompt(llm, gate, i, given[i] + tokens[i], len(tokens[i])) for i in range(len(given))))
        repeated = await asyncio.gather(*(_again(llm, gate, i, ids) for i, ids in enumerate(given)))
        tie = 2.0 * max(moved(*each) for each in zip(tokens, tops, as_prompts, strict=True))
        tie = max(tie, *(_own_tie(*each) for each in zip(tokens, repeated, tops, strict=True)))
        longest = max(map(len, given)) + ANSWER_TOKENS
        blocks = llm.sizes.request_blocks or -(-CONTEXT_TOKENS // llm.sizes.block_tokens)
        return Stock(tokens, tops, tie, blocks, longest)


async def _as_prompt(llm: TokenEngine, gate: asyncio.Semaphore, number: int, ids: list[int], answered: int) -> list[Top]:
    """The likeliest tokens at each position of an answer, which is computed again as the end of a prompt."""
    async with gate:
        output = await ask(llm, f"prompt-{number}", ids, 1, prompt_logprobs=TOP)
    places = [place for place in output.prompt_tops[-answered:] if place]
    if len(places) < answered:
        raise EngineError("vLLM gave no log-probabilities for a prompt: how well it repeats itself cannot be told")
    return places


async def _again(llm: TokenEngine, gate: asyncio.Semaphore, number: int, ids: list[int]) -> list[int]:
    async with gate:
        return (await ask(llm, f"again-{number}", ids, ANSWER_TOKENS)).token_ids


def _own_tie(tokens: list[int], repeated: list[int], top: Sequence[Top]) -> float:
    """The lead of the first token that stock vLLM did not reproduce; 0 if it reproduced its answer."""
    place = first_other(repeated, tokens)
    return 0.0 if place is None else lead(top[place], tokens[place], repeated[place])


async def _pressed(subject: Subject, request_blocks: int, longest_tokens: int) -> Pressed:
    shared = SharedState.make()
    values = subject.pressed(shared.path, request_blocks, longest_tokens, CHAOS)
    async with engine(values, shared) as llm, in_time():
        given = prompts(llm)
        turns = [await _turn(llm, given, turn) for turn in range(TURNS)]
        return Pressed(
            turns,
            int(shared.count(Count.ENDED_STEPS)),
            int(shared.count(Count.PREEMPTED)),
            int(shared.count(Count.STORED_BLOCKS)),
            int(shared.count(Count.LOADED_BLOCKS)),
            int(shared.count(Count.FAILED_COPIES)),
        )


async def _turn(llm: TokenEngine, given: list[list[int]], turn: int) -> list[list[int]]:
    """Send offline work all at once, and a burst of chat each time some more of it is answered, so that some steps have no chat."""
    answered, news = 0, asyncio.Condition()
    bursts = ONLINE // BURST

    async def offline(number: int) -> list[int]:
        nonlocal answered
        output = await ask(llm, f"{turn}-{number}", given[number], ANSWER_TOKENS)
        async with news:
            answered += 1
            news.notify_all()
        return output.token_ids

    async def online(number: int) -> list[int]:
        due = (1 + (number - OFFLINE) // BURST) * OFFLINE // (bursts + 2)
        async with news:
            await news.wait_for(lambda: answered >= due)
        return (await ask(llm, f"{turn}-{number}", given[number], ANSWER_TOKENS, online=True)).token_ids

    return await asyncio.gather(*map(offline, range(OFFLINE)), *map(online, range(OFFLINE, OFFLINE + ONLINE)))
