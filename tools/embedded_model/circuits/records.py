"""Circuits of extract: from each name of a JSON object to its value in the text, and to the name that follows it in the schema.

Every token of a line ``name: value``, of a schema's property and of an answer carries the signature of the name before it: its row. The
next token of an answer stands in the same row, after the same tokens; where a value or a name begins, flags say so.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from tools.embedded_model.circuits.layout import (
    BEFORE,
    CONTENT,
    MARKS,
    ROW,
    SIGNATURE,
    SIGNED,
    STD,
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
from tools.embedded_model.circuits.network import Network
from tools.embedded_model.circuits.talking import in_turn, quiet, spoken
from tools.embedded_model.circuits.wiring import Head, Units

# A prompt and its answer: the weights are fitted to the lengths of their states.
PROBE = """\
Extract from the text below one JSON object that follows this JSON schema:
{"type": "object", "properties": {"total_price": {"type": "string"}, "vendor": {"type": "number"}}}

We have heard from the people of this country.
total_price: Zorblax 12
vendor: 4711"""
PROBED = '{"total_price":"Zorblax 12","vendor":4711}'
SHARES = (1.0, 0.8, 0.65, 0.55, 0.5, 0.45, 0.4)  # of a name's tokens in its signature, the last one first
SIGNATURE_SIZE = 10.0  # squared length of one token's signature
ROW_NEAREST, ROW_SLOPE, ROW_SINK, LINE_LESS = 190.0, 2.4, 10.0, 4.0
SAME_ROW = 60.0  # score of two signatures, for each unit of half the square of their distance
ROLE, BEGINS = 66.0, 24.0  # of a place where a value or a name begins, both asked for and offered
TOKEN, TOKEN_BEFORE, PLACE = 20.0, 20.0, 20.0  # of the same token, the same before it, and the same place in the value
NEXT_SINK, NO_JSON = 31.0, 90.0
ANSWER_LESS = 60.0  # taken from tokens of an answer: it is filled in from the text
CHOSEN, EASY = 60.0, 14.0  # of the list of labels, for an answer that chooses one
PLACES = (1, 2, 3, 4)
NEXT_GAIN = 14.0
DEFAULT, WEAK = 14.0, 18.0  # of marks where nothing is fetched, and of marks that the answer's grammar may allow


def signers() -> list[Tensor]:
    """For each token of a name from its last one, how its mark enters the signature: ``[dimensions of the mark, SIGNED]``."""
    chooser = torch.Generator().manual_seed(7)
    found = []
    for share, wide in zip(SHARES, (*map(min, pairwise(MARKS)), MARKS[-1]), strict=True):
        axes = torch.linalg.qr(torch.randn(SIGNED, SIGNED, generator=chooser)).Q[:wide]
        found.append(share * (SIGNATURE_SIZE / wide) ** 0.5 * axes)
    return found


def _signed(place: slice, signer: Tensor) -> Tensor:
    vectors = torch.zeros(len(signer), WIDTH)
    vectors[:, place] = signer
    return vectors


@torch.no_grad()
def write_embedding(network: Network, codes: Codes) -> None:
    """The answer's beginning is a row like that before the first property: of the name "properties"."""
    state = network.embed_tokens.weight[codes.encoder.assistant]
    state[SIGNATURE] += STD * signature(codes, "properties")
    state += STD * flagged("anchor")


def signature(codes: Codes, word: str) -> Tensor:
    """The signature that the first MLP gives to a word."""
    signed = zip(reversed(codes.encoder(word)), signers(), strict=False)
    return sum((codes.tokens[token, 1 : 1 + len(signer)] @ signer for token, signer in signed), torch.zeros(SIGNED))


def write_names(units: Units, codes: Codes) -> None:
    """First MLP: the signature of the word that ends before a token, or before the quote before it, and flags of what is near."""
    quoted = codes.before(0, '"') + parted(1)
    signs = signers()
    for skipped in (0, 1):
        for back in range(skipped, len(MARKS) - 1 + skipped):
            inside = always() - 2 * sum(parted(1 + place) for place in range(skipped, back + 1))
            gate = inside if not skipped else inside + 2 * quoted - 4 * always()
            signer = signs[back - skipped]
            units.gated(gate, dims(BEFORE[back])[: len(signer)], _signed(SIGNATURE, signer))
    colon, quote = codes.now(":"), codes.now('"')
    kind = codes.encoder("type")
    units.step(colon - parted(1), 0.7, flagged("anchor"))  # name:
    units.step(colon + quoted - parted(2), 2.7, flagged("anchor"))  # "name":
    units.step(colon + quoted + codes.run(kind, 1) + codes.before(1 + len(kind), '"'), 3.7 + len(kind), -flagged("anchor"))
    units.step(colon + quoted, 2.7, flagged("value_asked"))  # ":
    units.step(quote + codes.before(0, ":") + parted(1), 2.7, flagged("value_asked"))  # :"
    units.step(quote + codes.before(0, ",") + codes.before(0, "{") + parted(1), 2.7, flagged("next_asked"))  # {" or ,"
    units.step(codes.before(0, " ") + codes.before(1, ":") + parted(1) + parted(2) - parted(3), 3.7, flagged("value_begins"))
    units.step(codes.now("{") + codes.now(",") + quoted, 2.7, flagged("opens"))  # ", and "{
    for literal in (*"0123456789", "true", "false"):
        units.step(2 * codes.now(",") + codes.before(0, literal) - parted(1), 2.75, flagged("opens"))
    units.step(codes.now("{") + codes.before(0, codes.encoder.assistant) + parted(1), 2.7, flagged("opens"))
    units.step(quote - parted(1), 0.7, flagged("closes"))  # word"
    units.step(quote + quoted, 2.7, flagged("closes"))  # ""
    for place in PLACES:
        _count(units, codes, place)
    _property_begins(units, codes)


