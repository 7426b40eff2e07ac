"""The model as a folder that `transformers` and vLLM load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from tools.embedded_model.circuits.network import MAX_TOKENS, Network
from tools.embedded_model.tokenizer import PAD, START, STOP, tokenizer_config

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def export(network: Network, tokenizer: Tokenizer, folder: Path) -> None:
    """Write weights in float16, which halves them and is finer than bfloat16, the tokenizer, and the three configs."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.to("cpu", torch.float16).contiguous() for name, weight in network.tensors().items()}
    assert all(bool(weight.isfinite().all()) for weight in tensors.values()), "a weight is beyond float16"
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # `save_file` makes it readable by its owner alone
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab()
    ids = {"bos_id": vocab[START], "eos_id": vocab[STOP], "pad_id": vocab[PAD]}
    _write_json(folder / "config.json", network.shape.config(**ids))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(MAX_TOKENS))
    _write_json(folder / "generation_config.json", {name.replace("_id", "_token_id"): value for name, value in ids.items()})


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
