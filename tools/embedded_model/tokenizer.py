"""The demo model's tokenizer: a byte-level BPE in which a word is the same tokens wherever it stands, so that it can be copied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCAB_TOKENS = 4096
START, STOP, PAD = "<|start|>", "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (START, STOP, PAD, SYSTEM, USER, ASSISTANT)

# Words that nobody asks to copy by themselves include their space, which saves one token in six. Before any other word the space is
# a token of its own: `negative` is then the same token after a space, a quote or a line break. Each digit and mark is one token.
_FUNCTION_WORDS = """
    the of and to in that a is for with as it by on be are this which was have has at from or an will been their but its they we our
    would were who had there these those can must should so if than when what into them us you I
"""
FUNCTION_WORDS = _FUNCTION_WORDS.split()
PIECES = rf" (?:{'|'.join(FUNCTION_WORDS)})(?![\p{{L}}\p{{M}}\p{{N}}_])|[\p{{L}}\p{{M}}]+|[\s\S]"

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


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train it on ``texts``. It knows every byte, so that any text survives a round trip, and starts a plain prompt with ``<|start|>``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), behavior="isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", pair=f"{START} $A $B", special_tokens=[(START, tokenizer.token_to_id(START))]
    )
    return tokenizer


def tokenizer_config(max_tokens: int) -> dict[str, Any]:
    """Contents of ``tokenizer_config.json``, including the chat template."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_tokens,
        "clean_up_tokenization_spaces": False,
        "bos_token": START,
        "eos_token": STOP,
        "pad_token": PAD,
        "chat_template": CHAT_TEMPLATE,
    }
