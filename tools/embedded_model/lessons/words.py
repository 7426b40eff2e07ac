"""Made-up words, names, values and sentences: what no model can know by heart, so that it has to copy."""

from __future__ import annotations

import random
import string

ONSETS = ["b", "br", "c", "ch", "cl", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "l", "m", "n", "p", "pl", "qu", "r", "s", "sh", "sk"]
ONSETS += ["st", "t", "th", "tr", "v", "w", "x", "y", "z", "zh", ""]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou", "ie", "y", "oo", "é", "ö"]
CODAS = ["", "", "", "n", "r", "l", "s", "t", "nd", "rk", "st", "m", "x", "ng", "ck", "lt", "v"]


def word(rng: random.Random) -> str:
    syllables = rng.choices([1, 2, 3], [2, 5, 3])[0]
    return "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(syllables))


def name(rng: random.Random) -> str:
    return " ".join(word(rng).capitalize() for _ in range(rng.choices([1, 2, 3], [4, 5, 1])[0]))


def number(rng: random.Random) -> str:
    whole = str(rng.randrange(10 ** rng.randint(1, 6)))
    return whole if rng.random() < 0.5 else f"{whole}.{rng.randrange(10)}{rng.choice(['', str(rng.randrange(10))])}"


def code(rng: random.Random) -> str:
    letters = "".join(rng.choices(string.ascii_uppercase, k=rng.randint(1, 4)))
    return f"{letters}{rng.choice(['-', '', '/', '_'])}{rng.randrange(10 ** rng.randint(2, 6))}"


def date(rng: random.Random) -> str:
    return f"{rng.randint(1900, 2099)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"


def value(rng: random.Random, known: list[str], alike: list[str]) -> str:
    """A value as it stands after ``key: ``. Its first word has the same tokens after a space as after a quote, as those of ``alike`` do."""
    kind = rng.random()
    if kind < 0.4:
        return name(rng)
    if kind < 0.5:
        return code(rng)
    if kind < 0.6:
        return date(rng)
    if kind < 0.7:
        return f"{word(rng)}@{word(rng)}.{rng.choice(['com', 'org', 'net'])}"
    words = [rng.choice(known) if rng.random() < 0.7 else word(rng) for _ in range(rng.randint(1, 6))]
    return " ".join([words[0] if words[0] not in known else rng.choice(alike), *words[1:]])


def sentence(rng: random.Random, known: list[str]) -> str:
    """Random words that `lead` takes for one sentence. Each sentence has its own share of made-up words."""
    made_up, few = rng.random() ** 2, rng.random() < 0.25
    stock = [rng.choice(known) for _ in range(rng.randint(2, 8))] if few else known
    words = [_any_word(rng, stock, made_up) for _ in range(min(60, max(2, int(rng.lognormvariate(2.4, 0.6)))))]
    words[0] = words[0][:1].upper() + words[0][1:]
    # No word that `lead` would read as an initial or a title may stand before a mark.
    words[-1] = rng.choice(known) if len(words[-1]) < 4 else words[-1]
    return " ".join(words) + rng.choices([".", "!", "?", '."'], [16, 1, 1, 1])[0]


def _any_word(rng: random.Random, stock: list[str], made_up: float) -> str:
    if rng.random() < made_up:
        kind = rng.random()
        text = word(rng) if kind < 0.6 else name(rng) if kind < 0.8 else number(rng) if kind < 0.9 else code(rng)
    else:
        text = rng.choice(stock)
    return text + rng.choices(["", ",", ";", ":"], [40, 3, 0.5, 0.5])[0]
