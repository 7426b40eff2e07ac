"""What all parts have in common: the model's shape, the engine arguments, how long and how often."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harvester.config import ServeConfig, parse_config

SHAPES = Path(__file__).parent / "shapes"
TINY = "tiny"
CPU_MIB, CPU_BLOCK_TOKENS = 256, 32


@dataclass(frozen=True, slots=True)
class RunConfig:
    """``shape``: a folder below `SHAPES`, with no weights. ``quick``: a few seconds a part, to show that all of it runs."""

    shape: str
    cpu: bool
    quick: bool
    seed: int

    @property
    def tiny(self) -> bool:
        return self.shape == TINY

    @property
    def model(self) -> str:
        return str(SHAPES / self.shape)

    def pick(self, full: float, tiny: float, quick: float) -> float:
        """One of three values: for a full run, for the tiny model, or for the short form."""
        return quick if self.quick else tiny if self.tiny else full

    def number(self, full: int, tiny: int, quick: int) -> int:
        return round(self.pick(full, tiny, quick))

    def engine(self, **more: Any) -> dict[str, Any]:
        """Arguments of every engine. Random weights make the same work as real ones; prompts are token ids, so no tokenizer is loaded."""
        given: dict[str, Any] = {"load_format": "dummy", "skip_tokenizer_init": True, "max_model_len": 2048 if self.tiny else 8192}
        given |= {"dtype": "float32" if self.cpu else "bfloat16", "enable_prefix_caching": True}
        given |= {"kv_cache_memory_bytes": CPU_MIB << 20, "block_size": CPU_BLOCK_TOKENS} if self.cpu else {}
        given |= {"max_num_batched_tokens": 512, "max_num_seqs": 16} if self.tiny else {"max_num_seqs": 256}
        return given | more

    def config(self, engine: dict[str, Any], **sections: Any) -> ServeConfig:
        return parse_config({"engine": self.engine(**engine), **sections}, "bench")


def small_model() -> Path:
    """A model of a few million random weights, the same on every machine; each token it generates depends on every token before."""
    from bench.harness.weights import write_weights

    target = Path(tempfile.gettempdir()) / "harvester-bench" / "gpu-small"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as name:
            draft = Path(name) / "model"
            draft.mkdir()
            config = json.loads((SHAPES / TINY / "config.json").read_text(encoding="utf-8"))
            write_weights(draft, config)
            (draft / "config.json").write_text(json.dumps(config), encoding="utf-8")
            draft.rename(target)
    return target
