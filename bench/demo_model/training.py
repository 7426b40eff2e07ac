"""The training loop: seed and steps decide the result; a run that was stopped goes on from its last checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.demo_model.batches import STAGES, Stage, make_batch, stage_at
from bench.demo_model.copier import write_copier
from bench.demo_model.copying import SUMMARIZE
from bench.demo_model.documents import Library
from bench.demo_model.muon import Muon
from bench.demo_model.network import Network, Shape
from bench.demo_model.sample import Encoder, Sample

# What is written by hand must be refined slowly: at 5e-5, and norms at 1e-4, 45 steps undid it, and so did Muon at 0.002.
MUON_LR, NORM_LR, COPIER_LR = 2e-5, 1e-6, 5e-6
FREE = ("layers.5.mlp.",)
WARMUP_STEPS = 20
LOSS_TOKENS = 1024  # of a kind in a step: logits take memory, and one shape is faster than many
PAD_ID = 2
CHECKPOINT_STEPS = 50


@dataclass(slots=True)
class Run:
    network: Network
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]
    step: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def groups(self) -> list[dict[str, Any]]:
        """Every optimizer's groups of weights, with their rates."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


def start(seed: int, device: torch.device, encoder: Encoder) -> Run:
    torch.manual_seed(seed)
    network = Network(Shape())
    write_copier(network, encoder, encoder(SUMMARIZE.before)[-8:])
    network.to(device)
    weights = dict(network.named_parameters())
    hidden = [weight for name, weight in weights.items() if name.startswith(FREE)]
    written = [weight for name, weight in weights.items() if not name.startswith(FREE) and weight.ndim == 2]
    norms = [weight for name, weight in weights.items() if weight.ndim == 1]
    groups = [{"params": written, "lr": COPIER_LR}, {"params": norms, "lr": NORM_LR}]
    adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    run = Run(network, (Muon(hidden, MUON_LR), adam))
    for group in run.groups():
        group["full_lr"] = group["lr"]
    return run


def rate(stage: Stage, done: float, step: int) -> float:
    """Share of the full learning rates: from one end of the stage's to the other, after a warm-up."""
    first, last = stage.rates
    return min((step + 1) / WARMUP_STEPS, first + (last - first) * done)


def train(run: Run, library: Library, seed: int, checkpoint: Path, report: Callable[[Run, dict[str, float]], None]) -> None:
    """Train to the end of the last stage. ``report`` is called every `CHECKPOINT_STEPS` steps, with the mean losses since."""
    steps = sum(stage.steps for stage in STAGES)
    if checkpoint.is_file():
        _restore(run, checkpoint)
    losses: list[tuple[float, float]] = []
    while run.step < steps:
        began_s = time.monotonic()
        stage, done = stage_at(STAGES, run.step)
        for group in run.groups():
            group["lr"] = group["full_lr"] * rate(stage, done, run.step)
        losses.append(_step(run, make_batch(library, stage, seed, run.step), stage.choice_weight, seed))
        run.step += 1
        run.seconds += time.monotonic() - began_s
        if run.step % CHECKPOINT_STEPS == 0 or run.step == steps:
            _save(run, checkpoint)
            answer, repeat = (sum(column) / len(losses) for column in zip(*losses, strict=True))
            report(run, {"answer": answer, "repeat": repeat})
            losses.clear()


def _step(run: Run, batch: tuple[list[Sample], int], choice_weight: float, seed: int) -> tuple[float, float]:
    samples, width = batch
    device = run.network.embed_tokens.weight.device
    ids = _padded([sample.ids for sample in samples], width, PAD_ID).to(device)
    masks = [_padded([getattr(sample, kind) for sample in samples], width, False) for kind in ("answer", "repeat")]
    chosen = [_places(mask, torch.Generator().manual_seed(seed * 1_000_003 + run.step)) for mask in masks]
    places = torch.cat([places for places, _ in chosen]).to(device)
    with torch.autocast(device.type, torch.bfloat16):
        hidden = run.network(ids).flatten(0, 1)[places - 1]
        each = functional.cross_entropy(run.network.logits(hidden).float(), ids.flatten()[places], reduction="none")
    choices = _padded([sample.choice for sample in samples], width, False).flatten()
    weights = torch.where(choices[places.cpu()], choice_weight, 1.0).to(device)
    weights[LOSS_TOKENS:] = 1.0
    parts = zip(each.split(LOSS_TOKENS), weights.split(LOSS_TOKENS), chosen, strict=True)
    losses = [(loss * weight)[:count].sum() / weight[:count].sum().clamp(min=1.0) for loss, weight, (_, count) in parts]
    (losses[0] + losses[1]).backward()
    torch.nn.utils.clip_grad_norm_([weight for group in run.optimizers[1].param_groups for weight in group["params"]], 1.0)
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    run.tokens += ids.numel()
    return float(losses[0].detach()), float(losses[1].detach())


def _places(mask: Tensor, chooser: torch.Generator) -> tuple[Tensor, int]:
    """`LOSS_TOKENS` places in the flat batch, and how many of the first of them are in ``mask``."""
    places = mask.flatten().nonzero()[:, 0]
    places = places[torch.randperm(len(places), generator=chooser)[:LOSS_TOKENS]]
    filled = torch.ones(LOSS_TOKENS, dtype=torch.long)
    filled[: len(places)] = places
    return filled, len(places)


def _padded(rows: list[Any], width: int, filler: int | bool) -> Tensor:
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows])


def _save(run: Run, checkpoint: Path) -> None:
    state = {
        "network": run.network.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers],
        "counts": (run.step, run.seconds, run.tokens),
    }
    draft = checkpoint.with_suffix(".draft")
    torch.save(state, draft)
    draft.replace(checkpoint)


def _restore(run: Run, checkpoint: Path) -> None:
    state = torch.load(checkpoint, weights_only=True)
    run.network.load_state_dict(state["network"])
    for optimizer, values in zip(run.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(values)
    run.step, run.seconds, run.tokens = state["counts"]
