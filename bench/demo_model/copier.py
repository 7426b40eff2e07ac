"""All weights, written: a network that copies, fills in JSON, finds labels and converses.

To copy is to find where the last tokens stood before, and to say what came next. Training finds that out late, from nothing, because no
part of it pays alone. So it is written by hand, by the book of the "induction head" (Olsson et al., 2022): the first layer's heads look one
to seven tokens back, and later heads compare a token and the ones before it with what stood before every earlier token, and fetch the
token found. A word is two tokens with its space: much less than that leaves "of the" ambiguous. `records`, `choosing`, `leading` and
`talking` write the rest. All that is not written is 0.
"""

from __future__ import annotations

import torch

from bench.demo_model import choosing, leading, records, talking
from bench.demo_model.copying import ASKED as ASKED_FREELY
from bench.demo_model.layout import (
    ASKED,
    BEFORE,
    CONTENT,
    MARK,
    MARKS,
    NEAR,
    PARTED,
    always,
    asked,
    dims,
    flag,
    flagged,
    write_embedding,
)
from bench.demo_model.network import Network
from bench.demo_model.sample import Encoder
from bench.demo_model.wiring import Head, Units, length_before

MATCH, SINK = 72.0, 42.0  # attention scores of a whole match, and of the start token: where nothing matches, nothing is fetched
LONG, SHORT = (5,) * len(MARKS), (16, 14, 10)  # dimensions compared of each token's mark
LONG_GAIN, SHORT_GAIN = 6.0, 1.5  # of what they fetch, over the token itself
EASY = 8.0  # so much less of a match will do where a label goes on, of which one token was said
FINAL_NORM = 0.5
HALF = (CONTENT.stop - CONTENT.start) // 2
HALVES = tuple(slice(CONTENT.start + first, CONTENT.start + first + HALF) for first in (0, HALF))  # a head can fetch 64 dimensions


@torch.no_grad()  # type: ignore[untyped-decorator]
def write_copier(network: Network, encoder: Encoder, before_text: list[int]) -> None:
    """Write the circuits into a fresh network of width 256 with 8 heads of 64 and 6 layers.

    ``before_text``: the last tokens that stand before a text to summarize, where a job asks for it.
    """
    shape = network.shape
    assert (shape.width, shape.heads, shape.head, shape.layers) == (256, 8, 64, 6)
    codes = write_embedding(network, encoder, talking.key_forms())
    records.write_embedding(network, codes)
    probe = [encoder.start, encoder.user, *encoder(records.PROBE), encoder.stop, encoder.assistant, *encoder(records.PROBED)]

    def head(layer: int, number: int) -> Head:
        return Head(network, layer, number, lengths[layer])

    def units(layer: int) -> Units:
        return Units(network, layer, length_before(network, layer, probe, mlp=True))

    lengths = {0: length_before(network, 0, probe, mlp=False)}
    for back in range(len(MARKS)):
        _look_back(head(0, back), back)
    talking.number_turns(head(0, len(MARKS)))
    local = units(0)
    records.write_names(local, codes)
    choosing.write_list(local, codes)
    leading.write_beginnings(local, codes, [before_text, *encoder.all(ASKED_FREELY), *talking.to_repeat(encoder)])
    talking.write_requests(local, codes)

    lengths[1] = length_before(network, 1, probe, mlp=False)
    records.find_row(head(1, 0))
    records.find_json(head(1, 1), codes)
    choosing.find_list(head(1, 2), head(1, 4))
    talking.this_turn(head(1, 3), {"listing": "has_list"})
    talking.this_turn(head(1, 5), {"text_begins": "summary", "begins_early": "early"})
    leading.find_end(head(1, 6))
    talking.this_turn(head(1, 7), {name: name for name in ("schema", "counting", "repeating")})
    lengthy = units(1)
    records.write_lengths(lengthy)
    choosing.end_labels(lengthy, codes)
    leading.write_ends(lengthy)
    talking.write_keys(lengthy, codes)

    lengths[2] = length_before(network, 2, probe, mlp=False)
    choosing.match_labels(head(2, 0), head(2, 1))
    for number in range(6):
        leading.count(head(2, 2 + number), number)
    choosing.note_match(units(2))

    lengths[3] = length_before(network, 3, probe, mlp=False)
    choosing.find_first(head(3, 0))
    leading.know_near(head(3, 1))
    for number in range(6, leading.HEADS):
        leading.count(head(3, number), number)
    talking.find_topic(head(3, 2))
    talking.count_words(head(3, 3))

    said = units(3)
    talking.write_count(said, codes)
    talking.write_answers(said, codes)

    lengths[4] = length_before(network, 4, probe, mlp=False)
    for number, half in enumerate(HALVES):
        longest = _match(head(4, number), LONG, LONG_GAIN, half)
        _match(head(4, 2 + number), SHORT, SHORT_GAIN, half)
        records.find_next(head(4, 4 + number), half, codes)
        leading.find_lead(head(4, 6 + number), half)
    choosing.answer_mark(longest)
    records.write_marks(units(4), codes)

    lengths[5] = length_before(network, 5, probe, mlp=False)
    for number, half in enumerate(HALVES):
        choosing.answer_token(head(5, number), half)
    last = units(5)
    choosing.end_answer(last, codes)
    leading.end_lead(last, codes)
    network.norm.weight.zero_()
    network.norm.weight[CONTENT] = FINAL_NORM * length_before(network, 6, probe, mlp=False) / 2


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
