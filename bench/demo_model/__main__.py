"""``python -m bench.demo_model``: train the embedded model, write its folder, and print what it gets right.

python -m bench.demo_model                        # stopped, it goes on where it was
python -m bench.demo_model --evaluate-only        # the figures of the model that is there
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from bench.demo_model.card import write_card
from bench.demo_model.chat import MOST_COUNTED
from bench.demo_model.corpus import read_speeches
from bench.demo_model.documents import Library
from bench.demo_model.evaluation import LENGTHS, Exact, Grammars, evaluate, exported, table
from bench.demo_model.export import export
from bench.demo_model.sample import Encoder
from bench.demo_model.tokenizer import train_tokenizer
from bench.demo_model.training import Run, start, train
from harvester.engine.embedded.folder import SHIPPED

WORK = Path(__file__).parents[2] / ".cache" / "demo_model"
QUICK = {"lead": (128, 512, 2000, 6000), "classify": (500,), "extract": (600,), "chat": (128,)}


def main() -> None:
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    if not arguments.evaluate_only:
        make(arguments.out, arguments.work, arguments.seed)
    logits, tokenizer = exported(arguments.out)
    speeches = read_speeches(held_out=True)
    library = Library(Encoder(tokenizer), speeches, arguments.seed + 1)
    figures = table(evaluate(logits, library, Grammars(tokenizer), arguments.seed + 2, arguments.samples, LENGTHS))
    print(figures)
    write_card(arguments.out, figures, samples=arguments.samples, speeches=len(speeches), counted=MOST_COUNTED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.demo_model", description="Train the embedded model.")
    parser.add_argument("--out", type=Path, default=SHIPPED, metavar="FOLDER", help="the model's folder (default: the embedded one)")
    parser.add_argument("--work", type=Path, default=WORK, metavar="FOLDER", help="for checkpoints; the next start goes on from them")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--samples", type=int, default=100, help="held-out samples a task and length")
    parser.add_argument("--evaluate-only", action="store_true", help="train nothing: evaluate the model in --out")
    return parser


def make(out: Path, work: Path, seed: int) -> None:
    """Train from ``seed``, on the GPU where there is one, and write the model's folder."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work.mkdir(parents=True, exist_ok=True)
    speeches = read_speeches(held_out=False)
    tokenizer = train_tokenizer(speech.text for speech in speeches)
    encoder = Encoder(tokenizer)
    library = Library(encoder, speeches, seed)
    test = Library(encoder, read_speeches(held_out=True), seed + 1)

    grammars = Grammars(tokenizer)

    def report(run: Run, losses: dict[str, float]) -> None:
        def logits(ids: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device.type, torch.bfloat16):
                return run.network.logits(run.network(ids.to(device)))

        figures = evaluate(logits, test, grammars, seed, 10, QUICK)
        words = " ".join(f"{name} {'/'.join(map(_brief, exact.values()))}" for name, exact in figures.items())
        print(
            f"{time.strftime('%H:%M:%S')} step {run.step} {run.seconds:.0f} s {run.tokens / 1e6:.1f}M tokens "
            f"loss {losses['answer']:.3f} repeat {losses['repeat']:.3f} exact: {words}",
            flush=True,
        )

    run = start(seed, device, encoder)
    train(run, library, seed, work / "checkpoint.pt", report)
    export(run.network, tokenizer, out)


def _brief(exact: Exact) -> str:
    return f"{exact.free:.0%}" + ("" if exact.guided is None else f" ({exact.guided:.0%})")


if __name__ == "__main__":
    main()
