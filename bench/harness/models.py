"""Llamas of random weights with the embedded model's tokenizer.

The scheduling benches use one of 28M weights on a CPU, large enough for steps to take as long as tests of scheduling need: one of 4,096
prompt tokens takes some hundred milliseconds on two cores.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bench.harness.weights import write_weights
from harvester.engine.embedded import embedded_model

NAME = "bench-llama-28m"
ROPE_THETA = 1e6
SHAPE: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
}


SMALL_NAME = "bench-llama-4m"
SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
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
    """Folder of the bench model, as vLLM loads it; made in a second or two if ``cache`` (default: the temporary folder) lacks it.

    float32, the same weights on every machine. The folder appears whole or not at all.
    """
    return _made(NAME, SHAPE, cache)


def deep_model(cache: Path | None = None) -> Path:
    """As `bench_model`, with as many layers as models have that people serve, but small ones: 40 of width 256."""
    return _made(DEEP_NAME, SHAPE | DEEP, cache)


def small_model(cache: Path | None = None) -> Path:
    """As `bench_model`, of 4M weights: its output is noise that depends on every token before, so that any wrong KV shows."""
    return _made(SMALL_NAME, SMALL, cache)


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
    embedded = embedded_model()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(embedded / name, folder / name)
    config: dict[str, Any] = json.loads((embedded / "config.json").read_text(encoding="utf-8"))
    config |= {"rope_theta": ROPE_THETA} | shape
    write_weights(folder, config)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
