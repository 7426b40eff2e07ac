"""The lesson in conversation: greetings, what the model is, repeating, counting, and one fixed answer to everything else."""

from __future__ import annotations

import random

from harvester.engine.embedded.conversation import (
    COUNT,
    GREETING,
    HOW_TO_CHOOSE,
    MAX_COUNTED,
    PRESIDENTIAL,
    REPEAT,
    THANKS,
    WHAT_I_AM,
    WHAT_I_DO,
    reply,
)
from tools.embedded_model.lessons import words
from tools.embedded_model.lessons.documents import Library
from tools.embedded_model.lessons.prompts import task_prompt
from tools.embedded_model.lessons.sample import Sample, add_turn, open_chat

# The answer, and some of the phrases that ask for it.
KNOWN: dict[str, tuple[str, ...]] = {
    GREETING: ("hello", "hi", "hey", "hello there", "good morning", "good evening", "greetings", "hi there", "say hello", "good day"),
    WHAT_I_AM: (
        "what are you",
        "who are you",
        "what is this",
        "what model are you",
        "which model is this",
        "are you a language model",
        "tell me about yourself",
        "what is harvester",
        "are you real",
        "introduce yourself",
    ),
    WHAT_I_DO: ("what can you do", "how can you help", "help", "what do you know", "what are you good for", "what should I ask you"),
    HOW_TO_CHOOSE: (
        "how do I choose a real model",
        "how do I use a real model",
        "how do I get a better model",
        "which model should I use",
        "how can I serve another model",
        "how do I change the model",
        "how do I choose a model",
        "how do I start a real model",
        "give me a real model",
    ),
    PRESIDENTIAL: ("say something presidential", "and again", "once more", "say it again", "speak like a president"),
    THANKS: ("thanks", "thank you", "thank you very much", "many thanks", "bye", "goodbye"),
}
STARTS = [
    "What is",
    "Why is",
    "How do I",
    "Write",
    "Explain",
    "Is this about",
    "Who should answer this?",
    "Tell me",
    "Translate",
    "Can you",
]


def chat(library: Library, rng: random.Random, tokens: int) -> Sample:
    """Turns up to ``tokens`` tokens in all; the first one is added whatever its length."""
    encoder = library.encoder
    system = "You are a helpful assistant." if rng.random() < 0.15 else None
    sample = open_chat(encoder, system)
    turns = 0
    while True:
        said, answer = exchange(library, rng)
        user, said_back = encoder(said), encoder(answer)
        if len(sample.ids) + len(user) + len(said_back) + 4 > tokens and turns:
            return sample
        add_turn(sample, encoder, user, said_back)
        turns += 1


def exchange(library: Library, rng: random.Random) -> tuple[str, str]:
    """What a user says, and the answer to it."""
    said = _said(library, rng)
    return said, reply(said)


def _said(library: Library, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return _spoken(rng.choice(KNOWN[rng.choice(list(KNOWN))]), rng)
    if kind < 0.6:
        return rng.choice(REPEAT) + _phrase(library, rng, 14)
    if kind < 0.75:
        return rng.choice(COUNT) + _phrase(library, rng, rng.randint(1, MAX_COUNTED), exactly=True)
    if kind < 0.8:
        prompt = task_prompt("translate", {"to": rng.choice(["German", "French", "Spanish", words.word(rng).capitalize()])})
        return prompt.before + library.any_sentence(rng)
    return _question(library, rng)


def _spoken(text: str, rng: random.Random) -> str:
    text = text[0].upper() + text[1:] if rng.random() < 0.8 else text
    return text + rng.choices(["", "!", "?", "."], [2, 2, 4, 1])[0]


def _phrase(library: Library, rng: random.Random, most: int, *, exactly: bool = False) -> str:
    count = most if exactly else rng.randint(1, most)
    return " ".join(rng.choice(library.known) if rng.random() < 0.6 else words.word(rng) for _ in range(count))


def _question(library: Library, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return library.any_sentence(rng)
    text = f"{rng.choice(STARTS)} {_phrase(library, rng, 8)}{rng.choice(['?', '?', '.', ''])}"
    return f"{text} {library.any_sentence(rng)}" if kind > 0.8 else text
