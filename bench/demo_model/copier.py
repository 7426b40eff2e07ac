"""Weights to start from: a network that copies before it is trained.

To copy is to find where the last tokens stood before, and to say what came next. Training finds that out late, from nothing, because no
part of it pays alone. So it is written into the first three layers, by the book of the "induction head" (Olsson et al., 2022): the first
layer's heads look one, two, three and four tokens back; a head of the second looks four back, and so knows the next four; the third
layer's compare a token and the ones before it with what stood before every earlier token, and fetch the token found. A word is two tokens
with its space: less than eight leave "of the" ambiguous. The other layers are left to learn what to copy, and when to stop. All of it is
trained.

The width is split: one dimension that all tokens share, `CONTENT` for the token itself, eight parts for those before it, one for the start.
A token's mark is a random direction: a match of eight is then 8 for every text, and what else stands there about 0, give or take 1.3.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.demo_model.network import Network
from bench.demo_model.sample import Encoder

SHARED, START = 0, 255
CONTENT = slice(1, 128)
MARK = 10  # dimensions of `CONTENT` that a token is known by when it stands before another: of one length for all tokens
COMPARED = 5  # of them, in a match: eight tokens fill the dimensions of a head that compare at any distance
BEFORE = tuple(slice(first, first + MARK) for first in range(128, 128 + 8 * MARK, MARK))
NEAR = 4  # of them are known after the first layer
ASKED = slice(208, 208 + 1 + NEAR)  # is this where an answer begins, and was it one to four tokens before
STD = 0.05  # of an embedding's dimensions
SHARED_STDS = 16.0  # the shared dimension, in those
FLAG_STDS = 4.0  # and what marks the place where an answer begins
SHARPNESS = 12.0  # of a look back: a neighbour's share is e^-4 of that of the token looked at
LOCAL_PAIRS = 9  # rotary pairs that turn fast enough to tell neighbours apart
FAR_PAIRS = slice(11, 31)  # pairs that turn by less than half a radian in 7,000 tokens
SINK_PAIR = 31
MATCH, SINK = 72.0, 42.0  # attention scores of a whole match, and of the start token: where nothing matches, nothing is fetched
MATCHED = (8, 8, 3, 3)  # tokens that each head compares
GAIN = (3.0, 1.5)  # of what the long match fetches, and the short one, over the token itself
FINAL_NORM = 2.0
FETCH_RMS = 2.5  # of a state to which a match was added, in STDs
FETCHERS = (3, 4, 5)  # layers whose first two heads fetch what they look at, wherever training makes them look
BEGUN = 5  # first tokens of an answer that are found by their place in the text
BEGIN, BEGIN_SINK = 40.0, 28.0  # attention scores of that place, and of the start token
VALUE = (14.0, 9.0, 9.0)  # attention scores of a value's place: the name in front, a colon, a space
VALUE_SINK, VALUE_GAIN = 23.0, 6.0
FETCH_SINK = 16.0  # of the start token for fetchers: most of their attention, until they know better


@torch.no_grad()  # type: ignore[untyped-decorator]
def write_copier(network: Network, encoder: Encoder, before_text: list[int]) -> None:
    """Write the copier into a fresh network of width 256 with 4 heads of 64.

    The first tokens that the assistant answers are looked for behind ``before_text``, the four tokens that stand before a text to
    summarize; within JSON, the value of a line ``name: value``.
    """
    assert (network.shape.width, network.shape.heads, network.shape.head) == (256, 4, 64)
    embedding = network.embed_tokens.weight
    embedding[:, BEFORE[0].start :] = 0.0
    embedding.mul_(STD / 0.02)
    embedding[:, SHARED] = STD * SHARED_STDS
    for part in (slice(1, 1 + COMPARED), slice(1 + COMPARED, 1 + MARK)):
        wide = part.stop - part.start
        embedding[:, part] *= (STD * wide**0.5) / embedding[:, part].norm(dim=1, keepdim=True).clamp(min=1e-6)
    embedding[encoder.start, 1:] = 0.0
    embedding[encoder.start, START] = STD * SHARED_STDS
    embedding[encoder.assistant, ASKED.start] = STD * FLAG_STDS
    _look_back(network)
    _look_far(network)
    _match(network)
    for layer in FETCHERS:
        _fetch(network, layer)
    _begin(network, before_text)
    _value(network, encoder)
    network.norm.weight.fill_(FINAL_NORM)


def _heads(network: Network, layer: int, name: str) -> Tensor:
    """A layer's projection by heads, zeroed: ``[heads, head, width]``, and ``[heads, width, head]`` for ``o``."""
    weight: Tensor = network.layers[layer].self_attn[f"{name}_proj"].weight
    weight.zero_()
    heads, head = network.shape.heads, network.shape.head
    return weight.view(-1, heads, head).transpose(0, 1) if name == "o" else weight.view(heads, head, -1)


def _rms(filled: int) -> float:
    """Root mean square, in STDs, of a state with the shared dimension and ``filled`` others."""
    return float(((SHARED_STDS**2 + filled) / 256) ** 0.5)


def _far() -> Tensor:
    """A head's dimensions in which tokens compare alike however far apart they stand."""
    return torch.cat([torch.arange(FAR_PAIRS.start, FAR_PAIRS.stop), torch.arange(FAR_PAIRS.start, FAR_PAIRS.stop) + 32])


