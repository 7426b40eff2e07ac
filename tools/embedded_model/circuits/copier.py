"""Write all weights of a network that copies, fills in JSON, finds labels and converses.

To copy is to find where the last tokens stood before, and to output the token that followed. Training from scratch learns this late,
because no part of it helps alone. So it is written by hand, as an "induction head" (Olsson et al., 2022). The first layer's heads look one
to seven tokens back. Later heads compare a token and the ones before it with the tokens before every earlier token, and fetch the token
found. A word is two tokens with its space: if far fewer tokens are compared, "of the" is ambiguous. `records`, `choosing`, `leading` and
`talking` write the rest. All other weights are 0.
"""

from __future__ import annotations

import torch

from tools.embedded_model.circuits import choosing, leading, records, talking
from tools.embedded_model.circuits.layout import (
    ASKED,
    BEFORE,
    CONTENT,
    MARK,
    MARKS,
    NEAR,
    PARTED,
    Codes,
    always,
    asked,
    dims,
    flag,
    flagged,
    write_embedding,
)
from tools.embedded_model.circuits.network import Network, Shape
from tools.embedded_model.circuits.wiring import Head, Units, length_before
from tools.embedded_model.lessons.copying import ASKED as ASKED_FREELY
from tools.embedded_model.lessons.copying import SUMMARIZE
from tools.embedded_model.lessons.sample import Encoder, Ids

MATCH, SINK = 72.0, 42.0  # attention scores of a full match and of the start token, which wins where nothing matches: nothing is fetched
LONG, SHORT = (5,) * len(MARKS), (16, 14, 10)  # dimensions compared of each token's mark
LONG_GAIN, SHORT_GAIN = 6.0, 1.5  # factors on what they fetch, relative to the token itself
EASY = 8.0  # how much lower a match may score within a label, where only its first token has been said
FINAL_NORM = 0.5
HALF = (CONTENT.stop - CONTENT.start) // 2
HALVES = tuple(slice(CONTENT.start + first, CONTENT.start + first + HALF) for first in (0, HALF))  # a head can fetch 64 dimensions


class Writer:
    """Writes one layer, after the layers before it: they decide how long the states are that this layer reads for the probe."""

    def __init__(self, network: Network, number: int, probe: Ids) -> None:
        self._network, self._number, self._probe = network, number, probe
        self._length = length_before(network, number, probe, mlp=False)

    def head(self, number: int) -> Head:
        return Head(self._network, self._number, number, self._length)

    def units(self) -> Units:
        """To be called once the heads are written."""
        return Units(self._network, self._number, length_before(self._network, self._number, self._probe, mlp=True))


@torch.no_grad()
def written_network(encoder: Encoder) -> Network:
    """A network of width 256 with 8 heads of 64 and 6 layers, with all its circuits."""
    network = Network(Shape())
    codes = write_embedding(network, encoder, talking.key_forms())
    records.write_embedding(network, codes)
    probe = [encoder.start, encoder.user, *encoder(records.PROBE), encoder.stop, encoder.assistant, *encoder(records.PROBED)]
    for number, write in enumerate((_look_around, _find_parts, _match_labels, _find_answers, _copy, _choose)):
        write(Writer(network, number, probe), codes)
    network.norm.weight.zero_()
    network.norm.weight[CONTENT] = FINAL_NORM * length_before(network, 6, probe, mlp=False) / 2
    return network


def _look_around(layer: Writer, codes: Codes) -> None:
    encoder = codes.encoder
    for back in range(len(MARKS)):
        _look_back(layer.head(back), back)
    talking.number_turns(layer.head(len(MARKS)))
    units = layer.units()
    records.write_names(units, codes)
    choosing.write_list(units, codes)
    before_text = encoder(SUMMARIZE.before)[-8:]
    leading.write_beginnings(units, codes, [before_text, *encoder.all(ASKED_FREELY), *talking.to_repeat(encoder)])
    talking.write_requests(units, codes)


def _find_parts(layer: Writer, codes: Codes) -> None:
    records.find_row(layer.head(0))
    records.find_json(layer.head(1), codes)
    choosing.find_list(layer.head(2), layer.head(4))
    talking.this_turn(layer.head(3), {"listing": "has_list"})
    talking.this_turn(layer.head(5), {"text_begins": "summary", "begins_early": "early"})
    leading.find_end(layer.head(6))
    talking.this_turn(layer.head(7), {name: name for name in ("schema", "counting", "repeating")})
    units = layer.units()
    records.write_lengths(units)
    choosing.end_labels(units, codes)
    leading.write_ends(units)
    talking.write_keys(units, codes)


def _match_labels(layer: Writer, codes: Codes) -> None:
    choosing.match_labels(layer.head(0), layer.head(1))
    for number in range(6):
        leading.count(layer.head(2 + number), number)
    choosing.note_match(layer.units())


def _find_answers(layer: Writer, codes: Codes) -> None:
    choosing.find_first(layer.head(0))
    leading.know_near(layer.head(1))
    for number in range(6, leading.HEADS):
        leading.count(layer.head(number), number)
    talking.find_topic(layer.head(2))
    talking.count_words(layer.head(3))
    units = layer.units()
    talking.write_count(units, codes)
    talking.write_answers(units, codes)


def _copy(layer: Writer, codes: Codes) -> None:
    for number, half in enumerate(HALVES):
        longest = _match(layer.head(number), LONG, LONG_GAIN, half)
        _match(layer.head(2 + number), SHORT, SHORT_GAIN, half)
        records.find_next(layer.head(4 + number), half, codes)
        leading.find_lead(layer.head(6 + number), half)
    choosing.answer_mark(longest)
    records.write_marks(layer.units(), codes)


def _choose(layer: Writer, codes: Codes) -> None:
    for number, half in enumerate(HALVES):
        choosing.answer_token(layer.head(number), half)
    units = layer.units()
    choosing.end_answer(units, codes)
    leading.end_lead(units, codes)


def _look_back(head: Head, back: int) -> None:
    head.look(back + 1)
    head.fetch(dims(slice(1, 1 + MARKS[back])), dims(BEFORE[back]))
    head.fetch(dims(slice(PARTED[0].start, PARTED[0].stop)), dims(PARTED[back + 1]))
    if back == 0:
        head.fetch(flag("sort"), flagged("sort_before"))
    if back < NEAR:
        head.fetch(dims(slice(ASKED.start, ASKED.start + 1)), dims(slice(ASKED.start + back + 1, ASKED.start + back + 2)))


def _match(head: Head, compared: tuple[int, ...], gain: float, part: slice) -> Head:
    now = slice(1, 1 + MARK)
    score = MATCH / sum(compared)
    for back, wide in enumerate(compared):
        query = dims(now) if back == 0 else dims(BEFORE[back - 1])
        head.compare(query[:wide], dims(BEFORE[back])[:wide], score)
    head.compare(always(), talking.spoken(), -MATCH)
    head.sink(SINK * (always() + 4 * asked(0) + 2 * flag("listed") + 2 * flag("value_asked")) - EASY * flag("choosing") + talking.quiet())
    head.fetch(dims(part), dims(part), gain)
    return head
