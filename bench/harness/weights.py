"""Random weights of a Llama, the same on every machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SEED = 20
# Standard deviations. With the usual 0.02 throughout, greedy decoding says one token for ever, and a comparison of two runs
# would pass whatever went wrong between them. With these, 128 greedy tokens hold about 120 different ones.
EMBEDDING_STD = 0.06
PROJECTION_STD = 0.1


def write_weights(folder: Path, config: dict[str, Any]) -> None:
    """Write ``model.safetensors``: normal matrices, norms at one, in float32."""
    import numpy as np
    from safetensors.numpy import save_file

    generator = np.random.Generator(np.random.PCG64(SEED))
    tensors = {}
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 1:
            tensors[name] = np.ones(shape, dtype=np.float32)
        else:
            std = np.float32(EMBEDDING_STD if "embed_tokens" in name else PROJECTION_STD)
            tensors[name] = generator.standard_normal(shape, dtype=np.float32) * std
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def tensor_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor, ``[out, in]`` for projections; the output layer is the embedding and has none of its own."""
    width, mlp = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (width,),
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "post_attention_layernorm": (width,),
        "mlp.gate_proj": (mlp, width),
        "mlp.up_proj": (mlp, width),
        "mlp.down_proj": (width, mlp),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], width)}
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}.weight": shape for name, shape in layer.items()}
    return shapes | {"model.norm.weight": (width,)}
