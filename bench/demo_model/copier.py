"""Weights to start from: a network that copies before it is trained.

To copy is to find where the last tokens stood before, and to say what came next. Training finds that out late, from nothing, because no
part of it pays alone. So it is written into the first two layers, by the book of the "induction head" (Olsson et al., 2022): the first
layer's heads look one, two, three and four tokens back; the second layer's compare a token and the ones before it with what stood before
every earlier token, and fetch the token found. The other layers are left to learn what to copy, and when to stop. All of it is trained.

The width is split: one dimension that all tokens share, `CONTENT` for the token itself, four parts for those before it, one for the start.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.demo_model.network import Network
from bench.demo_model.sample import Encoder

SHARED, START = 0, 255
CONTENT = slice(1, 128)
BEFORE = (slice(128, 160), slice(160, 192), slice(192, 224), slice(224, 255))
STD = 0.05  # of an embedding's dimensions
SHARED_STDS = 16.0  # the shared dimension, in those
SHARPNESS = 7.5  # of a look back: a neighbour's share is e^-4 of that of the token looked at
LOCAL_PAIRS = 9  # rotary pairs that turn fast enough to tell neighbours apart
FAR_PAIRS = slice(11, 31)  # pairs that turn by less than half a radian in 7,000 tokens
SINK_PAIR = 31
MATCH, SINK = 32.0, 20.0  # attention scores of a whole match, and of the start token: where nothing matches, nothing is fetched
GAIN = (3.0, 1.5)  # of what a match of four tokens fetches, and of two, over the token itself
FINAL_NORM = 2.0
FETCHERS = (2, 3, 4)  # layers whose first two heads fetch what they look at, wherever training makes them look
BEGIN = 24.0  # attention score of where a text begins
VALUE = (14.0, 9.0, 9.0)  # attention scores of a value's place: the name in front, a colon, a space
VALUE_SINK, VALUE_GAIN = 23.0, 6.0
FETCH_SINK = 11.0  # of the start token for fetchers: most of their attention, until they know better


@torch.no_grad()  # type: ignore[untyped-decorator]
def write_copier(network: Network, encoder: Encoder, before_text: list[int]) -> None:
    """Write the copier into a fresh network of width 256 with 4 heads of 64.

    Where the assistant begins to answer, the third layer looks at the token after ``before_text``, the four tokens that stand before a text
    to summarize; within JSON, it looks for the value of a line ``name: value``.
    """
    assert (network.shape.width, network.shape.heads, network.shape.head) == (256, 4, 64)
    embedding = network.embed_tokens.weight
    embedding[:, BEFORE[0].start :] = 0.0
    embedding.mul_(STD / 0.02)
    embedding[:, SHARED] = STD * SHARED_STDS
    embedding[encoder.start, 1:] = 0.0
    embedding[encoder.start, START] = STD * SHARED_STDS
    # What the tokens before are known by: the same projection of each of them.
    known = nn.init.orthogonal_(torch.empty(32, 127))
    _look_back(network, known)
    _match(network, known)
    for layer in FETCHERS:
        _fetch(network, layer)
    _begin(network, known, encoder.assistant, before_text)
    _value(network, known, encoder)
    network.norm.weight.fill_(FINAL_NORM)


def _heads(network: Network, layer: int, name: str) -> Tensor:
    """A layer's projection by heads, zeroed: ``[heads, head, width]``, and ``[heads, width, head]`` for ``o``."""
    weight: Tensor = network.layers[layer].self_attn[f"{name}_proj"].weight
    weight.zero_()
    heads, head = network.shape.heads, network.shape.head
    return weight.view(-1, heads, head).transpose(0, 1) if name == "o" else weight.view(heads, head, -1)


def _look_back(network: Network, known: Tensor) -> None:
    query, key, value, out = (_heads(network, 0, name) for name in "qkvo")
    half = network.shape.head // 2
    rms = ((SHARED_STDS**2 + 127) / 256) ** 0.5  # of an embedding, in STDs
    scale = SHARPNESS * rms / SHARED_STDS
    frequencies = network.shape.rope_theta ** (-torch.arange(LOCAL_PAIRS) / half)
    for head, place in enumerate(BEFORE):
        angles = -frequencies * (head + 1)
        query[head, :LOCAL_PAIRS, SHARED] = scale * angles.cos()
        query[head, half : half + LOCAL_PAIRS, SHARED] = scale * angles.sin()
        key[head, :LOCAL_PAIRS, SHARED] = scale
        wide = place.stop - place.start
        value[head, :wide, CONTENT] = known[:wide]
        out[head, place, :wide] = STD * rms * torch.eye(wide)


