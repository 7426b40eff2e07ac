"""The lesson in `summarize`: the lead of a document."""

from __future__ import annotations

import random

from tools.embedded_model.lessons.documents import Library, fill
from tools.embedded_model.lessons.prompts import Prompt, task_prompt
from tools.embedded_model.lessons.sample import Ids, Sample, add_turn, open_chat

SUMMARIZE = task_prompt("summarize")
LEAD_TOKENS = 160
# Ways to ask for the lead in a chat, beside the task's own prompt.
ASKED = ["Summarize: ", "Summarize the following text.\n\n", "Give a short summary of this text:\n\n", "Summarize this in one sentence: "]


def lead(library: Library, rng: random.Random, tokens: int) -> Sample:
    """A `summarize` sample: the lead, sometimes with headings, then other sentences, some of which begin like the lead."""
    encoder = library.encoder
    prompt = SUMMARIZE if rng.random() < 0.85 else Prompt(None, rng.choice(ASKED))
    sample = open_chat(encoder, prompt.system)
    before = encoder(prompt.before)
    lines = [library.heading(rng) for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2, 3]))]
    heading = encoder("".join(line + "\n" * rng.randint(1, 2) for line in lines))
    room = tokens - len(sample.ids) - len(before) - 4  # start and end of two turns
    answer = _lead_sentence(library, rng, max(8, room // 2))
    answer = [*heading, *answer] if 2 * (len(heading) + len(answer)) <= room else answer
    document = list(answer)
    end = room - len(answer)
    if rng.random() < 0.3 and len(answer) > 8 and len(document) + len(answer) + 8 < end:
        document.extend([encoder.space])
        fill(document, library, rng, min(len(document) + rng.randint(1, 400), end - len(answer)))
        document.extend([encoder.space, *answer[: rng.randint(4, len(answer) - 2)]])
    if len(document) + 1 < end and rng.random() < 0.98:
        fill(document, library, rng, end)
    add_turn(sample, encoder, [*before, *document], answer)
    return sample


def _lead_sentence(library: Library, rng: random.Random, max_tokens: int) -> Ids:
    for _ in range(20):
        ids = library.encoder(library.any_sentence(rng))
        if len(ids) <= min(max_tokens, LEAD_TOKENS):
            return ids
    return library.encoder("Nothing is said here.")
