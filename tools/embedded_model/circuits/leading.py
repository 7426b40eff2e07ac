"""Circuits of summarize: where in the text the answer is, by counting the tokens of both, and where the first sentence ends.

A lead begins where its text begins, so the answer's token n + 1 is the text's. Every token of a text and of an answer learns how far it is
from the beginning, as waves of that distance. A later layer compares the waves.
"""

from __future__ import annotations

import math

from tools.embedded_model.circuits.layout import BEFORE, CONTENT, FOUND, Codes, always, asked, dims, flag, flagged, parted
from tools.embedded_model.circuits.talking import quiet, same_turn
from tools.embedded_model.circuits.wiring import HALF, Head, Units
from tools.embedded_model.tokenizer import FUNCTION_WORDS

ENDS_SENTENCE, CLOSES = ".!?", "\"')]’"
TITLES = ("Mr", "Mrs", "Ms", "Dr", "St")
KNOWN_BY = 7  # tokens before the text by which a request for a summary is recognized
WAVES = (0, 1, 2, 3)  # rotary pairs with periods of 6 to 84 tokens: together they repeat after more than 330
HEADS = 2 * len(WAVES)
SWING = 1.5  # amplitude of the score that makes a wave
PLACES = FOUND  # dimensions of the waves, shared with FOUND: labels are found in another task
BEGINNING, OWN_BEGINNING = 16.0, 16.0
NEAR_WAVES, NEAR_SLOPE, NEAR_FALL = slice(7, 11), 100.0, 33.0
SAME_PLACE, SAME_TOKEN, IN_TEXT, LEAD_SINK = 70.0, 20.0, 320.0, 360.0
SILENT, SAME_TURN = 300.0, 300.0
LEAD_GAIN, END_GAIN = 16.0, 120.0


def write_beginnings(units: Units, codes: Codes, asking: list[list[int]]) -> None:
    """First MLP: flag tokens after which the text to summarize begins, and tokens that may end a sentence."""
    for tokens in asking:
        last = tokens[-KNOWN_BY:]
        units.step(codes.now(last[-1]) + codes.run(last[:-1]), len(last) - 0.4, flagged("text_begins"))
        if codes.encoder.text(last[-2:]) == ": ":  # a small word after it includes the space
            units.step(codes.now(last[-2]) + codes.run(last[:-2]), len(last) - 1.4, flagged("begins_early"))
    mark = codes.any(list(ENDS_SENTENCE))
    closing = codes.any([text for text in CLOSES if len(codes.encoder(text)) == 1])
    units.step(mark, 0.7, flagged("ends"))
    units.step(mark + flag("sort_before") + parted(2), 2.7, -flagged("ends"))  # an initial
    units.step(mark + codes.before(0, " I"), 1.85, -flagged("ends"))
    for title in TITLES:
        tokens = codes.encoder(title)
        units.step(mark + codes.run(tokens) + parted(1 + len(tokens)), len(tokens) + 1.85, -flagged("ends"))
    for text in ENDS_SENTENCE:
        units.step(closing + codes.before(0, text) + parted(1), 2.7, flagged("ends"))
        for closed in CLOSES[:3]:
            units.step(closing + codes.before(0, closed) + codes.before(1, text) + parted(1) + parted(2), 4.7, flagged("ends"))


def find_end(ended: Head) -> None:
    """Second layer: did a sentence end just before this?"""
    ended.look(1)
    ended.fetch(flag("ends"), flagged("ends", 2.0))


def write_ends(units: Units) -> None:
    """Second MLP: white space after the end of a sentence."""
    units.step(flag("ends") - 3 * flag("sort"), 4.5, flagged("over"))


def count(head: Head, number: int) -> None:
    """Third and fourth layers: a wave of the distance from the beginning of the text, or of the answer."""
    head.free = head.free[10:]  # the slowest pairs: a wave is to be the same at any distance
    beginning = flag("text_begins") + asked(0)
    head.compare(flag("summary"), beginning, BEGINNING)
    head.compare(flag("early"), flag("begins_early") + asked(0), BEGINNING)
    head.compare(flag("answering") + asked(0), asked(0), OWN_BEGINNING)
    head.sink(BEGINNING * always() + OWN_BEGINNING * (flag("answering") + asked(0)))
    same_turn(head, SAME_TURN)
    size = (8 * SWING) ** 0.5 * head.reader
    pair = WAVES[number // 2]
    head.query[pair] = always() * size
    head.key[pair + HALF * (number % 2)] = (beginning + flag("begins_early")) * size
    head.fetch(beginning + flag("begins_early"), dims(PLACES)[number] * 4)


def know_near(head: Head) -> None:
    """Fourth layer: is this among the first 330 tokens of a text, where its lead is?"""
    head.free = head.free[8:]  # these scores are large
    score = NEAR_SLOPE * (NEAR_WAVES.stop - NEAR_WAVES.start) - NEAR_FALL
    beginning = flag("text_begins") + flag("begins_early")
    head.compare(always(), beginning, BEGINNING - score)
    head.compare(flag("early") - always(), flag("begins_early"), SILENT)
    head.sink(BEGINNING * always())
    same_turn(head, SAME_TURN)
    size = (8 * NEAR_SLOPE) ** 0.5 * head.reader
    head.query[NEAR_WAVES] = always() * size
    head.key[NEAR_WAVES] = beginning * size
    head.fetch(beginning, dims(PLACES)[HEADS] * 4)


def find_lead(head: Head, part: slice) -> None:
    """Fifth layer: fetch the token that is as far from the text's beginning as the next token will be from the answer's."""
    head.free = head.free[10:]
    waves = (dims(PLACES)[:HEADS] / 2 - flag("summary") - flag("early")) / math.tanh(SWING / 2)
    for pair, cosine, sine in zip(WAVES, waves[::2], waves[1::2], strict=True):
        turn = 1e12 ** (-pair / HALF)
        head.compare(math.cos(turn) * cosine - math.sin(turn) * sine, cosine, SAME_PLACE)
        head.compare(math.sin(turn) * cosine + math.cos(turn) * sine, sine, SAME_PLACE)
    head.compare(dims(slice(1, 11)), dims(BEFORE[0])[:10], SAME_TOKEN / 10)
    head.compare(always(), dims(PLACES)[HEADS] / 4 - flag("answering") - asked(0), IN_TEXT)
    same_turn(head, SAME_TURN)
    head.sink((LEAD_SINK + 2 * SILENT) * always() - SILENT * (flag("summary") + flag("early") + flag("answering") + asked(0)) + quiet())
    head.fetch(dims(part), dims(part), LEAD_GAIN)
    if part.start == CONTENT.start:
        head.fetch(flag("over"), flagged("over"))


def end_lead(units: Units, codes: Codes) -> None:
    """Sixth MLP: the end token after the lead, and a first small word without its space."""
    units.step(flag("over") + flag("answering") + flag("summary") + flag("early") - flag("repeating"), 2.6, END_GAIN * codes.end())
    for word in FUNCTION_WORDS:
        if len(codes.encoder(word)) == 1:
            spaced = codes.now(f" {word}") / LEAD_GAIN
            units.step(asked(0) + flag("early") + spaced, 2.6, END_GAIN / 2 * (codes.sum(word) - codes.sum(f" {word}")))
