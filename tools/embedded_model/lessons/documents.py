"""Documents of a given number of tokens: real or made-up sentences, some passages quoted again later."""

from __future__ import annotations

import random

from tools.embedded_model.lessons.corpus import Speech
from tools.embedded_model.lessons.sample import Encoder, Ids
from tools.embedded_model.lessons.words import sentence
from tools.embedded_model.tokenizer import FUNCTION_WORDS

QUOTE_TOKENS = (10, 90)
POOL_SENTENCES = 4000


class Library:
    """Sentences to build documents from, encoded once."""

    def __init__(self, encoder: Encoder, speeches: list[Speech], seed: int) -> None:
        rng = random.Random(seed)
        self.encoder = encoder
        self.headings = [heading for speech in speeches for heading in speech.headings]
        self.texts = [speech.sentences for speech in speeches if speech.sentences]
        self.real = [encoder.all(sentences) for sentences in self.texts]
        self.known = sorted({word for sentences in self.texts for text in sentences for word in text.split() if word.isalpha()})
        self.alike = [word for word in self.known if word.lower() not in FUNCTION_WORDS]  # same tokens after a space as elsewhere
        self.made_up_texts = [sentence(rng, self.known) for _ in range(POOL_SENTENCES)]
        self.made_up = encoder.all(self.made_up_texts)

    def any_sentence(self, rng: random.Random) -> str:
        kind = rng.random()
        if kind < 0.5:
            return rng.choice(rng.choice(self.texts))
        return sentence(rng, self.known)

    def heading(self, rng: random.Random) -> str:
        """A line in which no sentence ends."""
        kind = rng.random()
        if kind < 0.4:
            return rng.choice(self.headings)
        words = rng.choice([*self.made_up_texts[:500], *self.texts[0][:20]]).rstrip('.!?"').split()[: rng.randint(1, 9)]
        text = " ".join(words).replace(".", "").replace("!", "").replace("?", "")
        style = rng.random()
        return text.upper() if style < 0.3 else text.title() if style < 0.6 else f"{text}:" if style < 0.8 else text


def fill(document: Ids, library: Library, rng: random.Random, tokens: int) -> None:
    """Extend ``document`` to exactly ``tokens`` tokens: runs of sentences, mostly real ones, and passages quoted from its text so far."""
    quoting = rng.choice([0.0, 0.2, 0.5])
    breaks = rng.choice([0.0, 0.1, 0.3, 1.0])
    real = rng.choice([1.0, 1.0, 0.7, 0.3, 0.0])
    encoder = library.encoder
    while len(document) < tokens:
        if document:
            document.extend([encoder.line] * rng.choice([1, 2]) if rng.random() < breaks else [encoder.space])
        if rng.random() < quoting and len(document) > 2 * QUOTE_TOKENS[0]:
            document.extend(_passage(document, rng))
        elif rng.random() < real:
            sentences = rng.choice(library.real)
            at = rng.randrange(len(sentences))
            for ids in sentences[at : at + rng.randint(1, 8)]:
                document.extend([*ids, encoder.space])
        else:
            document.extend(rng.choice(library.made_up))
    del document[tokens:]


def _passage(ids: Ids, rng: random.Random) -> Ids:
    length = min(rng.randint(*QUOTE_TOKENS), len(ids))
    # Half of the distances are log-uniform, far ones as often as near ones: short documents cannot teach long reach.
    back = min(len(ids), int(length * (len(ids) / length) ** rng.random())) if rng.random() < 0.5 else rng.randint(length, len(ids))
    start = len(ids) - back
    return ids[start : start + length]


def sentences(library: Library, rng: random.Random, tokens: int) -> list[str]:
    """Sentences of at most ``tokens`` tokens together, but at least one."""
    texts: list[str] = []
    used = 0
    while True:
        text = library.any_sentence(rng)
        used += len(library.encoder(text)) + 1
        if used > tokens:
            return texts or ["It is so."]
        texts.append(text)


def joined(texts: list[str], rng: random.Random) -> str:
    """One text, some of its sentences on lines of their own."""
    breaks = rng.choice([0.0, 0.2, 1.0])
    return "".join(text + ("\n" if rng.random() < breaks else " ") for text in texts).strip()