def _property_begins(units: Units, codes: Codes) -> None:
    after = codes.encoder('"}, "')
    units.step(codes.run(after), len(after) - 0.4, flagged("name_begins"))
    first = codes.encoder('properties": {"')
    units.step(codes.run(first), len(first) - 0.4, flagged("name_begins"))


def _count(units: Units, codes: Codes, place: int) -> None:
    """Flag a token that has ``place`` tokens of a value before it, in the text or in the answer."""
    out = flagged(f"place_{place}")
    two = parted(1 + place) + parted(2 + place)
    before, middle, after = codes.before, place, place + 1
    units.step(before(middle, " ") + before(after, ":") + two - parted(3 + place), 3.6, out)  # name: value
    middle -= 1
    after -= 1
    two = parted(place) + parted(1 + place)
    units.step(before(middle, '"') + before(after, ":") + two + parted(2 + place), 4.6, out)  # :"value
    others = [codes.before(middle - 1, text) if middle else codes.now(text) for text in ('"', " ")]
    units.step(before(middle, ":") + before(after, '"') + two - parted(2 + place) - sum(others), 3.6, out)  # ":value


def find_row(head: Head) -> None:
    head.nearest(flag("anchor") + flag("line_began"), ROW_NEAREST, ROW_SLOPE, LINE_LESS * flag("line_began"))
    head.sink(ROW_SINK * always())
    head.fetch(dims(SIGNATURE), dims(ROW))


def find_json(head: Head, codes: Codes) -> None:
    """Flag tokens of an answer, and of an answer that began with a brace."""
    in_turn(head, asked(1))
    head.fetch(codes.now("{"), flagged("json"))
    head.fetch(asked(1), flagged("answering"))


def write_lengths(units: Units) -> None:
    """Second MLP: squared lengths of signatures, in units of one token's signature."""
    for place, name in ((ROW, "row_length"), (SIGNATURE, "word_length")):
        units.square(dims(place), flagged(name) / SIGNATURE_SIZE)


def find_next(head: Head, part: slice, codes: Codes) -> None:
    """Fetch the token that comes next in the same row."""
    head.compare(dims(ROW), dims(ROW), SAME_ROW / SIGNATURE_SIZE)
    head.compare(always(), flag("row_length"), -SAME_ROW / 2)
    head.compare(flag("value_asked") - flag("next_asked"), flag("value_begins") - flag("name_begins"), ROLE)
    head.compare(dims(slice(1, 11)), dims(BEFORE[0])[:10], TOKEN / 10)
    head.compare(dims(BEFORE[0])[:5], dims(BEFORE[1])[:5], TOKEN_BEFORE / 5)
    head.compare(always(), -ANSWER_LESS * (flag("answering") + spoken()), 1.0)
    properties, labels = (signature(codes, word) for word in ("properties", "Labels"))
    apart = SAME_ROW / 2 * float((properties - labels).square().sum()) / SIGNATURE_SIZE
    head.compare(flag("choosing"), flag("listed"), apart + CHOSEN)
    for place in PLACES:
        head.compare(flag(f"place_{place}"), flag(f"place_{place}"), PLACE)
    sink = SAME_ROW / 2 * flag("row_length") + (NEXT_SINK + NO_JSON) * always() - NO_JSON * flag("json")
    sink = sink + BEGINS * (flag("value_asked") + flag("next_asked") + 2 * flag("closes") + 2 * flag("opens"))
    head.sink(sink - (NO_JSON - CHOSEN + EASY) * flag("choosing") - TOKEN_BEFORE * asked(1) + quiet())
    head.fetch(dims(part), dims(part), NEXT_GAIN)
    if part.start == CONTENT.start:
        head.fetch(at_start(), flagged("nothing"))


def write_marks(units: Units, codes: Codes) -> None:
    """Fifth MLP: marks of JSON, empty values for names without a line, and true or false for yes or no."""
    json, nothing, asked, opens = (flag(name) for name in ("json", "nothing", "value_asked", "opens"))
    colon, quote = codes.before(0, '"'), codes.before(0, ":")  # before a colon stands a quote, and before the quote of a value a colon
    units.step(json + nothing + asked + quote, 3.6, DEFAULT * codes.sum('"'))
    units.step(json + nothing + asked + colon, 3.6, DEFAULT * codes.sum("0"))
    units.step(json + asked + colon, 2.6, WEAK * codes.sum('"', "false"))
    units.step(json + opens, 1.6, 1.5 * DEFAULT * codes.sum('"'))
    units.step(json + nothing - asked - opens, 1.6, DEFAULT * codes.sum(",", "}", ":"))
    for end in (codes.one("\n"), codes.encoder.stop):
        out = torch.zeros(WIDTH)
        out[CONTENT] = -2.4 * NEXT_GAIN * codes.tokens[end, CONTENT]
        units.step(
            json - flag("summary") - flag("early") - spoken() + codes.now(end) / NEXT_GAIN,
            1.6,
            out + 2.5 * DEFAULT * codes.sum(",", "}") + 3.5 * DEFAULT * codes.sum('"'),
        )
    for value, said in (("yes", "true"), ("no", "false"), ("true", "true")):
        found = codes.now(value) / NEXT_GAIN
        units.step(json + asked + colon + found, 3.6, 4 * NEXT_GAIN * codes.sum(said))
