"""Tokenizer of the embedded model: a byte-level BPE trained on the spot from the shipped speeches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harvester.engine.embedded.shape import VOCAB_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START, STOP, PAD = "<|start|>", "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (START, STOP, PAD, SYSTEM, USER, ASSISTANT)

SPEECHES = Path(__file__).parent / "speeches.txt"

# One turn is its role, its text and the end token; the end token is also what stops a generation.
CHAT_TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
  {%- if message['role'] in ('system', 'developer') %}
    {{- '<|system|>' }}
  {%- elif message['role'] in ('user', 'assistant') %}
    {{- '<|' + message['role'] + '|>' }}
  {%- else %}
    {{- raise_exception("the embedded model knows the roles system, developer, user and assistant, not " + message['role']) }}
  {%- endif %}
  {{- message['content'] + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|assistant|>' }}
{%- endif %}"""


def train() -> Tokenizer:
    """Train the tokenizer. It knows every byte, so that any text survives a round trip, and starts a plain prompt with ``<|start|>``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SPEECHES.read_text(encoding="utf-8").splitlines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A",
        pair=f"{START} $A $B",
        special_tokens=[(START, tokenizer.token_to_id(START))],
    )
    return tokenizer


def tokenizer_config(max_tokens: int) -> dict[str, Any]:
    """What ``tokenizer_config.json`` says, the chat template within it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "clean_up_tokenization_spaces": False,
        "bos_token": START,
        "eos_token": STOP,
        "pad_token": PAD,
        "chat_template": CHAT_TEMPLATE,
    }
