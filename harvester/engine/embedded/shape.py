"""Shape of the embedded model, in the terms of a Llama ``config.json``."""

from __future__ import annotations

from typing import Any

MAX_TOKENS = 8192
VOCAB_TOKENS = 4096


def llama_config(vocab_tokens: int, *, bos_id: int, eos_id: int, pad_id: int) -> dict[str, Any]:
    """A Llama of 4.0M parameters: 4 layers of width 256, 4 query heads over 2 KV heads, embeddings tied.

    float32, and said twice: both names of the key are read, by different releases. In bfloat16 a model of this width crashes
    vLLM's CPU kernels.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_tokens,
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_TOKENS,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "float32",
        "dtype": "float32",
        "bos_token_id": bos_id,
        "eos_token_id": eos_id,
        "pad_token_id": pad_id,
    }
