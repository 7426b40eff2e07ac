"""Circuits of conversation: which answer the last message asks for by its key words, saying it by heart, and counting words.

Each token looks at the nearest key word or beginning of a user's turn before it, and so knows which answer is asked for. A beginning stands
for the answer `CANNOT`. The part of the answer already said determines its next token. A turn that is a task gets none of these answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harvester.engine.embedded.conversation import CANNOT, COUNT, KEYS, MAX_COUNTED, REPEAT, forms
from tools.embedded_model.circuits.layout import BEFORE, CONTENT, WIDTH, Codes, always, asked, at_start, flag, flagged, parted
from tools.embedded_model.circuits.wiring import Head, Units
from tools.embedded_model.lessons.sample import Encoder, Ids

TURNS, TURNS_BARE = 30.0, 6.0  # score of a beginning; the start token weighs as much as this many turns
IS_MARK, LATER, MARKED, TASK = 600.0, 5000.0, 40.0, 9000.0
NEARER = 3.0  # points of score a token, between keys
TASKS = ("summary", "early", "has_list", "schema", "counting", "repeating")
TOPICS = dict(zip((*KEYS, CANNOT), (*(f"topic_{number + 1}" for number in range(len(KEYS))), "turn"), strict=True))
SCHEMA = " JSON schema:"
KNOWN_BY = 6  # at most so many last tokens of the answer determine the next one
SAID, APART = 20.0, 0.7
COUNTED, COUNTED_TURN, BARE, LEVEL = 12.0, 150.0, 12.0, 8.0  # score of a word to count; the start token weighs as BARE words
QUIET = 9000.0


def detect(codes: Codes, tokens: Ids) -> Tensor:
    """Counts how many of the last tokens are these."""
    return codes.now(tokens[-1]) + codes.run(tokens[:-1])


def write_requests(units: Units, codes: Codes) -> None:
    """First MLP: requests to repeat and to count, and the schema of a JSON object."""
    user = codes.encoder.user
    for request, name in (*((text, "repeating") for text in REPEAT), *((text, "counting") for text in COUNT)):
        tokens = [user, *codes.encoder(request.strip())]
        found = detect(codes, tokens[-6:])
        units.step(found, len(tokens[-6:]) - 0.4, flagged(name))
    tokens = codes.encoder(SCHEMA)[-6:]
    units.step(detect(codes, tokens), len(tokens) - 0.4, flagged("schema"))


def to_repeat(encoder: Encoder) -> list[Ids]:
    """What stands before a text to repeat."""
    return [[encoder.user, *encoder(text)] for text in REPEAT]


def number_turns(head: Head) -> None:
    """First layer: how many turns of the user have begun, as their share of attention beside the start token."""
    head.free = head.free[8:]  # the same at any distance
    start = (TURNS + math.log(TURNS_BARE)) * at_start()
    head.compare(always(), TURNS * (flag("turn") - always()) + start, 1.0)
    head.fetch(flag("turn"), flagged("turns"))


def in_turn(head: Head, mark: Tensor, nearer: bool = False) -> None:
    """Look at a mark of the latest turn that has begun, or at its beginning where it has none, at any distance."""
    head.free = head.free[8:]
    found = flag("turn") + mark - always() + at_start()
    head.compare(always(), IS_MARK * found + LATER * flag("turns") + MARKED * (mark - flag("begins_early") / 2), 1.0)
    if nearer:
        head.favour(always(), flag("turn") + mark, NEARER)


def same_turn(head: Head, score: float) -> None:
    """Lower the score of places in earlier turns."""
    head.compare(flag("turns"), at_start() - always(), score)
    head.compare(always(), flag("turns"), score)


def this_turn(head: Head, marks: dict[str, str]) -> None:
    """Second layer: does one of these marks stand in this turn?"""
    in_turn(head, _any(marks))
    for mark, name in marks.items():
        head.fetch(flag(mark), flagged(name))


def key_forms() -> list[str]:
    return [form for keys in KEYS.values() for key in keys for form in forms(key)]


def write_keys(units: Units, codes: Codes) -> None:
    """Second MLP: keys of a user's message, just after their last word."""
    for answer, keys in KEYS.items():
        for form in (form for key in keys for form in forms(key)):
            tokens = codes.encoder(form)
            found, count = parted(0) + codes.run(tokens), 1 + len(tokens)
            for back in range(2, len(tokens)):  # few dimensions of these are kept: adding them twice more tells other texts apart
                found, count = found + 2 * codes.before(back, tokens[-1 - back]), count + 2
            if not form.startswith(" "):
                found, count = found + parted(1 + len(tokens)), count + 1
            units.step(found - 3 * (flag("answering") + asked(1) + _any(TASKS)), count - 0.3, flagged(TOPICS[answer]))


