"""The network: a Llama whose weights are 0 until they are written. They carry the names that `transformers` and vLLM load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MAX_TOKENS = 8192


@dataclass(frozen=True, slots=True)
class Shape:
    vocab: int = 4096
    width: int = 256
    mlp: int = 320
    layers: int = 6
    heads: int = 8
    head: int = 64
    rope_theta: float = 1e12  # so slow that two thirds of a head's dimensions compare tokens 7,000 apart as if side by side
    norm_eps: float = 1e-5

    def config(self, *, bos_id: int, eos_id: int, pad_id: int) -> dict[str, Any]:
        """``config.json`` of the model. It says float32 under two keys: which one is read depends on the release.

        In bfloat16 a model of this width crashes vLLM's CPU kernels.
        """
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_TOKENS,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "float32",
            "dtype": "float32",
            "bos_token_id": bos_id,
            "eos_token_id": eos_id,
            "pad_token_id": pad_id,
        }


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        wide = shape.heads * shape.head
        self.shape = shape
        self.input_layernorm = Norm(shape)
        self.post_attention_layernorm = Norm(shape)
        self.self_attn = nn.ModuleDict({f"{name}_proj": nn.Linear(shape.width, wide, bias=False) for name in "qkv"})
        self.self_attn["o_proj"] = nn.Linear(wide, shape.width, bias=False)
        self.mlp = nn.ModuleDict({f"{name}_proj": nn.Linear(shape.width, shape.mlp, bias=False) for name in ("gate", "up")})
        self.mlp["down_proj"] = nn.Linear(shape.mlp, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # [rows, tokens, width]
        h = self.input_layernorm(x)
        q, k, v = (self._heads(self.self_attn[f"{name}_proj"](h)) for name in "qkv")
        mixed = functional.scaled_dot_product_attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True)
        x = x + self.self_attn["o_proj"](mixed.transpose(1, 2).flatten(2))
        h = self.post_attention_layernorm(x)
        added: Tensor = self.mlp["down_proj"](functional.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))
        return x + added

    def _heads(self, x: Tensor) -> Tensor:  # [rows, heads, tokens, head]
        apart: Tensor = x.unflatten(2, (self.shape.heads, self.shape.head))
        return apart.transpose(1, 2)


class Network(nn.Module):
    """Gives the hidden state of each token; the embedding matrix also gives the logits."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape)
        for weight in self.parameters():
            if weight.ndim == 2:
                nn.init.zeros_(weight)

    def forward(self, ids: Tensor) -> Tensor:  # [rows, tokens] -> [rows, tokens, width]
        x = self.embed_tokens(ids)
        if torch.is_autocast_enabled(ids.device.type):
            x = x.bfloat16()  # the layers' sums too: half the memory traffic, which is what a CPU waits for
        cos, sin = rope(ids.shape[1], self.shape, x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        hidden: Tensor = self.norm(x)
        return hidden

    def layer(self, index: int) -> Layer:
        found = self.layers[index]
        assert isinstance(found, Layer)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.embed_tokens.weight)

    def tensors(self) -> dict[str, Tensor]:
        """Weights by the names of a Llama's ``model.safetensors``."""
        return {f"model.{name}": weight.detach() for name, weight in self.named_parameters()}


class Norm(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.width))
        self.eps = shape.norm_eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight.to(x.dtype)


def weight_of(modules: nn.ModuleDict, name: str) -> Tensor:
    """The weight of one of a layer's projections."""
    found = modules[f"{name}_proj"].weight
    assert isinstance(found, Tensor)
    return found


def rope(tokens: int, shape: Shape, like: Tensor) -> tuple[Tensor, Tensor]:  # [tokens, head / 2] each
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head, 2, device=like.device) / shape.head)
    angles = torch.arange(tokens, device=like.device)[:, None] * frequencies
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
