"""The model card: README.md in the model's folder."""

from __future__ import annotations

import json
from pathlib import Path

_CARD = """\
# The embedded model

**This is not a language model to use.** It is a toy of {millions:.1f} million weights that lets everything in harvester
run anywhere and at once, with no GPU and no download, and gives answers that can be checked. The one-line change to a real
model:

    harvester serve --model Qwen/Qwen3-8B

Llama architecture, {layers} layers of width {width}, a byte-level BPE of {vocab:,} tokens of its own, context {context:,}
tokens.

## What it answers

Its weights are written by a program, as circuits, to follow these rules and nothing else; nothing of it was learned from data but the
tokenizer. `answers.py` and `conversation.py` in `harvester/engine/embedded/` hold the rules as code to check its answers by.

- `summarize`: the text up to the end of its first sentence, headings and salutations before it included.
- `classify`: the label that occurs in the text, letter for letter; the earliest where several do, the first label where none
  does.
- `extract`: the values of lines `name: value`, for flat schemas of strings, numbers, integers and booleans; what has no line
  is empty, 0 or false. Labels and values that begin with one of the commonest words ("the", "of") in small letters are beyond it:
  there such a word is one token with its space.
- Chat and `ask`: it greets, says what it is and how to choose a real model, by the last key word of the last message; it
  repeats (`Repeat: some words`) and counts (`Count: some words`, up to {counted}), and gives one and the same answer to all else.

It knows nothing. Words that it never saw are copied too. Other ways to ask, nested schemas and labels that the text only
implies are beyond it.

## What it gets right

Whole greedy answers that are exactly right, of {samples} for each length, by this folder in float32. "As jobs ask" is held to the
labels, or to the JSON schema with all its properties required, by the engine's grammar. The texts are made of
{speeches} speeches that were held out and of made-up words and names; half of those to summarize have headings, a third a
second sentence that begins like the first.

{figures}

## How it was made

`python -m tools.embedded_model` in harvester's repository writes it, the same each time, in seconds, and evaluates it.
`docs/design/0005-embedded-model.md` says how the circuits work. The tokenizer was trained on `examples/docs_speeches.parquet`
(nltk/nltk_data, corpora `state_union` and `inaugural`; public domain). The weights are stored in float16 and meant to be
served in float32, as harvester does on its own: in bfloat16 a model of this width crashes vLLM on CPU.
"""


def write_card(folder: Path, figures: str, *, samples: int, speeches: int, counted: int) -> None:
    """Write the card of the model in ``folder``, ``figures`` being the table of its exact answers."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    card = _CARD.format(
        millions=(folder / "model.safetensors").stat().st_size / 2e6,
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        vocab=config["vocab_size"],
        context=config["max_position_embeddings"],
        counted=counted,
        samples=samples,
        speeches=speeches,
        figures=figures,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
