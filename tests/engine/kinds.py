"""Tiny models of random weights, one for each kind of attention, made on the spot with the embedded model's tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness.models import small_model
from harvester.engine.embedded import embedded_model

VOCABULARY = 4096
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# Standard deviation of every matrix. With the usual 0.02 greedy decoding says one token for ever, and a comparison shows nothing.
STD = 0.08


def sliding(folder: Path) -> Path:
    """Windows of 64 tokens in three of four layers: two or more KV cache groups."""
    from transformers import Olmo3Config

    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    return _made(folder / "sliding", Olmo3Config(**shape, num_hidden_layers=4, layer_types=kinds, sliding_window=64))


def windows(folder: Path) -> Path:
    """Windows of 64 tokens in ten of twelve layers: six KV cache groups of two layers, as in Gemma 3 and gpt-oss."""
    from transformers import Olmo3Config

    kinds = [*["sliding_attention"] * 5, "full_attention"] * 2
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    return _made(folder / "windows", Olmo3Config(**shape, num_hidden_layers=12, layer_types=kinds, sliding_window=64))


def latent(folder: Path) -> Path:
    """Multi-head latent attention as in DeepSeek-V2, without experts. The sizes of the latent are those that vLLM's CPU kernel has."""
    from transformers import DeepseekV2Config

    shape = {name: value for name, value in SHAPE.items() if name not in ("head_dim", "num_key_value_heads", "tie_word_embeddings")}
    given = {
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "first_k_dense_replace": 4,
        "tie_word_embeddings": False,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "n_routed_experts": 4,
    }
    return _made(folder / "latent", DeepseekV2Config(**shape, **given))


def recurrent(folder: Path) -> Path:
    """Short convolutions, whose state each step advances, beside full attention: LFM2."""
    from transformers import Lfm2Config

    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    kinds = ["conv", "full_attention", "conv", "full_attention"]
    given = {
        "num_hidden_layers": 4,
        "layer_types": kinds,
        "conv_L_cache": 3,
        "block_auto_adjust_ff_dim": False,
        "conv_dim": 256,
        "block_dim": 256,
    }
    given |= {
        "block_ff_dim": 512,
        "block_multiple_of": 256,
        "block_ffn_dim_multiplier": 1.0,
        "block_use_swiglu": True,
        "block_norm_eps": 1e-5,
    }
    return _made(folder / "recurrent", Lfm2Config(**shape, **given))


def plain(folder: Path) -> Path:
    return small_model(folder)


def seeing(folder: Path, image_tokens: int = 8) -> Path:
    """BLIP-2 over OPT: an image becomes ``image_tokens`` before the prompt. Among vision models, one that needs no torchvision."""
    import torch
    from transformers import AutoTokenizer, Blip2Config, Blip2ForConditionalGeneration, Blip2Processor, Blip2QFormerConfig, OPTConfig
    from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil
    from transformers.models.blip_2.configuration_blip_2 import Blip2VisionConfig

    target = folder / f"seeing-{image_tokens}"
    if target.is_dir():
        return target
    tokenizer = AutoTokenizer.from_pretrained(embedded_model())
    pixels = BlipImageProcessorPil(size={"height": 32, "width": 32})
    processor = Blip2Processor(pixels, tokenizer, num_query_tokens=image_tokens)  # which adds the token of images
    narrow = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = OPTConfig(
        vocab_size=VOCABULARY + 64,
        hidden_size=256,
        word_embed_proj_dim=256,
        ffn_dim=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        architectures=["OPTForCausalLM"],
    )
    config = Blip2Config(
        vision_config=Blip2VisionConfig(**narrow, image_size=32, patch_size=16),
        qformer_config=Blip2QFormerConfig(**narrow, cross_attention_frequency=1, vocab_size=64),
        text_config=text,
        num_query_tokens=image_tokens,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    torch.manual_seed(5)
    draft = target.with_name(f".{target.name}")
    _spread(Blip2ForConditionalGeneration(config)).save_pretrained(draft)
    processor.save_pretrained(draft)
    (draft / "generation_config.json").unlink(missing_ok=True)
    draft.rename(target)
    return target


def adapter(folder: Path, seed: int = 3, *, of: Path | None = None) -> Path:
    """A LoRA adapter of rank 8 for `plain`, strong enough to change what it says. ``of``: the model, if it is in another folder."""
    import torch
    from safetensors.torch import save_file

    target = folder / "adapter"
    target.mkdir(parents=True, exist_ok=True)
    config = json.loads(((of or plain(folder)) / "config.json").read_text("utf-8"))
    width, heads, keys = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim", width // heads)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out in (("q_proj", heads * head), ("v_proj", keys * head)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_"
            tensors[stem + "A.weight"] = torch.randn(8, width, generator=generator) * 0.2
            tensors[stem + "B.weight"] = torch.randn(out, 8, generator=generator) * 0.2
    save_file(tensors, target / "adapter_model.safetensors")
    given = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (target / "adapter_config.json").write_text(json.dumps(given), encoding="utf-8")
    return target


KINDS: dict[str, Callable[[Path], Path]] = {"sliding": sliding, "latent": latent, "recurrent": recurrent, "plain": plain}


def _made(target: Path, config: Any) -> Path:
    """The folder, with weights that are the same in every run."""
    import torch
    from transformers import AutoModelForCausalLM

    if target.is_dir():
        return target
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(config)
    draft = target.with_name(f".{target.name}")
    _spread(model).save_pretrained(draft)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded_model() / name, draft / name)
    (draft / "generation_config.json").unlink(missing_ok=True)
    draft.rename(target)
    return target


def _spread(model: Any) -> Any:
    """The model, with matrices that make its answers differ, in 32 bits."""
    import torch

    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, STD, generator=generator)
    return model.to(torch.float32)