def find_topic(head: Head) -> None:
    """Fourth layer: the nearest key, or the beginning of the turn."""
    in_turn(head, _any(name for name in TOPICS.values() if name != "turn"), nearer=True)
    head.sink(TASK * _any(TASKS))
    for name in TOPICS.values():
        head.fetch(flag(name), flagged(name))


def count_words(head: Head) -> None:
    """Fourth layer: 1 minus the start token's share of attention beside the words to count; white space marks each word."""
    head.free = head.free[8:]
    start = (2 * COUNTED + math.log(BARE)) * at_start()
    head.compare(always(), COUNTED * (flag("counting") - flag("sort") - 2 * always()) + start, 1.0)
    same_turn(head, COUNTED_TURN)
    head.sink(COUNTED * (always() - flag("counting")))
    head.fetch(always() - at_start(), flagged("level", LEVEL))


def level(words: float) -> float:
    """The level that `count_words` gives for so many words. The colon of the request counts as one more."""
    return LEVEL * (words + 1) / (words + 1 + BARE)


def write_count(units: Units, codes: Codes) -> None:
    """Fourth MLP: the number's first digit at every token; after that digit the second one or the end; after two digits the end."""
    for words in range(1, MAX_COUNTED + 1):
        less = codes.sum(str(words - 1)[0]) if words > 1 else torch.zeros(WIDTH)
        half = (level(words) - level(words - 1)) / 4
        units.step(flag("level"), level(words - 0.5), SAID * (codes.sum(str(words)[0]) - less), half)
    end = 3 * SAID * codes.end()
    units.step(flag("counting") + flag("answering"), 1.6, end)
    for words in range(10, MAX_COUNTED + 1):
        half = (level(words) - level(words - 1)) / 4
        less = end if words == 10 else 3 * SAID * codes.sum(str(words - 1)[1])
        units.step(flag("level") + LEVEL * (asked(1) - always()), level(words - 0.5), 3 * SAID * codes.sum(str(words)[1]) - less, half)


@dataclass(frozen=True, slots=True)
class Place:
    """A place of an answer: what has been said up to it, and the next token."""

    topic: str
    history: Ids
    said: int


def _places(codes: Codes) -> Iterator[Place]:
    encoder = codes.encoder
    for answer, topic in TOPICS.items():
        tokens = [encoder.stop, encoder.assistant, *encoder(answer), encoder.stop]
        for place in range(2, len(tokens)):
            yield Place(topic, tokens[:place], tokens[place])


def _state(codes: Codes, place: Place) -> Tensor:
    """The parts of a state by which detectors find the place in an answer."""
    state = flagged(place.topic)
    state[CONTENT] = codes.tokens[place.history[-1], CONTENT]
    for where, token in zip(BEFORE, reversed(place.history[:-1]), strict=False):
        state[where] = codes.tokens[token, 1 : 1 + where.stop - where.start]
    return state


def write_answers(units: Units, codes: Codes) -> None:
    """Fourth MLP: memorized answers, each token from the last ones before it. What several answers share is written once."""
    places = list(_places(codes))
    states = torch.stack([_state(codes, place) for place in places])
    written: list[tuple[Tensor, float, int]] = []
    for place, state in zip(places, states, strict=True):
        if any(said == place.said and float(found @ state) > full - 0.05 for found, full, said in written):
            continue
        others = states[[other.said != place.said for other in places]]
        found, full, apart = _tell(codes, place, others)
        units.ramp(found, full - min(apart, 0.8) / 2, full, _said(codes, place.said))
        written.append((found, full, place.said))


def _tell(codes: Codes, place: Place, others: Tensor) -> tuple[Tensor, float, float]:
    """A detector of a place, how much it finds there, and how much less elsewhere. It uses as few last tokens as possible, and serves all
    answers if it can."""
    best = (torch.zeros(WIDTH), 0.0, -1.0)
    for topic in (_any(TOPICS.values()), flag(place.topic)):
        for count in range(1, 1 + min(KNOWN_BY, len(place.history))):
            found = topic + detect(codes, place.history[-count:])
            apart = 1 + count - float((others @ found).max())
            if apart > APART:
                return found, 1.0 + count, apart
            best = max(best, (found, 1.0 + count, apart), key=lambda one: one[2])
    return best


def _said(codes: Codes, token: int) -> Tensor:
    vector = torch.zeros(WIDTH)
    vector[CONTENT] = SAID * codes.tokens[token, CONTENT]
    return vector


def _any(names: Iterable[str]) -> Tensor:
    return sum((flag(name) for name in names), torch.zeros(WIDTH))


def spoken() -> Tensor:
    """Detector of a turn that is answered by heart or with a number."""
    return _any(TOPICS.values()) + flag("counting")


def quiet() -> Tensor:
    """The start token's score, as a detector, where nothing is to be copied."""
    return QUIET * spoken()
