"""Write the embedded model's folder in seconds, and print what it gets right.

Run it as ``python -m tools.embedded_model``. With ``--evaluate-only`` no weights are written: the figures are those of the model in
``--out``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from harvester.engine.embedded.conversation import MAX_COUNTED
from harvester.engine.embedded.folder import SHIPPED
from tools.embedded_model.card import write_card
from tools.embedded_model.circuits.copier import written_network
from tools.embedded_model.evaluation import LENGTHS, Grammars, evaluate, exported, table
from tools.embedded_model.export import export
from tools.embedded_model.lessons.corpus import read_speeches
from tools.embedded_model.lessons.documents import Library
from tools.embedded_model.lessons.sample import Encoder
from tools.embedded_model.tokenizer import train_tokenizer


def main() -> None:
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.evaluate_only:
        make(arguments.out)
    logits, tokenizer = exported(arguments.out)
    speeches = read_speeches(held_out=True)
    library = Library(Encoder(tokenizer), speeches, arguments.seed + 1)
    figures = table(evaluate(logits, library, Grammars(tokenizer), arguments.seed + 2, arguments.samples, LENGTHS))
    print(figures)
    write_card(arguments.out, figures, samples=arguments.samples, speeches=len(speeches), counted=MAX_COUNTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.embedded_model", description="Write the embedded model and evaluate it.")
    parser.add_argument("--out", type=Path, default=SHIPPED, metavar="FOLDER", help="the model's folder (default: the embedded one)")
    parser.add_argument("--seed", type=int, default=1, help="of the samples that it is evaluated on")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--samples", type=int, default=100, help="held-out samples a task and length")
    parser.add_argument("--evaluate-only", action="store_true", help="write no weights: evaluate the model in --out")
    return parser


def make(out: Path) -> None:
    """Train the tokenizer, write the circuits into the network, and write the model's folder."""
    tokenizer = train_tokenizer(speech.text for speech in read_speeches(held_out=False))
    export(written_network(Encoder(tokenizer)), tokenizer, out)


if __name__ == "__main__":
    main()
