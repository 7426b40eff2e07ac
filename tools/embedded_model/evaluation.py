"""Exact answers on held-out text, by task and length.

Greedy decoding gives the right answer exactly if each of its tokens is the most likely one after the right tokens before it. So one forward
pass over the prompt and the right answer shows what generation would give. The same holds under the grammar to which a job constrains an
answer (a JSON schema with all properties required, or the labels); it only masks tokens.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tools.embedded_model.lessons.chat import chat
from tools.embedded_model.lessons.copying import lead
from tools.embedded_model.lessons.documents import Library
from tools.embedded_model.lessons.fields import extract
from tools.embedded_model.lessons.labels import classify
from tools.embedded_model.lessons.sample import Sample
from tools.embedded_model.tokenizer import STOP

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Logits = Callable[[Tensor], Tensor]  # ids [1, tokens] -> logits [1, tokens, vocab]

Lesson = Callable[[Library, random.Random, int], Sample]

LESSONS: dict[str, Lesson] = {"lead": lead, "classify": classify, "extract": extract, "chat": chat}
LENGTHS: dict[str, tuple[int, ...]] = {
    "lead": (128, 256, 512, 1024, 2000, 4000, 6000),
    "classify": (200, 500, 1000, 2000),
    "extract": (300, 600, 1200, 2400),
    "chat": (128,),
}


@dataclass(frozen=True, slots=True)
class Exact:
    """Shares of exact answers: decoded freely, and under the grammar that a job would use (None for a lesson without one)."""

    free: float
    guided: float | None


class Grammars:
    """Constrained decoding by xgrammar, as in the engine."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        import xgrammar
        from transformers import PreTrainedTokenizerFast

        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=STOP)
        stop = int(tokenizer.get_vocab()[STOP])
        self._xgrammar = xgrammar
        self.vocab_tokens = int(tokenizer.get_vocab_size())
        info = xgrammar.TokenizerInfo.from_huggingface(fast, vocab_size=self.vocab_tokens, stop_token_ids=[stop])
        self._compiler = xgrammar.GrammarCompiler(info)

    def choose(self, sample: Sample, logits: Tensor, right: Tensor) -> Tensor | None:
        """The most likely allowed token at each place of the right answer. ``logits``: [tokens, vocab]. None without a grammar."""
        if sample.schema is not None:
            schema = sample.schema | {"required": list(sample.schema["properties"])}
            compiled = self._compiler.compile_json_schema(json.dumps(schema))
        elif sample.labels is not None:
            compiled = self._compiler.compile_grammar(
                "root ::= " + " | ".join(json.dumps(label, ensure_ascii=False) for label in sample.labels)
            )
        else:
            return None
        matcher = self._xgrammar.GrammarMatcher(compiled)
        mask = self._xgrammar.allocate_token_bitmask(1, self.vocab_tokens)
        allowed = logits.float().cpu().clone()
        for place, token in enumerate(right.tolist()):
            matcher.fill_next_token_bitmask(mask)
            self._xgrammar.apply_token_bitmask_inplace(allowed[place : place + 1], mask)
            assert matcher.accept_token(token), "a right answer breaks its own grammar"
        return allowed.argmax(-1)


def evaluate(
    logits: Logits, library: Library, grammars: Grammars, seed: int, samples: int, lengths: dict[str, tuple[int, ...]]
) -> dict[str, dict[int, Exact]]:
    """Shares of exact answers by lesson and by tokens of the whole prompt."""
    figures: dict[str, dict[int, Exact]] = {}
    for name, by_length in lengths.items():
        figures[name] = {}
        for tokens in by_length:
            drawn = (LESSONS[name](library, random.Random(f"{name}/{tokens}/{seed}/{n}"), tokens) for n in range(samples))
            each = [exact(logits, grammars, sample) for sample in drawn]
            guided = [right for _, right in each if right is not None]
            figures[name][tokens] = Exact(sum(free for free, _ in each) / samples, sum(guided) / samples if guided else None)
    return figures


def exact(logits: Logits, grammars: Grammars, sample: Sample) -> tuple[bool, bool | None]:
    """Whether greedy decoding gives the answers in ``sample``: freely, and under the grammar (None without one)."""
    ids = torch.tensor([sample.ids])
    places = torch.tensor(sample.answer).nonzero()[:, 0]
    with torch.inference_mode():
        said = logits(ids)[0, places - 1].cpu()
    right = ids[0, places]
    guided = grammars.choose(sample, said, right)
    return bool((said.argmax(-1) == right).all()), None if guided is None else bool((guided == right).all())


def exported(folder: Path) -> tuple[Logits, Tokenizer]:
    """The model in ``folder`` as `transformers` runs it in float32, and its tokenizer."""
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    return (lambda ids: model(ids).logits), Tokenizer.from_file(str(folder / "tokenizer.json"))


def table(figures: dict[str, dict[int, Exact]]) -> str:
    """Figures as a Markdown table: a line for each task, and a second one where jobs constrain the answer by a grammar."""
    lines = ["| task | exact answers, by tokens of the prompt |", "|---|---|"]
    for name, by_length in figures.items():
        lines.append(_line(name, {tokens: exact.free for tokens, exact in by_length.items()}))
        guided = {tokens: exact.guided for tokens, exact in by_length.items() if exact.guided is not None}
        if guided:
            lines.append(_line(f"{name}, as jobs ask", guided))
    return "\n".join(lines)


def _line(name: str, by_length: dict[int, float]) -> str:
    return f"| {name} | {', '.join(f'{share:.1%} at {tokens:,}' for tokens, share in by_length.items())} |"
