"""Exact answers on text never trained on, by task and length.

A greedy answer is exact just when each of its tokens is the likeliest after the right ones before it, so one pass over prompt and
right answer tells what generation would do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bench.demo_model.batches import LESSONS
from bench.demo_model.documents import Library

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Logits = Callable[[Tensor], Tensor]  # ids [1, tokens] -> logits [1, tokens, vocab]

LENGTHS: dict[str, tuple[int, ...]] = {
    "lead": (128, 256, 512, 1024, 2000, 4000, 6000),
    "classify": (200, 500, 1000, 2000),
    "extract": (300, 600, 1200, 2400),
    "chat": (128,),
}


def evaluate(logits: Logits, library: Library, seed: int, samples: int, lengths: dict[str, tuple[int, ...]]) -> dict[str, dict[int, float]]:
    """Share of exact answers by lesson and by tokens of the whole prompt."""
    return {
        name: {tokens: sum(_exact(logits, library, name, tokens, f"{seed}/{n}") for n in range(samples)) / samples for tokens in by_length}
        for name, by_length in lengths.items()
    }


def _exact(logits: Logits, library: Library, name: str, tokens: int, seed: str) -> bool:
    sample = LESSONS[name](library, random.Random(f"{name}/{tokens}/{seed}"), tokens)
    ids = torch.tensor([sample.ids])
    places = torch.tensor(sample.answer).nonzero()[:, 0]
    with torch.inference_mode():
        said = logits(ids)[0, places - 1].argmax(-1)
    return bool((said.cpu() == ids[0, places]).all())


def exported(folder: Path) -> tuple[Logits, Tokenizer]:
    """The model in ``folder`` as `transformers` runs it in float32, and its tokenizer."""
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    return (lambda ids: model(ids).logits), Tokenizer.from_file(str(folder / "tokenizer.json"))


def table(figures: dict[str, dict[int, float]]) -> str:
    """Figures as a Markdown table, one line a task."""
    lines = ["| task | exact answers, by tokens of the prompt |", "|---|---|"]
    for name, by_length in figures.items():
        lines.append(f"| {name} | {', '.join(f'{share:.1%} at {tokens:,}' for tokens, share in by_length.items())} |")
    return "\n".join(lines)
