"""The model of the scheduling benches on a CPU: a Llama of 28M random weights, large enough for a step to take as long as scheduling needs.

A step of 4,096 prompt tokens takes some hundred milliseconds on two cores, against a few of the embedded model.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from harvester.engine.embedded.shape import llama_config
from harvester.engine.embedded.tokenizer import PAD, START, STOP, tokenizer_config, train
from harvester.engine.embedded.weights import write_weights

NAME = "bench-llama-28m"
MAX_TOKENS = 8192
SHAPE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": MAX_TOKENS,
}


DEEP_NAME = "bench-llama-deep"
DEEP: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def bench_model(cache: Path | None = None) -> Path:
    """Its folder, as vLLM loads it, made in a second or two where ``cache`` (the temporary folder) does not hold it yet.

    float32, the same weights on every machine. The folder appears whole or not at all.
    """
    return _made(NAME, SHAPE, cache)


def deep_model(cache: Path | None = None) -> Path:
    """As `bench_model`, with as many layers as models have that people serve, each small: 40 of width 256."""
    return _made(DEEP_NAME, SHAPE | DEEP, cache)


def _made(name: str, shape: dict[str, Any], cache: Path | None) -> Path:
    cache = cache or Path(tempfile.gettempdir()) / "harvester-bench"
    target = cache / name
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        _fill(draft, shape)
        draft.chmod(0o755)
        try:
            draft.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was first
                raise
        return target
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fill(folder: Path, shape: dict[str, Any]) -> None:
    tokenizer = train()
    ids = tokenizer.get_vocab()
    config = llama_config(len(ids), bos_id=ids[START], eos_id=ids[STOP], pad_id=ids[PAD]) | shape
    tokenizer.save(str(folder / "tokenizer.json"))
    write_weights(folder, config)
    special = {"bos_token_id": ids[START], "eos_token_id": ids[STOP], "pad_token_id": ids[PAD]}
    for name, values in {"tokenizer_config": tokenizer_config(MAX_TOKENS), "generation_config": special, "config": config}.items():
        (folder / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
