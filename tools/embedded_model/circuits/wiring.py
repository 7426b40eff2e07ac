"""Attention heads and MLP units written by hand: scores and outputs in plain numbers, whatever the states' lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from tools.embedded_model.circuits.layout import FAR, SHARED, SHARED_SIZE, SINK_PAIR, STD, WIDTH, always, at_start
from tools.embedded_model.circuits.network import Network, Norm, rope, weight_of

HALF = 32
STATE_SIZE = 2.0  # of what a norm lets through
SHARPNESS = 18.0  # of a look at one place: the score in each of the pairs that turn fast enough to tell neighbours apart
LOCAL_PAIRS = 9
NEARER_PAIRS = slice(2, 11)
STEEP = 60  # within this many tokens, the nearer of two places scores higher by half a point or more a token
STEP = 60.0  # how sharp a unit's threshold is
OPEN = 10.0  # what an open gate multiplies by, before it is divided out


@torch.no_grad()
def length_before(network: Network, layer: int, ids: list[int], *, mlp: bool) -> float:
    """Median root mean square, in STDs, of the states that a layer's attention, or MLP, reads."""
    x = network.embed_tokens(torch.tensor([ids]))
    cos, sin = rope(len(ids), network.shape, x)
    for index in range(layer):
        x = network.layer(index)(x, cos, sin)
    if mlp:
        down = weight_of(network.layer(layer).mlp, "down")
        kept = down.clone()
        down.zero_()
        x = network.layer(layer)(x, cos, sin)
        down.copy_(kept)
    return float(x.square().mean(-1).sqrt().median() / STD)


def nearer() -> tuple[Tensor, Tensor, float]:
    """Amplitudes of cosine and sine in `NEARER_PAIRS`, and a constant. Their sum is 0 at distance 0 and falls by about 1 a token; beyond
    `STEEP` tokens it stays below its value there."""
    distance = torch.cat([torch.arange(120.0), torch.logspace(2.08, 3.9, 200)]).double()
    wanted = torch.where(distance <= 70, -distance, -70 - 30 * torch.log(distance / 70))
    weight = torch.where(distance <= 20, 4.0, torch.where(distance <= 70, 1.0, 0.12)).double()[:, None]
    angles = distance[:, None] * 1e12 ** (-torch.arange(NEARER_PAIRS.start, NEARER_PAIRS.stop).double() / HALF)
    waves = torch.cat([angles.cos(), angles.sin(), torch.ones(len(distance), 1)], 1)
    normal = (waves * weight).T @ (waves * weight) + 0.01 * torch.eye(waves.shape[1])
    found = torch.linalg.solve(normal, (waves * weight**2).T @ wanted)
    count = NEARER_PAIRS.stop - NEARER_PAIRS.start
    return found[:count].float(), found[count:-1].float(), float(found[-1])


def reader(norm: Norm, length: float) -> Tensor:
    """Set a norm's weight for states of about this length. Returns the factor that makes a detector a row of weights behind the norm.

    The dimension that all states share is made small.
    """
    norm.weight.fill_(length / STATE_SIZE)
    norm.weight[SHARED] = length / SHARED_SIZE
    return length / norm.weight


