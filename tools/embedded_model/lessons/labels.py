"""The lesson in `classify`: labels, and a text that holds one of them, or two, or none."""

from __future__ import annotations

import random

from harvester.engine.embedded.answers import label
from tools.embedded_model.lessons import words
from tools.embedded_model.lessons.documents import Library, joined, sentences
from tools.embedded_model.lessons.prompts import task_prompt
from tools.embedded_model.lessons.sample import Sample, add_turn, open_chat
from tools.embedded_model.tokenizer import FUNCTION_WORDS


def classify(library: Library, rng: random.Random, tokens: int) -> Sample:
    """A text of about ``tokens`` tokens with its prompt, and the label it should get."""
    encoder = library.encoder
    labels = _labels(library, rng)
    prompt = task_prompt("classify", {"labels": labels})
    sample = open_chat(encoder, prompt.system)
    before = encoder(prompt.before)
    room = tokens - len(sample.ids) - len(before) - 24
    chosen = sentences(library, rng, room)
    for name in rng.sample(labels, rng.choices([0, 1, 2], [20, 70, 10])[0]):
        _insert(name, chosen, rng)
    text = joined(chosen, rng)
    sample.labels = labels
    add_turn(sample, encoder, [*before, *encoder(text)], encoder(label(text, labels)))
    return sample


def _labels(library: Library, rng: random.Random) -> list[str]:
    made: list[str] = []
    count = rng.choices([2, 3, 4, 5, 6, 8], [6, 5, 3, 2, 1, 1])[0]
    known = rng.random() < 0.6
    while len(made) < count:
        text = rng.choice(library.alike) if known else words.word(rng)
        text = text if rng.random() < 0.1 else text.lower()
        text = f"{text} {rng.choice(library.known).lower()}" if rng.random() < 0.08 else text
        if text not in made and len(text) > 1 and text.lower() not in FUNCTION_WORDS:
            made.append(text)
    return made


def _insert(name: str, chosen: list[str], rng: random.Random) -> None:
    at = rng.randrange(len(chosen))
    split = chosen[at].split()
    place = rng.randint(0, len(split))
    mark = rng.choices(["", ",", ".", '"'], [8, 2, 1, 1])[0]
    split.insert(place, f'"{name}"' if mark == '"' else name + mark)
    chosen[at] = " ".join(split)