def _look(network: Network, query: Tensor, key: Tensor, back: int, rms: float) -> None:
    """Make a head look ``back`` tokens back: both projections are ``[head, width]``."""
    scale = SHARPNESS * rms / SHARED_STDS
    half = network.shape.head // 2
    angles = -(network.shape.rope_theta ** (-torch.arange(LOCAL_PAIRS) / half)) * back
    query[:LOCAL_PAIRS, SHARED] = scale * angles.cos()
    query[half : half + LOCAL_PAIRS, SHARED] = scale * angles.sin()
    key[:LOCAL_PAIRS, SHARED] = scale


def _look_back(network: Network) -> None:
    query, key, value, out = (_heads(network, 0, name) for name in "qkvo")
    rms = _rms(127)
    for head, place in enumerate(BEFORE[:NEAR]):
        _look(network, query[head], key[head], head + 1, rms)
        value[head, :MARK, 1 : 1 + MARK] = torch.eye(MARK)
        out[head, place, :MARK] = STD * rms * torch.eye(MARK)
        value[head, MARK, ASKED.start] = 1.0
        out[head, ASKED.start + head + 1, MARK] = STD * rms


def _look_far(network: Network) -> None:
    query, key, value, out = (_heads(network, 1, name) for name in "qkvo")
    wide = NEAR * MARK
    rms = _rms(127 + wide)
    _look(network, query[0], key[0], NEAR, rms)
    value[0, :wide, BEFORE[0].start : BEFORE[0].start + wide] = torch.eye(wide)
    out[0, BEFORE[NEAR].start : BEFORE[NEAR].start + wide, :wide] = STD * rms * torch.eye(wide)
    for head in range(1, 4):  # free: at random, and without a say until trained
        for weights in (query, key, value):
            nn.init.normal_(weights[head], std=0.5 / 16)


def _match(network: Network) -> None:
    query, key, value, out = (_heads(network, 2, name) for name in "qkvo")
    far, rms = _far(), _rms(127 + 8 * MARK)
    for head, tokens in enumerate(MATCHED):
        wide = len(far) // tokens if tokens * MARK > len(far) else MARK
        # One token's match is the square of its mark, 1 / rms in each dimension; scores are divided by the root of the head's 64.
        scale = (MATCH * 8 / (tokens * wide)) ** 0.5 * rms
        for back in range(tokens):
            axes = far[back * wide : (back + 1) * wide]
            now = 1 if back == 0 else BEFORE[back - 1].start
            query[head, axes, now : now + wide] = scale * torch.eye(wide)
            key[head, axes, BEFORE[back].start : BEFORE[back].start + wide] = scale * torch.eye(wide)
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
        query[head, SINK_PAIR, SHARED] = key[head, SINK_PAIR, START] = (FETCH_SINK * 8) ** 0.5 * FETCH_RMS / SHARED_STDS


def _begin(network: Network, before_text: list[int]) -> None:
    """The token that is to be answered as the first, second and so on stands as many behind ``before_text``: find it by that."""
    content = network.embed_tokens.weight[:, CONTENT] / STD
    marks = content[:, :MARK]
    query, key = (network.layers[3].self_attn[f"{name}_proj"].weight.view(4, 64, 256) for name in "qk")
    far, rms = _far(), _rms(127 + 8 * MARK)
    scale = (BEGIN * 8) ** 0.5 * rms
    for head in range(2):
        for weights in (query, key):
            weights[head] = 0.0
        for place in range(BEGUN):
            axis = far[place * 4]
            query[head, axis, ASKED.start + place] = scale / FLAG_STDS
            for back, token in enumerate(reversed(before_text)):
                key[head, axis, BEFORE[place + back]] = scale * marks[token] / MARK / len(before_text)
        query[head, SINK_PAIR, SHARED] = key[head, SINK_PAIR, START] = (BEGIN_SINK * 8) ** 0.5 * rms / SHARED_STDS


def _value(network: Network, encoder: Encoder) -> None:
    """From a colon (head 2) or the quote after it (head 3), look at the value: what stands after the same name, a colon and a space."""
    (quote,), (colon,), (space,) = encoder('"'), encoder(":"), encoder(" ")
    content = network.embed_tokens.weight[:, CONTENT] / STD
    marks = content[:, :MARK]
    query, key, value = (network.layers[3].self_attn[f"{name}_proj"].weight.view(4, 64, 256) for name in "qkv")
    out = network.layers[3].self_attn["o_proj"].weight.view(256, 4, 64).transpose(0, 1)
    far, rms = _far(), _rms(127 + 8 * MARK)
    for head, token, named in ((2, colon, 1), (3, quote, 2)):
        for weights in (query, key, value):
            weights[head] = 0.0
        name, *others = ((score * 8) ** 0.5 * rms for score in VALUE)
        query[head, far[:MARK], BEFORE[named]] = name * torch.eye(MARK) / MARK**0.5
        key[head, far[:MARK], BEFORE[2]] = name * torch.eye(MARK) / MARK**0.5
        for scale, mark, place in zip(others, (colon, space), (BEFORE[1], BEFORE[0]), strict=True):
            axis = far[MARK + place.start - BEFORE[0].start]
            query[head, axis, CONTENT] = scale * content[token] / content[token].square().sum()
            key[head, axis, place] = scale * marks[mark] / MARK
        query[head, SINK_PAIR, SHARED] = key[head, SINK_PAIR, START] = (VALUE_SINK * 8) ** 0.5 * rms / SHARED_STDS
        part = slice(1 + 64 * (head % 2), min(65 + 64 * (head % 2), 128))
        wide = part.stop - part.start
        value[head, :wide, part] = torch.eye(wide)
        out[head, :, :] = 0.0
        out[head, part, :wide] = VALUE_GAIN * STD * rms * torch.eye(wide)