class Head:
    """One head, which looks at nothing yet. Scores are inputs of the softmax."""

    def __init__(self, network: Network, layer: int, head: int, length: float) -> None:
        self.reader = reader(network.layer(layer).input_layernorm, length)
        parts = {name: weight_of(network.layer(layer).self_attn, name) for name in "qkvo"}
        self.query, self.key, self.value = (parts[name].view(-1, 64, WIDTH)[head] for name in "qkv")
        self.out = parts["o"].view(WIDTH, -1, 64)[:, head]
        self.free = [*FAR, SINK_PAIR + HALF]
        self.fetched = 0

    def compare(self, query: Tensor, key: Tensor, score: float) -> None:
        """Add ``score`` times the product of detectors, or of rows of detectors, at any distance."""
        queries, keys = query.view(-1, WIDTH), key.view(-1, WIDTH)
        size = (8 * abs(score)) ** 0.5 * self.reader
        for one, other in zip(queries, keys, strict=True):
            axis = self.free.pop(0)
            self.query[axis] = one * size
            self.key[axis] = other * size * (1 if score > 0 else -1)

    def sink(self, score: Tensor) -> None:
        """The start token's score, as a detector."""
        size = 8**0.5 * self.reader
        self.query[SINK_PAIR] = score * size
        self.key[SINK_PAIR] = at_start() * size

    def look(self, back: int, query: Tensor | None = None) -> None:
        """Look ``back`` tokens back."""
        size = (8 * SHARPNESS) ** 0.5 * self.reader
        angles = -(1e12 ** (-torch.arange(LOCAL_PAIRS) / HALF)) * back
        asking = always() if query is None else query
        self.query[:LOCAL_PAIRS] = size * angles.cos()[:, None] * asking
        self.query[HALF : HALF + LOCAL_PAIRS] = size * angles.sin()[:, None] * asking
        self.key[:LOCAL_PAIRS] = size * always()

    def avoid_itself(self, key: Tensor, score: float) -> None:
        """Take ``score`` from a place with a key if it is the querying token itself; less or nothing if it stands before."""
        pairs = slice(0, 4)
        size = (8 * score / 4) ** 0.5 * self.reader
        self.query[pairs] = size * always()
        self.key[pairs] = -size * key

    def nearest(self, key: Tensor, score: float, slope: float = 1.0, less: Tensor | None = None) -> None:
        """Look at the nearest place with a key. It scores ``score`` minus ``slope`` a token, and minus the detector ``less``."""
        constant = self.favour(always(), key, slope)
        self.compare(always(), key * (score + slope * constant) - (0 if less is None else less), 1.0)

    def favour(self, query: Tensor, key: Tensor, slope: float) -> float:
        """Lower the score of a place with a key the farther it is, by ``slope`` a token; raise it where ``slope`` is negative."""
        cosine, sine, constant = nearer()
        root = max(float(cosine.abs().max()), float(sine.abs().max())) ** 0.5
        size = (8 * abs(slope)) ** 0.5 * self.reader
        self.query[NEARER_PAIRS] = cosine[:, None] / root * query * size
        self.query[NEARER_PAIRS.start + HALF : NEARER_PAIRS.stop + HALF] = -sine[:, None] / root * query * size
        self.key[NEARER_PAIRS] = (1 if slope > 0 else -1) * size * root * key
        return constant

    def fetch(self, read: Tensor, write: Tensor, gain: float = 1.0) -> None:
        """Read detectors ``[count, WIDTH]`` where the head looks, and add one vector for each, times ``gain``."""
        reads, writes = read.view(-1, WIDTH), write.view(-1, WIDTH)
        for one, other in zip(reads, writes, strict=True):
            self.value[self.fetched] = one * self.reader
            self.out[:, self.fetched] = gain * STD * other
            self.fetched += 1


class Units:
    """A layer's MLP, filled unit by unit."""

    def __init__(self, network: Network, layer: int, length: float) -> None:
        self.reader = reader(network.layer(layer).post_attention_layernorm, length)
        mlp = network.layer(layer).mlp
        self.gate, self.up, self.down = (weight_of(mlp, name) for name in ("gate", "up", "down"))
        self.used = 0

    def _add(self, gate: Tensor, up: Tensor, out: Tensor) -> None:
        self.gate[self.used] = gate * self.reader
        self.up[self.used] = up * self.reader
        self.down[:, self.used] = out * STD
        self.used += 1

    def step(self, detector: Tensor, threshold: float, out: Tensor, half: float = 0.1) -> None:
        """Add ``out`` where the detector is above the threshold: nothing at ``half`` below it, all at ``half`` above it."""
        for edge, sign in ((threshold - half, 1.0), (threshold + half, -1.0)):
            self._add(STEP * (detector - edge * always()), always(), sign * out / (2 * half * STEP))

    def ramp(self, detector: Tensor, threshold: float, full: float, out: Tensor) -> None:
        """Add nothing where the detector is below the threshold, ``out`` where it is ``full``, and in proportion."""
        self._add(STEP * (detector - threshold * always()), always(), out / (STEP * (full - threshold)))

    def gated(self, gate: Tensor, read: Tensor, out: Tensor) -> None:
        """Add ``out`` times what is read where the gate is 1, nothing where it is -1 or less."""
        for one, other in zip(read.view(-1, WIDTH), out.view(-1, WIDTH), strict=True):
            self._add(OPEN * gate, one, other / OPEN)

    def square(self, read: Tensor, out: Tensor) -> None:
        """Add ``out`` times the sum of squares of what is read."""
        for one in read.view(-1, WIDTH):
            self._add(one, one, out)
            self._add(-one, -one, out)