def _match(network: Network, known: Tensor) -> None:
    query, key, value, out = (_heads(network, 1, name) for name in "qkvo")
    half = network.shape.head // 2
    far = torch.cat([torch.arange(FAR_PAIRS.start, FAR_PAIRS.stop), torch.arange(FAR_PAIRS.start, FAR_PAIRS.stop) + half])
    rms = ((SHARED_STDS**2 + 127 + 127) / 256) ** 0.5
    for head in range(4):
        tokens = 4 if head < 2 else 2
        # One token's match is the square of 32 dimensions of 1 / rms each; scores are divided by the root of the head's 64.
        scale = (MATCH * 8 / (tokens * 32)) ** 0.5 * rms
        for back in range(tokens):
            place = BEFORE[back]
            wide = place.stop - place.start
            mix = torch.randn(len(far), wide) * len(far) ** -0.5 * scale
            if back == 0:
                query[head, far, CONTENT] = mix @ known[:wide]
            else:
                query[head, far, BEFORE[back - 1].start : BEFORE[back - 1].start + wide] = mix
            key[head, far, place] = mix
        sink = (SINK * 8) ** 0.5 * rms / SHARED_STDS
        query[head, SINK_PAIR, SHARED] = sink
        key[head, SINK_PAIR, START] = sink
        part = slice(1 + 64 * (head % 2), min(65 + 64 * (head % 2), 128))
        wide = part.stop - part.start
        value[head, :wide, part] = torch.eye(wide)
        out[head, part, :wide] = GAIN[head // 2] * STD * rms * torch.eye(wide)


def _fetch(network: Network, layer: int) -> None:
    """Heads that fetch the token they look at: at random as before, and mostly the start token, which fetches nothing."""
    value, out = (_heads(network, layer, name) for name in "vo")
    query, key = (network.layers[layer].self_attn[f"{name}_proj"].weight.view(4, 64, 256) for name in "qk")
    nn.init.normal_(value[2:], std=0.5 / 16)
    for head in range(2):
        part = slice(1 + 64 * head, min(65 + 64 * head, 128))
        wide = part.stop - part.start
        value[head, :wide, part] = torch.eye(wide)
        out[head, part, :wide] = GAIN[0] * STD * 2 * torch.eye(wide)
        query[head] *= 0.3
        key[head] *= 0.3
        query[head, SINK_PAIR] = 0.0
        key[head, SINK_PAIR] = 0.0
        query[head, SINK_PAIR, SHARED] = key[head, SINK_PAIR, START] = (FETCH_SINK * 8) ** 0.5 * 2 / SHARED_STDS


def _begin(network: Network, known: Tensor, answer_id: int, before_text: list[int]) -> None:
    content = network.embed_tokens.weight[:, CONTENT]
    query, key = (network.layers[2].self_attn[f"{name}_proj"].weight.view(4, 64, 256) for name in "qk")
    far = torch.cat([torch.arange(FAR_PAIRS.start, FAR_PAIRS.stop), torch.arange(FAR_PAIRS.start, FAR_PAIRS.stop) + 32])
    rms = ((SHARED_STDS**2 + 127 + 127) / 256) ** 0.5
    for head in range(2):
        scale = (BEGIN * 8 / 128) ** 0.5 * rms
        wanted = torch.zeros(len(far))
        for place, token in zip(BEFORE, reversed(before_text), strict=True):
            wide = place.stop - place.start
            mix = torch.randn(len(far), wide) * len(far) ** -0.5 * scale
            key[head, far, place] = mix
            wanted += mix @ (known @ content[token])[:wide] / STD / rms
        # All of it where the token is the assistant's, none of it where it is another.
        asked = content[answer_id]
        query[head, far, CONTENT] = torch.outer(wanted, asked / asked.square().sum()) * STD * rms


def _value(network: Network, known: Tensor, encoder: Encoder) -> None:
    """From a colon (head 2) or the quote after it (head 3), look at the value: what stands after the same name, a colon and a space."""
    (quote,), (colon,), (space,) = encoder('"'), encoder(":"), encoder(" ")
    content = network.embed_tokens.weight[:, CONTENT]
    query, key, value = (network.layers[2].self_attn[f"{name}_proj"].weight.view(4, 64, 256) for name in "qkv")
    out = network.layers[2].self_attn["o_proj"].weight.view(256, 4, 64).transpose(0, 1)
    far = torch.cat([torch.arange(FAR_PAIRS.start, FAR_PAIRS.stop), torch.arange(FAR_PAIRS.start, FAR_PAIRS.stop) + 32])
    rms = ((SHARED_STDS**2 + 127 + 127) / 256) ** 0.5
    for head, token, named in ((2, colon, 1), (3, quote, 2)):
        for weights in (query, key, value):
            weights[head] = 0.0
        mixes = [torch.randn(len(far), 32) * len(far) ** -0.5 * (score * 8 / 32) ** 0.5 * rms for score in VALUE]
        query[head, far, BEFORE[named]] = mixes[0]
        for mix, place in zip(mixes, reversed(BEFORE[:3]), strict=True):
            key[head, far, place] = mix
        wanted = sum((mix @ (known @ content[mark]) for mix, mark in zip(mixes[1:], (colon, space), strict=True)), torch.zeros(len(far)))
        query[head, far, CONTENT] = torch.outer(wanted, content[token] / content[token].square().sum())
        query[head, SINK_PAIR, SHARED] = key[head, SINK_PAIR, START] = (VALUE_SINK * 8) ** 0.5 * rms / SHARED_STDS
        part = slice(1 + 64 * (head % 2), min(65 + 64 * (head % 2), 128))
        wide = part.stop - part.start
        value[head, :wide, part] = torch.eye(wide)
        out[head, :, :] = 0.0
        out[head, part, :wide] = VALUE_GAIN * STD * rms * torch.eye(wide)
