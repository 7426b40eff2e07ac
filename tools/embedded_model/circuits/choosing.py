"""Circuits of classify: words of the text that are labels, the first of them, and the label as the list has it."""

from __future__ import annotations

import torch

from tools.embedded_model.circuits.layout import (
    CONTENT,
    FOUND,
    LABEL,
    SIGNATURE,
    WIDTH,
    Codes,
    always,
    asked,
    at_start,
    dims,
    flag,
    flagged,
    parted,
)
from tools.embedded_model.circuits.talking import quiet, spoken
from tools.embedded_model.circuits.wiring import Head, Units

LISTING, LINE, LIST_SINK = 25.0, 45.0, 12.0
NEAREST, NEAREST_SINK, NEAREST_SLOPE = 80.0, 10.0, 1.5
SAME_WORD, WORD_MARGIN = 120.0, 0.11  # score of two words, for half the square of their signatures' distance
LABEL_END, IN_WORD = 25.0, 40.0
EARLIER, EARLIER_SINK, NOT_ITSELF = 80.0, 36.0, 56.0
WORD, FIRST_WORD, FIRST_LABEL = 240.0, 100.0, 160.0
DECODE, DECODE_SINK = 60.0, 25.0
IN_LIST = 20.0
MARK_GAIN, TOKEN_GAIN = 5.0, 12.0


def write_list(units: Units, codes: Codes) -> None:
    """First MLP: flag where the list of labels, each label, the first label and a line begin."""
    listing = codes.encoder("Labels:")
    units.step(codes.now(listing[-1]) + codes.run(listing[:-1]), len(listing) - 0.3, flagged("listing"))
    after = codes.before(0, " ") + parted(1) + parted(2)
    units.step(after + codes.before(1, ",") + codes.before(1, ":"), 3.7, flagged("label_begins"))
    first = codes.encoder("Labels: ")
    units.step(codes.run(first), len(first) - 0.3, flagged("first_label"))
    units.step(codes.before(0, "\n") + parted(1), 1.8, flagged("line_began"))


def find_list(listed: Head, begins: Head) -> None:
    """Flag tokens within the list of labels, and give each token the mark with which its label begins."""
    listed.compare(always(), LISTING * flag("listing") + LINE * flag("line_began"), 1.0)
    listed.sink(LIST_SINK * always())
    listed.fetch(flag("listing"), flagged("listed"))
    begins.nearest(flag("label_begins"), NEAREST, NEAREST_SLOPE)
    begins.sink(NEAREST_SINK * always())
    begins.fetch(dims(slice(1, 10)), dims(LABEL))


def end_labels(units: Units, codes: Codes) -> None:
    """Second MLP: flag where a label in the list ends."""
    units.step(flag("listed") + codes.now(",") + codes.now("\n") - parted(1), 1.7, flagged("label_ends"))


def match_labels(head: Head, first: Head) -> None:
    """A word of the text that is a label fetches how the label begins; so does the first label itself."""
    head.compare(dims(SIGNATURE), dims(SIGNATURE), SAME_WORD / 10)
    head.compare(always(), LABEL_END * flag("label_ends") - SAME_WORD / 2 * flag("word_length"), 1.0)
    within = IN_WORD * (always() - parted(0))
    head.sink(SAME_WORD / 2 * flag("word_length") + (LABEL_END - SAME_WORD * WORD_MARGIN) * always() + within)
    head.fetch(flag("label_ends"), flagged("matched"))
    head.fetch(dims(LABEL), dims(FOUND))
    first.look(0, flag("first_label"))
    first.sink(80.0 * always())
    first.fetch(dims(LABEL), dims(FOUND))


def note_match(units: Units) -> None:
    """Third MLP: flag an answer that is a label, and labels found in the text; a label's end in the list is not one."""
    units.step(flag("has_list") + flag("answering"), 1.6, flagged("choosing"))
    units.step(flag("matched") - flag("label_ends") - flag("listed"), 0.5, flagged("found"), half=0.15)


def find_first(head: Head) -> None:
    """Flag tokens before which no label was found: there the head looks at the start token."""
    head.avoid_itself(flag("found"), NOT_ITSELF)
    head.compare(always(), flag("found"), EARLIER)
    head.sink(EARLIER_SINK * always())
    head.fetch(at_start(), flagged("first"))


def answer_mark(head: Head) -> None:
    """Where an answer begins: the mark of the first token of the label found first, else of the first label."""
    first = FIRST_WORD * (flag("first") - at_start())  # no label was found before the start token either
    head.compare(asked(0), WORD * flag("found") + first + FIRST_LABEL * flag("first_label"), 1.0)
    head.favour(asked(0), flag("found"), -1.0)
    head.fetch(dims(FOUND), dims(FOUND), MARK_GAIN)


def answer_token(head: Head, part: slice) -> None:
    """Fetch the first token of the list's label that begins with the mark found."""
    head.compare(dims(FOUND), dims(LABEL), DECODE / 9 / MARK_GAIN)
    head.compare(always(), IN_LIST * flag("label_begins") + IN_LIST * flag("listed"), 1.0)
    head.sink((2 * IN_LIST + DECODE_SINK) * always() + 90.0 * (always() - asked(0)) + 600.0 * (flag("summary") + flag("early")) + quiet())
    head.fetch(dims(part), dims(part), TOKEN_GAIN)


def end_answer(units: Units, codes: Codes) -> None:
    """Sixth MLP: after a label comes the end, where the list has a comma or a line break."""
    end = torch.zeros(WIDTH)
    end[CONTENT] = 2 * TOKEN_GAIN * codes.tokens[codes.encoder.stop, CONTENT]
    ended = (codes.now(",") + codes.now("\n")) / TOKEN_GAIN
    units.step(flag("choosing") - flag("summary") - flag("early") - 3 * spoken() + ended, 1.4, 1.5 * end)
