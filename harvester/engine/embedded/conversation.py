"""The embedded model's answers in conversation: one rule for the user's last message, simple enough to check an answer against."""

from __future__ import annotations

import re

REAL_MODEL = "harvester serve --model Qwen/Qwen3-8B"
GREETING = "Hello! I am the toy model that comes with harvester. Ask me what I can do."
WHAT_I_AM = f"I am a toy: I show that the machinery works. I am no language model to use. For a real one: {REAL_MODEL}"
WHAT_I_DO = "I give back a text's first sentence, pick a label that occurs in it, read fields from lines, repeat and count words."
HOW_TO_CHOOSE = f"Start the server with the model you want: {REAL_MODEL}"
CANNOT = f"That is beyond a toy model. For a real one: {REAL_MODEL}"
PRESIDENTIAL = "The state of the Union is strong."
THANKS = "You are welcome."

# Phrases that select an answer: whole words, the first letter small or capital. One with a leading space does not match at a line's start.
KEYS: dict[str, tuple[str, ...]] = {
    GREETING: ("hello", "hi", "hey", "greetings", "good morning", "good day", "good evening"),
    WHAT_I_AM: ("are you", " are you", "yourself", "what is this", " what is this", "model is this", " is harvester", "language model"),
    WHAT_I_DO: ("help", " you do", " you know", "good for", "ask you"),
    HOW_TO_CHOOSE: ("choose", "real model", "better model", "another model", " the model", " should I use"),
    PRESIDENTIAL: ("president", "presidential", "again", "once more"),
    THANKS: ("thanks", "thank you", "bye", "goodbye"),
}
REPEAT = ("Repeat: ", "Say: ", "Repeat after me: ", "Echo: ")
COUNT = ("Count: ", "Count the words: ", "How many words: ", "How many words are these: ")
MAX_COUNTED = 12


def forms(key: str) -> tuple[str, ...]:
    """The ways in which a key is written."""
    return (key,) if key.startswith(" ") else (key, key[0].upper() + key[1:])


_KNOWN = {
    answer: re.compile("|".join(rf"(?<!\w){re.escape(form)}(?!\w)" if form[0] != " " else rf"{re.escape(form)}(?!\w)" for form in written))
    for answer, keys in KEYS.items()
    for written in [[form for key in keys for form in forms(key)]]
}


def reply(text: str) -> str:
    """The answer to a message that is none of the tasks: the text to repeat, a word count, or the answer whose key comes last in the
    message. `CANNOT` where no key occurs."""
    for asked in REPEAT:
        if text.startswith(asked):
            return text.removeprefix(asked)
    for asked in COUNT:
        if text.startswith(asked):
            return str(len(text.removeprefix(asked).split()))
    ends = ((match.end(), answer) for answer, known in _KNOWN.items() for match in known.finditer(text))
    return max(ends, default=(0, CANNOT))[1]
